//! Reports of kills: to watchers at the socket, in the metrics, in `vscalectl`, in the audit log.

use std::net::TcpListener;
use std::process::{Command, Output};

use super::*;

fn vscalectl(scene: &Scene, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_vscalectl"))
        .args(arguments)
        .arg("--socket")
        .arg(scene.agent.socket())
        .output()
        .unwrap()
}

#[tokio::test]
async fn a_kill_reaches_all_local_readers() {
    let mut scene = Scene::of(&[("app", SMALL)]);
    // The port was free a moment ago, and no other process on this machine knows it.
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    scene.agent.set("--http-address", address.to_string());
    scene.start().await;
    let mut watch = scene.agent.client().await.watch().await.unwrap();
    scene.kill_one("app");
    let told = scene.wait_for_kills(1).await.pop().unwrap();
    let watched = loop {
        let change = watch.next().await.unwrap();
        if let Some(kill) = change.kill.filter(|kill| kill.id == told.id) {
            break kill;
        }
    };
    assert_eq!(watched, told);

    let series = format!(
        "vscaled_oom_kills_total{{namespace=\"test\",pod=\"web\",container=\"app\",level=\"{}\"}} 1",
        told.level
    );
    let metrics = scrape(address).await;
    assert!(metrics.contains(&series), "{metrics}");
    let by_limit = format!(
        "vscaled_oom_kills_by_limit_total{{namespace=\"test\",pod=\"web\",container=\"app\",limit_of=\"{}\"}} 1",
        told.limit_of
    );
    assert!(metrics.contains(&by_limit), "{metrics}");

    let audit = scene.agent.state_directory().join("audit.jsonl");
    let line = || {
        std::fs::read_to_string(&audit).ok()?.lines().find_map(|line| {
            let line: serde_json::Value = serde_json::from_str(line).ok()?;
            (line["event"] == "kill" && line["id"] == *told.id).then_some(line)
        })
    };
    let waited_for = "the kill to be in the audit log";
    scene.agent.wait_for(waited_for, || line().is_some()).await;
    assert_eq!(line().unwrap()["container"], "app");

    let listed = vscalectl(&scene, &["oom", "list", "test/web", "-o", "json"]);
    let listed: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!(listed["kills"][0]["container"]["name"], "app");
    assert_eq!(listed["kills"][0]["id"], told.id);
    let table = vscalectl(&scene, &["oom", "list"]);
    let table = String::from_utf8(table.stdout).unwrap();
    assert!(table.contains("test/web") && table.contains(&told.level), "{table}");
    let nothing = vscalectl(&scene, &["oom", "list", "test/other"]);
    assert!(nothing.status.success());
    assert!(
        String::from_utf8(nothing.stdout)
            .unwrap()
            .contains("no recent OOM kills")
    );
}

async fn scrape(address: std::net::SocketAddr) -> String {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    stream.write_all(request).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}
