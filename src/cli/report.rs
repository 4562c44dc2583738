//! `vscalectl report`: the benefit of vscaled on this node.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::Args;
use jiff::Timestamp;

use super::output::{Output, or_dash};
use super::page::Page;
use super::{Failure, agent::Agent, amount, table, time};
use crate::control::proto::{Amounts, ReportReply, Workload, WorkloadWorth};

/// Shows the requests of workloads before and now, and the kills, evictions, restarts and throttling avoided
///
/// By namespace and workload, for the pods of this node that follow a recommendation. docs/report.md says how each number is made.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Count only what was avoided in this time, by whole hours, as in 7d or 12h; at most since the agent's start
    #[arg(long, value_name = "DURATION", value_parser = time::duration)]
    since: Option<Duration>,
    #[command(flatten)]
    output: Output,
}

impl Arguments {
    /// Prints the sums of each workload over many nodes, and those of all.
    pub(super) fn print_sums(
        &self,
        since: Option<Timestamp>,
        workloads: impl Iterator<Item = WorkloadWorth>,
    ) -> Result<(), Failure> {
        let mut sums: BTreeMap<(String, Option<(String, String)>), WorkloadWorth> = BTreeMap::new();
        let mut total = WorkloadWorth::default();
        for one in workloads {
            let workload = one.workload.clone().map(|Workload { kind, name }| (kind, name));
            let sum = sums.entry((one.namespace.clone(), workload)).or_default();
            (sum.namespace, sum.workload) = (one.namespace.clone(), one.workload.clone());
            add(sum, &one);
            add(&mut total, &one);
            sum.remarks.extend(one.remarks);
        }
        let reply = ReportReply {
            since: since.map(|since| since.to_string()).unwrap_or_default(),
            workloads: sums.into_values().collect(),
            total: Some(total),
        };
        self.output.print(&reply, || report_table(&reply))
    }
}

fn add(sum: &mut WorkloadWorth, one: &WorkloadWorth) {
    let plus = |sum: &mut Option<Amounts>, one: &Option<Amounts>| {
        let (all, one) = (amount::list(sum.as_ref()), amount::list(one.as_ref()));
        *sum = Some((&all.combine(one, u64::saturating_add)).into());
    };
    plus(&mut sum.requested_before, &one.requested_before);
    plus(&mut sum.requested, &one.requested);
    sum.pods = sum.pods.saturating_add(one.pods);
    sum.avoided_kills = sum.avoided_kills.saturating_add(one.avoided_kills);
    sum.avoided_evictions = sum.avoided_evictions.saturating_add(one.avoided_evictions);
    sum.avoided_restarts = sum.avoided_restarts.saturating_add(one.avoided_restarts);
    sum.avoided_throttled_seconds += one.avoided_throttled_seconds;
    for (sum, one) in [
        (&mut sum.throttled_before_burst, one.throttled_before_burst),
        (&mut sum.throttled_with_burst, one.throttled_with_burst),
    ] {
        *sum = [*sum, one].into_iter().flatten().reduce(std::ops::Add::add);
    }
}

pub(super) fn run(arguments: &Arguments, agent: &Agent) -> Result<(), Failure> {
    let reply = agent.call(async |client| Ok(client.report(arguments.since).await?))?;
    arguments.output.print(&reply, || report_table(&reply))
}

fn report_table(reply: &ReportReply) -> Page {
    let header = "WORKLOAD  PODS  CPU REQUEST  MEMORY REQUEST  AVOIDED: KILLS  EVICTIONS  RESTARTS  THROTTLED";
    let name = |one: &WorkloadWorth| {
        let Workload { kind, name } = one.workload.clone().unwrap_or_default();
        format!("{}/{kind}/{name}", one.namespace)
    };
    let workloads = reply.workloads.iter().map(|one| row(name(one), one));
    let total = reply.total.iter().map(|total| row("all".to_owned(), total));
    let burst = |one: &WorkloadWorth| {
        let (now, before) = (one.throttled_with_burst?, one.throttled_before_burst);
        let before = before.map_or_else(String::new, |before| format!(", {before:.1} s before"));
        let name = name(one);
        Some(format!("burst: {name} is throttled for {now:.1} s per hour{before}"))
    };
    let bursts = reply.workloads.iter().filter_map(burst);
    let remarks = reply.workloads.iter().flat_map(|one| one.remarks.iter().cloned());
    let since = or_dash(&reply.since);
    let avoided =
        format!("avoided: since {since}; kills and restarts are lower bounds, the others estimates (docs/report.md)");
    let lines: Page = std::iter::once(avoided).chain(bursts).chain(remarks).collect();
    table::fitted(header, workloads.chain(total)).page().then(lines)
}

