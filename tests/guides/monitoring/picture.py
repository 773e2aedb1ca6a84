"""Draws contrib/monitoring/dashboard.json with the data of a Prometheus, each panel where Grafana has it.

    picture.py PROMETHEUS INSTANCE SECONDS PICTURE

The picture shows the last SECONDS of the instances that match INSTANCE. Prints a line for each panel: its id, its
title, and the number of values drawn.
"""

import json
import math
import sys
import textwrap
import time
from datetime import datetime, timezone
from pathlib import Path
from urllib.parse import urlencode
from urllib.request import urlopen

import matplotlib

matplotlib.use("Agg")
from matplotlib import patches, pyplot, ticker
from PIL import Image

DASHBOARD = Path(__file__).parents[3] / "contrib/monitoring/dashboard.json"
# In inches: the width of the picture, a row of the grid, a letter, a line of text.
WIDTH, ROW, LETTER, LINE = 8.0, 0.25, 0.05, 0.125
PAGE, PANEL, EDGE, TEXT = "#e4e7eb", "#ffffff", "#c9ced4", "#24292e"
COLORS = {"green": "#2c9a4b", "orange": "#e07b00", "red": "#d22f3d"}
PALETTE = ["#2c9a4b", "#d9a400", "#2f7fd1", "#e0662f", "#b93a8f", "#5a4fa8"]
TIMES = [(1, 1e-3, "ms"), (60, 1, "s"), (3600, 60, "min"), (86400, 3600, "hours"), (604800, 86400, "days")]
TIMES += [(31536000, 604800, "weeks"), (math.inf, 31536000, "years")]
NUMBERS = [(1e9, " Bil"), (1e6, " Mil"), (1e3, " K"), (0, "")]
STYLE = {
    "font.size": 6.5, "text.color": TEXT, "xtick.color": TEXT, "ytick.color": TEXT, "axes.facecolor": "none",
    "axes.edgecolor": EDGE, "axes.linewidth": 0.5, "lines.linewidth": 0.9, "xtick.major.size": 0, "ytick.major.size": 0,
    "axes.spines.top": False, "axes.spines.right": False, "axes.spines.left": False, "legend.frameon": False,
    "legend.borderpad": 0.1, "legend.borderaxespad": 0, "legend.handlelength": 1, "legend.handleheight": 0.3,
    "legend.handletextpad": 0.5, "legend.columnspacing": 1.2, "legend.labelspacing": 0.3,
}

prometheus, instance, length, picture = sys.argv[1:]
end, length = time.time(), int(length)
moments = [end - length + second for second in range(length + 1)]


def ask(path, **parameters):
    with urlopen(f"http://{prometheus}/api/v1/{path}?{urlencode(parameters)}") as answer:
        return json.load(answer)["data"]["result"]


def query(panel):
    """The legend and the values of each series: one value, or one for each of the moments, NaN if there is none."""
    for target in panel["targets"]:
        text = target["expr"].replace("$instance", instance).replace("$__rate_interval", "8s")
        if target["instant"]:
            found = ask("query", query=text, time=end)
        else:
            found = ask("query_range", query=text, start=moments[0], end=end, step=1)
        for series in found:
            legend = target["legendFormat"]
            for label, value in series["metric"].items():
                legend = legend.replace("{{%s}}" % label, value)
            values = series.get("values") or [series["value"]]
            by_moment = {round(moment - moments[0]): float(value) for moment, value in values}
            wanted = [length] if target["instant"] else range(length + 1)
            yield legend, [by_moment.get(second, math.nan) for second in wanted]


def show(value, field):
    """A value as text, by the mapping of NaN and the unit of its field."""
    special = [mapping["options"] for mapping in field["mappings"] if mapping["type"] == "special"]
    if math.isnan(value):
        return next((options["result"]["text"] for options in special if options["match"] == "nan"), "NaN")
    unit = field["unit"]
    if unit == "dateTimeFromNow":
        return show(end - value / 1000, {**field, "unit": "s"}) + " ago"
    if unit == "s":
        size, name = next(rest for limit, *rest in TIMES if abs(value) < limit) if value else (1, "s")
        return f"{value / size:.3g} {name}"
    if unit == "percentunit":
        return f"{round(value * 100, 1):g}%"
    if unit == "none":
        return f"{value:g}"
    size, name = next(number for number in NUMBERS if abs(value) >= number[0])
    return f"{value / (size or 1):.3g}{name}" + (" ops/s" if unit == "ops" else "")


def color_of(value, field):
    """The color of the last threshold that a value has reached."""
    reached = [step for step in field["thresholds"]["steps"] if step["value"] is None or value >= step["value"]]
    return COLORS[reached[-1]["color"]]


def size(area):
    return area.bbox.width / area.dpi, area.bbox.height / area.dpi


