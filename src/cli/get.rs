//! `vscalectl get`: the pods of this node, what is held by hand, and what was decided.

use clap::{Args, ValueEnum};
use serde::Serialize;

use super::output::{Output, Paint, Tone, clean, or_dash};
use super::{Failure, agent::Agent, table, time};
use crate::control::proto::{Amounts, Container, GetReply, Override, Pod, Requirements};

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

/// Asks and prints.
///
/// # Errors
/// [`Failure`] when the agent does not answer.
pub(super) fn run(arguments: &Arguments, agent: &Agent) -> Result<(), Failure> {
    let reply = agent.ask(async |client| Ok(client.get().await?))?;
    let output = &arguments.output;
    match arguments.what {
        What::Pods => {
            let now = jiff::Timestamp::now().to_string();
            output.print(&reply, |paint| pods_table(&reply, &now, paint))
        }
        What::Overrides => {
            let overrides: Vec<_> = reply.pods.iter().filter_map(ShownOverride::of).collect();
            let now = jiff::Timestamp::now().to_string();
            output.print(&Overrides { overrides: &overrides }, |paint| {
                overrides_table(&overrides, &now, paint)
            })
        }
        What::Decisions => {
            let decisions: Vec<_> = reply.pods.iter().map(Decision::of).collect();
            output.print(&Decisions { decisions: &decisions }, |paint| {
                decisions_table(&reply.pods, paint)
            })
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
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    rows.extend(reply.pods.iter().map(|pod| {
        vec![
            full_name(pod),
            or_dash(&pod.qos_class),
            paint.word(&pod.state),
            decision(pod),
            or_dash(pod.vpa.as_deref().unwrap_or_default()),
            pod.r#override.as_ref().map_or_else(
                || "-".to_owned(),
                |by_hand| match by_hand.until {
                    Some(_) => format!("{} left", left(by_hand, now)),
                    None => left(by_hand, now),
                },
            ),
            clean(&pod.detail),
        ]
    }));
    let mut text = if reply.pods.is_empty() {
        "no pods are known on this node\n".to_owned()
    } else {
        table::shown(rows, paint)
    };
    for problem in reply.agent.iter().flat_map(|agent| &agent.problems) {
        text.push_str(&format!("{} {}\n", paint.text(Tone::Bad, "degraded:"), clean(problem)));
    }
    text
}

/// The list as JSON and YAML have it.
#[derive(Serialize)]
struct Overrides<'a> {
    overrides: &'a [ShownOverride<'a>],
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ShownOverride<'a> {
    namespace: &'a str,
    name: &'a str,
    #[serde(rename = "override")]
    by_hand: &'a Override,
    containers: &'a [Container],
}

impl<'a> ShownOverride<'a> {
    fn of(pod: &'a Pod) -> Option<Self> {
        Some(Self {
            namespace: &pod.namespace,
            name: &pod.name,
            by_hand: pod.r#override.as_ref()?,
            containers: &pod.containers,
        })
    }
}

fn overrides_table(overrides: &[ShownOverride<'_>], now: &str, paint: Paint) -> String {
    if overrides.is_empty() {
        return "nothing is held by hand\n".to_owned();
    }
    let header = ["POD", "BY", "AGE", "LEFT", "REASON"];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    rows.extend(overrides.iter().map(|shown| {
        vec![
            clean(&format!("{}/{}", shown.namespace, shown.name)),
            by(shown.by_hand),
            age(shown.by_hand, now),
            left(shown.by_hand, now),
            or_dash(&shown.by_hand.reason),
        ]
    }));
    table::shown(rows, paint)
}

/// Who holds the values.
pub(super) fn by(by_hand: &Override) -> String {
    format!("uid {} (pid {})", by_hand.uid, by_hand.pid)
}

/// Since when, as a duration.
pub(super) fn age(by_hand: &Override, now: &str) -> String {
    time::between(&by_hand.since, now).map_or_else(|| or_dash(&by_hand.since), time::coarse)
}

/// How much longer.
pub(super) fn left(by_hand: &Override, now: &str) -> String {
    let Some(until) = by_hand.until.as_deref() else {
        return "until released".to_owned();
    };
    time::between(now, until).map_or_else(|| clean(until), time::coarse)
}

#[derive(Serialize)]
struct Decisions<'a> {
    decisions: &'a [Decision<'a>],
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
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    for pod in pods {
        let mut head = [full_name(pod), decision(pod)];
        for row in amounts(&pod.containers) {
            rows.push(head.iter_mut().map(std::mem::take).chain(row).collect());
        }
    }
    table::shown(rows, paint)
}

/// For each container and resource: its name, the resource, request and limit, as `spec → wanted` where they differ.
pub(super) fn amounts(containers: &[Container]) -> Vec<[String; 4]> {
    let cpu = |amounts: &Amounts| amounts.cpu.clone();
    let memory = |amounts: &Amounts| amounts.memory.clone();
    let mut rows = Vec::with_capacity(2 * containers.len());
    for container in containers {
        rows.push(amounts_row(container, clean(&container.name), "cpu", cpu));
        rows.push(amounts_row(container, String::new(), "memory", memory));
    }
    rows
}

fn amounts_row(
    container: &Container,
    name: String,
    resource: &str,
    pick: impl Fn(&Amounts) -> Option<String>,
) -> [String; 4] {
    let change = |side: fn(&Requirements) -> Option<&Amounts>| {
        let text = |values: &Option<Requirements>| {
            let amount = values.as_ref().and_then(side).and_then(&pick);
            or_dash(&amount.unwrap_or_default())
        };
        let (spec, wanted) = (text(&container.spec), text(&container.wanted));
        if spec == wanted || container.wanted.is_none() {
            spec
        } else {
            format!("{spec} → {wanted}")
        }
    };
    [
        name,
        resource.to_owned(),
        change(|values| values.requests.as_ref()),
        change(|values| values.limits.as_ref()),
    ]
}
