//! Promise: the files for Prometheus and Grafana use only metrics that the agent has, and the alerts fire when they
//! should.

pub(crate) mod dashboard;
pub(crate) mod delivered;
pub(crate) mod selectors;

use std::collections::BTreeSet;

/// A family of metrics in docs/metrics.md.
pub(crate) struct Family {
    /// The name of the samples; samples of a histogram have suffixes.
    pub(crate) name: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) labels: Vec<&'static str>,
}

/// The families in the table of docs/metrics.md.
pub(crate) fn documented() -> Vec<Family> {
    let rows = include_str!("../../docs/metrics.md").lines();
    let cells = rows.filter(|row| row.starts_with("| `vscaled_")).map(|row| {
        let cells: Vec<_> = row.split('|').map(|cell| cell.trim().trim_matches('`')).collect();
        Family {
            name: cells[1],
            kind: cells[2],
            labels: cells[3].split(", ").filter(|label| !label.is_empty()).collect(),
        }
    });
    let families: Vec<_> = cells.collect();
    assert!(families.len() > 20, "read no table from docs/metrics.md");
    families
}

/// Every sample name that a query may use.
pub(crate) fn sample_names() -> BTreeSet<String> {
    let names = documented().into_iter().flat_map(|family| match family.kind {
        "histogram" => ["_bucket", "_sum", "_count"]
            .map(|part| format!("{}{part}", family.name))
            .to_vec(),
        _ => vec![family.name.to_owned()],
    });
    names.collect()
}
