//! `vscalectl doctor`: checks, their results, and what to do about them.

use super::agent::{Agent, Answer, vscalectl};

#[test]
fn a_failed_check_ends_with_one() {
    let agent = Agent::start();
    let answer = agent.run(&["doctor"]);
    let shown: Vec<&str> = answer.out.lines().skip(1).collect();
    insta::assert_snapshot!(shown.join("\n"), @r"
    ok    kernel      Linux 6.18.0 x86_64
    warn  kernel log  /dev/kmsg cannot be read
                      → grant CAP_SYSLOG
    fail  runtime     nobody answers
                      → start it, or name its socket with runtimeSocket
    1 failing, 1 degraded
    ");
    assert!(answer.out.starts_with("ok    agent"), "{answer:?}");
    assert!(answer.error(1).ends_with("failing: runtime\n"), "{answer:?}");
    let json = agent.run(&["doctor", "-o", "json"]);
    let json: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(json["examinedBy"], "agent");
    assert_eq!(json["checks"][2]["mend"], "grant CAP_SYSLOG");
}

#[test]
fn doctor_examines_a_machine_without_agent() {
    let directory = tempfile::tempdir().unwrap();
    let missing = directory.path().join("missing.sock");
    let answer = Answer::from(vscalectl(&missing, &["doctor"]).output().unwrap());
    // Exit code 3 where only the agent is missing, 1 where this machine has other problems.
    assert!(matches!(answer.code, Some(1 | 3)), "{answer:?}");
    for word in [
        "fail  agent",
        "→ start it with `vscaled run`",
        "kernel log",
        "inotify",
        "cgroup files",
        "runtime",
    ] {
        assert!(answer.out.contains(word), "{word}: {answer:?}");
    }
    let json = Answer::from(vscalectl(&missing, &["doctor", "-o", "yaml"]).output().unwrap());
    assert!(
        json.out.starts_with("examinedBy: vscalectl\n") && json.out.ends_with('\n'),
        "{json:?}"
    );
}
