//! Publishes kills on this node: in the list for operators, to watchers at the socket, in the metrics, the log and the audit
//! log, and to the controller.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use tokio::sync::{mpsc, watch};

use crate::agent::view;
use crate::control::{ChangeFeed, proto};
use crate::model::LivePod;
use crate::observe::audit::Audit;
use crate::observe::metrics::register;
use crate::oom::{Level, OomReport, ReportedPod};
use crate::reconcile::controller::Event;
use crate::report::log::{LATEST, oldest_of_most};
use crate::share::places_of_most;

/// The latest kills, oldest first.
pub(in crate::agent) type Kills = watch::Receiver<VecDeque<Arc<OomReport>>>;

/// The series of a pod that is gone stay so long, so that a scraper sees the last of it.
const SERIES_STAY: Duration = Duration::from_secs(600);
/// Series at most. Only pods that come and go by the thousand in ten minutes, each with a kill, reach it. Then the namespace with
/// most series loses its oldest.
const MOST_SERIES: usize = 2000;

#[derive(Debug)]
pub(super) struct Published {
    /// The latest kills, also those that an earlier agent published.
    pub(super) kills: watch::Sender<VecDeque<Arc<OomReport>>>,
    pub(super) changes: ChangeFeed,
    pub(super) controller: ToController,
    pub(super) metrics: KillMetrics,
    pub(super) audit: Audit,
}

impl Published {
    pub(super) fn publish(&mut self, report: Arc<OomReport>, now: Instant) {
        log(&report);
        self.audit.kill(&report);
        self.metrics.killed(&report, now);
        self.changes.send(|| proto::Change {
            at: report.time.to_string(),
            kill: Some(view::kill(&report)),
            ..proto::Change::default()
        });
        self.controller.send(Arc::clone(&report));
        self.kills.send_modify(|kills| add(kills, report));
    }
}

fn add(kills: &mut VecDeque<Arc<OomReport>>, kill: Arc<OomReport>) {
    if kills.len() == LATEST {
        let lost = oldest_of_most(kills.iter().map(Arc::as_ref));
        kills.remove(lost);
    }
    kills.push_back(kill);
}

/// Sends kills to the controller, in order. It may be slow: the latest kills wait for it, and nothing else does.
#[derive(Debug)]
pub(super) struct ToController(watch::Sender<VecDeque<Arc<OomReport>>>);

impl ToController {
    /// Panics: outside of a tokio runtime.
    pub(super) fn new(events: mpsc::Sender<Event>) -> Self {
        let waiting = watch::Sender::default();
        tokio::spawn(send_waiting(events, waiting.clone()));
        Self(waiting)
    }

    fn send(&self, kill: Arc<OomReport>) {
        self.0.send_modify(|waiting| add(waiting, kill));
    }
}

async fn send_waiting(events: mpsc::Sender<Event>, waiting: watch::Sender<VecDeque<Arc<OomReport>>>) {
    let mut kills = waiting.subscribe();
    while kills.wait_for(|kills| !kills.is_empty()).await.map(drop).is_ok()
        && let Ok(permit) = events.reserve().await
    {
        waiting.send_modify(|kills| {
            if let Some(kill) = kills.pop_front() {
                permit.send(Event::Killed(kill));
            }
        });
    }
}

fn log(report: &OomReport) {
    let facts = &report.facts;
    let pod = facts.pod.as_ref().map(ReportedPod::full_name);
    let victim = report.victim.as_ref();
    tracing::warn!(
        id = report.id, pod, container = facts.container.as_ref().map(|container| container.name.as_str()),
        cgroup = report.cgroup, kill_level = facts.level.to_string(), limit_of = facts.limit_of().to_string(), limit_bytes = facts.limit.limit_bytes,
        pid = victim.map(|victim| victim.pid), comm = victim.map(|victim| victim.comm.escape_debug().to_string()),
        confidence = ?report.confidence, while_down = report.while_down, "the kernel's OOM killer ended a process"
    );
}

