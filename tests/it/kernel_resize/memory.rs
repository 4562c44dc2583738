//! Shrinks, and limits that grow in an emergency, beside a kubelet that writes them too: before the agent, between two of its
//! steps, or not at all, and with both cgroup versions.

mod kills;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use vscaled::cgroup::{CgroupDir, Hierarchy};
use vscaled::model::{CgroupPath, CgroupVersion, MemoryLimit, Settings};

use super::host_faults::patches;
use super::{Amounts, NAME, Scene, resources, vpa};
use crate::support::allocator::{Allocation, Allocator, End};
use crate::support::apimodel::{Effect, ResizeResult};
use crate::support::cached::Cached;

/// A limit of 200 MiB.
const ROOMY: Amounts = Amounts::doubled(100, 100);
/// A limit of 80 MiB.
const TIGHT: Amounts = Amounts::doubled(100, 40);

/// A limit of 128 MiB, for containers with temporary limits.
const GUARDED: Amounts = Amounts::doubled(1000, 64);

/// The memory use and the limit that the kubelet found before it wrote.
type Found = Arc<Mutex<Option<(u64, MemoryLimit)>>>;

impl Scene {
    /// A pod whose container gets a temporary memory limit when it needs one, until this quiet period has passed.
    async fn guarded_for(quiet: &str) -> Self {
        let mut scene = Self::of(GUARDED).await;
        for (flag, value) in [
            ("--guard-reserve", "100Mi"),
            ("--guard-pod-budget", "100%"),
            ("--guard-node-budget", "100%"),
            ("--guard-quiet-period", quiet),
        ] {
            scene.agent.set(flag, value);
        }
        let mut lets_grow = vpa(&[("app", GUARDED)]);
        lets_grow["spec"]["resourcePolicy"] =
            json!({"containerPolicies": [{"containerName": "*", "maxAllowed": {"memory": "4Gi"}}]});
        scene.api.put("verticalpodautoscalers", lets_grow);
        scene.start().await;
        let lives = async || scene.agent.pod(NAME).await.filter(|pod| pod.containers[0].id.is_some());
        scene.agent.until("the pod to live", lives).await;
        scene
    }

    fn app(&self) -> CgroupPath {
        self.pod.containers["app"].cgroup.clone()
    }

    fn kills(&self) -> u64 {
        self.node.cgroups().oom_kills(&self.app())
    }

    /// The container's limit in MiB.
    fn limit(&self) -> u64 {
        match self.node.held(&self.pod)["app"].memory_limit() {
            Some(MemoryLimit::Bytes(bytes)) => bytes >> 20,
            limit => panic!("{limit:?}"),
        }
    }

    /// The limit in the spec in MiB.
    fn asked(&self) -> u64 {
        let spec = serde_json::from_value(self.spec()).unwrap();
        Amounts::of(&spec).memory_limit.unwrap()
    }

    async fn caches(&mut self) -> Cached {
        let app = self.app();
        Cached::by(&mut self.node, &app, &self.agent).await
    }

    fn takes(&self, rate: u64, until: u64) -> Allocator {
        Allocator::start(self.node.cgroups(), &self.app(), Allocation { rate, until })
    }

    /// Like [`Self::takes`], by a process that leaves the agent of a busy machine time.
    fn takes_carefully(&self, rate: u64, until: u64) -> Allocator {
        Allocator::start_careful(self.node.cgroups(), &self.app(), Allocation { rate, until })
    }

    /// Waits until the kubelet reports that the pod has the amounts of its spec.
    async fn agrees(&self) {
        let agrees = || {
            let pod = self.object();
            pod["status"]["containerStatuses"][0]["resources"] == pod["spec"]["containers"][0]["resources"]
                && pod["status"]["conditions"].as_array().is_some_and(Vec::is_empty)
        };
        self.agent.wait_for("the kubelet to agree", agrees).await;
    }

    /// Makes the kubelet read use and limit before it writes.
    fn kubelet_reads_first(&self) -> Found {
        let found = Found::default();
        let (noted, app) = (Arc::clone(&found), self.app());
        let hierarchy = Hierarchy::discover(None).unwrap();
        self.api.kubelet(|kubelet| {
            let write = kubelet.writes.take().unwrap();
            kubelet.writes = Some(Arc::new(move |pod| {
                let cgroup = CgroupDir::open(&hierarchy, &app).unwrap();
                let limit = cgroup.read_all().unwrap().memory_limit().unwrap();
                *noted.lock().unwrap() = Some((cgroup.memory_usage().unwrap().get(), limit));
                write(pod);
            }));
        });
        found
    }
}

