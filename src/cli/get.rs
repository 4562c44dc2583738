//! `vscalectl get`: the pods of this node, their overrides, and their decisions.

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
    let now = jiff::Timestamp::now().to_string();
    match arguments.what {
        What::Pods => output.print(&reply, |paint| pods_table(&reply, &now, paint)),
        What::Overrides => {
            let mut pods = reply.pods;
            pods.retain(|pod| pod.r#override.is_some());
            output.print_list("overrides", &pods, |paint| overrides_table(&pods, &now, paint))
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

/// The action and its reason, in one cell.
pub(super) fn decision(pod: &Pod) -> String {
    match pod.reason.as_str() {
        "" => or_dash(&pod.action),
        reason => format!("{}: {}", or_dash(&pod.action), clean(reason)),
    }
}

fn pods_table(reply: &GetReply, now: &str, paint: Paint) -> String {
    let rows = reply.pods.iter().map(|pod| {
        [
            full_name(pod),
            or_dash(&pod.qos_class),
            paint.word(&pod.state),
            decision(pod),
            optional(pod.vpa.as_deref()),
            match &pod.r#override {
                Some(by_hand) if by_hand.until.is_some() => format!("{} left", left(by_hand, now)),
                Some(by_hand) => left(by_hand, now),
                None => "-".to_owned(),
            },
            clean(&pod.detail),
        ]
    });
    let mut text = match reply.pods.as_slice() {
        [] => "no pods are known on this node\n".to_owned(),
        _ => table::list("POD  QOS  STATE  DECISION  VPA  BY HAND  DETAIL", rows, paint),
    };
    for problem in reply.agent.iter().flat_map(|agent| &agent.problems) {
        text += &format!("{} {}\n", paint.text(Tone::Bad, "degraded:"), clean(problem));
    }
    text
}

fn overrides_table(pods: &[Pod], now: &str, paint: Paint) -> String {
    if pods.is_empty() {
        return "nothing is held by hand\n".to_owned();
    }
    let rows = pods.iter().filter_map(|pod| {
        let by_hand = pod.r#override.as_ref()?;
        let (age, left) = (age(by_hand, now), left(by_hand, now));
        Some([full_name(pod), by(by_hand), age, left, or_dash(&by_hand.reason)])
    });
    table::list("POD  BY  AGE  LEFT  REASON", rows, paint)
}

pub(super) fn by(by_hand: &Override) -> String {
    format!("uid {} (pid {})", by_hand.uid, by_hand.pid)
}

pub(super) fn age(by_hand: &Override, now: &str) -> String {
    time::between(&by_hand.since, now).map_or_else(|| or_dash(&by_hand.since), time::coarse)
}

pub(super) fn left(by_hand: &Override, now: &str) -> String {
    match by_hand.until.as_deref() {
        Some(until) => time::between(now, until).map_or_else(|| clean(until), time::coarse),
        None => "until released".to_owned(),
    }
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
    let mut rows = Vec::new();
    for pod in pods {
        let (mut name, mut why) = (full_name(pod), decision(pod));
        for container in &pod.containers {
            let spec = amount::read(container.spec.as_ref());
            let wanted = amount::read(container.wanted.as_ref().or(container.spec.as_ref()));
            for [container, resource, request, limit] in amount::rows(&container.name, &spec, &wanted) {
                let [name, why] = [&mut name, &mut why].map(std::mem::take);
                rows.push([name, why, container, resource, request, limit]);
            }
        }
    }
    table::list("POD  DECISION  CONTAINER  RESOURCE  REQUEST  LIMIT", rows, paint)
}
