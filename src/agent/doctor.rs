//! The checks of `vscalectl doctor` that need the agent's knowledge of the node.

use std::path::Path;
use std::time::Duration;

use futures::future::join_all;
use tokio::sync::Mutex;

use crate::actuate::{KnownFrom, Node, RuntimeLink, hook_problems};
use crate::config::{MEND_API_VERSION, allows_hooks_in};
use crate::control::ControlError;
use crate::doctor::{Check, Found, Locations, MEND_RUNTIME, local};
use crate::model::{CgroupVersion, Driver, OBSERVING};
use crate::plan::hook::former_hooks;
use crate::reconcile::controller::AgentSnapshot;
use crate::reconcile::pod::PodState;

/// The longest time of the check of a pod's hooks: a container whose runtime hangs must not cost the whole answer.
const HOOKS: Duration = Duration::from_secs(4);
/// Whose turn it is to examine the machine.
static MACHINE: Mutex<()> = Mutex::const_new(());

/// Every check, those of the machine first. `outdated` is a configuration file of the version before.
pub(super) async fn examine(
    locations: Locations,
    outdated: Option<&Path>,
    agent: AgentSnapshot,
) -> Result<Vec<Check>, ControlError> {
    let mut checks = machine(locations).await?;
    if let Some(file) = outdated {
        let found = format!("{} is of vscaled.io/v1alpha1, which is still read", file.display());
        checks.push(Check::new("configuration", Err(Check::warn(found, MEND_API_VERSION))));
    }
    let own = match &agent.node {
        Some(node) => vec![
            (
                "pods",
                Ok(format!("{} known, below {}", agent.pods.len(), node.kubepods.path)),
            ),
            ("cgroup driver", driver(node)),
            ("runtime", runtime(node).await),
            ("cpu weights", Ok(formula(node))),
            ("kubelet", Ok(kubelet(node, &agent.pods))),
            ("refused resizes", Ok(refused(&agent.refusals))),
            ("memory settings", settings(&out_of_reach(&agent.pods))),
        ],
        None => {
            let mend = "see the problems below; nothing is written until then";
            vec![("node", Err(Check::fail("not known well enough to act on it", mend)))]
        }
    };
    checks.extend(own.into_iter().map(|(name, found)| Check::new(name, found)));
    checks.push(Check::new("hooks", Ok(allowed_hooks(&agent.hooks))));
    if let Some(node) = &agent.node {
        checks.extend(hooks(node, &agent.pods, &agent.hooks).await);
    }
    checks.extend(agent.problems.into_iter().map(problem));
    Ok(checks)
}

/// The checks of the machine, for one caller at a time: on a disk that hangs they keep one thread, and passes have the others.
async fn machine(locations: Locations) -> Result<Vec<Check>, ControlError> {
    let turn = MACHINE.lock().await;
    let checks = tokio::task::spawn_blocking(move || {
        let checks = local(&locations);
        drop(turn);
        checks
    });
    checks.await.map_err(|panic| ControlError::Internal(panic.to_string()))
}

/// The names of the pods with memory settings inside that no resize reaches.
fn out_of_reach(pods: &[PodState]) -> Vec<String> {
    let found = pods.iter().filter(|state| state.decision.findings().next().is_some());
    let mut names: Vec<String> = found.map(|state| state.pod.full_name()).collect();
    names.sort_unstable();
    names
}

fn kubelet(node: &Node, pods: &[PodState]) -> String {
    let mode = if pods.iter().any(|state| state.pod.resizes_in_place()) {
        "resizes in place itself (it reports resources in force)"
    } else {
        "does not resize in place, or no source says; the agent keeps its own record"
    };
    let assumed = "assumed: no source has the Node object; set kubeletVersion where that is wrong";
    let from = known_from(node.kubelet_from, "as its Node object states", assumed);
    format!("{mode}; rules of {} ({from})", node.traits.kubelet)
}

