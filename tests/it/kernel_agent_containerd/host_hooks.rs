//! Hooks that fail, wait or compete, and signals. The results that depend on a cgroup v2 kernel are in
//! [`super::hooks`]. These tests run many programs in containers, which takes too long in the lab.

use std::fs;

use futures::future::join_all;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::hooks::{HIGHER, LOWER};
use super::host_operators::limits;
use super::host_pressure::GROWS;
use super::{APP, Amounts, IDLE, SIDE, Scene, vpa_manifest};

#[tokio::test]
async fn failed_hooks_change_nothing() {
    let scene = Scene::started(IDLE).await;
    let endless = "it did not end in time";
    let cases = [
        ("echo no; exit 1", "ended with 1"),
        ("sleep 1002; true", endless),
        ("trap '' TERM HUP INT; while true; do sleep 1003; done", endless),
        ("sleep 1004 & sleep 1004 & echo started", endless),
        ("cat /dev/zero", endless),
        ("while true; do echo more; done", endless),
        ("head -c 100000 /dev/zero", "it printed too much to be read"),
    ];
    let run = |script: &str| format!("[\"/bin/sh\", \"-c\", {script:?}]");
    let cases = cases.map(|(script, why)| (run(script), why)).into_iter();
    let unusable = [
        ("[\"/no/such/program\"]", "ExecSync of container"),
        ("jcmd 1 GC.run", "allowed is a command"),
    ];
    let unusable = unusable.map(|(value, why)| (value.to_owned(), why));
    let cases: Vec<_> = cases.chain(unusable).collect();
    let count = cases.len();
    for (index, (command, why)) in cases.into_iter().enumerate() {
        scene.recommend(HIGHER, SIDE);
        scene.settles(HIGHER, SIDE).await;
        scene.declare(
            &["app"],
            &[
                ("VSCALED_BEFORE_SHRINK", command.as_str()),
                ("VSCALED_BEFORE_SHRINK_WAIT", "2s"),
            ],
        );
        scene.recommend(LOWER, SIDE);
        scene.settles(LOWER, SIDE).await;
        let told = scene.hooks(index + 1).await.remove(index);
        assert!(
            told.outcome == "HookFailed" && told.reason.contains(why),
            "{command}: {told:?}"
        );
        eprintln!("{command}: {}; left behind: {:?}", told.reason, scene.others());
    }
    let audit = fs::read_to_string(scene.agent.path().join("state/audit.jsonl")).unwrap();
    let told = audit.lines().filter(|line| line.contains("hook before-shrink"));
    assert_eq!(told.filter(|line| line.contains("HookFailed")).count(), count);
}