fn row(name: String, savings: &WorkloadWorth) -> [String; 8] {
    let change = |resource: &str, amount: fn(&Amounts) -> Option<&str>| {
        let amounts = [&savings.requested_before, &savings.requested];
        amount::both(resource, amounts.map(|all| all.as_ref().and_then(amount))).join(" → ")
    };
    [
        name,
        savings.pods.to_string(),
        change("cpu", |amounts| amounts.cpu.as_deref()),
        change("memory", |amounts| amounts.memory.as_deref()),
        savings.avoided_kills.to_string(),
        savings.avoided_evictions.to_string(),
        savings.avoided_restarts.to_string(),
        format!("{:.0} s", savings.avoided_throttled_seconds),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_has_its_column() {
        let amounts = |cpu: &str, memory: &str| {
            Some(Amounts {
                cpu: Some(cpu.to_owned()),
                memory: Some(memory.to_owned()),
            })
        };
        let worth = WorkloadWorth {
            pods: 1,
            requested_before: amounts("2", "3Gi"),
            requested: amounts("4", "5Gi"),
            avoided_kills: 6,
            avoided_evictions: 7,
            avoided_restarts: 8,
            avoided_throttled_seconds: 9.6,
            ..WorkloadWorth::default()
        };
        let expected = ["all", "1", "2 → 4", "3Gi → 5Gi", "6", "7", "8", "10 s"];
        assert_eq!(row("all".to_owned(), &worth), expected);
        let unknown = row(String::new(), &WorkloadWorth::default());
        assert_eq!(unknown[2..4], ["- → -", "- → -"]);
    }

    #[test]
    fn a_burst_is_compared_with_before() {
        let worth = |name: &str, now, before| WorkloadWorth {
            namespace: "shop".to_owned(),
            workload: Some(Workload {
                kind: "Deployment".to_owned(),
                name: name.to_owned(),
            }),
            throttled_with_burst: now,
            throttled_before_burst: before,
            remarks: vec![format!("about {name}")],
            ..WorkloadWorth::default()
        };
        let reply = ReportReply {
            since: String::new(),
            workloads: vec![
                worth("a", Some(1.5), Some(30.0)),
                worth("b", Some(2.0), None),
                worth("c", None, Some(3.0)),
            ],
            total: None,
        };
        let text = report_table(&reply).shown(false);
        let below: Vec<&str> = text.lines().skip(4).collect();
        assert_eq!(
            below,
            [
                "avoided: since -; kills and restarts are lower bounds, the others estimates (docs/report.md)",
                "burst: shop/Deployment/a is throttled for 1.5 s per hour, 30.0 s before",
                "burst: shop/Deployment/b is throttled for 2.0 s per hour",
                "about a",
                "about b",
                "about c",
            ]
        );
    }

    #[test]
    fn sums_add_each_number_to_its_own() {
        let amounts = |cpu: &str, memory: &str| {
            Some(Amounts {
                cpu: Some(cpu.to_owned()),
                memory: Some(memory.to_owned()),
            })
        };
        let one = WorkloadWorth {
            pods: 1,
            requested_before: amounts("100m", "1Mi"),
            requested: amounts("200m", "2Mi"),
            avoided_kills: 2,
            avoided_evictions: 3,
            avoided_restarts: 4,
            avoided_throttled_seconds: 5.0,
            throttled_before_burst: Some(6.0),
            throttled_with_burst: Some(7.0),
            ..WorkloadWorth::default()
        };
        let mut sum = one.clone();
        add(&mut sum, &one);
        add(&mut sum, &WorkloadWorth::default());
        let expected = WorkloadWorth {
            pods: 2,
            requested_before: amounts("200m", "2Mi"),
            requested: amounts("400m", "4Mi"),
            avoided_kills: 4,
            avoided_evictions: 6,
            avoided_restarts: 8,
            avoided_throttled_seconds: 10.0,
            throttled_before_burst: Some(12.0),
            throttled_with_burst: Some(14.0),
            ..WorkloadWorth::default()
        };
        assert_eq!(sum, expected);
    }
}
