//! From a VPA's status at the API server to the container's `memory.max`, where the kubelet resizes.
//!
//! Everything is real and of today: etcd, kube-apiserver, kubelet, containerd, and the agent with its deployed rights.
//! For comparison, a pod that nothing manages is resized to the same amounts by a PATCH of `pods/resize`, in the same
//! cluster, in turn: the kubelet alone, without the wait of whoever sends that PATCH.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use serde_json::{Value, json};
use vscaled::model::{CgroupPath, MemoryLimit, Setting, Settings};

use crate::call::by_hand;
use crate::common::{Samples, Table};
use crate::legacy::client;
use crate::levels::Levels;
use crate::support::agent::Agent;
use crate::support::amounts::Amounts;
use crate::support::cluster::{Today, objects};

const WEB: &str = "web-5c4f-x";
const TWIN: &str = "twin";
const CONTAINER: &str = "app";
/// Rounds that only warm up.
const WARM_UP: usize = 4;
/// The pause between rounds.
const BETWEEN: Duration = Duration::from_secs(5);
/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(120);

/// The amounts of each round: up and down, never the same twice.
const fn amounts(round: usize) -> Amounts {
    const FACTORS: [u64; 4] = [2, 4, 3, 6];
    let factor = FACTORS[round % FACTORS.len()];
    Amounts::doubled(50 * factor, 32 * factor)
}

type Objects = kube::Api<DynamicObject>;

struct Scene {
    agent: Agent,
    pods: Objects,
    vpas: Objects,
    today: Today,
}

pub(crate) async fn measure(rounds: usize) -> anyhow::Result<()> {
    if !Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
        println!("today: this machine has cgroup v1; scripts/bench --lab today measures it");
        return Ok(());
    }
    let Some(today) = Today::boot("today", &json!({})).await else {
        return Ok(());
    };
    objects::make_workload(&today.api);
    let scene = Scene::new(today).await?;
    let (web, twin) = (scene.runs(WEB).await?, scene.runs(TWIN).await?);
    let mut levels = [
        Levels::open(std::slice::from_ref(&web))?,
        Levels::open(std::slice::from_ref(&twin))?,
    ];
    let [mut with, mut told, mut alone, mut called] = std::array::from_fn(|_| Samples::default());
    for round in 0..rounds + WARM_UP {
        let (held, settled) = scene.recommend(&mut levels[0], amounts(round)).await?;
        let by_kubelet = scene.resize(&mut levels[1], amounts(round)).await?;
        let answered = scene.call(amounts(round)).await?;
        if round >= WARM_UP {
            called.push(answered);
            with.push(held);
            told.push(settled);
            alone.push(by_kubelet);
        }
        // The agent follows a changed recommendation every five seconds in the long run. A random delay, so that rounds do not
        // align with a timer.
        tokio::time::sleep(BETWEEN + Duration::from_millis(fastrand::u64(..150))).await;
    }
    ensure!(
        scene.runs(WEB).await? == web && scene.runs(TWIN).await? == twin,
        "a container was started again"
    );
    let mut table = Table::new(
        "today",
        "To a container's memory.max, kube-apiserver and kubelet 1.37, containerd 2.4",
    );
    table.row("vscaled: PATCH of the VPA's status sent → memory.max", with);
    table.row("vscaled: … → the pod's status has the values", told);
    table.row("vscaled: called at the socket → every level, answered", called);
    table.row("the kubelet alone: PATCH of pods/resize sent → memory.max", alone);
    table.print()
}

impl Scene {
    /// Runs both pods and the agent, with a VPA without a recommendation.
    async fn new(today: Today) -> anyhow::Result<Self> {
        let server = &today.own.as_ref().context("an own cluster")?.server;
        let client = client(server).await?;
        let of = |group, version, kind| {
            let kind = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
            Objects::namespaced_with(client.clone(), "test", &kind)
        };
        let mut scene = Self {
            agent: today.agent(),
            pods: of("", "v1", "Pod"),
            vpas: of("autoscaling.k8s.io", "v1", "VerticalPodAutoscaler"),
            today,
        };
        let first = Amounts::doubled(50, 32);
        let owned = objects::owned(&scene.today.api);
        for (name, owners) in [(WEB, owned), (TWIN, json!([]))] {
            let pod = objects::pod(name, &owners, &[(CONTAINER, first)]);
            let pod = serde_json::from_value(pod)?;
            scene.pods.create(&PostParams::default(), &pod).await?;
        }
        for name in [WEB, TWIN] {
            scene.runs(name).await?;
        }
        scene.agent.start().await;
        scene.agent.reaches(WEB, "NotManaged").await;
        let vpa = serde_json::from_value(objects::vpa("InPlaceOrRecreate"))?;
        scene.vpas.create(&PostParams::default(), &vpa).await?;
        Ok(scene)
    }

