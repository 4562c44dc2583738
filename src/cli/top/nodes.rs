//! The use of many nodes: a row for each node, and a row for each workload. Pure.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use clap::ValueEnum;
use serde::Deserialize;

use crate::cli::amount::{list, short};
use crate::cli::fleet::Items;
use crate::cli::output::optional;
use crate::cli::page::Page;
use crate::cli::table;
use crate::control::proto::Amounts;
use crate::model::{Resource, ResourceList};

/// The order of nodes and workloads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum Sort {
    /// Most cpu in use first
    #[default]
    Cpu,
    /// Most memory in use first
    Memory,
    /// Most throttled first
    Throttling,
    Name,
}

/// A pod or a container, as [`PodLine`](super::state::PodLine) is printed.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(in crate::cli) struct Line {
    namespace: String,
    name: String,
    container: Option<String>,
    /// Such as `Deployment/web`; older agents do not print it.
    workload: Option<String>,
    cpu: BTreeMap<String, String>,
    memory: BTreeMap<String, String>,
    throttled_percent: Option<u64>,
}

/// The sums over the pods of a node or of a workload.
#[derive(Debug, Default)]
struct Sum {
    pods: usize,
    /// Used, request and limit.
    amounts: [ResourceList; 3],
    /// The largest share of throttled periods of one container.
    throttled_percent: Option<u64>,
}

impl Sum {
    fn add(&mut self, line: &Line) {
        self.throttled_percent = self.throttled_percent.max(line.throttled_percent);
        if line.container.is_some() {
            return;
        }
        self.pods += 1;
        for (sum, name) in self.amounts.iter_mut().zip(["used", "request", "limit"]) {
            let [cpu, memory] = [&line.cpu, &line.memory].map(|amounts| amounts.get(name).cloned());
            *sum = sum.combine(list(Some(&Amounts { cpu, memory })), u64::saturating_add);
        }
    }

    fn place(&self, sort: Sort) -> Reverse<Option<u64>> {
        Reverse(match sort {
            Sort::Cpu => self.amounts[0].get(Resource::Cpu),
            Sort::Memory => self.amounts[0].get(Resource::Memory),
            Sort::Throttling => self.throttled_percent,
            Sort::Name => None,
        })
    }
}

/// The busiest nodes and the busiest workloads, of each no more than `rows`.
pub(in crate::cli) fn of_nodes(lines: &Items<Line>, sort: Sort, rows: usize) -> Page {
    let [mut nodes, mut workloads] = [BTreeMap::<String, Sum>::new(), BTreeMap::new()];
    for (node, line) in lines {
        let workload = line.workload.clone().unwrap_or_else(|| format!("Pod/{}", line.name));
        nodes.entry(node.clone()).or_default().add(line);
        workloads
            .entry(format!("{}/{workload}", line.namespace))
            .or_default()
            .add(line);
    }
    Page::joined([
        draw("NODE", nodes, sort, rows).page(),
        draw("WORKLOAD", workloads, sort, rows).page(),
    ])
}

fn draw(title: &str, sums: BTreeMap<String, Sum>, sort: Sort, rows: usize) -> table::Table {
    let mut sums = Vec::from_iter(sums);
    sums.sort_by_key(|(_, sum)| sum.place(sort));
    let rows = sums.iter().take(rows).map(|(name, sum)| {
        let texts = |resource| sum.amounts.map(|list| short(resource, list.get(resource)));
        let ([cpu, request, limit], [memory, least, most]) = (texts(Resource::Cpu), texts(Resource::Memory));
        let throttled = optional(sum.throttled_percent.map(|percent| format!("{percent}%")));
        let (name, pods) = (name.clone(), sum.pods.to_string());
        [name, pods, cpu, request, limit, memory, least, most, throttled]
    });
    let header = format!("{title}  PODS  CPU  REQUEST  LIMIT  MEMORY  REQUEST  LIMIT  THROTTLED");
    table::fitted(&header, rows)
}
