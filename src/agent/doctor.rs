//! The checks of `vscalectl doctor` that need the agent's knowledge of the node.

use std::path::Path;

use futures::future::join_all;

use crate::actuate::{KnownFrom, Node, RuntimeLink, hook_problems};
use crate::config::{Config, MEND_API_VERSION};
use crate::control::ControlError;
use crate::doctor::{Check, Locations, MEND_RUNTIME, local};
use crate::model::{CgroupVersion, Driver};
use crate::plan::resize::supports_in_place_resize;
use crate::reconcile::controller::{AgentSnapshot, OBSERVING};
use crate::reconcile::pod::PodState;

impl From<&Config> for Locations {
    fn from(config: &Config) -> Self {
        Self {
            cgroup_root: config.custom_cgroup_root().map(Path::to_owned),
            state_dir: config.state_dir.clone(),
            audit_file: config.audit_file(),
        }
    }
}

/// Every check, those of the machine first. `outdated` is a configuration file of the version before.
pub(super) async fn examine(
    locations: Locations,
    outdated: Option<&Path>,
    agent: AgentSnapshot,
) -> Result<Vec<Check>, ControlError> {
    let machine = tokio::task::spawn_blocking(move || local(&locations)).await;
    let mut checks = machine.map_err(|panic| ControlError::Internal(panic.to_string()))?;
    if let Some(file) = outdated {
        let found = format!("{} is of vscaled.io/v1alpha1, which is still read", file.display());
        checks.push(Check::warn("configuration", found, MEND_API_VERSION));
    }
    match &agent.node {
        Some(node) => {
            let pods = format!("{} known, below {}", agent.pods.len(), node.kubepods.path);
            checks.extend([
                Check::ok("pods", pods),
                driver(node),
                runtime(node).await,
                formula(node),
                kubelet(node, &agent.pods),
                settings(&out_of_reach(&agent.pods)),
            ]);
            checks.extend(hooks(node, &agent.pods).await);
        }
        None => checks.push(Check::fail(
            "node",
            "not known well enough to act on it",
            "see the problems below; nothing is written until then",
        )),
    }
    checks.extend(agent.problems.into_iter().map(problem));
    Ok(checks)
}

/// The names of the pods with memory settings inside that no resize reaches.
fn out_of_reach(pods: &[PodState]) -> Vec<String> {
    let found = pods.iter().filter(|state| state.decision.findings().next().is_some());
    let mut names: Vec<String> = found.map(|state| state.pod.full_name()).collect();
    names.sort_unstable();
    names
}

fn kubelet(node: &Node, pods: &[PodState]) -> Check {
    let mode = if pods.iter().any(|state| supports_in_place_resize(&state.pod)) {
        "resizes in place itself (it reports resources in force)"
    } else {
        "does not resize in place, or no source says; the agent keeps its own record"
    };
    let assumed = "assumed: no source has the Node object; set kubeletVersion where that is wrong";
    let from = known_from(node.kubelet_from, "as its Node object states", assumed);
    Check::ok("kubelet", format!("{mode}; rules of {} ({from})", node.traits.kubelet))
}

/// Names some of the pods whose memory settings do not follow their limits.
fn settings(pods: &[String]) -> Check {
    const NAME: &str = "memory settings";
    const NAMED: usize = 5;
    if pods.is_empty() {
        return Check::ok(
            NAME,
            "no container sets what a resize cannot reach, as far as manifests say",
        );
    }
    let named = &pods[..pods.len().min(NAMED)];
    let more = if pods.len() > NAMED { ", …" } else { "" };
    let found = format!(
        "set inside {} pods, where no resize reaches: {}{more}",
        pods.len(),
        named.join(", ")
    );
    Check::warn(NAME, found, "vscalectl explain POD says which setting and what to do")
}

