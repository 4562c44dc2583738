//! Kubelets that are configured otherwise: the agent leaves the values that such a kubelet would.
//!
//! The static policies need cpusets and NUMA; the guest has neither.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use vscaled::model::MemoryLimit;

use super::{APP, CPU_ALONE, LARGER, Scene, WEB, kubelet_minor, nothing_restarted, token_in};
use crate::support::amounts::Amounts;
use crate::support::cluster::{User, objects};
use crate::support::skipped;

const TWIN: &str = "twin";

/// The first minor version of kubelets that reserve memory by QoS class.
const LEAST_FOR_RESERVATIONS: u32 = 36;
/// The first minor version of kubelets that resize the pod's own reservation, too.
const LEAST_FOR_RESERVATIONS_OF_PODS: u32 = 37;

const GUARANTEED: Amounts = Amounts {
    cpu: 100,
    memory: 64,
    cpu_limit: Some(100),
    memory_limit: Some(64),
};

const GUARANTEED_LARGER: Amounts = Amounts {
    cpu: 200,
    memory: 96,
    cpu_limit: Some(200),
    memory_limit: Some(96),
};

impl Scene {
    /// Resizes a pod with the agent, and its twin by a patch, until every cgroup of both holds the same; returns both.
    async fn resizes_beside_a_twin(&mut self, before: Amounts, after: Amounts) -> [Value; 2] {
        let spec = json!({"containers": [{"name": "app", "resources": objects::resources(before)}]});
        self.make_pod(WEB, &spec);
        self.make_pod_of(TWIN, &json!([]), &spec);
        let pods = [self.runs(WEB).await, self.runs(TWIN).await];
        self.agent.start().await;
        self.make_vpa("InPlaceOrRecreate");
        self.recommend(&[("app", after)]);
        let resources = json!({"containers": [{"name": "app", "resources": objects::resources(after)}]});
        self.resize(TWIN, &resources);
        let limit = MemoryLimit::Bytes(after.memory_limit.unwrap() << 20);
        let holds = || {
            let [web, twin] = pods.each_ref().map(|pod| {
                let mut levels = self.levels(pod);
                if kubelet_minor() < LEAST_FOR_RESERVATIONS_OF_PODS {
                    let of_pod = levels.entry(String::new()).or_default();
                    *of_pod = of_pod.iter().filter(|setting| setting.reserved().is_none()).collect();
                }
                levels
            });
            web["app"].memory_limit() == Some(limit) && web == twin
        };
        self.agent.wait_for("both pods to hold the same", holds).await;
        self.agent.reaches(WEB, "InSync").await;
        for pod in &pods {
            nothing_restarted(pod, &self.object(pod["metadata"]["name"].as_str().unwrap()));
        }
        pods
    }

    /// The content of a file of a pod's container, and of the pod's own cgroup.
    fn files(&self, pod: &Value, file: &str) -> [String; 2] {
        let container = self.cgroup(pod, "app").under("/sys/fs/cgroup".as_ref());
        let pod = container.parent().unwrap().to_owned();
        [container, pod].map(|cgroup| fs::read_to_string(cgroup.join(file)).unwrap().trim().to_owned())
    }
}

