//! The dashboard: its layout, and its queries.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{read, text};

#[test]
fn dashboard_has_panels_that_do_not_overlap_and_a_data_source_to_choose() {
    let dashboard = dashboard();
    let mut cells = BTreeMap::new();
    let mut ids = BTreeSet::new();
    for panel in panels(&dashboard) {
        let title = text(&panel["title"]);
        assert!(ids.insert(panel["id"].as_u64().expect("an id")), "{title}: its id is not its own");
        let [x, y, w, h] = ["x", "y", "w", "h"].map(|side| panel["gridPos"][side].as_u64().expect("a position"));
        assert!(x + w <= 24, "{title} is beyond the 24 columns");
        for cell in (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y))) {
            let other = cells.insert(cell, title);
            assert_eq!(other, None, "{title} covers a cell of another panel");
        }
        let kind = text(&panel["type"]);
        assert!(["row", "stat", "timeseries", "bargauge", "state-timeline"].contains(&kind), "{title}: {kind}");
        if kind == "row" {
            continue;
        }
        let targets = panel["targets"].as_array().expect("targets");
        let letters: BTreeSet<&str> = targets.iter().map(|target| text(&target["refId"])).collect();
        assert!(!targets.is_empty() && letters.len() == targets.len(), "{title}: targets need letters of their own");
        for source in targets.iter().chain([panel]).map(|has| &has["datasource"]) {
            assert_eq!((text(&source["type"]), text(&source["uid"])), ("prometheus", "${datasource}"), "{title}");
        }
    }
    let variables = dashboard["templating"]["list"].as_array().expect("variables");
    let names: Vec<&str> = variables.iter().map(|variable| text(&variable["name"])).collect();
    assert_eq!(names, ["datasource", "instance"]);
}

pub fn dashboard() -> Value {
    serde_json::from_str(&read("dashboard.json")).expect("JSON")
}

fn panels(dashboard: &Value) -> &[Value] {
    dashboard["panels"].as_array().expect("panels")
}

/// The queries of all panels, and of the variable `instance`.
pub fn queries(dashboard: &Value) -> Vec<String> {
    let targets = panels(dashboard).iter().filter_map(|panel| panel["targets"].as_array()).flatten();
    let mut queries: Vec<String> = targets.map(|target| text(&target["expr"]).to_owned()).collect();
    let variable = text(&dashboard["templating"]["list"][1]["query"]["query"]);
    let metric = variable.strip_prefix("label_values(").and_then(|rest| rest.strip_suffix(", instance)"));
    queries.push(metric.expect("label_values of a metric").to_owned());
    queries
}
