//! The messages to and from the guard.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::budgets::{Budget, RefusalKind};
use crate::actuate::{Growable, Grown, Node};
use crate::model::objects::{PodId, PodKey};
use crate::model::{Bytes, CgroupPath, ContainerId, ContainerName, LiveContainer, LivePod, MilliCpu};

/// Pods that the guard watches from now on, or no more. Pods of earlier lists that are not in this one stay as they are.
#[derive(Debug, Clone)]
pub struct Watchlist {
    pub node: Arc<Node>,
    pub settings: Settings,
    /// The pods; `None` where no limit may grow.
    pub pods: BTreeMap<PodKey, Option<GuardedPod>>,
    /// The requests of the same pods; `None` for a pod that is gone.
    pub claims: BTreeMap<PodKey, Option<Claim>>,
}

/// The configuration of the guard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Settings {
    /// Available memory that the guard never grants.
    pub reserve: Bytes,
    pub budget: Budget,
    /// How long a container with a temporary limit has to be quiet before the controller reviews the limit.
    pub quiet: Duration,
}

/// A pod with a limit that may grow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuardedPod {
    pub live: Arc<LivePod>,
    pub growable: Growable,
    pub containers: Vec<Terms>,
}

/// A cgroup that the guard watches.
#[derive(Debug)]
pub(super) struct GuardedCgroup {
    /// The id of the container, or of the pod's first container.
    pub(super) id: ContainerId,
    pub(super) path: CgroupPath,
    /// Those of the container, or of the pod's first container.
    pub(super) terms: Terms,
    /// Whether it is the cgroup of the pod, not of a container.
    pub(super) is_pod: bool,
}

impl GuardedCgroup {
    /// No other cgroup of the node has this key. A container that starts again has another one.
    pub(super) fn key(&self) -> (ContainerId, bool) {
        (self.id.clone(), self.is_pod)
    }

    /// The name of the container, or what log lines have in its place for the cgroup of a pod.
    pub(super) fn name(&self) -> &str {
        if self.is_pod { "pod" } else { &self.terms.container }
    }
}

impl GuardedPod {
    /// The cgroups of the containers, and then of the pod, where its limit may be reached before a container reaches its own. The pod's
    /// cgroup is opened again with its first container.
    pub(super) fn cgroups(&self) -> Vec<GuardedCgroup> {
        let containers = self.containers.iter().filter_map(|terms| {
            let LiveContainer { id, path } = self.live.containers.get(&terms.container)?;
            Some(GuardedCgroup {
                id: id.clone(),
                path: path.clone(),
                terms: terms.clone(),
                is_pod: false,
            })
        });
        let mut cgroups: Vec<_> = containers.collect();
        if (self.live.containers.len() > 1 || self.had_other_containers())
            && let Some(first) = cgroups.iter().find(|one| one.terms.watches_memory())
        {
            let of_pod = GuardedCgroup {
                id: first.id.clone(),
                path: self.live.path.clone(),
                terms: Terms {
                    cpu: None,
                    ..first.terms.clone()
                },
                is_pod: true,
            };
            cgroups.push(of_pod);
        }
        cgroups
    }

    /// Whether containers of the pod have ended: the pages of a tmpfs (an `emptyDir` of medium `Memory`) that they filled still count
    /// for the pod, and for no container.
    fn had_other_containers(&self) -> bool {
        let pod = &self.growable.pod;
        let has_init = pod.spec.init_containers.iter().any(|init| !init.is_sidecar());
        has_init || pod.statuses().any(|status| status.restart_count > 0)
    }
}

/// How the limits of one container may grow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Terms {
    pub container: ContainerName,
    /// The highest memory limit; `None` if it may not grow.
    pub memory: Option<Bytes>,
    /// Why the memory limit may not rise above that; `None` where the VPA says so.
    pub not_higher: Option<String>,
    /// Whether the guard, or that of an earlier agent, gave the temporary memory limit because the pod was about to reach its limit.
    pub for_pod: bool,
    /// `None` if the cpu limit may not grow.
    pub cpu: Option<CpuTerms>,
    /// The part of the highest memory limit that is kept for evidence, where the container has a hook that leaves evidence
    /// before a limit that cannot grow.
    pub evidence: Option<Bytes>,
}

impl Terms {
    /// Whether the memory limit may grow, or the container leaves evidence before it reaches that.
    pub(super) const fn watches_memory(&self) -> bool {
        self.memory.is_some() || self.evidence.is_some()
    }
}

/// How a cpu limit may grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuTerms {
    pub limit: MilliCpu,
    pub ceiling: MilliCpu,
    /// Whether the present limit is a temporary one.
    pub lent: bool,
}