def draw_legend(area, colors, labels):
    """Draws the legend at the bottom, and returns the number of its lines."""
    room = int(size(area)[0] / LETTER) - 3
    labels = [textwrap.fill(label, room) for label in labels]
    columns = max(1, min(len(labels), room // (max(map(len, labels), default=1) + 4)))
    handles = [patches.Patch(color=color) for color in colors]
    area.legend(handles, labels, loc="lower left", bbox_to_anchor=(0.1 / size(area)[0], 0.02), ncols=columns)
    return sum(label.count("\n") + 1 for label in labels) if columns == 1 else math.ceil(len(labels) / columns)


def add_axes(area, letters, lines, letters_right=0):
    """Axes between labels with that many letters on the left and on the right and that many lines at the bottom."""
    width, height = size(area)
    left, right = (letters * LETTER + 0.15) / width, (letters_right * LETTER + 0.15) / width
    bottom, top = (lines * LINE + 0.12) / height, 0.33 / height
    return area.add_axes([left, bottom, 1 - left - right, 1 - bottom - top])


def draw_stat(area, field, series):
    values = [value for _, [value] in series]
    text = "\n".join(show(value, field) for value in values) or field.get("noValue", "No data")
    colors = [color_of(value, field) for value in values] if field["color"]["mode"] == "thresholds" else PALETTE
    fitting = min(15, size(area)[0] * 72 / (max(map(len, text.splitlines())) * 0.75))
    color = (colors or [TEXT])[0]
    if field["colorMode"] == "background":
        area.set_facecolor(color)
        color = PANEL
        area.texts[0].set_color(PANEL)
    area.text(0.5, 0.42, text, ha="center", va="center", size=fitting, weight="bold", color=color)


def time_axis(axes):
    axes.set_xlim(moments[0], end)
    minutes = [moment for moment in range(int(moments[0]), int(end)) if moment % 60 == 0]
    axes.set_xticks(minutes, [datetime.fromtimestamp(minute, timezone.utc).strftime("%H:%M") for minute in minutes])


def draw_timeseries(area, field, series):
    colors = [PALETTE[row % len(PALETTE)] for row in range(len(series))]
    lines = draw_legend(area, colors, [legend for legend, _ in series])
    largest = max((value for _, values in series for value in values if math.isfinite(value)), default=0)
    top = field.get("max") or largest * 1.1 or 1
    locator = ticker.MaxNLocator(4, steps=[1, 2, 2.5, 5, 10])
    ticks = [tick for tick in locator.tick_values(field["min"], top) if tick <= top]
    labels = [show(tick, field) for tick in ticks]
    axes = add_axes(area, max(map(len, labels)), lines + 1)
    axes.set_yticks(ticks, labels)
    axes.grid(axis="y", color=EDGE, linewidth=0.3)
    for color, (_, values) in zip(colors, series):
        axes.plot(moments, values, color=color)
        axes.fill_between(moments, values, color=color, alpha=field["custom"]["fillOpacity"] / 100, linewidth=0)
    axes.set_ylim(field["min"], top)
    for step in field["thresholds"]["steps"][1:] if "thresholdsStyle" in field["custom"] else []:
        axes.axhline(step["value"], color=COLORS[step["color"]], linewidth=0.8, linestyle="--")
    time_axis(axes)


def draw_bargauge(area, field, series):
    names = [legend for legend, _ in series]
    axes = add_axes(area, max(map(len, names), default=0), 0, 6)
    axes.barh(range(len(series)), field["max"], color=PAGE, height=0.6)
    for row, (_, [value]) in enumerate(series):
        color = color_of(value, field)
        axes.barh(row, value, color=color, height=0.6)
        axes.text(field["max"] * 1.03, row, show(value, field), va="center", color=color, weight="bold")
    axes.set_xlim(field["min"], field["max"])
    axes.set_xticks([])
    axes.set_yticks(range(len(series)), names)
    axes.set_ylim(max(len(series), 3) - 0.5, -0.5)
    axes.spines["bottom"].set_visible(False)


def draw_state_timeline(area, field, series):
    states = {float(value): state for value, state in field["mappings"][0]["options"].items()}
    colors = {value: COLORS[state["color"]] for value, state in states.items()}
    lines = draw_legend(area, colors.values(), [state["text"] for state in states.values()])
    names = [legend for legend, _ in series]
    axes = add_axes(area, max(map(len, names), default=0), lines + 1)
    for row, (_, values) in enumerate(series):
        for value, color in colors.items():
            spans = [(moment, 1) for moment, found in zip(moments, values) if found == value]
            axes.broken_barh(spans, (row - 0.4, 0.8), color=color, linewidth=0)
    axes.set_yticks(range(len(series)), names, size=min(6.5, size(area)[1] / (len(series) + 8) * 72))
    axes.set_ylim(len(series) - 0.5, -0.5)
    time_axis(axes)


def main():
    panels = json.loads(DASHBOARD.read_text())["panels"]
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels)
    pyplot.rcParams.update(STYLE)
    figure = pyplot.figure(figsize=(WIDTH, rows * ROW), dpi=200, facecolor=PAGE)
    grid = figure.add_gridspec(rows, 24)
    draw = {"stat": draw_stat, "timeseries": draw_timeseries, "bargauge": draw_bargauge}
    draw["state-timeline"] = draw_state_timeline
    for panel in panels:
        x, y, w, h = (panel["gridPos"][side] for side in "xywh")
        is_row = panel["type"] == "row"
        area = figure.add_subfigure(grid[y : y + h, x : x + w], facecolor=PAGE if is_row else PANEL)
        area.set(edgecolor=PAGE, linewidth=4)
        title = {"va": "center", "weight": "bold", "size": 8 if is_row else 7}
        area.text(0.1 / size(area)[0], 0.5 if is_row else 1 - 0.16 / size(area)[1], panel["title"], **title)
        if not is_row:
            series = list(query(panel))
            draw[panel["type"]](area, panel["options"] | panel["fieldConfig"]["defaults"], series)
            drawn = sum(not math.isnan(value) or panel["type"] == "stat" for _, values in series for value in values)
            print(panel["id"], panel["title"], drawn, sep="\t")
    figure.canvas.draw()
    image = Image.frombytes("RGBA", figure.canvas.get_width_height(), bytes(figure.canvas.buffer_rgba()))
    # A palette is a third of the size. These options keep the colors of thin lines.
    image.convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE, kmeans=1).save(picture, optimize=True)


main()
