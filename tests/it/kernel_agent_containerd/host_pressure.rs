//! A container that is about to reach a limit which cannot grow leaves evidence. Nothing else changes, whatever the
//! hook does.

mod kills;

use std::time::Duration;

use futures::future::join_all;
use vscaled::control::proto::Change;
use vscaled::model::MemoryLimit;

use super::{APP, Amounts, Scene};

const VARIABLE: &str = "VSCALED_ON_MEMORY_PRESSURE";
/// Allocates 80 MB and then 10 MB per second after /go exists, and frees everything on request.
pub(super) const GROWS: &str = "while [ ! -e /go ]; do sleep 0.05; done; \
     (head -c 80000000 /dev/zero; while [ ! -e /free ]; do head -c 1000000 /dev/zero; sleep 0.1; done) | tail -c 900000000 >/dev/null; \
     while true; do sleep 1000; done";

fn shell(script: &str) -> String {
    format!("[\"/bin/sh\", \"-c\", {script:?}]")
}

impl Scene {
    /// A scene with this hook and a VPA that lets `app` have 256 MiB.
    async fn pressed(script: &'static str, hooks: &[(&str, &str)]) -> Self {
        let scene = Self::new(script).await;
        scene.declare(&["app"], hooks);
        scene.lets_grow();
        scene.begun().await
    }

    fn lets_grow(&self) {
        self.lets_grow_from(APP);
    }

    /// Recommends these amounts, and lets `app` have up to 256 MiB.
    pub(super) fn lets_grow_from(&self, app: Amounts) {
        let amounts = format!("{{cpu: {}m, memory: {}Mi}}", app.cpu, app.memory);
        self.agent.write(
            "vpa.yaml",
            &format!(
                "apiVersion: autoscaling.k8s.io/v1
kind: VerticalPodAutoscaler
metadata: {{name: web, namespace: test}}
spec:
  targetRef: {{apiVersion: apps/v1, kind: StatefulSet, name: web}}
  updatePolicy: {{updateMode: InPlaceOrRecreate}}
  resourcePolicy: {{containerPolicies: [{{containerName: '*', maxAllowed: {{memory: 256Mi}}}}]}}
status:
  recommendation:
    containerRecommendations:
    - {{containerName: app, target: {amounts}, lowerBound: {amounts}, upperBound: {amounts}}}
"
            ),
        );
    }

    /// The memory limit of `app` in MiB.
    pub(super) fn app_limit(&self) -> u64 {
        let settings = self.containerd.cgroups().settings(&self.pod.containers[0].cgroup);
        match settings.memory_limit() {
            Some(MemoryLimit::Bytes(bytes)) => bytes >> 20,
            limit => panic!("{limit:?}"),
        }
    }

    /// Waits for the result of the evidence hook.
    async fn evidence(&self) -> Change {
        self.hooks(1).await.remove(0)
    }
}

#[tokio::test]
async fn what_is_kept_is_lent_while_evidence_is_left() {
    let hook = shell("echo {old} {new} >/told; echo dumped to /tmp/dump.1; touch /free");
    let scene = Scene::pressed(GROWS, &[(VARIABLE, &hook)]).await;
    scene.go();
    let told = scene.evidence().await;
    assert_eq!(
        (told.outcome.as_str(), told.cause.as_str()),
        ("HookRan", "hook on-memory-pressure in container app"),
        "{told:#?}"
    );
    assert!(
        told.reason.starts_with("ended with 0 and named /tmp/dump.1 (after "),
        "{}",
        told.reason
    );
    let mib = |mib: u64| mib << 20;
    assert_eq!(scene.file("told").unwrap(), format!("{} {}\n", mib(192), mib(256)));
    let kills = scene.containerd.cgroups().oom_kills(&scene.pod.containers[0].cgroup);
    assert_eq!(kills, 0);
    let audit = std::fs::read_to_string(scene.agent.path().join("state/audit.jsonl")).unwrap();
    let ran = audit
        .lines()
        .find(|line| line.contains("hook on-memory-pressure"))
        .unwrap();
    assert!(ran.contains("HookRan") && ran.contains("/tmp/dump.1"), "{ran}");
    assert_eq!(scene.hooks(1).await.len(), 1);
}

#[tokio::test]
async fn evidence_that_fails_is_told_as_that() {
    let cases = [
        (shell("sleep 1005; true"), "it did not end in time"),
        (
            shell("trap '' TERM; for i in 1 2 3 4 5 6 7 8; do sleep 1005 & done; wait"),
            "it did not end in time",
        ),
        (shell("while true; do echo more; done"), "it did not end in time"),
        (shell("echo no; exit 1"), "ended with 1"),
        (
            "jcmd 1 GC.heap_dump".to_owned(),
            "allowed is a command, as a JSON array",
        ),
    ];
    // Each case waits for memory that grows at its own pace, so all run at once.
    join_all(cases.map(async |(hook, why)| {
        let hooks = [(VARIABLE, hook.as_str()), ("VSCALED_ON_MEMORY_PRESSURE_WAIT", "2s")];
        let scene = Scene::pressed(GROWS, &hooks).await;
        scene.go();
        let told = scene.evidence().await;
        assert!(
            told.outcome == "HookFailed" && told.reason.contains(why),
            "{hook}: {told:#?}"
        );
    }))
    .await;
}

#[tokio::test]
async fn evidence_needs_no_vpa_and_no_growth() {
    let scene = Scene::new(GROWS).await;
    scene.declare(&["app"], &[(VARIABLE, &shell("touch /free; echo {old} {new}"))]);
    let scene = scene.begun().await;
    scene.go();
    let told = scene.evidence().await;
    let limit = 128 << 20;
    assert!(
        told.outcome == "HookRan" && told.reason.ends_with(&format!("it printed: {limit} {limit}")),
        "{told:#?}"
    );
    assert_eq!(scene.app_limit(), 128);
    assert!(
        scene
            .agent
            .history()
            .await
            .iter()
            .all(|change| change.outcome != "Refused")
    );
}

#[tokio::test]
async fn forbidden_hooks_do_not_run() {
    let mut scene = Scene::new(GROWS).await;
    scene.declare(&["app"], &[(VARIABLE, &shell("touch /told"))]);
    scene.lets_grow();
    scene.agent.set("--hooks", "other");
    scene.agent.start().await;
    scene.knows_all().await;
    scene.go();
    scene
        .agent
        .wait_for("all of it to be lent", || scene.app_limit() == 256)
        .await;
    assert!(scene.hooks(0).await.is_empty() && scene.file("told").is_none());
}

#[tokio::test]
async fn a_new_agent_takes_temporary_limits_back() {
    let mut scene = Scene::new(GROWS).await;
    let hook = shell("touch /told /free; sleep 1006");
    scene.declare(
        &["app"],
        &[(VARIABLE, &hook), ("VSCALED_ON_MEMORY_PRESSURE_WAIT", "2m")],
    );
    scene.lets_grow();
    scene.agent.set("--guard-quiet-period", "3s");
    scene.agent.start().await;
    scene.knows_all().await;
    scene.go();
    scene
        .agent
        .wait_for("the hook to run", || scene.file("told").is_some())
        .await;
    assert_eq!(scene.app_limit(), 256);
    // The limit does not end while the hook runs, however little memory is in use.
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(scene.app_limit(), 256);
    scene.agent.kill();
    scene.agent.start().await;
    scene
        .agent
        .wait_for("the loan to be taken back", || scene.app_limit() == 128)
        .await;
    assert!(scene.hooks(0).await.is_empty(), "once an hour, whoever asks");
}