    /// Waits until the container of a pod runs, and returns its cgroup.
    async fn runs(&self, name: &str) -> anyhow::Result<CgroupPath> {
        let started = Instant::now();
        loop {
            let pod = self.pods.get(name).await?;
            let uid = pod.metadata.uid.as_deref().context("a pod has a UID")?;
            let status = &pod.data["status"]["containerStatuses"][0];
            let id = status["containerID"].as_str().unwrap_or_default();
            if let (Some(id), true) = (id.strip_prefix("containerd://"), status["state"]["running"].is_object()) {
                let class = self.today.kubepods().child("burstable")?;
                return Ok(class.child(&format!("pod{uid}"))?.child(id)?);
            }
            ensure!(started.elapsed() < PATIENCE, "pod {name} does not run");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Writes a recommendation. Returns the times until the kernel has it, and until the pod's status has.
    async fn recommend(&self, levels: &mut Levels, amounts: Amounts) -> anyhow::Result<(Duration, Duration)> {
        let status = json!({"status": objects::recommendation(&[(CONTAINER, amounts)])});
        let start = Instant::now();
        let patched = async {
            let parameters = PatchParams::default();
            Ok(self
                .vpas
                .patch_status("web", &parameters, &Patch::Merge(&status))
                .await?)
        };
        let held = self.held(levels, amounts, start, patched).await?;
        let settled = self.settles(WEB, amounts, start).await?;
        self.agent.reaches(WEB, "InSync").await;
        Ok((held, settled))
    }

    /// Asks the kubelet for the same, by itself.
    async fn resize(&self, levels: &mut Levels, amounts: Amounts) -> anyhow::Result<Duration> {
        let resources = objects::resources(amounts);
        let patch = json!({"spec": {"containers": [{"name": CONTAINER, "resources": resources}]}});
        let start = Instant::now();
        let patched = async {
            let parameters = PatchParams::default();
            let patch = Patch::Strategic(&patch);
            Ok(self.pods.patch_subresource("resize", TWIN, &parameters, &patch).await?)
        };
        let held = self.held(levels, amounts, start, patched).await?;
        self.settles(TWIN, amounts, start).await?;
        Ok(held)
    }

    /// Sets a higher memory limit at the socket, and releases it. Returns the time until the call is answered.
    async fn call(&self, amounts: Amounts) -> anyhow::Result<Duration> {
        let memory = amounts.memory_limit.context("a limit")? + 16;
        let pod = format!("test/{WEB}");
        let request = by_hand(&pod, CONTAINER, &format!("{memory}Mi"));
        let start = Instant::now();
        let change = self.agent.resize(request).await?;
        let answered = start.elapsed();
        ensure!(change.outcome == "Applied", "{change:?}");
        self.agent.release(&pod).await?;
        self.settles(WEB, amounts, start).await?;
        self.agent.reaches(WEB, "InSync").await;
        Ok(answered)
    }

    async fn held(
        &self,
        levels: &mut Levels,
        amounts: Amounts,
        start: Instant,
        patched: impl Future<Output = anyhow::Result<DynamicObject>>,
    ) -> anyhow::Result<Duration> {
        let limit = amounts.memory_limit.context("a limit")? << 20;
        let wanted = [Settings::from_iter([Setting::MemoryMax(MemoryLimit::Bytes(limit))])];
        let held = async {
            levels.hold(&wanted).await?;
            Ok(start.elapsed())
        };
        let both = async { tokio::try_join!(patched, held) };
        let (_, held) = tokio::time::timeout(PATIENCE, both)
            .await
            .with_context(|| format!("waited in vain\n{}\n{}", self.agent.log(), self.today.logs()))??;
        Ok(held)
    }

    /// Waits until spec and status of a pod have the amounts.
    async fn settles(&self, name: &str, amounts: Amounts, start: Instant) -> anyhow::Result<Duration> {
        let resources: Value = objects::resources(amounts);
        loop {
            let pod = self.pods.get(name).await?;
            let said = &pod.data["status"]["containerStatuses"][0]["resources"];
            if pod.data["spec"]["containers"][0]["resources"] == resources && *said == resources {
                return Ok(start.elapsed());
            }
            ensure!(start.elapsed() < PATIENCE, "the status of {name} does not follow");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}
