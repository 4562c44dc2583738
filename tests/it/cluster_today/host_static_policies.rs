//! A kubelet with the static CPU policy: it refuses other cpu for a pod of the Guaranteed class, so the agent leaves the cpu alone
//! and resizes the memory.
//!
//! The policy needs cpusets, which the guest has not: this runs on the machine's own cgroup version.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use vscaled::model::MemoryLimit;

use super::{Scene, WEB, nothing_restarted};
use crate::support::amounts::Amounts;
use crate::support::cluster::objects;
use crate::support::skipped;

const fn guaranteed(cpu: u64, memory: u64) -> Amounts {
    Amounts {
        cpu,
        memory,
        cpu_limit: Some(cpu),
        memory_limit: Some(memory),
    }
}

/// Resources of one whole processor, as the API server writes them.
fn one_cpu(memory: &str) -> Value {
    let amounts = json!({"cpu": "1", "memory": memory});
    json!({"requests": amounts, "limits": amounts})
}

/// The directory of cpusets, if this machine has any for a kubelet.
fn cpusets() -> Option<PathBuf> {
    let own = Path::new("/sys/fs/cgroup/cpuset");
    if own.join("cpuset.cpus").exists() {
        return Some(own.into());
    }
    let controllers = fs::read_to_string("/sys/fs/cgroup/cgroup.controllers").unwrap_or_default();
    let has_any = controllers.split_whitespace().any(|of| of == "cpuset");
    has_any.then(|| "/sys/fs/cgroup".into())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_with_processors_of_its_own_gets_memory_alone() {
    const NAME: &str = "cluster_today::host_static_cpu::a_pod_with_processors";
    let Some(cpusets) = cpusets() else {
        return skipped(NAME, "this kernel has no cpusets");
    };
    if std::thread::available_parallelism().unwrap().get() < 2 {
        return skipped(NAME, "one processor leaves none for a pod");
    }
    let kubelet = json!({"cpuManagerPolicy": "static", "reservedSystemCPUs": "0"});
    let Some(mut scene) = Scene::on(NAME, &kubelet).await else {
        return;
    };
    let spec = |amounts| json!({"containers": [{"name": "app", "resources": objects::resources(amounts)}]});
    let before = guaranteed(1000, 64);
    scene.make_pod(WEB, &spec(before));
    let pod = scene.runs(WEB).await;
    let file = cpusets
        .join(scene.cgroup(&pod, "app").to_string().trim_start_matches('/'))
        .join("cpuset.cpus");
    let assigned = fs::read_to_string(&file).unwrap();
    assert!(
        !assigned.contains(['0', ',', '-']),
        "one processor of its own: {assigned}"
    );

    // What the kubelet says to a user who asks for other cpu, and also for memory.
    scene.resize(WEB, &spec(guaranteed(800, 96)));
    let refused = || {
        let conditions = scene.object(WEB)["status"]["conditions"].take();
        let mut all = conditions.as_array().cloned().unwrap_or_default().into_iter();
        all.find(|condition| condition["reason"] == "Infeasible")
    };
    let refused: Value = scene.agent.until("the refusal", async || refused()).await;
    let message = refused["message"].as_str().unwrap();
    assert!(message.contains("CPU Manager policy \"static\""), "{message}");
    scene.resize(WEB, &spec(before));
    let unchanged = scene.is_resized(WEB, "app", &one_cpu("64Mi")).await;

    scene.agent.start().await;
    scene.make_vpa("InPlaceOrRecreate");
    scene.recommend(&[("app", guaranteed(1500, 96))]);
    let resized = scene.is_resized(WEB, "app", &one_cpu("96Mi")).await;
    scene.agent.reaches(WEB, "InSync").await;
    nothing_restarted(&pod, &resized);
    let limit = MemoryLimit::Bytes(96 << 20);
    let holds = || {
        scene
            .levels(&resized)
            .values()
            .all(|level| level.memory_limit() == Some(limit))
    };
    scene.agent.wait_for("the memory in the kernel", holds).await;
    assert_eq!(fs::read_to_string(&file).unwrap(), assigned);
    let [asked, before] = [&resized, &unchanged].map(|pod| pod["metadata"]["generation"].as_u64().unwrap());
    assert_eq!(asked, before + 1, "the kubelet has refused nothing of the agent's");
}
