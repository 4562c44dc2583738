//! The programs that `scripts/kube-parts` builds.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::support::skipped;

/// A version of Kubernetes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Release {
    /// 1.32: the last whose API server and kubelet do not resize in place.
    Legacy,
    /// 1.37
    Today,
}

impl Release {
    const fn part(self) -> &'static str {
        match self {
            Self::Legacy => "kubernetes-1.32",
            Self::Today => "kubernetes-1.37",
        }
    }
}

/// The directory of all parts.
#[derive(Debug, Clone)]
pub(crate) struct Programs {
    parts: PathBuf,
}

impl Programs {
    /// Finds those of both releases. Without them, reports `test` as skipped and returns `None`.
    pub(crate) fn find(test: &str) -> Option<Self> {
        Self::with(
            &[Release::Legacy.part(), Release::Today.part(), "addons", "auditors"],
            test,
        )
    }

    /// Finds those of one release; etcd and kubectl are always of the newest.
    pub(super) fn of(release: Release, test: &str) -> Option<Self> {
        let beside = match release {
            Release::Legacy => Release::Legacy.part(),
            Release::Today => "containerd-2",
        };
        Self::with(&[Release::Today.part(), beside], test)
    }

    fn with(parts: &[&str], test: &str) -> Option<Self> {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/kube-parts");
        let found = Command::new(script)
            .arg("--where")
            .args(parts)
            .stderr(Stdio::null())
            .output()
            .unwrap();
        if found.status.success() {
            let parts = PathBuf::from(String::from_utf8(found.stdout).unwrap().trim());
            return Some(Self { parts });
        }
        skipped(test, "no parts of a cluster here: scripts/kube-parts builds them");
        None
    }

    /// The path of kube-apiserver, kubectl and so on.
    pub(crate) fn kubernetes(&self, release: Release, name: &str) -> PathBuf {
        self.parts.join(release.part()).join(name)
    }

    /// The newest kubectl.
    pub(crate) fn kubectl(&self) -> PathBuf {
        self.kubernetes(Release::Today, "kubectl")
    }

    /// A cluster's kubelet. `VSCALED_TEST_KUBELET` names another one for clusters of today, such as 1.35.
    pub(super) fn kubelet(&self, release: Release) -> PathBuf {
        match std::env::var("VSCALED_TEST_KUBELET") {
            Ok(version) if release == Release::Today => self.parts.join(format!("kubelet-{version}/kubelet")),
            _ => self.kubernetes(release, "kubelet"),
        }
    }

    pub(super) fn etcd(&self) -> PathBuf {
        self.kubernetes(Release::Today, "etcd")
    }

    /// Helm, or one of VPA's programs.
    pub(crate) fn addon(&self, name: &str) -> PathBuf {
        self.parts.join("addons").join(name)
    }

    pub(crate) fn kube_score(&self) -> PathBuf {
        self.parts.join("auditors/kube-score")
    }

    /// The directory of containerd 2 with its shim. `VSCALED_TEST_CONTAINERD=system` asks for the one in `PATH`.
    pub(crate) fn containerd(&self) -> Option<PathBuf> {
        let wanted = std::env::var("VSCALED_TEST_CONTAINERD").unwrap_or_default();
        (wanted != "system").then(|| self.parts.join("containerd-2"))
    }
}
