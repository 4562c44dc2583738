//! Boots the cluster that other programs use: the tests of a run, or a person's shell.

use serde_json::json;

use crate::support::cluster::{Components, Today};

/// The shell command that uses the cluster.
const COMMAND: &str = "VSCALED_CLUSTER_COMMAND";

#[tokio::test(flavor = "multi_thread")]
#[ignore = "boots a cluster for scripts/test and scripts/cluster, which name a command to run beside it"]
async fn a_cluster_is_up_while_a_command_runs() {
    let command = std::env::var(COMMAND).unwrap_or_else(|error| panic!("{COMMAND}: {error}"));
    let today = Today::boot("cluster_today::up", &json!({}))
        .await
        .expect("scripts/kube-parts has run");
    // A person looks at the node through an agent; a test starts its own.
    let mut agent = today.agent().with("--sweep-interval", "30s");
    if std::env::var_os("VSCALED_CLUSTER_AGENT").is_some() {
        agent.start().await;
    }
    let mut vpa = Components::new(&today.api);
    if std::env::var_os("VSCALED_CLUSTER_VPA").is_some() {
        vpa.launch_vpa(&today.api);
    }
    let variables = [("VSCALED_SOCKET", agent.socket())];
    assert!(today.lend(&command, &variables), "{command} failed\n{}", today.logs());
}