/// Counts the hooks that the agent cannot run now, and says why for the first of them.
async fn hooks(node: &Node, pods: &[PodState]) -> Option<Check> {
    let pods = pods.iter().filter_map(|state| Some((&state.pod, state.live.as_ref()?)));
    // In parallel: a runtime that hangs costs one wait.
    let problems = join_all(pods.map(async |(pod, live)| {
        let (name, found) = (pod.full_name(), hook_problems(node, pod, live, None).await);
        let named = found.into_iter().map(|problem| format!("{name} {problem}"));
        named.collect::<Vec<_>>()
    }));
    let problems = problems.await.concat();
    let first = problems.first()?;
    let found = format!("{} would not be run, such as {first}", problems.len());
    Some(Check::warn("hooks", found, "vscalectl explain POD says it of each"))
}

/// A problem of the agent, whose text names the way out of it. Observing is no problem: the configuration says so.
fn problem(text: String) -> Check {
    match text.as_str() {
        OBSERVING => Check::ok("mode", text),
        _ => Check::warn("problem", text, "mend it where it says; the log has the whole story"),
    }
}

fn driver(node: &Node) -> Check {
    const NAME: &str = "cgroup driver";
    let from = known_from(node.driver_from, "told by the runtime", "by the names in the tree");
    match (node.traits.driver, &node.units) {
        (Driver::Cgroupfs, _) => Check::ok(NAME, format!("cgroupfs, {from}")),
        (Driver::Systemd, Some(systemd)) => {
            let found = format!("systemd {}, {from}", systemd.version());
            Check::ok(NAME, found)
        }
        (Driver::Systemd, None) => Check::warn(
            NAME,
            format!("systemd, {from}, and it cannot be reached"),
            "mount the host's /run/dbus/system_bus_socket here, and where AppArmor forbids to use it set cgroup=v2 (overlays/cgroup-v2); \
             until then systemd may put its own values back",
        ),
    }
}

async fn runtime(node: &Node) -> Check {
    const NAME: &str = "runtime";
    match &node.runtime {
        RuntimeLink::None => Check::ok(NAME, "none, as configured: cgroup files are written directly"),
        RuntimeLink::Away(why) => Check::fail(NAME, why.clone(), MEND_RUNTIME),
        RuntimeLink::Found(runtime) => match runtime.info().await {
            Ok(info) => Check::ok(NAME, format!("{} {}", info.name, info.version)),
            Err(error) => {
                let name = node.runtime_name.as_deref().unwrap_or("found");
                Check::fail(NAME, format!("{name}: {error}"), "see whether it runs: crictl info")
            }
        },
    }
}

fn formula(node: &Node) -> Check {
    const NAME: &str = "cpu weights";
    if node.traits.version == CgroupVersion::V1 {
        return Check::ok(NAME, "shares as they are: cgroup v1 has no weights");
    }
    let formula = node.traits.container_weight;
    let (reported, inferred) = (
        "as a container of the runtime shows",
        "assumed until a container shows which",
    );
    let from = known_from(node.formula_from, reported, inferred);
    Check::ok(NAME, format!("{formula}, {from}"))
}

const fn known_from(from: KnownFrom, reported: &'static str, inferred: &'static str) -> &'static str {
    match from {
        KnownFrom::Configured => "configured",
        KnownFrom::Reported => reported,
        KnownFrom::Inferred => inferred,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn observing_is_no_problem() {
        assert_eq!(problem(OBSERVING.to_owned()).status, "ok");
        assert_eq!(problem("no source answers".to_owned()).status, "warn");
    }

    #[test]
    fn a_few_of_the_pods_with_settings_out_of_reach_are_named() {
        let pods: Vec<String> = (0..7).map(|number| format!("shop/web-{number}")).collect();
        assert_eq!(settings(&[]).mend, "");
        assert_eq!(
            settings(&pods[..2]).found,
            "set inside 2 pods, where no resize reaches: shop/web-0, shop/web-1"
        );
        assert!(settings(&pods).found.ends_with("shop/web-4, …"));
    }
}
