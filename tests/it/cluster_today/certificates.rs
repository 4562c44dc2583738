//! A cluster whose certificates are replaced, as its administrators do it from time to time: the agent reads the new ones from the
//! files of its pod, or from those that its kubeconfig names, and does not restart.

use std::fs;
use std::path::Path;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::faults::OTHER;
use super::{APP, LARGER, Scene, token_in};
use crate::support::cluster::{ApiServer, User};
use crate::support::scratch;

/// Where a pod has the files of its service account.
const MOUNTED: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Replaces a file as the kubelet does, so that a reader never finds half of it.
fn replace(directory: &Path, name: &str, text: &str) {
    let beside = directory.join("new");
    fs::write(&beside, text).unwrap();
    fs::rename(beside, directory.join(name)).unwrap();
}

/// Starts the API server again after `renew`. The agent stands still meanwhile: its probes of an absent API server come ever later, and
/// the wait for the next one is no part of these tests.
fn restart_server(scene: &mut Scene, renew: impl FnOnce(&mut ApiServer)) {
    let agent = Pid::from_raw(scene.agent.pid());
    kill(agent, Signal::SIGSTOP).unwrap();
    let server = &mut scene.parts().server;
    server.stop();
    renew(server);
    server.launch();
    kill(agent, Signal::SIGCONT).unwrap();
}

/// The API server has a certificate of another authority, which the agent does not know yet.
async fn replace_authority(scene: &mut Scene) {
    restart_server(scene, ApiServer::renew_authority);
    scene.parts().kubelet.stop();
    scene.launch_kubelet();
    scene.agent.reports(&["cannot be reached", "certificate"]).await;
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
    replace_authority(&mut scene).await;
    assert_eq!(scene.levels(&before), levels, "nothing is taken back");
    let second = scene.parts().server.authority();
    replace(account.path(), "ca.crt", &(first + &second));
    scene.recommend(&[("app", OTHER)]);
    scene.settles(&before, OTHER).await;

    // The old authority goes, and every connection is made again.
    replace(account.path(), "ca.crt", &second);
    restart_server(&mut scene, |server| server.renew_certificate());
    scene.recommend(&[("app", APP)]);
    scene.settles(&before, APP).await;
    assert_eq!(scene.agent.pid(), process);
    assert_eq!(scene.agent.has_ended(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn replaced_files_of_a_kubeconfig_need_no_restart() {
    let Some(mut scene) = Scene::alone("cluster_today::certificates::the_files_of_a_kubeconfig").await else {
        return;
    };
    let kubeconfig = scene.parts().server.agents_kubeconfig();
    scene.agent.set("--kubeconfig", &kubeconfig);
    let before = scene.follows_app().await;
    scene.recommend(&[("app", LARGER)]);
    scene.settles(&before, LARGER).await;
    let process = scene.agent.pid();

    // The API server no longer accepts the certificate that the agent's connections began with.
    let copy = tempfile::tempdir_in(scratch()).unwrap();
    for file in ["agent.kubeconfig", "agent.crt", "agent.key", "authority.crt"] {
        fs::copy(kubeconfig.with_file_name(file), copy.path().join(file)).unwrap();
    }
    let earlier = format!("--kubeconfig={}", copy.path().join("agent.kubeconfig").display());
    let request = ["get", "--raw=/api/v1/nodes", &earlier];
    let is_refused = || {
        let answer = scene.today.api.try_kubectl(User::Admin, &request, "");
        answer.is_err_and(|error| error.contains("Unauthorized"))
    };
    assert!(!is_refused());
    scene.today.own.as_ref().unwrap().server.renew_agent();
    scene
        .agent
        .wait_for("the earlier certificate to be refused", is_refused)
        .await;
    scene.recommend(&[("app", OTHER)]);
    scene.settles(&before, OTHER).await;

    // The API server's own certificate is of another authority.
    replace_authority(&mut scene).await;
    scene.parts().server.write_authority();
    scene.recommend(&[("app", APP)]);
    scene.settles(&before, APP).await;
    assert_eq!(scene.agent.pid(), process);
    assert_eq!(scene.agent.has_ended(), None);
}