/// The namespace, pod and container of the victim, empty where not known, and a level.
type KillLabels = [(&'static str, String); 4];

/// The labels of a kill: the level is the one whose limit the kernel enforced.
fn labels_of(report: &OomReport) -> KillLabels {
    let pod = report.facts.pod.clone().unwrap_or_default();
    let container = report.facts.container.clone().unwrap_or_default();
    [
        ("namespace", pod.namespace),
        ("pod", pod.name),
        ("container", container.name),
        ("level", report.facts.level.to_string()),
    ]
}

/// The same victim, and whose limit it was.
fn by_limit(labels: &KillLabels, limit_of: Level) -> KillLabels {
    let [namespace, pod, container, _] = labels.clone();
    [namespace, pod, container, ("limit_of", limit_of.to_string())]
}

/// Counts OOM kills by victim, once by the level whose limit the kernel enforced and once by the level whose limit caused the kill.
/// The labels name pods: a series of the first family ends [`SERIES_STAY`] after its pod, or earlier where there are more than
/// [`MOST_SERIES`], and the victim's series of the second family end with it.
#[derive(Debug)]
pub(crate) struct KillMetrics {
    kills: Family<KillLabels, Counter>,
    by_limit: Family<KillLabels, Counter>,
    /// When each series of the first family last had a kill or a living pod.
    series: HashMap<KillLabels, Instant>,
}

impl KillMetrics {
    /// Registers the families, without a series.
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let help = "OOM kills, by the container that lost a process and the level whose limit the kernel enforced; a group killed as a whole counts once";
        let by_limit = "The same OOM kills, by the limit that caused them: the container's if the container had reached its own limit, even if the kernel enforced the pod's";
        Self {
            kills: register(registry, "oom_kills", help, Family::default()),
            by_limit: register(registry, "oom_kills_by_limit", by_limit, Family::default()),
            series: HashMap::new(),
        }
    }

    /// Counts a kill, and ends a series if there are too many.
    pub(crate) fn killed(&mut self, report: &OomReport, now: Instant) {
        let labels = labels_of(report);
        self.kills.get_or_create(&labels).inc();
        let limit_of = report.facts.limit_of();
        self.by_limit.get_or_create(&by_limit(&labels, limit_of)).inc();
        self.series.insert(labels, now);
        if self.series.len() > MOST_SERIES {
            let mut oldest_first: Vec<_> = self.series.iter().collect();
            oldest_first.sort_unstable_by_key(|(_, used)| **used);
            let most = places_of_most(oldest_first.iter().map(|([(_, namespace), ..], _)| namespace));
            if let Some(lost) = most.map(|(oldest, _)| oldest_first[oldest].0.clone()) {
                self.end_series(&lost);
            }
        }
    }

    /// Ends the series of pods that have been gone for [`SERIES_STAY`].
    pub(super) fn end_old_series(&mut self, pods: &[Arc<LivePod>], now: Instant) {
        let is_old = |[(_, namespace), (_, name), ..]: &KillLabels, used: &mut Instant| {
            let lives = |pod: &Arc<LivePod>| pod.id.namespace == *namespace && pod.id.name == *name;
            // Kills outside of pods have a few series that stay.
            if name.is_empty() || pods.iter().any(lives) {
                *used = now;
            }
            now.duration_since(*used) > SERIES_STAY
        };
        let old: Vec<_> = self.series.extract_if(is_old).collect();
        old.iter().for_each(|(labels, _)| self.end_series(labels));
    }

    fn end_series(&mut self, labels: &KillLabels) {
        self.series.remove(labels);
        self.kills.remove(labels);
        for level in Level::all() {
            self.by_limit.remove(&by_limit(labels, level));
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::model::CgroupPath;
    use crate::model::objects::PodId;
    use crate::observe::metrics::registry;
    use crate::oom::{Candidates, Confidence, HitLimit, KillFacts, ReportedContainer};

    /// A kill in the pod of that name.
    pub(in crate::agent::oom) fn report(id: &str) -> OomReport {
        OomReport {
            id: id.to_owned(),
            time: Timestamp::UNIX_EPOCH,
            facts: KillFacts {
                node: String::new(),
                pod: Some(ReportedPod {
                    namespace: "test".to_owned(),
                    name: id.to_owned(),
                    uid: "u".to_owned(),
                }),
                container: Some(ReportedContainer {
                    name: "app".to_owned(),
                    id: "i".to_owned(),
                }),
                level: Level::Container,
                limit: HitLimit::default(),
                container_limit: None,
            },
            cgroup: None,
            victim: None,
            group: Vec::new(),
            own_write: None,
            evidence: None,
            confidence: Confidence::CounterAlone,
            candidates: Candidates::default(),
            more_candidates: 0,
            while_down: false,
        }
    }

    pub(in crate::agent::oom) fn ids(kills: &Kills) -> Vec<String> {
        kills.borrow().iter().map(|report| report.id.clone()).collect()
    }

    fn live(name: &str) -> Arc<LivePod> {
        Arc::new(LivePod {
            id: PodId {
                uid: "u".into(),
                namespace: "test".to_owned(),
                name: name.to_owned(),
            },
            path: CgroupPath::root(),
            containers: <_>::default(),
        })
    }

    #[tokio::test]
    async fn list_and_series_are_bounded() {
        let mut registry = registry();
        let mut published = Published {
            kills: watch::Sender::new(VecDeque::from([Arc::new(report("old"))])),
            changes: ChangeFeed::default(),
            controller: ToController::new(mpsc::channel(1).0),
            metrics: KillMetrics::register(&mut registry),
            audit: Audit::default(),
        };
        let kills = published.kills.subscribe();
        let start = Instant::now();
        (0..LATEST).for_each(|number| published.publish(Arc::new(report(&number.to_string())), start));
        assert_eq!(ids(&kills).len(), LATEST);
        assert!(!ids(&kills).contains(&"old".to_owned()));
        let series = |published: &mut Published, minutes: u64, live: &[Arc<LivePod>]| {
            published
                .metrics
                .end_old_series(live, start + Duration::from_secs(60 * minutes));
            let mut text = String::new();
            prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
            let series = text.lines().filter(|line| line.starts_with("vscaled_oom_kills_total"));
            series.count()
        };
        assert_eq!(series(&mut published, 9, &[live("1")]), LATEST);
        assert_eq!(series(&mut published, 11, &[live("1")]), 1);
        assert_eq!(series(&mut published, 20, &[]), 1);
        assert_eq!(series(&mut published, 22, &[]), 0);
        (0..=MOST_SERIES).for_each(|number| published.publish(Arc::new(report(&number.to_string())), start));
        assert_eq!(published.metrics.series.len(), MOST_SERIES);
    }

    #[test]
    fn the_series_of_a_living_pod_stays() {
        let mut metrics = KillMetrics::register(&mut registry());
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        metrics.killed(&report("alive"), after(0));
        metrics.killed(&report("gone"), after(1));
        metrics.end_old_series(&[live("alive")], after(2));
        (2..=MOST_SERIES).for_each(|number| metrics.killed(&report(&number.to_string()), after(3)));
        assert_eq!(metrics.series.len(), MOST_SERIES);
        assert!(metrics.series.contains_key(&labels_of(&report("alive"))));
        assert!(!metrics.series.contains_key(&labels_of(&report("gone"))));
    }

    #[tokio::test]
    async fn the_latest_kills_wait_for_a_slow_controller() {
        let (events, mut taken) = mpsc::channel(1);
        let controller = ToController::new(events);
        (0..2 * LATEST).for_each(|number| controller.send(Arc::new(report(&number.to_string()))));
        let mut next = async || {
            let Some(Event::Killed(kill)) = taken.recv().await else {
                panic!("the controller gets no kill");
            };
            kill.id.clone()
        };
        for number in LATEST..2 * LATEST {
            assert_eq!(next().await, number.to_string());
        }
        controller.send(Arc::new(report("later")));
        assert_eq!(next().await, "later");
    }
}

#[cfg(test)]
mod metrics_tests {
    use prometheus_client::encoding::text::encode;

    use super::*;
    use crate::observe::log::LogFormat;
    use crate::observe::log::tests::logged;
    use crate::report::testing::kill_of;

    #[test]
    fn the_line_of_a_kill_is_a_warning() {
        let line = logged(LogFormat::Json, "info", |_| log(&kill_of("web", 1)));
        // Of two fields of one name, the last.
        let line: serde_json::Value = serde_json::from_str(line.trim()).unwrap();
        assert_eq!([&line["level"], &line["kill_level"]], ["WARN", "container"]);
    }

    #[test]
    fn the_line_of_a_nameless_pod_has_its_uid() {
        let mut kill = kill_of("web", 1);
        kill.facts.pod = Some(ReportedPod {
            uid: "u-1".to_owned(),
            ..ReportedPod::default()
        });
        let line = logged(LogFormat::Json, "info", |_| log(&kill));
        let line: serde_json::Value = serde_json::from_str(line.trim()).unwrap();
        assert_eq!(line["pod"], "u-1");
    }

    #[test]
    fn a_series_goes_away_with_what_it_counted() {
        let mut registry = Registry::with_prefix("test");
        let mut kills = KillMetrics::register(&mut registry);
        let counted = |pod: &str| {
            let mut text = String::new();
            encode(&mut text, &registry).unwrap();
            text.contains(&format!(
                r#"test_oom_kills_total{{namespace="shop",pod="{pod}",container="app",level="container"}} 1"#
            ))
        };
        for pod in ["web", "db"] {
            kills.killed(&kill_of(pod, 1), Instant::now());
        }
        assert!(counted("web") && counted("db"));
        kills.end_series(&labels_of(&kill_of("web", 1)));
        assert!(!counted("web") && counted("db"));
    }

    #[test]
    fn a_kill_counts_by_its_level_and_limit() {
        let mut registry = Registry::with_prefix("test");
        let mut kills = KillMetrics::register(&mut registry);
        let counted = || {
            let mut text = String::new();
            encode(&mut text, &registry).unwrap();
            let series = text.lines().filter(|line| !line.starts_with('#'));
            series.map(str::to_owned).collect::<Vec<_>>()
        };
        let mut kill = kill_of("web", 1);
        kill.facts.level = Level::Pod;
        kill.facts.container_limit = Some(kill.facts.limit.clone());
        kills.killed(&kill, Instant::now());
        let victim = r#"namespace="shop",pod="web",container="app""#;
        let both = [
            format!(r#"test_oom_kills_total{{{victim},level="pod"}} 1"#),
            format!(r#"test_oom_kills_by_limit_total{{{victim},limit_of="container"}} 1"#),
        ];
        assert_eq!(counted(), both);
        kills.end_series(&labels_of(&kill));
        assert!(counted().is_empty());
    }

    #[test]
    fn many_killed_pods_of_a_namespace_keep_the_series_of_others() {
        let mut kills = KillMetrics::register(&mut Registry::default());
        let start = Instant::now();
        let mut other = kill_of("db", 1);
        other.facts.pod.as_mut().unwrap().namespace = "bank".to_owned();
        kills.killed(&other, start);
        for number in 1..=MOST_SERIES as u64 {
            let later = start + Duration::from_millis(number);
            kills.killed(&kill_of(&format!("web-{number}"), number), later);
        }
        assert_eq!(kills.series.len(), MOST_SERIES);
        assert!(kills.series.contains_key(&labels_of(&other)));
        assert!(!kills.series.contains_key(&labels_of(&kill_of("web-1", 1))));
    }

    #[test]
    fn of_equal_namespaces_the_oldest_loses_its_series() {
        let mut kills = KillMetrics::register(&mut Registry::default());
        let start = Instant::now();
        let kill_in = |number: u64| {
            let mut kill = kill_of("web", 1);
            kill.facts.pod.as_mut().unwrap().namespace = format!("shop-{number}");
            kill
        };
        for number in 0..=MOST_SERIES as u64 {
            kills.killed(&kill_in(number), start + Duration::from_millis(number));
        }
        assert_eq!(kills.series.len(), MOST_SERIES);
        assert!(!kills.series.contains_key(&labels_of(&kill_in(0))));
    }
}