/// The memory request of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    pub path: CgroupPath,
    pub request: Bytes,
}

/// A message from the guard to the controller about one container.
#[derive(Debug)]
pub struct Report {
    pub of: Guarded,
    pub event: GuardEvent,
}

/// The guard's action for a container, or its observation.
#[derive(Debug)]
pub enum GuardEvent {
    /// The guard grew a limit, or tried to.
    Grew {
        /// Memory in use without page cache.
        used: Bytes,
        to: Bytes,
        why: String,
        /// Whether the pod was about to reach its limit, not the container its own.
        for_pod: bool,
        grown: Box<Grown>,
    },
    /// A limit should grow and must not. Reported once, until the reason changes.
    Refused { kind: RefusalKind, why: String },
    /// A limit will be reached and cannot grow, and the container's hook shall leave evidence. Reported once, until the
    /// terms have been without evidence.
    Pressure {
        limit: Bytes,
        /// The temporary limit for the evidence; the same as `limit` where the guard could not grow it.
        lent: Bytes,
    },
    /// The kernel has throttled the container for so long that its cpu limit should rise to `to`.
    Throttled { from: MilliCpu, to: MilliCpu, why: String },
    /// A container with a temporary cpu limit has not been throttled for the quiet time.
    Unthrottled,
    /// A container with a temporary memory limit has been quiet for the quiet time.
    Quiet {
        /// The most memory that was in use meanwhile, without page cache.
        peak: Bytes,
        /// The part of the limit that is needed: the peak, or more where the pod would soon be about to reach its limit again.
        needed: Bytes,
    },
}

/// A container, among all of the node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Guarded {
    pub pod: PodId,
    pub container: ContainerName,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::PodAmounts;

    /// A pod of these containers, each with this highest memory limit.
    fn pod(names: &[&str], memory: Option<Bytes>) -> GuardedPod {
        let path = |text: &str| CgroupPath::new(text).unwrap();
        let container = |name: &&str| {
            let (id, path) = (
                ContainerId::of_test(&format!("{name}-1")),
                path(&format!("/pod/{name}")),
            );
            ((*name).into(), LiveContainer { id, path })
        };
        let terms = |name: &&str| Terms {
            container: (*name).into(),
            memory,
            not_higher: None,
            for_pod: false,
            cpu: None,
            evidence: None,
        };
        let live = LivePod {
            id: PodId {
                uid: "u".into(),
                namespace: "test".to_owned(),
                name: "web".to_owned(),
            },
            path: path("/pod"),
            containers: names.iter().map(container).collect(),
        };
        GuardedPod {
            live: Arc::new(live),
            growable: Growable {
                pod: Arc::default(),
                targets: PodAmounts::default(),
            },
            containers: names.iter().map(terms).collect(),
        }
    }

    #[test]
    fn a_pod_of_several_containers_is_watched_too() {
        let watched = |names: &[&str], memory| {
            let pod = pod(names, memory);
            let cgroups = pod.cgroups().into_iter();
            cgroups.map(|one| one.key()).collect::<Vec<_>>()
        };
        let [app, side] = ["app-1", "side-1"].map(|id| (ContainerId::of_test(id), false));
        let of_pod = (app.0.clone(), true);
        let highest = Some(Bytes::new(1 << 30));
        assert_eq!(watched(&["app", "side"], highest), [app.clone(), side.clone(), of_pod]);
        assert_eq!(
            watched(&["app", "side"], None),
            [app.clone(), side],
            "no limit may grow"
        );
        assert_eq!(watched(&["app"], highest), [app], "it reaches its own limit first");
    }

    #[test]
    fn a_pod_whose_containers_ended_is_watched_too() {
        let watches_pod = |manifest: &str| {
            let mut pod = pod(&["app"], Some(Bytes::new(1 << 30)));
            pod.growable.pod = Arc::new(serde_json::from_str(manifest).unwrap());
            pod.cgroups().iter().any(|one| one.is_pod)
        };
        let of_app = |restarts: u64| {
            format!(r#"{{"status": {{"containerStatuses": [{{"name": "app", "restartCount": {restarts}}}]}}}}"#)
        };
        assert!(watches_pod(&of_app(1)) && !watches_pod(&of_app(0)));
        assert!(watches_pod(r#"{"spec": {"initContainers": [{"name": "init"}]}}"#));
        let sidecar = r#"{"spec": {"initContainers": [{"name": "side", "restartPolicy": "Always"}]}}"#;
        assert!(!watches_pod(sidecar), "it runs as long as the pod");
    }
}
