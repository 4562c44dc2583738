//! Promise: what is delivered for Prometheus and Grafana asks only for metrics that the agent has, and alerts when it
//! should.

pub(crate) mod dashboard;
pub(crate) mod delivered;
pub(crate) mod selectors;

use std::collections::BTreeSet;

use vscaled::observe::metrics::families;

/// Every name a query may use: of samples, as a scrape has them.
pub(crate) fn sample_names() -> BTreeSet<String> {
    let names = families::ALL.iter().flat_map(|family| {
        let name = family.name();
        match family.kind() {
            "histogram" => ["_bucket", "_sum", "_count"]
                .map(|part| format!("{name}{part}"))
                .to_vec(),
            _ => vec![name],
        }
    });
    names.collect()
}