/// What the kubelet and the API server refuse to resize, until they were away.
fn refused(refusals: &[String]) -> String {
    match refusals {
        [] => "none known".to_owned(),
        known => format!(
            "by this kubelet, so that only the other resource is requested: {}",
            known.join("; ")
        ),
    }
}

/// Names some of the pods whose memory settings do not follow their limits.
fn settings(pods: &[String]) -> Found {
    const NAMED: usize = 5;
    if pods.is_empty() {
        return Ok("no manifest sets a value that a resize does not change".to_owned());
    }
    let named = pods[..pods.len().min(NAMED)].join(", ");
    let more = if pods.len() > NAMED { ", …" } else { "" };
    Err(Check::warn(
        format!(
            "{} pods set values that a resize does not change: {named}{more}",
            pods.len()
        ),
        "vscalectl explain POD says which setting and what to do",
    ))
}

/// The namespaces in which hooks run, in words.
fn allowed_hooks(namespaces: &[String]) -> String {
    let named = namespaces.iter().filter(|name| *name != "*");
    let named: Vec<_> = named.map(String::as_str).collect();
    match (namespaces.len() - named.len(), named.join(", ")) {
        (0, named) if named.is_empty() => "may run in no namespace: the list hooks is empty".to_owned(),
        (0, named) => format!("may run in {named}"),
        (_, _) if namespaces.iter().any(|name| name == "kube-system") => {
            "may run in every namespace, kube-system included".to_owned()
        }
        _ => "may run in every namespace but kube-system".to_owned(),
    }
}

/// Counts the hooks that the agent cannot run now, and says why for the first of them. Nothing is tried for pods whose hooks may
/// not run.
async fn hooks(node: &Node, pods: &[PodState], namespaces: &[String]) -> Option<Check> {
    let pods = pods.iter().filter_map(|state| Some((&state.pod, state.live.as_ref()?)));
    // In parallel: a runtime that hangs costs one wait.
    let problems = join_all(pods.map(async |(pod, live)| {
        let found = if allows_hooks_in(namespaces, &pod.metadata.namespace) {
            let tried = tokio::time::timeout(HOOKS, hook_problems(node, pod, live, None)).await;
            tried.unwrap_or_else(|_elapsed| vec![format!("has hooks that could not be tried in {HOOKS:?}")])
        } else {
            former_hooks(pod).collect()
        };
        let name = pod.full_name();
        let named = found.into_iter().map(|problem| format!("{name} {problem}"));
        named.collect::<Vec<_>>()
    }));
    let problems = problems.await.concat();
    let found = format!(
        "hooks that cannot run: {}, such as {}",
        problems.len(),
        problems.first()?
    );
    let problem = Check::warn(found, "vscalectl explain POD names each of them");
    Some(Check::new("hooks", Err(problem)))
}

/// A problem of the agent, whose text names the way out of it. Observing is no problem: the configuration requests it.
fn problem(text: String) -> Check {
    match text.as_str() {
        OBSERVING => Check::new("mode", Ok(text)),
        _ => {
            let problem = Check::warn(text, "do what the text says; the log has the details");
            Check::new("problem", Err(problem))
        }
    }
}

fn driver(node: &Node) -> Found {
    let from = known_from(node.driver_from, "reported by the runtime", "by the names in the tree");
    match (node.traits.driver, &node.units) {
        (Driver::Cgroupfs, _) => Ok(format!("cgroupfs, {from}")),
        (Driver::Systemd, Some(systemd)) => Ok(format!("systemd {}, {from}", systemd.version())),
        (Driver::Systemd, None) => Err(Check::warn(
            format!("systemd, {from}, and it cannot be reached"),
            "mount the host's /run/dbus/system_bus_socket here, and where AppArmor forbids to use it set cgroup=v2 (overlays/cgroup-v2); \
             until then systemd may put its own values back",
        )),
    }
}

