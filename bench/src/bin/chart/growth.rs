//! The chart of cost against size: a panel for each operation, and a point for each size.

use crate::data::{Data, TableName};
use crate::theme::{Theme, WIDTH, image};
use idgen_bench::three_digits;
use std::fmt::Write;

const SUBJECT: &str = "growth";

/// An operation: the title of its table in the report, and the columns that are drawn, idgen's first.
struct Panel {
    title: &'static str,
    size: &'static str,
    table: &'static str,
    columns: &'static [&'static str],
}

const CPU: &[&str] = &["CPU µs"];

const PANELS: [Panel; 6] = [
    Panel {
        title: "worker_acquire, CPU µs",
        size: "slots of the pool",
        table: "worker_acquire against slots of the pool",
        columns: CPU,
    },
    Panel {
        title: "one name of idgen.leases, CPU µs",
        size: "names",
        table: "one name of `idgen.leases` against names",
        columns: CPU,
    },
    Panel { title: "segment_next, CPU µs", size: "tags", table: "segment_next against tags", columns: CPU },
    Panel {
        title: "lock (grey: pg_advisory_lock), µs",
        size: "names",
        table: "lock_acquire against names",
        columns: &["named lock, µs", "pg_advisory_lock, µs"],
    },
    Panel {
        title: "lease_fence, CPU µs",
        size: "fences in a transaction",
        table: "lease_fence, a lease each against the number in a transaction",
        columns: CPU,
    },
    Panel {
        title: "a lease bound to the session, CPU µs",
        size: "leases in a transaction",
        table: "a lease bound to the session against the number in a transaction",
        columns: CPU,
    },
];

pub fn tables() -> impl Iterator<Item = TableName> {
    PANELS.iter().map(|panel| (SUBJECT.to_owned(), panel.table.to_owned()))
}

/// The panels are in two columns.
const TOP: f64 = 44.0;
const PANEL_WIDTH: f64 = WIDTH / 2.0;
const PANEL_HEIGHT: f64 = 168.0;

pub fn chart(data: &Data, theme: &Theme) -> Result<String, String> {
    let mut panels = String::new();
    for (index, panel) in PANELS.iter().enumerate() {
        let (x, y) = ((index % 2) as f64 * PANEL_WIDTH, TOP + (index / 2) as f64 * PANEL_HEIGHT);
        panel.draw(data, theme, x, y, &mut panels)?;
    }
    let height = TOP + PANELS.len().div_ceil(2) as f64 * PANEL_HEIGHT + 24.0;
    let how = "Sizes are on a logarithmic scale, costs begin at 0.";
    Ok(image(theme, height, "Cost of a call against size", &panels, how, &data.subject(SUBJECT)?.machine))
}

