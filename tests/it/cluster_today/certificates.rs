//! A cluster whose certificate authority is replaced, as its administrators do it from time to time: the agent reads the new one
//! from the files of its pod, and does not restart.

use std::fs;
use std::path::Path;

use super::faults::OTHER;
use super::{APP, LARGER, Scene, token_in};
use crate::support::scratch;

/// Where a pod has the files of its service account.
const MOUNTED: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Replaces a file as the kubelet does, so that a reader never finds half of it.
fn replace(directory: &Path, name: &str, text: &str) {
    let beside = directory.join("new");
    fs::write(&beside, text).unwrap();
    fs::rename(beside, directory.join(name)).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_authority_that_is_replaced_needs_no_restart_of_the_agent() {
    let Some(mut scene) = Scene::alone("cluster_today::certificates::an_authority").await else {
        return;
    };
    let account = tempfile::tempdir_in(scratch()).unwrap();
    let first = scene.parts().server.authority();
    replace(account.path(), "ca.crt", &first);
    let token = token_in(&scene.today.api.deployed_kubeconfig());
    replace(account.path(), "token", &token);
    replace(account.path(), "namespace", "vscaled");
    // The agent sees what it would see in its pod, and has no kubeconfig.
    let script = format!(
        "mkdir -p {MOUNTED}; mount --bind {} {MOUNTED}; exec \"$@\"",
        account.path().display()
    );
    let port = scene.today.api.port().to_string();
    scene.agent = scene
        .today
        .agent()
        .wrapped(&["unshare", "--mount"], &script)
        .with_variables(vec![
            ("KUBERNETES_SERVICE_HOST", "127.0.0.1".into()),
            ("KUBERNETES_SERVICE_PORT", port.into()),
        ]);
    scene.agent.unset("--kubeconfig");
    let before = scene.follows_app().await;
    scene.recommend(&[("app", LARGER)]);
    scene.settles(&before, LARGER).await;
    let levels = scene.levels(&before);
    let process = scene.agent.pid();

    // The API server has the new authority's certificate before the bundle with both reaches the pod.
    scene.parts().server.stop();
    scene.parts().server.renew_authority();
    scene.parts().server.launch();
    scene.parts().kubelet.stop();
    scene.launch_kubelet();
    scene.agent.reports(&["cannot be reached", "certificate"]).await;
    assert_eq!(scene.levels(&before), levels, "nothing is taken back");
    let second = scene.parts().server.authority();
    replace(account.path(), "ca.crt", &(first + &second));
    scene.recommend(&[("app", OTHER)]);
    scene.settles(&before, OTHER).await;

    // The old authority goes, and every connection is made again.
    replace(account.path(), "ca.crt", &second);
    scene.parts().server.stop();
    scene.parts().server.renew_certificate();
    scene.parts().server.launch();
    scene.recommend(&[("app", APP)]);
    scene.settles(&before, APP).await;
    assert_eq!(scene.agent.pid(), process);
    assert_eq!(scene.agent.has_ended(), None);
}
