//! Commands of operators at the socket of a running agent.

use std::fs;
use std::process::Command;

use serde_json::{Value, json};

use super::{AT_FIRST, Amounts, SIDE, Scene, memory};
use crate::support::bare::BarePod;
use crate::support::http::get;

const UID_DB: &str = "0a1b2c3d-0000-4000-8000-000000000012";
pub(super) const DB: (&str, Amounts) = ("db", Amounts::doubled(100, 64));

/// The output and the exit code of a command.
#[derive(Debug)]
struct Answer {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Answer {
    fn of(mut command: Command) -> Self {
        let output = command.output().unwrap();
        Self {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

impl Scene {
    /// Runs `vscalectl` with this scene's agent.
    async fn type_in(&self, line: &str) -> Answer {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vscalectl"));
        command
            .args(line.split(' '))
            .arg("--socket")
            .arg(self.agent.path().join("vscaled.sock"));
        tokio::task::spawn_blocking(|| Answer::of(command)).await.unwrap()
    }

    /// Adds a second pod.
    pub(super) async fn with_database(&mut self) -> BarePod {
        let db = self.node.run("db", UID_DB, &[DB]);
        self.agent.write("db.yaml", &db.manifest());
        self.agent.reaches("db", "NotManaged").await;
        db
    }

    /// The lines of the audit log so far.
    fn audited(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.agent.path().join("state/audit.jsonl")).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Waits until the audit log has a line that meets a condition.
    async fn audits(&self, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        self.agent
            .until(what, async || self.audited().into_iter().find(&holds))
            .await
    }
}

#[tokio::test]
async fn a_pod_too_large_for_the_node_is_refused() {
    let scene = Scene::started().await;
    for line in [
        "resize test/web -c app --memory-request 900Ti --memory-limit 900Ti",
        "resize test/web -c app --memory-request 900Ti --memory-limit 900Ti --dry-run",
        "resize test/web -c app --cpu-limit 9000000",
    ] {
        let answer = scene.type_in(line).await;
        assert_eq!(answer.code, Some(1), "{answer:?}");
        assert!(
            answer.err.contains("the node cannot hold it") && answer.err.contains("(all this machine has)"),
            "{answer:?}"
        );
    }
    assert!(scene.holds(&AT_FIRST));
    assert!(scene.agent.pod("web").await.unwrap().r#override.is_none());
    let line = scene.audits("the refusal", |line| line["event"] == "refusal").await;
    assert_eq!(
        (&line["uid"], &line["call"], &line["pod"]),
        (&json!(0), &json!("resize"), &json!("test/web"))
    );

    // The capacity in the Node object takes precedence over the machine's.
    scene.agent.write(
        "node.yaml",
        "kind: Node\nmetadata: {name: this-node}\nstatus: {allocatable: {cpu: \"1\", memory: 256Mi}}",
    );
    let answer = scene
        .agent
        .until("the node to count", async || {
            let answer = scene
                .type_in("resize test/web -c app --memory-request 230Mi --memory-limit 240Mi --dry-run")
                .await;
            (answer.code == Some(1)).then_some(answer)
        })
        .await;
    // 230 for one container, 32 for the other, of 256.
    assert!(
        answer
            .err
            .contains("memory requests would be 262Mi of 256Mi (allocatable): this pod 262Mi instead of 96Mi"),
        "{answer:?}"
    );
}

#[tokio::test]
async fn several_pods_are_changed_in_one_call() {
    let mut scene = Scene::started().await;
    let db = scene.with_database().await;
    let answer = scene
        .type_in("resize -l app -c app --memory-limit 512Mi --reason drill -o json")
        .await;
    assert_eq!(answer.code, Some(1), "{answer:?}");
    let results = answer.json()["results"].clone();
    let of = |name: &str| {
        let results = results.as_array().unwrap();
        results.iter().find(|result| result["name"] == name).unwrap().clone()
    };
    assert_eq!(of("web")["change"]["outcome"], "Applied");
    assert_eq!(
        of("db")["error"],
        "containers: the pod has no container \"app\"; it has: db"
    );
    let app = Amounts {
        memory_limit: Some(512),
        ..super::APP
    };
    assert!(scene.holds(&[("app", app), ("side", SIDE)]));
    assert!(scene.node.holds(&db, &[DB]));

    let answer = scene
        .type_in("resize test/web -c app --cpu-limit 1 -c side --memory-limit 128Mi")
        .await;
    assert_eq!(answer.code, Some(0), "{answer:?}");
    let both = [
        (
            "app",
            Amounts {
                cpu_limit: Some(1000),
                ..app
            },
        ),
        (
            "side",
            Amounts {
                memory_limit: Some(128),
                ..SIDE
            },
        ),
    ];
    assert!(scene.holds(&both));

    let answer = scene.type_in("release -l app=web -n test").await;
    assert_eq!(answer.code, Some(0), "{answer:?}");
    assert!(scene.holds(&AT_FIRST));
    let answer = scene.type_in("release -l app=web").await;
    assert!(
        answer.code == Some(1) && answer.err.contains("no pod with an override"),
        "{answer:?}"
    );
}

#[tokio::test]
async fn every_change_is_audited_with_its_cause() {
    let scene = Scene::started().await;
    let vpa =
        crate::support::amounts::vpa_manifest("web", "web", &[("app", Amounts::doubled(200, 96)), ("side", SIDE)]);
    let versioned = vpa.replace(
        "metadata: {name: web",
        "metadata: {resourceVersion: \"4711\", name: web",
    );
    scene.agent.write("vpa.yaml", &versioned);
    scene
        .settles(&[("app", Amounts::doubled(200, 96)), ("side", SIDE)])
        .await;
    let line = scene
        .audits("the recommendation", |line| {
            line["who"]["kind"] == "vpa" && line["container"] == "app"
        })
        .await;
    assert_eq!(
        line["who"],
        json!({"kind": "vpa", "name": "web", "resourceVersion": "4711"})
    );
    assert_eq!(line["pod"]["name"], "web");
    assert_eq!(line["outcome"], "Applied");
    assert!(
        line["old"] != line["new"] && line["file"].is_string() && line["tookUs"].is_u64(),
        "{line:#}"
    );

    let answer = scene
        .type_in("resize test/web -c app --memory-limit 512Mi --reason incident")
        .await;
    assert_eq!(answer.code, Some(0), "{answer:?}");
    scene.type_in("release test/web --reason over").await;
    let by_hand = |reason: &'static str| move |line: &Value| line["who"]["reason"] == reason;
    let line = scene.audits("the override", by_hand("incident")).await;
    assert_eq!(line["who"]["uid"], 0);
    assert!(line["who"]["pid"].as_u64().unwrap() > 1);
    scene.audits("the release", by_hand("over")).await;

    let history = scene.type_in("history test/web -o json").await.json();
    let who: Vec<_> = history["changes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|change| change["who"]["kind"].clone())
        .collect();
    assert_eq!(who, ["vpa", "operator", "operator"]);
}

#[tokio::test]
async fn an_unwritable_audit_log_stops_nothing() {
    let mut scene = Scene::new();
    let occupied = scene.agent.path().join("occupied");
    fs::create_dir(&occupied).unwrap();
    scene.agent.set("--audit-log", &occupied);
    scene.agent.start().await;
    scene.agent.reaches("web", "NotManaged").await;
    let change = scene.agent.resize(scene.by_hand(memory("512Mi"))).await.unwrap();
    assert_eq!(change.outcome, "Applied");
    scene.agent.reports(&["audit log", "lines are lost", "occupied"]).await;
    let doctor = scene.type_in("doctor").await;
    assert!(doctor.out.contains("lines are lost"), "{doctor:?}");
}

#[tokio::test]
async fn an_explanation_has_every_side() {
    let scene = Scene::managed(&[("app", Amounts::doubled(200, 96)), ("side", SIDE)]).await;
    let json = scene.type_in("explain test/web -o json").await.json();
    let amounts = json["amounts"].as_array().unwrap();
    let app = amounts
        .iter()
        .find(|amount| amount["container"] == "app" && amount["resource"] == "cpu")
        .unwrap();
    assert_eq!(app["target"], "200m");
    assert_eq!(app["decided"], json!({"request": "200m", "limit": "400m"}));
    assert_eq!(app["spec"], json!({"request": "100m", "limit": "200m"}));
    let values = json["values"].as_array().unwrap();
    let wanted: Vec<&Value> = values.iter().filter(|value| value["wanted"] != "").collect();
    assert!(wanted.len() >= 9, "{values:#?}");
    for value in wanted {
        assert_eq!(
            (&value["owner"], &value["difference"]),
            (&json!("vscaled"), &json!("")),
            "{value:#}"
        );
    }

    let text = scene.type_in("explain test/web").await.out;
    for word in ["VPA", "BOUNDS", "spec", "wanted", "kernel", "owner", "next", "recent"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    let typo = scene.type_in("explain test/wbe").await;
    assert!(typo.err.contains("did you mean test/web?"), "{typo:?}");
}

#[tokio::test]
async fn the_doctor_sees_a_healthy_agent() {
    let scene = Scene::started().await;
    let json = scene.type_in("doctor -o json").await.json();
    let checks = json["checks"].as_array().unwrap();
    let status = |name: &str| {
        let check = checks.iter().find(|check| check["name"] == name);
        check.unwrap_or_else(|| panic!("no check {name}: {checks:#?}"))["status"].clone()
    };
    for name in [
        "agent",
        "kernel",
        "cgroups",
        "cgroup files",
        "privileges",
        "state directory",
        "pods",
        "cgroup driver",
        "runtime",
    ] {
        assert_eq!(status(name), "ok", "{name}: {checks:#?}");
    }
}

#[tokio::test]
async fn a_limit_stops_above_a_fixed_heap() {
    let mut scene = Scene::new();
    let manifest = scene.pod.manifest();
    let with_heap = manifest.replace("{name: app, ", "{name: app, args: [java, -Xmx32m, App], ");
    assert_ne!(manifest, with_heap);
    scene.agent.write("pod.yaml", &with_heap);
    scene.agent.set("--http-address", "127.0.0.1:0");
    scene.agent.start().await;
    scene.agent.reaches("web", "NotManaged").await;
    // The limit is 128 MiB and the recommendation 32 MiB; the heap and its margin take 96 MiB.
    scene.recommend(&[("app", Amounts::doubled(100, 16)), ("side", SIDE)]);
    scene
        .settles(&[("app", Amounts::doubled(100, 48)), ("side", SIDE)])
        .await;
    let explained = scene.type_in("explain test/web").await.out;
    let explained = explained.split_whitespace().collect::<Vec<_>>().join(" ");
    for text in [
        "-Xmx \"32m\" in args fixes the Java heap at 32Mi",
        "16Mi becomes 48Mi: the memory limit keeps room for the container's fixed heap",
    ] {
        assert!(explained.contains(text), "{text}: {explained}");
    }
    let doctor = scene.type_in("doctor -o json").await.json();
    let mut checks = doctor["checks"].as_array().unwrap().iter();
    let settings = checks.find(|check| check["name"] == "memory settings").unwrap();
    assert_eq!(settings["status"], "warn");
    assert!(settings["found"].as_str().unwrap().contains("test/web"), "{settings}");
    let address = scene.agent.http_address().await;
    let counted = r#"vscaled_lint_findings{rule="FixedHeap",severity="warning"} 1"#;
    let is_counted = || get(address, "/metrics").is_some_and(|(_, metrics)| metrics.contains(counted));
    scene.agent.wait_for("the finding to be counted", is_counted).await;
    let exported = scene.type_in("export test/web").await;
    for text in ["kind: StatefulSet", "memory: 48Mi", "memory: 96Mi"] {
        assert!(exported.out.contains(text), "{text}: {exported:?}");
    }
}