#[tokio::test]
async fn hooks_of_a_namespace_take_turns() {
    let names = ["a", "b", "c", "d", "e"];
    let mut scene = Scene::of(&names.map(|name| (name, IDLE, SIDE))).await;
    scene.declare(
        &names,
        &[("VSCALED_AFTER_GROW", r#"["/bin/sh", "-c", "sleep 3; true"]"#)],
    );
    scene.agent.start().await;
    scene.knows_all().await;
    let higher = names.map(|name| (name, Amounts::doubled(50, 64)));
    scene.agent.write("vpa.yaml", &vpa_manifest("web", "web", &higher));
    let (mut in_all, mut in_one) = (0, 0);
    let ended = async || {
        let hooks = |index| scene.others_in(index).iter().filter(|line| *line == "sleep 3").count();
        let running: Vec<_> = (0..names.len()).map(hooks).collect();
        in_all = in_all.max(running.iter().sum());
        in_one = in_one.max(*running.iter().max().unwrap());
        let mut history = scene.agent.history().await;
        history.retain(|change| change.outcome == "HookRan");
        (history.len() == names.len()).then_some(history)
    };
    let told = scene.agent.until("five hooks to end", ended).await;
    assert_eq!((in_all, in_one), (3, 1), "{told:#?}");
}

#[tokio::test]
async fn no_hook_delays_other_changes() {
    let scripts = [
        "trap '' TERM HUP INT; while true; do sleep 1007; done",
        "i=0; while [ $i -lt 50 ]; do sleep 1008 & i=$((i + 1)); done; wait",
        "while true; do echo more; done",
        "exit 1",
    ];
    let scene = Scene::started(IDLE).await;
    for (index, script) in scripts.into_iter().enumerate() {
        let hook = format!("[\"/bin/sh\", \"-c\", {script:?}]");
        scene.declare(
            &["app"],
            &[
                ("VSCALED_BEFORE_SHRINK", hook.as_str()),
                ("VSCALED_BEFORE_SHRINK_WAIT", "3s"),
            ],
        );
        // While the hook runs, an operator intervenes, then the limit grows, and at last the shrink succeeds.
        scene.recommend(LOWER, SIDE);
        let begun = async || {
            let is_running = !scene.others().iter().all(|line| line.starts_with("sleep 100"));
            (is_running || script == "exit 1" || scene.agent.pod("web").await?.state == "Working").then_some(())
        };
        scene.agent.until("the hook to begin", begun).await;
        let change = scene.agent.resize(limits("app", None, Some("100Mi"))).await.unwrap();
        assert_eq!(change.outcome, "Applied", "{change:#?}");
        scene.agent.release("test/web").await.unwrap();
        scene.recommend(HIGHER, SIDE);
        scene.settles(HIGHER, SIDE).await;
        scene.recommend(LOWER, SIDE);
        scene.settles(LOWER, SIDE).await;
        let told = scene.hooks(index + 1).await;
        assert!(told.iter().all(|told| told.outcome == "HookFailed"), "{told:#?}");
        scene.recommend(APP, SIDE);
        scene.settles(APP, SIDE).await;
    }
    let kills = scene.containerd.cgroups().oom_kills(&scene.pod.containers[0].cgroup);
    assert_eq!(kills, 0);
}

/// Allocates 10 MB per second after /go exists, and frees everything on request.
const GROWS_STEADILY: &str = "while [ ! -e /go ]; do sleep 0.05; done; \
     (while [ ! -e /free ]; do head -c 1000000 /dev/zero; sleep 0.1; done) | tail -c 900000000 >/dev/null; \
     while true; do sleep 1000; done";

impl Scene {
    /// Declares a hook of `app` before its limit comes down to 64 MiB, which a VPA recommends, with growth from there.
    fn lowers_after(&self, script: &str) {
        let hook = format!("[\"/bin/sh\", \"-c\", {script:?}]");
        let hooks = [
            ("VSCALED_BEFORE_SHRINK", hook.as_str()),
            ("VSCALED_BEFORE_SHRINK_WAIT", "2m"),
        ];
        self.declare(&["app"], &hooks);
        self.lets_grow_from(LOWER);
    }

    /// Waits for the guard, and has the process free its memory.
    async fn grows_and_frees(&self) {
        let grown = || self.app_limit() > 160;
        self.agent.wait_for("the guard to grow the limit", grown).await;
        fs::write(format!("/proc/{}/root/free", self.pod.containers[0].pid), "").unwrap();
    }

    /// Checks that every hook has failed, one at least, and that nothing was killed.
    async fn hooks_failed_only(&self) {
        let kills = self.containerd.cgroups().oom_kills(&self.pod.containers[0].cgroup);
        assert_eq!(kills, 0);
        let told = self.hooks(1).await;
        assert!(told.iter().all(|told| told.outcome == "HookFailed"), "{told:#?}");
    }
}

#[tokio::test]
async fn no_hook_delays_the_guard() {
    let scripts = [
        "trap '' TERM HUP INT; while true; do sleep 1007; done",
        "trap '' TERM; for i in 1 2 3 4 5 6 7 8 9; do sleep 1008 & done; wait",
        "while true; do echo more; done",
    ];
    join_all(scripts.map(async |script| {
        let scene = Scene::started(GROWS).await;
        scene.lowers_after(script);
        let of_hook = || {
            let words = ["sleep 1007", "sleep 1008", "echo more"];
            let mut processes = scene.processes_in(0);
            processes.retain(|(_, line)| words.iter().any(|of| line.contains(of)));
            processes
        };
        let runs = || !of_hook().is_empty();
        scene.agent.wait_for("the hook to run", runs).await;
        assert_eq!(scene.app_limit(), 128, "{script}");
        scene.go();
        scene.grows_and_frees().await;
        let cgroups = scene.containerd.cgroups();
        let is_free = || cgroups.memory_usage(&scene.pod.containers[0].cgroup) < 40 << 20;
        scene.agent.wait_for("the memory to be given back", is_free).await;
        let change = scene.agent.resize(limits("app", None, Some("100Mi"))).await.unwrap();
        assert_eq!(
            (change.outcome.as_str(), scene.app_limit()),
            ("Applied", 100),
            "{change:#?}"
        );
        assert!(runs(), "guard and operator had their way meanwhile: {script}");
        scene.agent.release("test/web").await.unwrap();
        let is_lower = || {
            for (pid, _) in of_hook() {
                // It may just have ended.
                kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap_or_default();
            }
            scene.app_limit() == 64
        };
        scene
            .agent
            .wait_for("the shrink to have its way when the hook has ended", is_lower)
            .await;
        scene.hooks_failed_only().await;
    }))
    .await;
}

#[tokio::test]
async fn a_failed_hook_delays_no_growth() {
    let scene = Scene::started(GROWS_STEADILY).await;
    scene.lowers_after("exit 1");
    scene
        .agent
        .wait_for("the lower limit", || scene.app_limit() == 64)
        .await;
    scene.go();
    scene.grows_and_frees().await;
    scene.hooks_failed_only().await;
}

#[tokio::test]
async fn containerd_signals_without_agent_rights() {
    let mut scene = Scene::new("trap 'echo told >/told' HUP; while true; do sleep 0.1; done").await;
    let as_in_the_base_daemon_set = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"];
    scene.agent = scene
        .agent
        .wrapped(&as_in_the_base_daemon_set, "exec setpriv --bounding-set=-kill \"$@\"");
    scene.declare(&["app"], &[("VSCALED_AFTER_GROW", "signal: SIGHUP")]);
    scene.agent.start().await;
    scene.knows_all().await;
    scene.recommend(HIGHER, SIDE);
    let told = scene.hooks(1).await.remove(0);
    assert!(
        told.outcome == "HookRan" && told.reason.contains("SIGHUP was sent"),
        "{told:?}"
    );
    scene
        .agent
        .wait_for("the signal", || scene.file("told").is_some())
        .await;
}

#[tokio::test]
async fn no_operator_and_no_growth_waits_for_a_hook() {
    let scene = Scene::started(IDLE).await;
    scene.declare(
        &["app"],
        &[
            ("VSCALED_BEFORE_SHRINK", r#"["/bin/sh", "-c", "sleep 1001"]"#),
            ("VSCALED_BEFORE_SHRINK_WAIT", "2m"),
        ],
    );
    let hooks = || -> Vec<i32> {
        let processes = scene.processes_in(0).into_iter();
        let hooks = processes.filter(|(_, line)| line.ends_with("sleep 1001"));
        hooks.map(|(pid, _)| pid).collect()
    };
    scene.recommend(
        Amounts {
            cpu: 150,
            cpu_limit: Some(300),
            ..LOWER
        },
        SIDE,
    );
    scene.agent.wait_for("the hook to run", || !hooks().is_empty()).await;
    let hook = hooks();
    // The rest of the same recommendation is applied already.
    let meanwhile = Amounts {
        cpu: 150,
        cpu_limit: Some(300),
        memory_limit: Some(128),
        ..LOWER
    };
    scene
        .agent
        .wait_for("cpu to follow", || scene.holds(meanwhile, SIDE))
        .await;
    let change = scene.agent.resize(limits("app", None, Some("100Mi"))).await.unwrap();
    assert_eq!(change.outcome, "Applied", "{change:#?}");
    let by_hand = Amounts {
        memory_limit: Some(100),
        ..meanwhile
    };
    assert!(scene.holds(by_hand, SIDE));
    scene.agent.release("test/web").await.unwrap();
    scene.recommend(HIGHER, SIDE);
    scene.settles(HIGHER, SIDE).await;
    assert_eq!(hooks(), hook, "it runs all the while");
    // No other hook runs at the same time, and an agent that ends kills the hook.
    scene.recommend(LOWER, SIDE);
    let announced = async || (scene.agent.pod("web").await?.state == "Working").then_some(());
    scene.agent.until("the lower limit to be announced", announced).await;
    assert_eq!((hook.len(), hooks()), (1, hook));
}

#[tokio::test]
async fn a_signal_reaches_the_first_process() {
    let scene = Scene::started("trap 'echo told >/told' HUP; while true; do sleep 0.1; done").await;
    scene.declare(&["app"], &[("VSCALED_AFTER_GROW", "signal: SIGHUP")]);
    scene.recommend(HIGHER, SIDE);
    let told = scene.hooks(1).await.remove(0);
    assert!(
        told.outcome == "HookRan" && told.reason.contains("SIGHUP was sent"),
        "{told:?}"
    );
    scene
        .agent
        .wait_for("the signal", || scene.file("told").is_some())
        .await;
}

#[tokio::test]
async fn where_hooks_are_forbidden_none_runs() {
    let mut scene = Scene::new(IDLE).await;
    scene.declare(
        &["app"],
        &[
            ("VSCALED_AFTER_GROW", r#"["touch", "/told"]"#),
            ("VSCALED_BEFORE_SHRINK", r#"["touch", "/told"]"#),
        ],
    );
    scene.agent.set("--hooks", "other,kube-system");
    scene.agent.start().await;
    scene.knows_all().await;
    let mut client = scene.agent.client().await;
    let notes = client.explain("test/web".to_owned()).await.unwrap().notes;
    let why = "the agent's configuration forbids it: the key hooks does not list its namespace";
    for moment in ["after-grow", "before-shrink"] {
        let expected = format!("hook {moment} in container app: {why}");
        assert!(notes.contains(&expected), "{notes:?}");
    }
    for amounts in [HIGHER, LOWER, HIGHER] {
        scene.recommend(amounts, SIDE);
        scene.settles(amounts, SIDE).await;
    }
    assert!(scene.hooks(0).await.is_empty() && scene.file("told").is_none());
}

#[tokio::test]
async fn annotations_run_no_hooks() {
    let mut scene = Scene::new(IDLE).await;
    let former = r#"annotations: {vscaled.io/after-grow: "[\"touch\", \"/told\"]", vscaled.io/before-shrink.app: "signal: SIGHUP"}"#;
    let annotated = scene.manifest.replacen("labels:", &format!("{former}\n  labels:"), 1);
    scene.agent.write("pod.yaml", &annotated);
    scene.agent.set("--hooks", "*");
    scene.agent.start().await;
    scene.knows_all().await;
    for amounts in [HIGHER, LOWER] {
        scene.recommend(amounts, SIDE);
        scene.settles(amounts, SIDE).await;
    }
    assert!(scene.hooks(0).await.is_empty() && scene.file("told").is_none());
    let mut client = scene.agent.client().await;
    let notes = client.explain("test/web".to_owned()).await.unwrap().notes;
    let begins = [
        "vscaled.io/after-grow] runs no hook",
        "vscaled.io/before-shrink.app] runs no hook",
    ];
    for (begins, variable) in begins.into_iter().zip(["VSCALED_AFTER_GROW", "VSCALED_BEFORE_SHRINK"]) {
        let said = notes
            .iter()
            .find(|note| note.starts_with(&format!("metadata.annotations[{begins}")));
        assert!(said.is_some_and(|note| note.contains(variable)), "{notes:?}");
    }
    let checks = client.doctor().await.unwrap().checks;
    let hooks: Vec<_> = checks.iter().filter(|check| check.name == "hooks").collect();
    assert_eq!(hooks[0].found, "may run in every namespace but kube-system");
    assert!(
        hooks[1]
            .found
            .starts_with("hooks that cannot run: 2, such as test/web metadata.annotations["),
        "{hooks:?}"
    );
}