async fn runtime(node: &Node) -> Found {
    match &node.runtime {
        RuntimeLink::None => Ok("none, as configured: cgroup files are written directly".to_owned()),
        RuntimeLink::Away(why) => Err(Check::fail(why.clone(), MEND_RUNTIME)),
        RuntimeLink::Found(runtime) => match runtime.info().await {
            Ok(info) => Ok(format!("{} {}", info.name, info.version)),
            Err(error) => {
                let name = node.runtime_name.as_deref().unwrap_or("found");
                Err(Check::fail(
                    format!("{name}: {error}"),
                    "see whether it runs: crictl info",
                ))
            }
        },
    }
}

fn formula(node: &Node) -> String {
    if node.traits.version == CgroupVersion::V1 {
        return "shares as they are: cgroup v1 has no weights".to_owned();
    }
    let formula = node.traits.container_weight;
    let inferred = "assumed until a container shows which";
    let from = known_from(node.formula_from, "as a container of the runtime shows", inferred);
    format!("{formula}, {from}")
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
    use std::sync::Arc;

    use jiff::SignedDuration;

    use super::*;
    use crate::decide::PodDecision;
    use crate::model::{KubeletVersion, LivePod};
    use crate::sources::parse_manifests;

    #[tokio::test]
    async fn each_part_of_the_agent_has_its_check() {
        let root = tempfile::tempdir().unwrap();
        let known = [
            "pods ok",
            "cgroup driver ok",
            "runtime ok",
            "cpu weights ok",
            "kubelet ok",
            "refused resizes ok",
            "memory settings ok",
        ];
        for (node, own) in [
            (None, &["node fail"][..]),
            (Some(Arc::new(Node::on_files(root.path()))), &known),
        ] {
            let agent = AgentSnapshot {
                node,
                problems: vec!["no source answers".to_owned()],
                refusals: Vec::new(),
                pods: Vec::new(),
                quiet: SignedDuration::ZERO,
                hooks: Vec::new(),
            };
            let outdated = Some(Path::new("/etc/vscaled.yaml"));
            let checks = examine(Locations::default(), outdated, agent).await.unwrap();
            let checks = checks.iter().map(|check| format!("{} {}", check.name, check.status));
            let found: Vec<String> = checks.skip_while(|check| !check.starts_with("configuration")).collect();
            let expected = [&["configuration warn"][..], own, &["hooks ok", "problem warn"]].concat();
            assert_eq!(found, expected);
        }
    }

    #[tokio::test]
    async fn hooks_are_tried_where_they_may_run() {
        let root = tempfile::tempdir().unwrap();
        let node = Node::on_files(root.path());
        let env = "{name: VSCALED_AFTER_GROW, value: 'signal: SIGHUP'}";
        let pod = format!(
            "{{kind: Pod, metadata: {{name: web, namespace: shop, uid: u}}, spec: {{containers: [{{name: app, env: [{env}]}}]}}}}"
        );
        let pod = Arc::clone(&parse_manifests("pod", &pod).unwrap().view.pods[0]);
        let decision = PodDecision::undecided(&pod);
        let mut state = PodState::new(pod, decision);
        state.live = Some(Arc::new(LivePod::on_files(["app"])));
        let pods = [state];
        let problems = async |namespace: &str| {
            let found = hooks(&node, &pods, &[namespace.to_owned()]).await;
            found.map(|check| check.found)
        };
        assert_eq!(problems("bank").await, None);
        let found = problems("shop").await.unwrap();
        assert!(
            found.starts_with("hooks that cannot run: 1, such as shop/web "),
            "{found}"
        );
    }

    #[test]
    fn observing_is_no_problem() {
        assert_eq!(problem(OBSERVING.to_owned()).status, "ok");
        assert_eq!(problem("no source answers".to_owned()).status, "warn");
    }

    #[test]
    fn callers_examine_the_machine_in_turn() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .max_blocking_threads(1)
            .build()
            .unwrap();
        runtime.block_on(async {
            let turn = MACHINE.lock().await;
            let second = tokio::spawn(machine(Locations::default()));
            for _ in 0..2 {
                tokio::task::yield_now().await;
                // The only thread has done by then what was asked of it before.
                tokio::task::spawn_blocking(|| ()).await.unwrap();
            }
            assert!(!second.is_finished());
            drop(turn);
            second.await.unwrap().unwrap();
        });
    }

    #[test]
    fn every_namespace_that_may_use_hooks_is_named() {
        let said = |names: &[&str]| allowed_hooks(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
        assert_eq!(said(&[]), "may run in no namespace: the list hooks is empty");
        assert_eq!(said(&["shop", "bank"]), "may run in shop, bank");
        assert_eq!(said(&["*", "shop"]), "may run in every namespace but kube-system");
        assert_eq!(
            said(&["kube-system", "*"]),
            "may run in every namespace, kube-system included"
        );
    }

    #[test]
    fn a_few_unreachable_pods_are_named() {
        let pods: Vec<String> = (0..7).map(|number| format!("shop/web-{number}")).collect();
        let settings = |pods: &[String]| Check::new("memory settings", settings(pods));
        assert_eq!(settings(&[]).mend, "");
        assert_eq!(
            settings(&pods[..2]).found,
            "2 pods set values that a resize does not change: shop/web-0, shop/web-1"
        );
        assert!(settings(&pods).found.ends_with("shop/web-4, …"));
    }

    #[tokio::test]
    async fn what_is_known_of_the_node_is_said() {
        let root = tempfile::tempdir().unwrap();
        let mut node = Node::on_files(root.path());
        node.traits.kubelet = KubeletVersion(34);
        assert_eq!(formula(&node), "quadratic, configured");
        assert_eq!(driver(&node).unwrap(), "cgroupfs, configured");
        assert_eq!(
            kubelet(&node, &[]),
            "does not resize in place, or no source says; the agent keeps its own record; rules of 1.34 (configured)"
        );
        (node.formula_from, node.driver_from, node.kubelet_from) =
            (KnownFrom::Reported, KnownFrom::Reported, KnownFrom::Reported);
        assert_eq!(formula(&node), "quadratic, as a container of the runtime shows");
        assert_eq!(driver(&node).unwrap(), "cgroupfs, reported by the runtime");
        assert!(kubelet(&node, &[]).ends_with("rules of 1.34 (as its Node object states)"));
        (node.formula_from, node.driver_from, node.kubelet_from) =
            (KnownFrom::Inferred, KnownFrom::Inferred, KnownFrom::Inferred);
        assert_eq!(formula(&node), "quadratic, assumed until a container shows which");
        assert!(kubelet(&node, &[]).contains("rules of 1.34 (assumed: no source has the Node object"));
        node.traits.driver = Driver::Systemd;
        let unreachable = driver(&node).unwrap_err();
        assert_eq!(
            (unreachable.status.as_str(), unreachable.found.as_str()),
            ("warn", "systemd, by the names in the tree, and it cannot be reached")
        );
        node.traits.version = CgroupVersion::V1;
        assert_eq!(formula(&node), "shares as they are: cgroup v1 has no weights");

        assert_eq!(
            runtime(&node).await.unwrap(),
            "none, as configured: cgroup files are written directly"
        );
        node.runtime = RuntimeLink::Away("nobody answers".to_owned());
        let away = runtime(&node).await.unwrap_err();
        assert_eq!(
            [away.status.as_str(), &away.found, &away.mend],
            ["fail", "nobody answers", MEND_RUNTIME]
        );
    }

    #[test]
    fn refused_resizes_are_listed() {
        assert_eq!(refused(&[]), "none known");
        let refusals = ["cpu of Guaranteed pods", "memory of Guaranteed pods"].map(str::to_owned);
        assert_eq!(
            refused(&refusals),
            "by this kubelet, so that only the other resource is requested: cpu of Guaranteed pods; memory of Guaranteed pods"
        );
    }
}
