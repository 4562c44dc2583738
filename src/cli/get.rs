//! `vscalectl get`: the pods of this node, their overrides, and their decisions.

use clap::{Args, ValueEnum};
use serde::Serialize;

use super::agent::{Agent, warn_of_left_out};
use super::output::{Output, optional, or_dash};
use super::page::{Page, TextLine, problem, word};
use super::table::{self, Table};
use super::{Failure, amount, time};
use crate::control::proto::{Container, Override, Pod};

/// Lists pods, overrides or decisions
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// What to list
    #[arg(value_enum, default_value_t = What::Pods)]
    what: What,
    #[command(flatten)]
    pub(super) output: Output,
}

type PodTable = fn(&[Pod]) -> Table;

impl Arguments {
    /// The name of the list in JSON, what stands in place of an empty table, and the table of pods.
    pub(super) const fn list(&self) -> (&'static str, &'static str, PodTable) {
        match self.what {
            What::Pods => ("pods", "no pods are known", pods_table),
            What::Overrides => ("overrides", "no overrides are known", overrides_table),
            What::Decisions => ("decisions", "no pods are known", decisions_table),
        }
    }
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum What {
    /// Every known pod of this node, with its state
    Pods,
    /// Overrides: their values, who set them, and until when they last
    Overrides,
    /// What each container should have, and why
    Decisions,
}

pub(super) fn run(arguments: &Arguments, agent: &Agent) -> Result<(), Failure> {
    let mut reply = agent.call(async |client| Ok(client.get().await?))?;
    if !matches!(arguments.what, What::Pods) {
        warn_of_left_out(reply.agent.as_ref());
    }
    let (list, empty, table) = arguments.list();
    let output = &arguments.output;
    match arguments.what {
        What::Pods => output.print(&reply, || {
            let problems = reply.agent.iter().flat_map(|agent| &agent.problems);
            let problems = problems.map(|text| problem(text));
            table(&reply.pods).or(empty).then(Page::from_iter(problems))
        }),
        What::Overrides => {
            reply.pods.retain(|pod| pod.r#override.is_some());
            output.print_list(list, &reply.pods, || table(&reply.pods).or(empty))
        }
        What::Decisions => {
            let decisions = reply.pods.iter().map(|pod| Decision {
                namespace: &pod.namespace,
                name: &pod.name,
                vpa: pod.vpa.as_deref(),
                action: &pod.action,
                reason: &pod.reason,
                containers: &pod.containers,
            });
            let decisions: Vec<Decision> = decisions.collect();
            output.print_list(list, &decisions, || table(&reply.pods).or(empty))
        }
    }
}

#[derive(Serialize)]
struct Decision<'a> {
    namespace: &'a str,
    name: &'a str,
    vpa: Option<&'a str>,
    action: &'a str,
    reason: &'a str,
    containers: &'a [Container],
}

pub(super) fn full_name(pod: &Pod) -> String {
    format!("{}/{}", pod.namespace, pod.name)
}

/// The action and its reason, in one cell.
pub(super) fn decision(pod: &Pod) -> String {
    match pod.reason.as_str() {
        "" => or_dash(&pod.action),
        reason => format!("{}: {reason}", or_dash(&pod.action)),
    }
}

fn pods_table(pods: &[Pod]) -> Table {
    let rows = pods.iter().map(|pod| -> [TextLine; 7] {
        let held = pod.r#override.as_ref().map(|held| {
            let [.., left, _] = by_hand(held);
            left + held.until.as_ref().map_or("", |_| " left")
        });
        [
            full_name(pod).into(),
            or_dash(&pod.qos_class).into(),
            word(&pod.state),
            decision(pod).into(),
            optional(pod.vpa.as_ref()).into(),
            optional(held).into(),
            (&pod.detail).into(),
        ]
    });
    table::fitted("POD  QOS  STATE  DECISION  VPA  BY HAND  DETAIL", rows)
}

fn overrides_table(pods: &[Pod]) -> Table {
    let rows = pods.iter().filter_map(|pod| {
        let [by, age, left, reason] = by_hand(pod.r#override.as_ref()?);
        Some([full_name(pod), by, age, left, reason])
    });
    table::fitted("POD  BY  AGE  LEFT  REASON", rows)
}

/// Who set an override, its age, the time that is left, and the reason.
pub(super) fn by_hand(held: &Override) -> [String; 4] {
    let now = jiff::Timestamp::now().to_string();
    let span = |from: &str, to: &str, unreadable: &str| {
        time::between(from, to).map_or_else(|| unreadable.to_owned(), time::coarse)
    };
    // The JSON of an earlier agent has 0 for a process of another PID namespace.
    let pid = held.pid.filter(|pid| *pid > 0).map(|pid| format!(" (pid {pid})"));
    [
        format!("uid {}{}", held.uid, pid.unwrap_or_default()),
        span(&held.since, &now, &held.since),
        held.until
            .as_ref()
            .map_or_else(|| "until released".to_owned(), |until| span(&now, until, until)),
        or_dash(&held.reason),
    ]
}

fn decisions_table(pods: &[Pod]) -> Table {
    let mut rows = Vec::new();
    for pod in pods {
        let mut head = [full_name(pod), decision(pod)];
        for Container { name, spec, wanted, .. } in &pod.containers {
            let [spec, wanted] = [spec.as_ref(), wanted.as_ref().or(spec.as_ref())].map(amount::read);
            for [container, resource, request, limit] in amount::rows(name, &spec, &wanted) {
                let [name, why] = head.each_mut().map(std::mem::take);
                rows.push([name, why, container, resource, request, limit]);
            }
        }
    }
    table::fitted("POD  DECISION  CONTAINER  RESOURCE  REQUEST  LIMIT", rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_override_says_how_long_it_lasts() {
        let held = |since: &str, until: Option<&str>| Override {
            uid: 7,
            pid: Some(8),
            since: since.to_owned(),
            until: until.map(str::to_owned),
            ..Override::default()
        };
        let past = "2020-01-31T12:00:00Z";
        let [by, age, left, reason] = by_hand(&held("then", None));
        assert_eq!(
            [by, age, left, reason],
            ["uid 7 (pid 8)", "then", "until released", "-"]
        );
        for pid in [None, Some(0)] {
            let elsewhere = Override {
                pid,
                ..held("then", None)
            };
            assert_eq!(by_hand(&elsewhere)[0], "uid 7");
        }
        let unknown = serde_json::to_value(Override::default()).unwrap();
        assert_eq!(unknown.get("pid"), None, "an earlier plugin reads no null");
        let [_, age, left, _] = by_hand(&held("9999-01-01T00:00:00Z", Some(past)));
        assert_eq!([age, left], ["0s", "0s"]);
        let [_, age, left, _] = by_hand(&held(past, Some("soon")));
        assert_eq!(left, "soon");
        assert!(age.contains('d'), "{age}");

        let pod = |until| Pod {
            r#override: Some(held(past, until)),
            ..Pod::default()
        };
        let shown = |until| pods_table(&[pod(until)]).or("").shown(false);
        assert!(shown(Some(past)).contains("0s left"), "{}", shown(Some(past)));
        assert!(!shown(None).contains(" left"), "{}", shown(None));
    }

    #[test]
    fn a_decision_is_its_action_and_reason() {
        for (action, reason, shown) in [
            ("skip", "QuotaExceeded", "skip: QuotaExceeded"),
            ("none", "", "none"),
            ("", "", "-"),
        ] {
            let pod = Pod {
                action: action.to_owned(),
                reason: reason.to_owned(),
                ..Pod::default()
            };
            assert_eq!(decision(&pod), shown);
        }
    }
}
