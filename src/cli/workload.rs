//! The name of a workload on the command line, in place of a pod's.

use super::Failure;
use super::agent::warn_of_left_out;
use crate::control::Client;
use crate::control::proto::{Pod, Workload};

/// Kinds that need no namespace before them, each with the names that kubectl accepts besides its plural.
const KINDS: [(&str, &str); 7] = [
    ("deployment", "deploy"),
    ("statefulset", "sts"),
    ("daemonset", "ds"),
    ("replicaset", "rs"),
    ("replicationcontroller", "rc"),
    ("cronjob", "cj"),
    ("job", "job"),
];

/// `deployment/web`, or `shop/Rollout/web` for a workload of any kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WorkloadName {
    /// None for each namespace.
    namespace: Option<String>,
    /// In small letters.
    kind: String,
    name: String,
}

impl WorkloadName {
    /// The workload that the text names, if it does not name a pod.
    pub(super) fn read(text: &str) -> Option<Self> {
        let (namespace, kind, name) = match text.split('/').collect::<Vec<_>>().as_slice() {
            // Not the id of a container with the name of its runtime.
            [namespace, kind, name] if !kind.is_empty() => (Some((*namespace).to_owned()), *kind, *name),
            [kind, name] => (None, *kind, *name),
            _ => return None,
        };
        let kind = kind.to_lowercase();
        let names = |(long, short): &&(&str, &str)| {
            [*long, *short].contains(&kind.as_str()) || kind.strip_suffix('s') == Some(long)
        };
        let known = KINDS.iter().find(names).map(|(long, _)| (*long).to_owned());
        let kind = known.or_else(|| namespace.as_ref().map(|_| kind.clone()))?;
        let name = name.to_owned();
        Some(Self { namespace, kind, name })
    }

    fn has(&self, pod: &Pod) -> bool {
        let is_named = |of: &Workload| of.name == self.name && of.kind.to_lowercase() == self.kind;
        let is_here = |namespace: &String| *namespace == pod.namespace;
        self.namespace.as_ref().is_none_or(is_here) && pod.workload.as_ref().is_some_and(is_named)
    }

    /// Its pods on this node.
    pub(super) async fn pods(&self, client: &mut Client) -> Result<Vec<Pod>, Failure> {
        let reply = client.get().await?;
        warn_of_left_out(reply.agent.as_ref());
        let mut pods = reply.pods;
        pods.retain(|pod| self.has(pod));
        Ok(pods)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_read_as_kubectl_reads_them() {
        let read = |text: &str| {
            let WorkloadName { namespace, kind, name } = WorkloadName::read(text)?;
            Some(format!("{} {kind} {name}", namespace.unwrap_or_default()))
        };
        for (text, named) in [
            ("deployment/web", Some(" deployment web")),
            ("deploy/web", Some(" deployment web")),
            ("StatefulSets/db", Some(" statefulset db")),
            ("shop/sts/db", Some("shop statefulset db")),
            ("shop/Rollout/web", Some("shop rollout web")),
            ("shop/web", None),
            ("deployments-blue/web", None),
            ("web", None),
            ("a/b/c/d", None),
            ("containerd://c0ffee", None),
        ] {
            assert_eq!(read(text).as_deref(), named, "{text}");
        }
    }

    #[test]
    fn a_workload_has_the_pods_that_it_owns() {
        let pod = Pod {
            namespace: "shop".to_owned(),
            workload: Some(Workload {
                kind: "Deployment".to_owned(),
                name: "web".to_owned(),
            }),
            ..Pod::default()
        };
        for (text, has) in [
            ("deploy/web", true),
            ("shop/deploy/web", true),
            ("bank/deploy/web", false),
            ("sts/web", false),
            ("deploy/web-2", false),
        ] {
            assert_eq!(WorkloadName::read(text).unwrap().has(&pod), has, "{text}");
        }
        assert!(!WorkloadName::read("deploy/web").unwrap().has(&Pod::default()));
    }
}
