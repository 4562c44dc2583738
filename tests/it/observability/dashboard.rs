//! The dashboard in deploy/observability.

use serde_json::Value;

/// The shipped dashboard.
pub(crate) fn read() -> Value {
    serde_json::from_str(include_str!("../../../deploy/observability/dashboard.json")).unwrap()
}

/// The panels with data and the variables, each title with its queries.
pub(crate) fn queries() -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let dashboard = read();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let shown = panels.filter(|panel| panel["type"] != "row").flat_map(|panel| {
        let targets = panel["targets"].as_array().unwrap().iter();
        targets.map(|target| (text(&panel["title"]), text(&target["expr"])))
    });
    // The queries of the variables.
    let variables = dashboard["templating"]["list"].as_array().unwrap().iter();
    // Variables for prices hold a number.
    let asked = variables.filter_map(|variable| Some((text(&variable["label"]), variable["query"]["query"].as_str()?)));
    let series = |query: &str| {
        let selector = query.strip_prefix("label_values(").unwrap().rsplit_once(',').unwrap().0;
        selector.to_owned()
    };
    shown
        .chain(asked.map(|(label, query)| (label, series(query))))
        .collect()
}

/// A query as Grafana sends it with all values selected.
pub(crate) fn filled_in(query: &str) -> String {
    query
        .replace("$__rate_interval", "1m")
        .replace("$__range", "1m")
        .replace("$instance", ".*")
        .replace("$cluster", ".*")
        .replace("$job", "vscaled")
        .replace("${core_hour}", "0.03")
        .replace("${gibibyte_hour}", "0.004")
}
