//! The agent on a node whose cgroups the real systemd creates: systemd's records have the agent's values too.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use vscaled::cgroup::systemd::{Systemd, Unit};
use vscaled::cgroup::{CgroupDir, Hierarchy};
use vscaled::model::{CgroupPath, CgroupVersion, Settings};

use super::systemd_real::held;
use crate::cgroup_files::tree::wait_for;
use crate::support::agent::Agent;
use crate::support::amounts::{Amounts, pod_manifest, vpa_manifest};
use crate::support::skipped;

const UID: &str = "0a1b2c3d-0000-4000-8000-000000000041";
pub(super) const ROOT: &str = "/vscaledtest.slice/vscaledtest-kubepods.slice";
/// Whole percents of a cpu, because systemd stores no fractions.
pub(super) const AT_FIRST: Amounts = Amounts::doubled(100, 64);

/// A pod's slice with a container's scope in it. Stopped at the end.
pub(super) struct Pod {
    process: Child,
    slice: CgroupPath,
    scope: CgroupPath,
    id: String,
    systemd: Systemd,
    hierarchy: Hierarchy,
}

impl Pod {
    /// Creates both as the kubelet and its runtime do.
    pub(super) fn start() -> Self {
        let id = format!("{:064x}", std::process::id());
        let class = format!("{ROOT}/vscaledtest-kubepods-burstable.slice");
        let name = format!("vscaledtest-kubepods-burstable-pod{}.slice", UID.replace('-', "_"));
        let slice = CgroupPath::new(&format!("{class}/{name}")).unwrap();
        let scope = slice.child(&format!("cri-containerd-{id}.scope")).unwrap();
        let process = Command::new("systemd-run")
            .args([
                "--scope",
                "--slice",
                &name,
                "--unit",
                scope.name().unwrap(),
                "sleep",
                "1000",
            ])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let hierarchy = Hierarchy::discover(None).unwrap();
        wait_for("the scope", || CgroupDir::open(&hierarchy, &scope).is_ok());
        let pod = Self {
            process,
            slice,
            scope,
            id,
            systemd: Systemd::connect(None, Duration::from_secs(60)).unwrap(),
            hierarchy,
        };
        let first = AT_FIRST.settings(CgroupVersion::V2);
        for unit in [pod.unit(), Unit::of(&pod.scope).unwrap()] {
            pod.systemd.set(&unit, &first).unwrap();
        }
        wait_for("systemd to write the files", || pod.holds(AT_FIRST));
        pod
    }

    pub(super) fn slice_name(&self) -> &str {
        self.slice.name().unwrap()
    }

    fn unit(&self) -> Unit {
        Unit::of(&self.slice).unwrap()
    }

    fn held(&self, path: &CgroupPath) -> Settings {
        held(&CgroupDir::open(&self.hierarchy, path).unwrap())
    }

    /// Whether pod and container hold these amounts.
    pub(super) fn holds(&self, amounts: Amounts) -> bool {
        let wanted = amounts.settings(CgroupVersion::V2);
        self.held(&self.slice) == wanted && self.held(&self.scope) == wanted
    }

    pub(super) fn manifest(&self) -> String {
        pod_manifest("web", UID, &[("app", AT_FIRST, Some(&self.id))])
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        for unit in [self.scope.name(), self.slice.name(), Some("vscaledtest.slice")] {
            let stopped = Command::new("systemctl").arg("stop").args(unit).status();
            assert!(
                stopped.is_ok_and(|status| status.success()) || std::thread::panicking(),
                "cannot stop {unit:?}"
            );
        }
        self.process
            .wait()
            .map_or_else(|error| eprintln!("systemd-run: {error}"), drop);
    }
}

#[tokio::test]
async fn a_recommendation_is_systemds_own_record_and_survives_a_reload() {
    if !Path::new("/run/systemd/system").exists() {
        skipped(
            "reload",
            "systemd is not this machine's first process; see scripts/systemd-lab",
        );
        return;
    }
    let pod = Pod::start();
    let mut agent = Agent::new(&CgroupPath::new(ROOT).unwrap());
    agent.write("pod.yaml", &pod.manifest());
    agent.start().await;
    let target = Amounts::doubled(250, 96);
    for target in [target, Amounts::doubled(50, 32), target] {
        agent.write("vpa.yaml", &vpa_manifest("web", "web", &[("app", target)]));
        agent
            .wait_for("pod and container to hold the values", || pod.holds(target))
            .await;
        agent.reaches("web", "InSync").await;
        let recorded = pod.systemd.get(&pod.unit(), CgroupVersion::V2).unwrap();
        assert_eq!(recorded, target.settings(CgroupVersion::V2));
    }
    let agent_says = agent.get().await.agent.unwrap();
    assert_eq!(agent_says.cgroup_driver, "systemd");
    assert!(agent_says.problems.is_empty(), "{:?}", agent_says.problems);
    let history = agent.history().await;
    assert!(
        history.iter().all(|change| change.outcome == "Applied"
            && change
                .steps
                .iter()
                .any(|step| step.via == "systemd" && step.level == "pod")),
        "{history:#?}"
    );

    // Only the runtime informs systemd about the container's scope, and there is no runtime here: systemd 252
    // restores its own values, and the agent corrects them. For the pod, systemd has the agent's values.
    let before = history.len();
    let reload = Command::new("systemctl").arg("daemon-reload").status().unwrap();
    assert!(reload.success());
    if pod.systemd.version() == 252 {
        let repaired = async || (agent.history().await.len() > before).then_some(());
        agent.until("the repair", repaired).await;
    }
    agent
        .wait_for("the values to be there after a reload", || pod.holds(target))
        .await;
    agent.reaches("web", "InSync").await;
    let history = agent.history().await;
    let mut steps = history[before..].iter().flat_map(|change| &change.steps);
    assert!(steps.all(|step| step.level == "container"), "{history:#?}");
}

#[tokio::test]
async fn explain_shows_systemds_record_beside_the_kernels_file() {
    if !Path::new("/run/systemd/system").exists() {
        skipped(
            "explain",
            "systemd is not this machine's first process; see scripts/systemd-lab",
        );
        return;
    }
    let pod = Pod::start();
    let mut agent = Agent::new(&CgroupPath::new(ROOT).unwrap());
    agent.write("pod.yaml", &pod.manifest());
    agent.start().await;
    let explained = async || {
        agent
            .client()
            .await
            .explain("test/web".to_owned())
            .await
            .unwrap()
            .values
    };
    agent.reaches("web", "NotManaged").await;
    let values = explained().await;
    assert_eq!(values.len(), 6, "{values:#?}");
    for value in &values {
        assert!(
            value.systemd == value.kernel && value.difference.is_empty(),
            "{value:#?}"
        );
    }

    // Only the runtime informs systemd about the container's scope, and there is no runtime here.
    let target = Amounts::doubled(250, 96);
    agent.write("vpa.yaml", &vpa_manifest("web", "web", &[("app", target)]));
    agent.reaches("web", "InSync").await;
    let [wanted, before] = [target, AT_FIRST].map(|amounts| amounts.settings(CgroupVersion::V2));
    for value in explained().await {
        let said = |settings: &Settings| {
            let setting = settings.iter().find(|setting| setting.file().name() == value.file);
            setting.unwrap().to_string()
        };
        let own = if value.level == "pod" { &wanted } else { &before };
        assert_eq!(
            [&value.kernel, &value.systemd],
            [&said(&wanted), &said(own)],
            "{value:#?}"
        );
        let told = value.difference.contains("systemd's property says");
        assert_eq!(told, value.level == "container", "{value:#?}");
    }
}