impl Panel {
    fn draw(&self, data: &Data, theme: &Theme, x: f64, y: f64, svg: &mut String) -> Result<(), String> {
        let table = data.table(SUBJECT, self.table)?;
        let lines = self.columns.iter().map(|column| points(&table.column(column)?));
        let lines = lines.collect::<Result<Vec<_>, String>>()?;
        let scale = Scale::of(&lines, x, y);
        let Theme { text, muted, idgen, other, .. } = theme;
        let base = scale.y(0.0);
        let mut add = |element: String| writeln!(svg, "{element}").expect("writing to a string does not fail");
        add(format!(
            "<text x=\"{x:.0}\" y=\"{:.0}\" fill=\"{text}\" font-weight=\"600\">{}</text>",
            y + 16.0,
            self.title
        ));
        add(format!(
            "<line x1=\"{:.1}\" y1=\"{base:.1}\" x2=\"{:.1}\" y2=\"{base:.1}\" stroke=\"{muted}\"/>",
            scale.left - 18.0,
            scale.left + scale.width + 18.0
        ));
        for (size, _) in &lines[0] {
            add(label(scale.x(*size), base + 15.0, muted, &thousands(*size)));
        }
        add(label(scale.left + scale.width / 2.0, base + 30.0, muted, self.size));
        // idgen is drawn last, above the others. Its figures are above its points, the others' below.
        for (index, points) in lines.iter().enumerate().rev() {
            let (colour, offset) = if index == 0 { (idgen, -8.0) } else { (other, 18.0) };
            let at: Vec<(f64, f64)> = points.iter().map(|(size, cost)| (scale.x(*size), scale.y(*cost))).collect();
            let path: Vec<String> = at.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
            add(format!(
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
                path.join(" ")
            ));
            for ((_, cost), (x, y)) in points.iter().zip(at) {
                add(format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>"));
                add(label(x, y + offset, if index == 0 { text } else { muted }, &three_digits(*cost)));
            }
        }
        Ok(())
    }
}

/// The costs by size. The rows of these tables are named by the size.
fn points(column: &[(&str, f64)]) -> Result<Vec<(u64, f64)>, String> {
    let point = |(name, cost): &(&str, f64)| match name.parse() {
        Ok(size) if size > 0 => Ok((size, *cost)),
        _ => Err(format!("{name:?} is not a size")),
    };
    column.iter().map(point).collect()
}

/// Where sizes and costs are in the image.
struct Scale {
    left: f64,
    width: f64,
    bottom: f64,
    height: f64,
    smallest: f64,
    largest: f64,
    highest: f64,
}

impl Scale {
    /// For a panel at this place.
    fn of(lines: &[Vec<(u64, f64)>], x: f64, y: f64) -> Self {
        let points = || lines.iter().flatten();
        let log = |(size, _): &(u64, f64)| (*size as f64).ln();
        Scale {
            left: x + 24.0,
            width: PANEL_WIDTH - 84.0,
            bottom: y + PANEL_HEIGHT - 50.0,
            height: PANEL_HEIGHT - 98.0,
            smallest: points().map(log).fold(f64::INFINITY, f64::min),
            largest: points().map(log).fold(f64::NEG_INFINITY, f64::max),
            highest: points().map(|(_, cost)| *cost).fold(f64::MIN_POSITIVE, f64::max),
        }
    }

    fn x(&self, size: u64) -> f64 {
        self.left + self.width * ((size as f64).ln() - self.smallest) / (self.largest - self.smallest)
    }

    fn y(&self, cost: f64) -> f64 {
        self.bottom - self.height * cost / self.highest
    }
}

fn label(x: f64, y: f64, colour: &str, text: &str) -> String {
    format!("<text x=\"{x:.1}\" y=\"{y:.1}\" fill=\"{colour}\" font-size=\"12\" text-anchor=\"middle\">{text}</text>")
}

fn thousands(number: u64) -> String {
    match number {
        0..1000 => number.to_string(),
        _ => format!("{},{:03}", thousands(number / 1000), number % 1000),
    }
}

#[cfg(test)]
mod tests {
    use super::{CPU, PANELS, SUBJECT, Scale, chart, points, thousands};
    use crate::data::tests::data_of;
    use crate::theme::THEMES;

    #[test]
    fn report_without_an_operation_is_refused() {
        let data = data_of(SUBJECT, PANELS[0].table, CPU[0], &[("10", 1.0), ("100", 1.0)]);
        let error = chart(&data, &THEMES[0]).unwrap_err();
        assert!(error.contains(PANELS[1].table), "{error}");
    }

    #[test]
    fn row_that_is_not_named_by_a_size_is_refused() {
        assert_eq!(points(&[("10", 1.0)]), Ok(vec![(10, 1.0)]));
        assert!([("ten", 1.0), ("0", 1.0)].iter().all(|row| points(&[*row]).is_err()));
    }

    #[test]
    fn points_are_placed_by_the_logarithm_of_the_size_and_by_the_cost() {
        let scale = Scale::of(&[vec![(10, 1.0), (100, 2.0), (1000, 4.0)]], 0.0, 0.0);
        let [first, second, third] = [10, 100, 1000].map(|size| scale.x(size));
        assert!((second - first - (third - second)).abs() < 1e-9, "{first} {second} {third}");
        let [zero, one, four] = [0.0, 1.0, 4.0].map(|cost| scale.y(cost));
        assert!(((zero - one) * 4.0 - (zero - four)).abs() < 1e-9, "{zero} {one} {four}");
    }

    #[test]
    fn thousands_are_separated() {
        assert_eq!([7, 1024, 65_536, 1_000_000].map(thousands), ["7", "1,024", "65,536", "1,000,000"]);
    }
}
