//! Parts that are killed amid resizes. Spec, status and kernel agree in the end, and nothing restarts.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use vscaled::control::proto;
use vscaled::model::{MemoryLimit, Setting};

use super::{APP, LARGER, Levels, Scene, WEB, nothing_restarted};
use crate::support::amounts::Amounts;
use crate::support::cluster::objects;
use crate::support::http;

pub(super) const OTHER: Amounts = Amounts::doubled(150, 80);

impl Scene {
    /// A pod that the agent has resized once, in a cluster of its own.
    async fn resized(test: &str) -> Option<(Self, Value)> {
        let mut scene = Self::alone(test).await?;
        scene.runs_app().await;
        scene.agent.set("--http-address", "127.0.0.1:0");
        scene.agent.start().await;
        scene.make_vpa("InPlaceOrRecreate");
        scene.recommend(&[("app", LARGER)]);
        let pod = scene.app_reaches(LARGER).await;
        Some((scene, pod))
    }

    /// Waits until a pod with one container has these amounts everywhere, as a pod that the kubelet alone resized.
    pub(super) async fn settles(&self, before: &Value, amounts: Amounts) {
        let name = before["metadata"]["name"].as_str().unwrap();
        let pod = self.is_resized(name, "app", &objects::resources(amounts)).await;
        self.agent.reaches(name, "InSync").await;
        let version = vscaled::model::CgroupVersion::V2;
        let wanted = amounts.settings(version);
        let holds = || {
            let levels = self.levels(&pod);
            let holds = |level: &vscaled::model::Settings| wanted.iter().all(|of| level.get(of.file()) == Some(of));
            levels.values().all(holds)
        };
        self.agent.wait_for("the kernel to hold them", holds).await;
        nothing_restarted(before, &pod);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn parts_killed_amid_resizes_come_to_the_same() {
    let Some((mut scene, before)) = Scene::resized("cluster_today::faults::killed").await else {
        return;
    };
    // The agent is killed at once after the recommendation, before or after it has asked for the resize.
    scene.recommend(&[("app", OTHER)]);
    scene.agent.kill();
    scene.agent.start().await;
    scene.settles(&before, OTHER).await;

    scene.parts().kubelet.stop();
    scene.recommend(&[("app", LARGER)]);
    let asked = || scene.object(WEB)["spec"]["containers"][0]["resources"] == objects::resources(LARGER);
    scene.agent.wait_for("the resize to be asked for", asked).await;
    scene.launch_kubelet();
    scene.settles(&before, LARGER).await;

    scene.parts().containerd.stop();
    scene.recommend(&[("app", OTHER)]);
    let asked = || scene.object(WEB)["spec"]["containers"][0]["resources"] == objects::resources(OTHER);
    scene.agent.wait_for("the resize to be asked for", asked).await;
    scene.parts().containerd.launch().await;
    scene.settles(&before, OTHER).await;

    // Without its shim, the runtime takes a container for dead: that restart is not avoidable, and the values are the new ones.
    scene.recommend(&[("app", LARGER)]);
    scene.parts().containerd.kill_shims();
    let pod = scene.runs_anew(&before).await;
    scene.settles(&pod, LARGER).await;
}

/// Every part and every container ends at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_restarted_has_the_values_again() {
    let Some((mut scene, before)) = Scene::resized("cluster_today::faults::restarted").await else {
        return;
    };
    scene.agent.kill();
    let parts = scene.parts();
    parts.kubelet.stop();
    parts.containerd.kill_shims();
    parts.containerd.stop();
    scene.recommend(&[("app", OTHER)]);
    scene.parts().containerd.launch().await;
    scene.launch_kubelet();
    scene.agent.start().await;
    let pod = scene.runs_anew(&before).await;
    scene.settles(&pod, OTHER).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_absent_api_server_takes_nothing_back() {
    let Some((mut scene, before)) = Scene::resized("cluster_today::faults::an_api_server").await else {
        return;
    };
    let levels = scene.levels(&before);
    scene.parts().server.stop();
    scene.agent.reports(&["cannot be reached"]).await;
    assert_eq!(scene.levels(&before), levels);
    // Three changes by hand, of which one is released and one ends meanwhile.
    let by_hand = |memory: u64| {
        let limit = MemoryLimit::Bytes(memory << 20);
        move |levels: &Levels| levels["app"].memory_limit() == Some(limit)
    };
    let change = scene.limit_by_hand(WEB, "app", "224Mi").await.unwrap();
    assert_eq!(change.outcome, "SpecLater", "{change:#?}");
    assert!(change.reason.contains("the spec follows later"), "{change:#?}");
    assert!(by_hand(224)(&scene.levels(&before)));
    scene.release(WEB).await;
    let released = || scene.levels(&before) == levels;
    scene.agent.wait_for("the values from before", released).await;
    scene.agent.reaches(WEB, "InSync").await;
    let for_a_second = proto::ResizeRequest {
        ttl_us: Some(1_000_000),
        ..scene.limits_by_hand(WEB, "app", None, Some("240Mi"))
    };
    let change = scene.agent.resize(for_a_second).await.unwrap();
    assert_eq!(change.outcome, "SpecLater", "{change:#?}");
    scene.agent.wait_for("the values from before", released).await;
    scene.limit_by_hand(WEB, "app", "256Mi").await.unwrap();
    assert!(by_hand(256)(&scene.levels(&before)));
    let pod = scene.agent.reaches(WEB, "Owed").await;
    assert!(pod.r#override.is_some(), "{pod:#?}");
    // Another program writes the earlier limit, which is no change from the API server.
    let cgroup = scene.cgroup(&before, "app").under("/sys/fs/cgroup".as_ref());
    let earlier = Setting::MemoryMax(levels["app"].memory_limit().unwrap());
    std::fs::write(cgroup.join("memory.max"), earlier.to_write()).unwrap();
    let held = || by_hand(256)(&scene.levels(&before));
    scene.agent.wait_for("the limit set by hand to be back", held).await;
    scene.parts().server.launch();
    let held = Amounts {
        memory_limit: Some(256),
        ..LARGER
    };
    let pod = scene.is_resized(WEB, "app", &objects::resources(held)).await;
    nothing_restarted(&before, &pod);
    let generation = |pod: &Value| pod["metadata"]["generation"].as_u64().unwrap();
    assert_eq!(
        generation(&pod),
        generation(&before) + 1,
        "what ended was never in the spec"
    );
    // It is released in the next outage: the container has the values from before at once, the spec later.
    scene.parts().server.stop();
    scene.agent.reports(&["cannot be reached"]).await;
    let change = scene.release(WEB).await;
    assert_eq!(change.outcome, "SpecLater", "{change:#?}");
    let released = || scene.levels(&before)["app"] == levels["app"];
    scene.agent.wait_for("the values from before", released).await;
    scene.parts().server.launch();
    scene.settles(&before, LARGER).await;
    scene.recommend(&[("app", OTHER)]);
    scene.settles(&before, OTHER).await;

    // Changes that etcd has forgotten when the agent asks for them. The API server comes back with another certificate.
    let address = scene.agent.http_address().await;
    let agent = Pid::from_raw(scene.agent.pid());
    kill(agent, Signal::SIGSTOP).unwrap();
    for amounts in [LARGER, APP] {
        scene.recommend(&[("app", amounts)]);
    }
    let server = &mut scene.parts().server;
    server.stop();
    server.compact();
    server.renew_certificate();
    server.launch();
    kill(agent, Signal::SIGCONT).unwrap();
    scene.settles(&before, APP).await;
    let (_, metrics) = http::get(address, "/metrics").unwrap();
    let forgotten = |line: &&str| line.contains("verticalpodautoscalers") && line.contains("\"forgotten\"");
    let count = metrics.lines().find(forgotten).and_then(|line| line.rsplit(' ').next());
    assert!(count.is_some_and(|count| count != "0"), "{metrics}");
}

impl Scene {
    pub(super) fn parts(&mut self) -> &mut crate::support::cluster::Parts {
        self.today.own.as_mut().expect("a cluster of its own")
    }

    /// Waits until the pod has another container than before.
    async fn runs_anew(&self, before: &Value) -> Value {
        let new = |status: &Value| status["containerID"] != before["status"]["containerStatuses"][0]["containerID"];
        let again = || Some(self.object(WEB)).filter(|pod| super::containers(pod).any(new));
        self.agent.until("a new container", async || again()).await
    }

    pub(super) fn launch_kubelet(&mut self) {
        let parts = self.parts();
        parts.kubelet.launch(&parts.containerd);
    }
}
