//! What the API server says of its own work.

use std::time::Duration;

use crate::support::cluster::ApiServer;

/// What nodes follow.
const KINDS: [(&str, &str); 5] = [
    ("pods", "Pod"),
    ("nodes", "Node"),
    ("verticalpodautoscalers", "VerticalPodAutoscaler"),
    ("limitranges", "LimitRange"),
    ("horizontalpodautoscalers", "HorizontalPodAutoscaler"),
];

/// Counts since the API server's start, when they are nothing.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Load {
    /// Lists, and watches that were begun.
    requests: f64,
    /// Events on watches.
    events: f64,
    bytes: f64,
    cpu_seconds: f64,
    /// What the API server occupies.
    memory: f64,
    /// Watches that are open.
    pub(crate) watchers: f64,
}

impl Load {
    pub(crate) fn now(cluster: &ApiServer) -> Self {
        let text = cluster.kubectl(&["get", "--raw=/metrics"], "");
        let sum = |name: &str, wanted: &dyn Fn(&str) -> bool| -> f64 {
            let lines = text.lines().filter(|line| {
                line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' '])) && wanted(line)
            });
            lines
                .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
                .sum()
        };
        let is_kind = |line: &str| KINDS.iter().any(|(_, kind)| line.contains(&format!("kind=\"{kind}\"")));
        let is_read = |line: &str| {
            let (of, by) = (|what: &str| line.contains(what), ["LIST", "WATCH"]);
            KINDS.iter().any(|(plural, _)| of(&format!("resource=\"{plural}\"")))
                && by.iter().any(|verb| of(&format!("verb=\"{verb}\"")))
        };
        let watchers = sum("apiserver_registered_watchers", &is_kind);
        Self {
            // A watch is counted as a request when it ends.
            requests: sum("apiserver_request_total", &is_read) + watchers,
            events: sum("apiserver_watch_events_total", &is_kind),
            bytes: sum("apiserver_watch_events_sizes_sum", &is_kind),
            cpu_seconds: sum("process_cpu_seconds_total", &|_| true),
            memory: cluster.memory() as f64,
            watchers,
        }
    }

    /// A row of the table: what came since.
    pub(crate) fn print(&self, what: &str, since: &Self, took: Duration, nodes: f64) {
        let requests = self.requests - since.requests;
        println!(
            "  {what:<36} {:>8.1} {requests:>9.0} {:>9.2} {:>9.2} {:>9.0} {:>9.2} {:>8.2} {:>9.0}",
            took.as_secs_f64(),
            requests / nodes,
            requests / nodes / took.as_secs_f64() * 60.0,
            (self.events - since.events).max(0.0),
            (self.bytes - since.bytes).max(0.0) / 1e6,
            self.cpu_seconds - since.cpu_seconds,
            self.memory / 1e6,
        );
    }
}

/// The titles of what [`Load::print`] prints.
pub(crate) fn print_titles() {
    println!(
        "  {:<36} {:>8} {:>9} {:>9} {:>9} {:>9} {:>9} {:>8} {:>9}",
        "", "seconds", "requests", "per node", "… a min.", "events", "MB told", "CPU s", "server MB"
    );
}

/// Waits until as many watches are open as before.
pub(crate) async fn all_back(cluster: &ApiServer, watchers: f64) {
    while tokio::task::block_in_place(|| Load::now(cluster)).watchers < watchers {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// This process's resident memory in bytes.
pub(crate) fn own_memory() -> anyhow::Result<u64> {
    let status = procfs::process::Process::myself()?.status()?;
    Ok(status.vmrss.unwrap_or_default() * 1024)
}