#[tokio::test]
async fn a_lower_limit_is_there_before_the_kubelet() {
    let mut scene = Scene::of(ROOMY).await;
    scene.start().await;
    let _cached = scene.caches().await;
    let found = scene.kubelet_reads_first();
    scene.api.kubelet(|kubelet| kubelet.asleep = true);
    scene.recommend(&[("app", TIGHT)]);
    scene.settles(&[("app", TIGHT)]).await;
    scene.api.kubelet(|kubelet| kubelet.asleep = false);
    scene.confirmed(&[("app", TIGHT)]).await;
    let (usage, limit) = found.lock().unwrap().take().unwrap();
    assert_eq!(limit, MemoryLimit::Bytes(80 << 20), "there is nothing left to lower");
    assert!(usage <= 80 << 20, "{usage}");
    assert_eq!(scene.kills(), 0);
    assert_eq!(scene.api.calls("patch pods/resize"), 1);
}

#[tokio::test]
async fn room_is_made_before_a_patch_that_is_denied() {
    let mut scene = Scene::of(ROOMY).await;
    scene.start().await;
    let _cached = scene.caches().await;
    scene
        .api
        .fault(patches(None, Effect::Says(400, "BadRequest", "ask finance", None)));
    scene.recommend(&[("app", TIGHT)]);
    scene.reaches_with_detail("Refused", "ask finance").await;
    assert!(scene.holds(&[("app", ROOMY)]));
    assert_eq!(scene.spec(), resources(ROOMY));
    if scene.node.cgroups().version() == CgroupVersion::V2 {
        // v1 reclaims only through the write itself, which kills no process.
        assert!(scene.node.cgroups().memory_usage(&scene.app()) < 80 << 20);
    }
    scene.api.mend();
    scene.settles(&[("app", TIGHT)]).await;
    assert_eq!(scene.kills(), 0);
}

#[tokio::test]
async fn a_limit_below_use_is_not_requested() {
    let mut scene = Scene::of(ROOMY).await;
    scene.start().await;
    let mut process = scene.takes(0, 150);
    assert!(matches!(process.wait(), End::Satisfied(_)));
    scene.recommend(&[("app", TIGHT)]);
    scene.reaches_with_detail("Refused", "not shrinkable now").await;
    assert!(scene.holds(&[("app", ROOMY)]));
    assert_eq!(scene.spec(), resources(ROOMY));
    let calls = ["dry-run pods/resize", "patch pods/resize"].map(|call| scene.api.calls(call));
    assert_eq!(calls, [0, 0]);
    assert!(process.lives() && scene.kills() == 0);
}

#[tokio::test]
async fn room_is_kept_for_the_kubelets_next_try() {
    let mut scene = Scene::of(ROOMY).await;
    scene.start().await;
    let _cached = scene.caches().await;
    scene.api.kubelet(|kubelet| kubelet.asleep = true);
    scene.recommend(&[("app", TIGHT)]);
    scene.settles(&[("app", TIGHT)]).await;
    let why = "cannot decrease memory limits: attempting to set below current usage";
    scene.set_resize_result(ResizeResult::Error(why));
    scene.api.kubelet(|kubelet| kubelet.asleep = false);
    scene.passes("ResizeError").await;
    scene.reaches_with_detail("Refused", why).await;
    assert!(scene.holds(&[("app", TIGHT)]), "what keeps use below it was taken away");
    if scene.node.cgroups().version() == CgroupVersion::V2 {
        // On v1 the agent cannot request reclaim.
        let roomy = || scene.node.cgroups().memory_usage(&scene.app()) <= 76 << 20;
        scene.agent.wait_for("room for the kubelet", roomy).await;
    }
    scene.set_resize_result(ResizeResult::Done);
    scene.confirmed(&[("app", TIGHT)]).await;
    scene.settles(&[("app", TIGHT)]).await;
    assert_eq!(scene.kills(), 0);
}

#[tokio::test]
async fn an_impossible_patch_is_taken_back_in_time() {
    // With processors enough to take memory before the answer is late.
    let [roomy, tight] = [100, 40].map(|mib| Amounts::doubled(1000, mib));
    let mut scene = Scene::of(roomy).await;
    scene.agent.set("--guard", "false");
    scene.start().await;
    let found = scene.kubelet_reads_first();
    scene.api.kubelet(|kubelet| kubelet.asleep = true);
    // There is room when the agent sends the patch, and none when the answer arrives.
    let answer = scene.api.hold_answers(&["patch"], "pods/resize", Some(1));
    scene.recommend(&[("app", tight)]);
    let asked = || scene.api.calls("patch pods/resize") == 1;
    scene.agent.wait_for("the API server to be asked", asked).await;
    // Soon enough: a call without an answer for 20 s counts as an unavailable API server.
    let mut process = scene.takes(0, 100);
    assert!(matches!(process.wait(), End::Satisfied(_)));
    answer.cancel();
    let taken_back = || scene.api.calls("patch pods/resize") >= 2 && scene.spec() == resources(roomy);
    scene.agent.wait_for("the request to be taken back", taken_back).await;
    scene.reaches_with_detail("Refused", "not shrinkable now").await;
    assert!(scene.holds(&[("app", roomy)]));
    scene.api.kubelet(|kubelet| kubelet.asleep = false);
    scene.confirmed(&[("app", roomy)]).await;
    assert_eq!(scene.limit(), 200);
    let (usage, _) = found.lock().unwrap().take().unwrap();
    assert!(usage >= 100 << 20, "{usage}");
    assert!(process.lives() && scene.kills() == 0);
}

