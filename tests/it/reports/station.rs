//! The reporting part of an agent, in its own directory.

use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use prometheus_client::registry::Registry;
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;
use vscaled::oom::{
    Candidates, Confidence, HitLimit, KillFacts, Level, OomReport, ReportedContainer, ReportedPod, Role, Victim,
};
use vscaled::report::grpc::{GrpcDelivery, GrpcOptions, TlsFiles};
use vscaled::report::log::{Bounds, KillLog, Recovered};
use vscaled::report::metrics::ReportMetrics;
use vscaled::report::{Destination, Link, Reporter};

use super::receiver::eventually;

/// A running reporter.
pub(crate) struct Station {
    pub(crate) handle: Reporter,
    pub(super) recovered: Recovered,
    /// The first destination.
    first: Destination,
    registry: Registry,
    stop: CancellationToken,
}

/// A receiver at an address, with short timeouts.
pub(super) fn options(address: &str) -> GrpcOptions {
    GrpcOptions {
        endpoint: address.parse().unwrap(),
        tls: TlsFiles::default(),
        longest_wait: Duration::from_millis(20),
        patience: Duration::from_secs(30),
    }
}

impl Station {
    /// Starts a reporter in a directory, with one receiver.
    pub(super) fn start(directory: &TempDir, options: GrpcOptions) -> Self {
        Self::with(directory.path(), Bounds::default(), &[Destination::Grpc], Some(options))
    }

    /// Starts a reporter for these destinations, of which one may have a receiver. The test takes the queues of others, or
    /// leaves them.
    pub(crate) fn with(
        directory: &Path,
        bounds: Bounds,
        destinations: &[Destination],
        receiver: Option<GrpcOptions>,
    ) -> Self {
        let (log, recovered) = KillLog::open(directory, bounds, destinations.iter().copied().collect());
        let mut registry = Registry::with_prefix("vscaled");
        let metrics = ReportMetrics::register(&mut registry, log.totals());
        let stop = CancellationToken::new();
        let reporter = Reporter::start(log, &metrics, &stop);
        if let Some(options) = receiver {
            let grpc = GrpcDelivery::new(options, "node-1".to_owned(), "boot-1".to_owned());
            reporter.spawn(grpc.run(reporter.queue(Destination::Grpc)));
        }
        Self {
            handle: reporter,
            recovered,
            first: destinations[0],
            registry,
            stop,
        }
    }

    /// Stores kills with these numbers in one batch.
    pub(super) async fn kill(&self, numbers: std::ops::RangeInclusive<u64>) {
        let checkpoint = numbers.end().to_string().into_bytes();
        let reports = numbers.map(|number| kill(number).into()).collect();
        self.handle.commit(reports, Some(checkpoint)).await;
        assert_eq!(self.handle.status().borrow().problem, None);
    }

    /// Waits until no report is pending.
    pub(crate) async fn settled(&self) {
        eventually("everything acknowledged", || self.handle.status().borrow().reports == 0).await;
    }

    /// Waits until the first destination has failed, and returns the reason.
    pub(super) async fn failure(&self) -> String {
        let mut found = String::new();
        eventually("a failure", || match self.link() {
            Some(Link::Waiting { error, .. }) => {
                found = error;
                true
            }
            Some(Link::Connected) | None => false,
        })
        .await;
        found
    }

    /// The state of the connection to the first destination, from the first attempt on.
    pub(super) fn link(&self) -> Option<Link> {
        self.handle.status().borrow().links.get(&self.first).cloned()
    }

    /// The number of reports without an acknowledgement from the first destination.
    pub(super) fn pending(&self) -> usize {
        self.handle.status().borrow().pending_for(self.first)
    }

    /// The value of a metric, by its name and labels.
    pub(super) fn metric(&self, name: &str) -> u64 {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.map_or(0, |value| value.trim().parse().unwrap())
    }

    pub(crate) async fn finish(self) {
        self.stop.cancel();
        self.handle.finish(Duration::MAX).await;
    }
}

/// The ids of kills with these numbers.
pub(super) fn ids(numbers: std::ops::RangeInclusive<u64>) -> Vec<String> {
    numbers.map(|number| format!("kill-{number}")).collect()
}

/// A kill with this number.
pub(crate) fn kill(number: u64) -> OomReport {
    OomReport {
        id: format!("kill-{number}"),
        time: Timestamp::from_second(1_700_000_000).unwrap(),
        facts: KillFacts {
            node: "node-1".to_owned(),
            pod: Some(ReportedPod {
                namespace: "shop".to_owned(),
                name: "web".to_owned(),
                uid: "11111111-2222-3333-4444-555555555555".to_owned(),
            }),
            container: Some(ReportedContainer {
                name: "app".to_owned(),
                id: "c0ffee".to_owned(),
            }),
            level: Level::Container,
            limit: HitLimit {
                limit_bytes: Some(64 << 20),
                ..HitLimit::default()
            },
            container_limit: None,
        },
        cgroup: Some("/kubepods/pod1/c0ffee".to_owned()),
        victim: Some(Victim {
            pid: u32::try_from(number).unwrap(),
            comm: "app".to_owned(),
            role: Role::Child.into(),
            memory: None,
            oom_score_adj: Some(1000),
            uid: None,
        }),
        group: Vec::new(),
        own_write: None,
        evidence: None,
        confidence: Confidence::Exact,
        candidates: Candidates::default(),
        more_candidates: 0,
        while_down: false,
    }
}
