//! A kubelet with the static CPU or memory policy: it refuses other amounts of what it has assigned to a pod of the Guaranteed class,
//! so the agent leaves that resource alone and resizes the other one.
//!
//! The policies need cpusets, which the guest has not: this runs on the machine's own cgroup version.

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

/// What a kubelet with a static policy does.
struct Policy {
    configured: Value,
    /// The file of cpusets that shows what the kubelet has assigned to a container.
    file: &'static str,
    before: Amounts,
    /// Amounts of both resources, with a limit that is refused.
    recommended: Amounts,
    /// The words of the refusal.
    words: &'static str,
    /// The amounts with the other resource alone.
    after: Amounts,
}

impl Policy {
    async fn leaves_the_other_resource_to_the_agent(self, test: &str) {
        let Some(cpusets) = cpusets() else {
            return skipped(test, "this kernel has no cpusets");
        };
        if std::thread::available_parallelism().unwrap().get() < 2 {
            return skipped(test, "one processor leaves none for a pod");
        }
        let Some(mut scene) = Scene::on(test, &self.configured).await else {
            return;
        };
        let spec = |amounts| json!({"containers": [{"name": "app", "resources": objects::resources(amounts)}]});
        scene.make_pod(WEB, &spec(self.before));
        let pod = scene.runs(WEB).await;
        let file = cpusets
            .join(scene.cgroup(&pod, "app").to_string().trim_start_matches('/'))
            .join(self.file);
        let assigned = fs::read_to_string(&file).unwrap();
        assert!(!assigned.contains([',', '-']), "one of its own: {assigned}");

        // What the kubelet says to a user who asks for both.
        scene.resize(WEB, &spec(self.recommended));
        let message = scene.is_answered(WEB, "Infeasible").await;
        assert!(message.contains(self.words), "{message}");
        scene.resize(WEB, &spec(self.before));
        let unchanged = scene.is_resized(WEB, "app", &objects::resources(self.before)).await;

        scene.agent.start().await;
        scene.make_vpa("InPlaceOrRecreate");
        scene.recommend(&[("app", self.recommended)]);
        let resized = scene.app_reaches(self.after).await;
        nothing_restarted(&pod, &resized);
        let limit = MemoryLimit::Bytes(self.after.memory << 20);
        let holds = || {
            let levels = scene.levels(&resized);
            levels.values().all(|level| level.memory_limit() == Some(limit))
        };
        scene.agent.wait_for("the memory in the kernel", holds).await;
        assert_eq!(fs::read_to_string(&file).unwrap(), assigned);
        let [asked, before] = [&resized, &unchanged].map(|pod| pod["metadata"]["generation"].as_u64().unwrap());
        assert_eq!(asked, before + 1, "the kubelet has refused nothing of the agent's");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_with_processors_of_its_own_gets_memory_alone() {
    let policy = Policy {
        configured: json!({"cpuManagerPolicy": "static", "reservedSystemCPUs": "0"}),
        file: "cpuset.cpus",
        before: guaranteed(1000, 64),
        recommended: guaranteed(800, 96),
        words: "CPU Manager policy \"static\"",
        after: guaranteed(1000, 96),
    };
    policy
        .leaves_the_other_resource_to_the_agent("cluster_today::host_static_policies::processors")
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_with_memory_of_its_own_gets_cpu_alone() {
    let reserved = json!({"memory": "64Mi"});
    let policy = Policy {
        configured: json!({
            "memoryManagerPolicy": "Static", "systemReserved": reserved,
            "reservedMemory": [{"numaNode": 0, "limits": reserved}],
        }),
        file: "cpuset.mems",
        before: guaranteed(300, 64),
        recommended: guaranteed(400, 96),
        words: "Memory Manager policy \"Static\"",
        after: guaranteed(400, 64),
    };
    policy
        .leaves_the_other_resource_to_the_agent("cluster_today::host_static_policies::memory")
        .await;
}
