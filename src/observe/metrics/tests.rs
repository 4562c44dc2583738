//! What a scrape shows of the process. The families of the whole agent are tested where they meet, in `agent::metrics`.

use std::future::pending;

use prometheus_client::encoding::text::encode;

use super::*;

#[test]
fn the_process_is_measured() {
    let mut text = String::new();
    encode(&mut text, &registry()).unwrap();
    let value = |name: &str| -> f64 {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().parse().unwrap()
    };
    assert!(value("vscaled_process_resident_memory_bytes") > 1e6);
    assert!(value("vscaled_process_open_fds") >= 3.0);
    assert!(value("vscaled_process_cpu_seconds_total") >= 0.0);
    let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs_f64();
    let start = value("vscaled_process_start_time_seconds");
    assert!(start > 0.0 && start <= now + 1.0, "{start} {now}");
}

#[tokio::test]
async fn a_scrape_counts_the_agents_tasks() {
    let registry = registry();
    let tasks: Vec<_> = (0..3).map(|_| tokio::spawn(pending::<()>())).collect();
    let scrape = move || {
        let mut text = String::new();
        encode(&mut text, &registry).map(|()| text)
    };
    let text = std::thread::spawn(scrape).join().unwrap().unwrap();
    assert!(text.contains("\nvscaled_process_tasks 3.0\n"), "{text}");
    tasks.iter().for_each(tokio::task::JoinHandle::abort);
}