#[tokio::test]
async fn a_harmful_shrink_is_undone_in_the_spec() {
    let mut scene = Scene::of(ROOMY).await;
    scene.agent.set("--guard", "false");
    scene.start().await;
    scene.recommend(&[("app", TIGHT)]);
    scene.settles(&[("app", TIGHT)]).await;
    scene.confirmed(&[("app", TIGHT)]).await;
    // An urgent limit does not wait for an API server.
    scene.api.fault(patches(Some(1), Effect::Slow(Duration::from_secs(10))));
    let mut process = scene.takes_carefully(20, 120);
    let taken = || process.taken() == 120;
    scene.agent.wait_for("the process to have everything", taken).await;
    scene
        .reaches_with_detail("Refused", "a lower memory limit was undone")
        .await;
    scene
        .agent
        .wait_for("the spec to follow", || scene.asked() == 200)
        .await;
    scene.agrees().await;
    assert_eq!(scene.spec()["requests"], resources(TIGHT)["requests"]);
    assert_eq!(scene.limit(), 200);
    assert!(process.lives() && scene.kills() == 0);
}

#[tokio::test]
async fn a_shrink_by_a_faster_kubelet_is_watched() {
    let mut scene = Scene::of(ROOMY).await;
    scene.agent.set("--guard", "false");
    scene.start().await;
    let answer = scene.api.hold_answers(&["patch"], "pods/resize", Some(1));
    scene.recommend(&[("app", TIGHT)]);
    let asked = || scene.api.calls("patch pods/resize") == 1;
    scene.agent.wait_for("the API server to be asked", asked).await;
    // A kubelet that receives the new spec before the agent has its answer writes this.
    let version = scene.node.cgroups().version();
    for cgroup in [scene.app(), scene.pod.cgroup.clone()] {
        let lower = TIGHT.settings(version);
        let lower = lower.iter().filter(|setting| setting.memory().is_some());
        scene.node.put(&cgroup, &Settings::from_iter(lower));
    }
    answer.cancel();
    scene.settles(&[("app", TIGHT)]).await;
    scene.confirmed(&[("app", TIGHT)]).await;
    let mut process = scene.takes_carefully(20, 120);
    let taken = || process.taken() == 120;
    scene.agent.wait_for("the process to have everything", taken).await;
    assert!(process.lives() && scene.kills() == 0);
}

#[tokio::test]
async fn a_lowered_temporary_limit_is_repaired() {
    let scene = Scene::guarded_for("10min").await;
    let mut process = scene.takes_carefully(100, 200);
    assert!(matches!(process.wait(), End::Satisfied(_)));
    drop(process);
    // A late kubelet writes the values of a request in between.
    let before = GUARDED.settings(scene.node.cgroups().version());
    let before = before.iter().filter(|setting| setting.memory().is_some());
    scene.node.put(&scene.app(), &Settings::from_iter(before));
    scene
        .agent
        .wait_for("what was lent to be back", || scene.limit() > 200)
        .await;
}

#[tokio::test]
async fn temporary_limits_enter_the_spec_and_leave() {
    let scene = Scene::guarded_for("8s").await;
    let mut process = scene.takes_carefully(100, 200);
    assert!(matches!(process.wait(), End::Satisfied(_)));
    let lent = || scene.asked() > 200 && scene.asked() == scene.limit();
    scene.agent.wait_for("what was lent to be asked for", lent).await;
    scene.agrees().await;
    assert!(scene.limit() > 200 && process.lives() && scene.kills() == 0);
    let said = scene.agent.pod(NAME).await.unwrap();
    assert_eq!(said.leases.len(), 1, "what is in the spec is no less lent: {said:#?}");

    drop(process);
    let back = || scene.asked() == 128 && scene.limit() == 128;
    scene.agent.wait_for("the loan to end", back).await;
    scene.agrees().await;
    assert_eq!(scene.spec(), resources(GUARDED));
    scene.agent.reaches(NAME, "NotManaged").await;
}
