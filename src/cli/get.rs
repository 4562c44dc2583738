//! `vscalectl get`: the pods of this node, what is held by hand, and what was decided.

use clap::{Args, ValueEnum};
use serde::Serialize;

use super::output::{Output, Paint, Tone, clean, optional, or_dash};
use super::{Failure, agent::Agent, amount, table, time};
use crate::control::proto::{Container, GetReply, Override, Pod};

/// Lists pods, overrides or decisions
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// What to list
    #[arg(value_enum, default_value_t = What::Pods)]
    what: What,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum What {
    /// Every pod the agent knows, and how it stands
    Pods,
    /// Values held by hand, by whom and for how long
    Overrides,
    /// What each container should have, and why
    Decisions,
}

pub(super) fn run(arguments: &Arguments, agent: &Agent) -> Result<(), Failure> {
    let reply = agent.call(async |client| Ok(client.get().await?))?;
    let output = &arguments.output;
    match arguments.what {
        What::Pods => {
            let now = jiff::Timestamp::now().to_string();
            output.print(&reply, |paint| pods_table(&reply, &now, paint))
        }
        What::Overrides => {
            let mut overrides = reply.pods;
            overrides.retain(|pod| pod.r#override.is_some());
            let now = jiff::Timestamp::now().to_string();
            output.print_list("overrides", &overrides, |paint| {
                overrides_table(&overrides, &now, paint)
            })
        }
        What::Decisions => {
            let decisions: Vec<_> = reply.pods.iter().map(Decision::of).collect();
            output.print_list("decisions", &decisions, |paint| decisions_table(&reply.pods, paint))
        }
    }
}

pub(super) fn full_name(pod: &Pod) -> String {
    clean(&format!("{}/{}", pod.namespace, pod.name))
}

/// What was decided and why, in one cell.
pub(super) fn decision(pod: &Pod) -> String {
    if pod.reason.is_empty() {
        or_dash(&pod.action)
    } else {
        format!("{}: {}", or_dash(&pod.action), clean(&pod.reason))
    }
}

fn pods_table(reply: &GetReply, now: &str, paint: Paint) -> String {
    let header = ["POD", "QOS", "STATE", "DECISION", "VPA", "BY HAND", "DETAIL"];
    let rows = reply.pods.iter().map(|pod| {
        [
            full_name(pod),
            or_dash(&pod.qos_class),
            paint.word(&pod.state),
            decision(pod),
            optional(pod.vpa.as_deref()),
            pod.r#override.as_ref().map_or_else(
                || "-".to_owned(),
                |by_hand| match by_hand.until {
                    Some(_) => format!("{} left", left(by_hand, now)),
                    None => left(by_hand, now),
                },
            ),
            clean(&pod.detail),
        ]
    });
    let mut text = if reply.pods.is_empty() {
        "no pods are known on this node\n".to_owned()
    } else {
        table::list(header, rows, paint)
    };
    for problem in reply.agent.iter().flat_map(|agent| &agent.problems) {
        text.push_str(&format!("{} {}\n", paint.text(Tone::Bad, "degraded:"), clean(problem)));
    }
    text
}

fn overrides_table(pods: &[Pod], now: &str, paint: Paint) -> String {
    if pods.is_empty() {
        return "nothing is held by hand\n".to_owned();
    }
    let header = ["POD", "BY", "AGE", "LEFT", "REASON"];
    let held = pods.iter().filter_map(|pod| Some((pod, pod.r#override.as_ref()?)));
    let row = |(pod, held): (&Pod, &Override)| {
        let (age, left) = (age(held, now), left(held, now));
        [full_name(pod), by(held), age, left, or_dash(&held.reason)]
    };
    table::list(header, held.map(row), paint)
}

pub(super) fn by(by_hand: &Override) -> String {
    format!("uid {} (pid {})", by_hand.uid, by_hand.pid)
}

/// Since when, as a duration.
pub(super) fn age(by_hand: &Override, now: &str) -> String {
    time::between(&by_hand.since, now).map_or_else(|| or_dash(&by_hand.since), time::coarse)
}

pub(super) fn left(by_hand: &Override, now: &str) -> String {
    let Some(until) = by_hand.until.as_deref() else {
        return "until released".to_owned();
    };
    time::between(now, until).map_or_else(|| clean(until), time::coarse)
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Decision<'a> {
    namespace: &'a str,
    name: &'a str,
    vpa: Option<&'a str>,
    action: &'a str,
    reason: &'a str,
    containers: &'a [Container],
}

impl<'a> Decision<'a> {
    fn of(pod: &'a Pod) -> Self {
        Self {
            namespace: &pod.namespace,
            name: &pod.name,
            vpa: pod.vpa.as_deref(),
            action: &pod.action,
            reason: &pod.reason,
            containers: &pod.containers,
        }
    }
}

fn decisions_table(pods: &[Pod], paint: Paint) -> String {
    let header = ["POD", "DECISION", "CONTAINER", "RESOURCE", "REQUEST", "LIMIT"];
    let mut rows = Vec::new();
    for pod in pods {
        let (mut name, mut why) = (full_name(pod), decision(pod));
        for container in &pod.containers {
            let spec = amount::read(container.spec.as_ref());
            let wanted = container
                .wanted
                .as_ref()
                .map_or(spec, |wanted| amount::read(Some(wanted)));
            for [container, resource, request, limit] in amount::rows(&container.name, &spec, &wanted) {
                let [name, why] = [&mut name, &mut why].map(std::mem::take);
                rows.push([name, why, container, resource, request, limit]);
            }
        }
    }
    table::list(header, rows, paint)
}
