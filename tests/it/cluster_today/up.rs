//! Boots the cluster that other programs use: the tests of a run, or a person's shell.

use serde_json::json;

use crate::support::cluster::{Components, IMAGE, Today};

/// The shell command that uses the cluster.
const COMMAND: &str = "VSCALED_CLUSTER_COMMAND";

#[tokio::test(flavor = "multi_thread")]
#[ignore = "boots a cluster for scripts/test and scripts/cluster, which name a command to run beside it"]
async fn a_cluster_is_up_while_a_command_runs() {
    let wants = |name: &str| std::env::var_os(name).is_some();
    let command = std::env::var(COMMAND).unwrap_or_else(|error| panic!("{COMMAND}: {error}"));
    let none = json!({});
    // Tests start agents of their own. A person's cluster has the chart, and the controllers that it needs.
    let is_for_a_person = wants("VSCALED_CLUSTER_CHART");
    let today = if is_for_a_person {
        Today::bare("cluster_today::up", &none).await
    } else {
        Today::boot("cluster_today::up", &none).await
    };
    let today = today.expect("scripts/kube-parts has run");
    let mut components = Components::new(&today.api);
    if is_for_a_person {
        components.launch_controllers(&today.api);
        today.import_agent();
        let install = format!(
            "helm install vscaled deploy/helm --set image.repository={IMAGE} --set observeOnly=false >&2 &&
            kubectl -n vscaled rollout status daemonset/vscaled >&2"
        );
        assert!(today.lend(&install), "the chart was not installed\n{}", today.logs());
    }
    if wants("VSCALED_CLUSTER_VPA") {
        components.launch_vpa(&today.api);
    }
    assert!(today.lend(&command), "{command} failed\n{}", today.logs());
}