/// Resizes a pod and its twin with such a kubelet; their cgroups hold this `cpu.max` then.
async fn resizes_to(test: &str, kubelet: Value, cpu_max: &str) {
    let Some(mut scene) = Scene::on(test, &kubelet).await else {
        return;
    };
    let pods = scene.resizes_beside_a_twin(APP, LARGER).await;
    for pod in &pods {
        assert_eq!(scene.files(pod, "cpu.max"), [cpu_max; 2]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_period_of_the_kubelets_is_kept() {
    let kubelet = json!({"cpuCFSQuotaPeriod": "10ms", "featureGates": {"CustomCPUCFSQuotaPeriod": true}});
    resizes_to("cluster_today::configured::a_period", kubelet, "4000 10000").await;
}

/// Such a kubelet never shows new cpu limits in the pod's status, although it says that it has resized the pod.
#[tokio::test(flavor = "multi_thread")]
async fn a_kubelet_without_quotas_gets_none() {
    let kubelet = json!({"cpuCFSQuota": false});
    resizes_to("cluster_today::configured::no_quota", kubelet, "max 100000").await;
}

/// A kubelet that asks the API server who a caller is and what it may do, as those of most clusters.
#[tokio::test(flavor = "multi_thread")]
async fn a_kubelet_that_authorizes_refuses_the_agents_token() {
    let kubelet = json!({"authentication": {"webhook": {"enabled": true}}, "authorization": {"mode": "Webhook"}});
    let Some(mut scene) = Scene::on("cluster_today::configured::token", &kubelet).await else {
        return;
    };
    scene.resizes_beside_a_twin(APP, LARGER).await;
    let status = scene.today.api.get("/api/v1/nodes/node-1")["status"].take();
    let [address, port] = [
        &status["addresses"][0]["address"],
        &status["daemonEndpoints"]["kubeletEndpoint"]["Port"],
    ];
    let server = format!("--server=https://{}:{port}", address.as_str().unwrap());
    let ask = |kubeconfig: &Path| {
        let token = format!("--token={}", token_in(kubeconfig));
        let pods = [
            "get",
            "--raw=/pods",
            &server,
            &token,
            "--insecure-skip-tls-verify",
            "--kubeconfig=/dev/null",
        ];
        scene.today.api.try_kubectl(User::Admin, &pods, "")
    };
    let pods = ask(&scene.today.api.kubeconfig(User::Admin)).unwrap();
    assert!(pods.contains(WEB), "{pods}");
    let refused = ask(&scene.today.api.deployed_kubeconfig()).unwrap_err();
    assert!(refused.to_lowercase().contains("forbidden"), "{refused}");
    assert!(refused.contains("system:serviceaccount:vscaled:vscaled"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn reserved_memory_follows_the_requests() {
    const NAME: &str = "cluster_today::configured::reserved_memory";
    if kubelet_minor() < LEAST_FOR_RESERVATIONS {
        return skipped(NAME, "this kubelet reserves no memory by QoS class");
    }
    let kubelet = json!({"featureGates": {"MemoryQoS": true}, "memoryReservationPolicy": "TieredReservation"});
    let Some(mut scene) = Scene::on(NAME, &kubelet).await else {
        return;
    };
    let pods = scene.resizes_beside_a_twin(GUARANTEED, GUARANTEED_LARGER).await;
    let reserved = (96_u64 << 20).to_string();
    for file in ["memory.min", "memory.low", "memory.high"] {
        let [web, twin] = pods.each_ref().map(|pod| scene.files(pod, file));
        let levels = if kubelet_minor() < LEAST_FOR_RESERVATIONS_OF_PODS {
            1
        } else {
            2
        };
        assert_eq!(web[..levels], twin[..levels], "{file}");
        if file == "memory.min" {
            assert_eq!(web, [reserved.clone(), reserved.clone()]);
        }
    }
}

/// Swap on the guest's empty disk. Dropping the value turns it off.
struct Swap;

impl Swap {
    const DISK: &str = "/dev/ubda";

    /// Nothing where there is no such disk.
    fn on() -> Option<Self> {
        Path::new(Self::DISK).exists().then(|| {
            Self::run("mkswap");
            Self::run("swapon");
            Self
        })
    }

    fn run(program: &str) {
        let output = Command::new(program).arg(Self::DISK).output().unwrap();
        assert!(output.status.success(), "{program}: {output:?}");
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        Self::run("swapoff");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_may_swap_gets_its_cpu_alone() {
    const NAME: &str = "cluster_today::configured::swap";
    let Some(_swap) = Swap::on() else {
        return skipped(NAME, "this machine has no empty disk for swap");
    };
    let kubelet = json!({"memorySwap": {"swapBehavior": "LimitedSwap"}});
    let Some(mut scene) = Scene::on(NAME, &kubelet).await else {
        return;
    };
    let spec = |amounts| json!({"containers": [{"name": "app", "resources": objects::resources(amounts)}]});
    scene.make_pod(WEB, &spec(APP));
    scene.make_pod(TWIN, &spec(GUARANTEED));
    let pods = [scene.runs(WEB).await, scene.runs(TWIN).await];
    let swap = |scene: &Scene| pods.each_ref().map(|pod| scene.files(pod, "memory.swap.max"));
    let before = swap(&scene);
    assert!(before[0][0].parse::<u64>().is_ok_and(|swap| swap > 0), "{before:?}");
    assert_eq!(before[1][0], "0", "the other pod's memory is guaranteed");

    // What the kubelet says to a user who asks for other memory, and also for cpu.
    scene.resize(WEB, &spec(LARGER));
    let message = scene.is_answered(WEB, "Infeasible").await;
    assert!(message.contains("swap"), "{message}");
    scene.resize(WEB, &spec(APP));
    let unchanged = scene.is_resized(WEB, "app", &objects::resources(APP)).await;

    scene.agent.start().await;
    scene.make_vpa("InPlaceOrRecreate");
    scene.recommend(&[("app", LARGER)]);
    let resized = scene.app_reaches(CPU_ALONE).await;
    let other = scene
        .is_resized(TWIN, "app", &objects::resources(GUARANTEED_LARGER))
        .await;
    nothing_restarted(&pods[0], &resized);
    nothing_restarted(&pods[1], &other);
    assert_eq!(swap(&scene), before);
    let [asked, before] = [&resized, &unchanged].map(|pod| pod["metadata"]["generation"].as_u64().unwrap());
    assert_eq!(asked, before + 1, "the kubelet has refused nothing of the agent's");
}
