//! The dashboard in deploy/observability.

use serde_json::Value;

/// The dashboard as it is delivered.
pub(crate) fn read() -> Value {
    serde_json::from_str(include_str!("../../../deploy/observability/dashboard.json")).unwrap()
}

/// The panels that show something, each title with its queries.
pub(crate) fn queries() -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let dashboard = read();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    panels
        .filter(|panel| panel["type"] != "row")
        .flat_map(|panel| {
            let targets = panel["targets"].as_array().unwrap().iter();
            targets.map(|target| (text(&panel["title"]), text(&target["expr"])))
        })
        .collect()
}

/// A query as Grafana would send it with everything selected.
pub(crate) fn filled_in(query: &str) -> String {
    query
        .replace("$__rate_interval", "1m")
        .replace("$__range", "1m")
        .replace("$instance", ".*")
}
