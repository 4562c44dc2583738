//! Hostile connections to the port of metrics and health neither kill the agent nor delay an operator.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::{JoinSet, spawn_blocking};
use vscaled::model::MemoryLimit;

use super::{Scene, memory};
use crate::support::http;
use crate::support::tree::CgroupTree;

/// The memory limit of the DaemonSet as shipped.
const SHIPPED: MemoryLimit = MemoryLimit::Bytes(128 << 20);
const CONNECTIONS: usize = 20_000;
const CALLERS: usize = 100;
/// The connections that each caller keeps open.
const OPEN: usize = 8;

/// A connection from one of four addresses that sends what a hostile caller sends.
async fn misbehave(server: SocketAddr, number: usize) -> io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(([127, 0, 0, 2 + u8::try_from(number % 4).unwrap()], 0).into())?;
    let mut stream = socket.connect(server).await?;
    match number / 4 % 4 {
        0 => {}
        1 => stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: unfinished").await?,
        2 => {
            let fat = format!("GET /metrics HTTP/1.1\r\nX-Fat: {}", "x".repeat(370_000));
            stream.write_all(fat.as_bytes()).await?;
        }
        // Never read.
        _ => stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n").await?,
    }
    Ok(stream)
}

/// Opens its part of all connections, the newest few of which stay open.
async fn flood(server: SocketAddr, caller: usize, opened: Arc<AtomicUsize>) {
    let mut open = Vec::new();
    for number in 0..CONNECTIONS / CALLERS {
        // The server closes most of them while they still send.
        if let Ok(stream) = misbehave(server, caller + number).await {
            open.push(stream);
        }
        opened.fetch_add(1, Ordering::Relaxed);
        if open.len() > OPEN {
            drop(open.remove(0));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_agent_survives_hostile_connections() {
    let cgroups = CgroupTree::new();
    let cgroup = cgroups.make("agent");
    cgroups.limit_memory(&cgroup, SHIPPED);
    let enter: Vec<String> = cgroups
        .directories(&cgroup)
        .iter()
        .map(|directory| format!("echo $$ >{}/cgroup.procs", directory.display()))
        .collect();
    let mut scene = Scene::new();
    scene.agent = scene
        .agent
        .wrapped(&[], &format!("{}; exec \"$@\"", enter.join("; ")))
        .with("--http-address", "127.0.0.1:0");
    scene.agent.start().await;
    scene.agent.reaches("web", "NotManaged").await;
    let (server, pid) = (scene.agent.http_address().await, scene.agent.pid());

    let (mut callers, opened) = (JoinSet::new(), Arc::new(AtomicUsize::new(0)));
    for caller in 0..CALLERS {
        callers.spawn(flood(server, caller, Arc::clone(&opened)));
    }
    let mut answered = 0;
    while opened.load(Ordering::Relaxed) < CONNECTIONS || answered < 3 {
        let amount = if answered % 2 == 0 { "100Mi" } else { "96Mi" };
        let change = scene.agent.resize(scene.by_hand(memory(amount))).await.unwrap();
        assert!(matches!(change.outcome.as_str(), "Applied" | "Unchanged"), "{change:?}");
        for (path, words) in [("/metrics", "vscaled_build_info"), ("/healthz", "ok")] {
            let (status, text) = spawn_blocking(move || http::get(server, path)).await.unwrap().unwrap();
            assert!(status == 200 && text.contains(words), "{path}: {status} {text}");
        }
        answered += 1;
    }
    callers.join_all().await;
    assert_eq!(scene.agent.has_ended(), None);
    assert_eq!(scene.agent.pid(), pid);
    assert_eq!(cgroups.oom_kills(&cgroup), 0);
}
