//! `vscalectl decide`: applies the rules of the VPA to the pods in a file, without a node and without an agent.

use std::sync::Arc;

use anyhow::anyhow;
use clap::Args;
use jiff::Timestamp;
use serde::Serialize;

use super::output::{Output, optional};
use super::page::Page;
use super::{Failure, amount, io, table};
use crate::decide::{Index, Options, PodDecision, decide};
use crate::model::objects::Pod;
use crate::model::{Action, KubeletVersion, NamedRequirements, PodAmounts, Reason, Requirements};
use crate::plan::QuotaAccount;
use crate::sources::{KnownObjects, parse_manifests};

pub(super) fn run(manifests: &ManifestArguments) -> Result<(), Failure> {
    let view = manifests.read()?;
    let index = Index::new([&view]);
    warn_of_idle_vpas(&view, &index);
    let decisions = manifests.decide(&view, &index);
    let shown = view.pods.iter().zip(&decisions).map(|(pod, decision)| {
        let without_restart = decision.without_restart.as_ref();
        ShownPod {
            namespace: &pod.metadata.namespace,
            name: &pod.metadata.name,
            vpa: decision.vpa.as_deref(),
            action: decision.action(),
            reason: decision.reason,
            containers: &decision.amounts.containers,
            resources: decision.amounts.pod.as_deref(),
            without_restart: without_restart.map(|(_, part)| &*part.containers),
            notes: decision.notes.iter().map(ToString::to_string).collect(),
        }
    });
    let table = || render(&view.pods, &decisions);
    manifests.output.print_list("pods", &shown.collect::<Vec<_>>(), table)?;
    manifests.check_pods(&view)
}

fn warn_of_idle_vpas(view: &KnownObjects, index: &Index<'_>) {
    for vpa in index.without_target(&view.vpas, &view.pods) {
        let target = vpa.spec.target_ref.as_ref();
        let (kind, name) = target.map_or(("", ""), |target| (&target.kind, &target.name));
        io::warn(&format!(
            "VerticalPodAutoscaler {}/{} controls nothing: its target {kind} {name} is not in the file",
            vpa.metadata.namespace, vpa.metadata.name
        ));
    }
}

/// The printed form, which is a promise to users and therefore a type of its own.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ShownPod<'a> {
    namespace: &'a str,
    name: &'a str,
    vpa: Option<&'a str>,
    action: Action,
    reason: Reason,
    containers: &'a [NamedRequirements],
    /// The resources of the pod itself, where its kubelet can resize them.
    #[serde(skip_serializing_if = "Option::is_none")]
    resources: Option<&'a Requirements>,
    /// The part of the change that restarts no container, where the whole change would restart one.
    #[serde(skip_serializing_if = "Option::is_none")]
    without_restart: Option<&'a [NamedRequirements]>,
    notes: Vec<String>,
}

/// One row for each container and resource, then one line for each note. `pods` and `decisions` are in the same order.
fn render(pods: &[Arc<Pod>], decisions: &[PodDecision]) -> Page {
    let (mut rows, mut lines) = (Vec::new(), Page::default());
    for (pod, decision) in pods.iter().zip(decisions) {
        let name = pod.full_name();
        let mut head = [
            name.clone(),
            optional(decision.vpa.as_ref()),
            decision.action().to_string(),
            decision.reason.to_string(),
        ];
        for [container, resource, request, limit] in changes(pod, &decision.amounts) {
            let [name, vpa, action, reason] = head.each_mut().map(std::mem::take);
            rows.push([name, vpa, action, reason, container, resource, request, limit]);
        }
        for note in &decision.notes {
            lines.push(format!("{name}: {note}"));
        }
        let part = decision.without_restart.iter().flat_map(|(_, part)| changes(pod, part));
        let mut container = String::new();
        // What the agent changes although the whole change would restart a container.
        for [first, resource, request, limit] in part {
            container = if first.is_empty() { container } else { first };
            if request.contains('→') || limit.contains('→') {
                let change = format!("request {request}, limit {limit}");
                lines.push(format!(
                    "{name}: {container}: {resource} is changed without a restart: {change}"
                ));
            }
        }
    }
    let header = "POD  VPA  ACTION  REASON  CONTAINER  RESOURCE  REQUEST  LIMIT";
    table::list(header, rows).page().then(lines)
}

/// For each container and resource, the change to these amounts.
fn changes(pod: &Pod, after: &PodAmounts) -> impl Iterator<Item = [String; 4]> {
    let pairs = pod.running_containers().zip(&after.containers);
    pairs.flat_map(|(was, becomes)| amount::rows(&was.name, &was.resources, &becomes.resources))
}

/// The file of manifests, the time of the decision, and the notation of the answer.
#[derive(Debug, Args)]
pub(super) struct ManifestArguments {
    /// Pods, their owners, VerticalPodAutoscalers, LimitRanges, ResourceQuotas and HorizontalPodAutoscalers
    /// in YAML or JSON; - is standard input
    #[arg(short, long, value_name = "FILE")]
    file: String,
    #[command(flatten)]
    pub(super) output: Output,
    /// Decide as if it were this time, such as 2026-01-31T12:00:00Z
    #[arg(long, value_name = "RFC3339")]
    now: Option<Timestamp>,
}

impl ManifestArguments {
    /// Reads the manifests, and warns of the objects that it ignores.
    pub(super) fn read(&self) -> Result<KnownObjects, Failure> {
        let text = io::read_text(&self.file)?;
        let manifests = parse_manifests(&self.file, &text).map_err(Failure::usage)?;
        manifests.warnings.iter().for_each(|warning| io::warn(warning));
        Ok(manifests.view)
    }

    /// Fails if there is no pod: then nothing was decided.
    pub(super) fn check_pods(&self, view: &KnownObjects) -> Result<(), Failure> {
        match view.pods.len() {
            0 => Err(anyhow!("{}: no Pod in it, so there is nothing to decide", self.file).into()),
            _ => Ok(()),
        }
    }

    /// One decision for each pod, in their order. An earlier pod takes from the quotas first.
    pub(super) fn decide(&self, view: &KnownObjects, index: &Index<'_>) -> Vec<PodDecision> {
        let now = self.now.unwrap_or_else(Timestamp::now);
        let mut decisions = decide(&view.pods, index, now, &Options::default());
        let mut quotas = QuotaAccount::new([view], KubeletVersion::NEWEST);
        quotas.count_uncounted(&view.pods);
        for (pod, decision) in view.pods.iter().zip(&mut decisions) {
            let Some((_, targets)) = decision.change() else {
                continue;
            };
            match quotas.check(pod, PodAmounts::NONE, targets, true) {
                Ok(()) => drop(quotas.count(pod, targets)),
                Err(why) => decision.refuse(pod, Reason::QuotaExceeded, why),
            }
        }
        decisions
    }
}
