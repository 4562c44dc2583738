//! Every command, end to end.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::json;

use super::agent::Agent;
use super::script::change;

#[test]
fn get_lists_pods_with_their_states() {
    let agent = Agent::start();
    insta::assert_snapshot!(agent.run(&["get"]).text(), @r"
    POD       QOS         STATE       DECISION               VPA  BY HAND         DETAIL
    shop/web  Burstable   Owed        resize: OutsideBounds  web  until released  the runtime\u{1b}[2J hangs
    shop/db   Guaranteed  NotManaged  none                   -    -
    degraded: no runtime answers
    ");
    let json = agent.run(&["get", "pods", "-o", "json"]).json();
    assert_eq!(json["agent"]["version"], "1.2.3");
    assert_eq!(json["pods"][0]["qosClass"], "Burstable");
    assert_eq!(
        json["pods"][0]["containers"][0]["wanted"]["requests"],
        json!({"cpu": "500m"})
    );
    assert_eq!(json["pods"][1]["vpa"], json!(null));
    assert_eq!(json["pods"][1]["override"], json!(null));
}

#[test]
fn export_prints_what_makes_it_permanent() {
    let agent = Agent::start();
    insta::assert_snapshot!(agent.run(&["export"]).text(), @r#"
    ---
    # shop/Deployment/web: pods here: 1
    apiVersion: apps/v1
    kind: Deployment
    metadata:
      name: web
      namespace: shop
    spec:
      template:
        spec:
          containers:
          - name: app
            resources:
              limits:
                cpu: 500m
              requests:
                cpu: 500m
    "#);
    let vpa = agent.run(&["export", "web", "--format", "vpa"]).text().to_owned();
    assert!(vpa.contains("kind: VerticalPodAutoscaler"), "{vpa}");
    let unknown = agent.run(&["export", "wbe"]);
    assert!(unknown.error(1).contains("no pod of a workload wbe"), "{unknown:?}");
}

#[test]
fn get_decisions_shows_what_changes_where() {
    let agent = Agent::start();
    insta::assert_snapshot!(agent.run(&["get", "decisions"]).text(), @r"
    POD       DECISION               CONTAINER  RESOURCE  REQUEST      LIMIT
    shop/web  resize: OutsideBounds  app        cpu       200m → 500m  200m → 500m
                                                memory    -            -
    shop/db   none                   db         cpu       2            2
                                                memory    -            -
    ");
    let json = agent.run(&["get", "decisions", "-o", "json"]).json();
    assert_eq!(json["decisions"][0]["reason"], "OutsideBounds");
    assert_eq!(json["decisions"].as_array().unwrap().len(), 2);
}

#[test]
fn get_overrides_shows_who_holds_what() {
    let agent = Agent::start();
    let table = agent.run(&["get", "overrides"]).text().to_owned();
    let fields: Vec<&str> = table
        .lines()
        .nth(1)
        .unwrap()
        .split("  ")
        .filter(|cell| !cell.is_empty())
        .collect();
    let [pod, by, _age, left, reason] = fields.as_slice() else {
        panic!("{table}");
    };
    assert_eq!(
        [*pod, *by, *left, *reason].map(str::trim),
        ["shop/web", "uid 0 (pid 77)", "until released", "load test"]
    );
    let json = agent.run(&["get", "overrides", "-o", "json"]).json();
    assert_eq!(json["overrides"][0]["override"]["pid"], 77);
    assert_eq!(json["overrides"].as_array().unwrap().len(), 1);
}

#[test]
fn yaml_says_the_same_as_json() {
    let agent = Agent::start();
    insta::assert_snapshot!(agent.run(&["get", "decisions", "-o", "yaml"]).text(), @r#"
    decisions:
    - namespace: shop
      name: web
      vpa: web
      action: resize
      reason: OutsideBounds
      containers:
      - name: app
        id: containerd://c0ffee01
        wanted:
          requests:
            cpu: 500m
          limits:
            cpu: 500m
        spec:
          requests:
            cpu: 200m
          limits:
            cpu: 200m
        sidecar: false
    - namespace: shop
      name: db
      vpa: null
      action: none
      reason: ""
      containers:
      - name: db
        id: containerd://c0ffee02
        wanted: null
        spec:
          requests:
            cpu: "2"
          limits:
            cpu: "2"
        sidecar: false
    "#);
}

#[test]
fn explain_shows_values_side_by_side() {
    let agent = Agent::start();
    let by_name = agent.run(&["explain", "shop/web"]).text().to_owned();
    let shown = by_name.lines().filter(|line| !line.starts_with("by hand"));
    insta::assert_snapshot!(shown.collect::<Vec<_>>().join("\n"), @r"
    pod       shop/web
    uid       11111111-aaaa
    qos       Burstable
    vpa       web
    decision  resize: OutsideBounds
    state     Owed
              the runtime\u{1b}[2J hangs

    CONTAINER          VPA   BOUNDS     DECIDED      WANTED       SPEC          ALLOCATED  STATUS
    app        cpu     600m  300m…900m  500m / 500m  500m / 500m  200m / 200m   200m       200m / 200m
    app        memory  -     -          -            -            64Mi / 128Mi  -          -

    pod  /kubepods/burstable/pod11111111-aaaa
               cpu.max
      spec     20000 100000
      wanted   50000 100000
      systemd  50000 100000
      kernel   50000 100000
      owner    vscaled

    container app  /kubepods/burstable/pod11111111-aaaa/c0ffee01
               cpu.max !
      spec     20000 100000
      wanted   50000 100000
      runtime  cpu_quota=20000 cpu_period=100000 and further things that go on for long
      kernel   50000 100000
      owner    vscaled
      ! cpu.max: the runtime has 20000 stored: it would write that back when the container is updated by
      others, so it is told again

    why
      app cpu limit: 500m, lowered from 900m by maxAllowed of the VPA

    next
      the runtime is told again in 4 s

    recent
      2026-01-31T12:00:00Z Applied override, 1 step in 1.2 ms
    ");
    assert!(by_name.lines().all(|line| line.chars().count() <= 100), "{by_name}");
    for text in ["11111111-aaaa", "c0ffee01", "containerd://c0ffee01"] {
        let json = agent.run(&["explain", text, "-o", "json"]).json();
        assert_eq!(json["pod"]["name"], "web");
        assert_eq!(json["values"][1]["kernel"], "50000 100000");
        assert_eq!(json["next"], "the runtime is told again in 4 s");
    }
}

#[test]
fn an_unclear_pod_is_refused_with_what_to_type() {
    let agent = Agent::start();
    for command in ["explain", "release", "history"] {
        let error = agent.run(&[command, "shop/none"]).error(1).to_owned();
        assert!(error.contains("\"shop/none\": `vscalectl get` lists them"), "{error}");
    }
    let error = agent.run(&["explain", "c0ffee"]).error(2).to_owned();
    assert!(error.contains("fits 11111111-aaaa and 22222222-bbbb"), "{error}");
}

#[test]
fn resize_shows_each_step() {
    let agent = Agent::start();
    let arguments = [
        "resize",
        "shop/web",
        "-c",
        "app",
        "--cpu-request",
        "0.25",
        "--memory-limit",
        "1.5Gi",
    ];
    let answer = agent.run(&[&arguments[..], &["--ttl", "1h30m", "--reason", "load test"]].concat());
    insta::assert_snapshot!(answer.text(), @r"
    VIA     LEVEL          FILE     FROM          TO            TOOK   NOTE
    cgroup  container app  cpu.max  20000 100000  50000 100000  85 µs
    shop/web: Applied in 1.2 ms
    holds for 1h 30m; `vscalectl release shop/web` ends it earlier
    ");

    let resized = agent.script.resized.lock().unwrap();
    let (caller, request) = &resized[0];
    assert_eq!(caller.uid, 0);
    assert_eq!(
        (request.ttl_us, request.reason.as_str()),
        (Some(5_400_000_000), "load test")
    );
    let values = request.containers[0].values.as_ref().unwrap();
    assert_eq!(values.requests.as_ref().unwrap().cpu.as_deref(), Some("250m"));
    assert_eq!(values.requests.as_ref().unwrap().memory, None);
    assert_eq!(values.limits.as_ref().unwrap().memory.as_deref(), Some("1536Mi"));
}

#[test]
fn a_dry_run_says_that_nothing_was_written() {
    let agent = Agent::start();
    let answer = agent.run(&["resize", "shop/web", "-c", "app", "--cpu-limit", "1", "--dry-run"]);
    assert!(answer.text().contains("shop/web: Planned"), "{answer:?}");
    assert!(
        answer
            .text()
            .ends_with("nothing was written: leave --dry-run out to do it\n")
    );
    assert!(agent.script.resized.lock().unwrap()[0].1.dry_run);
}

#[test]
fn an_override_without_end_must_be_meant() {
    let agent = Agent::start();
    let arguments = ["resize", "shop/web", "-c", "app", "--cpu-limit", "1", "--ttl", "0"];
    assert!(agent.run(&arguments).error(2).contains("add --force"));
    assert!(agent.script.resized.lock().unwrap().is_empty());
    let answer = agent.run(&[&arguments[..], &["--force"]].concat());
    assert!(
        answer.text().ends_with("holds until `vscalectl release shop/web`\n"),
        "{answer:?}"
    );
    assert_eq!(agent.script.resized.lock().unwrap()[0].1.ttl_us, None);
    agent
        .run(&["resize", "shop/web", "-c", "app", "--cpu-limit", "1"])
        .text();
    assert_eq!(agent.script.resized.lock().unwrap()[1].1.ttl_us, Some(1_800_000_000));
}

#[test]
fn the_exit_code_says_how_a_change_ended() {
    let agent = Agent::start();
    let resize = |name: &str| agent.run(&["resize", "shop/web", "-c", name, "--cpu-limit", "1"]);
    let owed = resize("owed");
    assert!(owed.text().contains("RuntimeOwed"));
    assert!(
        owed.err.contains("warning: shop/web: the kernel holds the new values"),
        "{owed:?}"
    );
    assert!(
        resize("back")
            .error(1)
            .contains("everything was put back: as the script says")
    );
    assert!(
        resize("newer")
            .error(1)
            .contains("does not know the outcome \"Transcended\"")
    );
    assert!(
        resize("large")
            .error(1)
            .contains("the node has 1Gi left, 2Gi are missing")
    );
    assert!(resize("none").error(2).contains("no container \"none\": it has app"));

    let json = ["resize", "shop/web", "-c", "back", "--cpu-limit", "1", "-o", "json"];
    let failed = agent.run(&json);
    assert_eq!(failed.code, Some(1));
    let shown: serde_json::Value = serde_json::from_str(&failed.out).unwrap();
    assert_eq!(shown["outcome"], "RolledBack");
    assert_eq!(shown["steps"][0]["tookUs"], 85);
}

#[test]
fn wait_tries_until_values_are_in_force() {
    let agent = Agent::start();
    let resize = |name: &str, wait: &[&str]| {
        let arguments = ["resize", "shop/web", "-c", name, "--cpu-limit", "1"];
        agent.run(&[&arguments[..], wait].concat())
    };
    let attempts = || agent.script.resized.lock().unwrap().len();
    let deferred = resize("later", &[]);
    assert!(
        deferred.error(1).contains("does not have the values yet"),
        "{deferred:?}"
    );
    let answer = resize("later", &["--wait", "1m"]);
    assert!(answer.text().contains("shop/web: Applied"), "{answer:?}");
    assert_eq!(attempts(), 3);
    // What can never be, and what is no request, is not tried again.
    let never = resize("never", &["--wait", "1m"]);
    assert!(
        never.error(1).contains("this node can never hold the values"),
        "{never:?}"
    );
    assert_eq!(attempts(), 4);
    resize("none", &["--wait", "1m"]).error(2);
    assert_eq!(attempts(), 5);
    // In the end the last answer counts.
    assert!(
        resize("back", &["--wait", "300ms"])
            .error(1)
            .contains("everything was put back")
    );
    assert!(attempts() > 6, "{}", attempts());
}

#[test]
fn the_documented_client_resizes() {
    let agent = Agent::start();
    // `examples/resize.rs`, which cargo builds with `--example resize`.
    let client = |container: &str, limits: &[&str]| {
        let program = Path::new(env!("CARGO_BIN_EXE_vscalectl")).with_file_name("examples/resize");
        let mut command = Command::new(program);
        command
            .arg("--socket")
            .arg(&agent.socket)
            .args(["--rounds", "4", "shop/web", container]);
        command.args(limits).output().unwrap()
    };
    let ran = client("app", &["1Gi", "2Gi"]);
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success() && said.contains("4 calls: p50"), "{ran:?}");
    assert_eq!(agent.script.resized.lock().unwrap().len(), 4);
    let refused = client("large", &["1Gi"]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(
        !refused.status.success() && said.contains("the node has 1Gi left, 2Gi are missing"),
        "{refused:?}"
    );
}

#[test]
fn senseless_arguments_are_refused_locally() {
    let agent = Agent::start();
    let resize = |arguments: &[&str]| agent.run(&[&["resize", "shop/web"], arguments].concat());
    for (arguments, field) in [
        (&["-c", "app"][..], "--cpu-request"),
        (&["--cpu-limit", "1"], "--container"),
        (&["-c", "app", "--cpu-limit", "1x"], "--cpu-limit"),
        (&["-c", "app", "--memory-request=-1"], "--memory-request"),
        (&["-c", "app", "--memory-limit", "0"], "--memory-limit"),
        (
            &["-c", "app", "--cpu-request", "2", "--cpu-limit", "1"],
            "--cpu-request",
        ),
        (&["-c", "app", "--cpu-limit", "1", "--ttl", "soon"], "--ttl"),
        (&["-c", "", "--cpu-limit", "1"], "--container"),
    ] {
        let answer = resize(arguments);
        assert!(answer.error(2).contains(field), "{arguments:?}: {answer:?}");
    }
    assert!(agent.script.resized.lock().unwrap().is_empty());
}

#[test]
fn release_and_history_show_what_was_done() {
    let agent = Agent::start();
    assert!(
        agent
            .run(&["release", "shop/web"])
            .text()
            .ends_with("shop/web: Applied in 1.2 ms: released\n")
    );
    insta::assert_snapshot!(agent.run(&["history"]).text(), @r"
    AT                    POD       CAUSE     OUTCOME  STEPS  TOOK    REASON
    2026-01-31T12:00:00Z  shop/web  override  Applied  1      1.2 ms
    2026-01-31T12:00:00Z  shop/web  override  Refused  1      1.2 ms  below what it uses
    ");
    let json = agent.run(&["history", "shop/web", "-o", "json"]).json();
    assert_eq!(json["changes"][1]["outcome"], "Refused");
    assert_eq!(json["changes"][0]["stages"]["verifiedUs"], 1290);
}

#[test]
fn report_shows_what_it_was_worth() {
    let agent = Agent::start();
    insta::assert_snapshot!(agent.run(&["report"]).text(), @r"
    WORKLOAD             PODS  CPU REQUEST   MEMORY REQUEST   AVOIDED: KILLS  EVICTIONS  RESTARTS  THROTTLED
    shop/Deployment/web  3     3000m → 750m  3072Mi → 1536Mi  1               6          5         62 s
    all                  3     3000m → 750m  3072Mi → 1536Mi  1               6          5         62 s
    avoided: since 2026-03-01T12:00:00Z; kills and restarts are lower bounds, the others estimates (docs/report.md)
    ");
    let json = agent.run(&["report", "-o", "json"]).json();
    assert_eq!(json["workloads"][0]["workload"]["name"], "web");
    assert_eq!(json["workloads"][0]["requestedBefore"]["memory"], "3Gi");
    assert_eq!(json["total"]["avoidedThrottledSeconds"], 61.5);
    let of_a_day = agent.run(&["report", "--since", "1d", "-o", "json"]).json();
    assert_eq!(of_a_day["since"], "in 86400 s");
    let refused = agent.run(&["report", "--since", "yesterday"]);
    assert!(refused.error(2).contains("\"yesterday\" is not a duration"));
}

#[test]
fn watch_shows_changes_until_the_agent_ends() {
    let mut agent = Agent::start();
    let mut watch = agent
        .command(&["watch", "-o", "json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    while agent.script.changes.watchers() == 0 {
        assert_eq!(
            watch.try_wait().unwrap(),
            None,
            "watching ended before anything was done"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    for sequence in 1..=2 {
        let change = vscaled::control::proto::Change {
            sequence,
            ..change("Applied", "")
        };
        agent.script.changes.send(|| change);
    }
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    for sequence in 1..=2 {
        let line: serde_json::Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        assert_eq!(line["sequence"], sequence);
    }
    agent.stop();
    let answer = super::agent::Answer::from(watch.wait_with_output().unwrap());
    assert!(answer.error(3).contains("vscaled is stopping"), "{answer:?}");
}
