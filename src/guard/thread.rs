//! The guard's thread: sleeps, reads memory use, grows limits.
//!
//! In come watchlists; out come [`Report`]s. The thread waits only for the kernel: not for the controller, the runtime or the
//! disk. Every limit that it grows is a least limit for all passes before the write.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, TryRecvError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::eventfd::{EfdFlags, EventFd};
use tokio::sync::mpsc::UnboundedSender;

use super::account::Account;
use super::budgets::{Budget, Budgets};
use super::limit_files::LimitFiles;
use super::notifications::{FILES, FIRST, Notifications, Token};
use super::predict::AGAIN;
use super::watched::Watched;
use super::watchlist::{GuardedCgroup, GuardedPod, Report, Settings, Watchlist};
use crate::actuate::Node;
use crate::cgroup::{Cgroup, page_size};
use crate::model::CgroupVersion;

/// How long a growth is assumed to take before one was measured.
const ACT_AT_FIRST: Duration = Duration::from_millis(5);
/// For how long the slowest time counts before it is halved. A machine on which the guard was late stays busy for longer than
/// the next readings take, and a growth may begin at any moment.
const REMEMBERED: Duration = Duration::from_secs(10);

/// The most by which a reading counts as late: a longer delay is a machine that slept.
const LATEST: Duration = Duration::from_millis(50);
/// How long to sleep where no container is guarded.
const NOTHING: Duration = Duration::from_secs(3600);

/// The agent's handle of the guard. When it is dropped without [`Self::stop`], the thread ends at its next wake-up.
#[derive(Debug)]
pub struct Guard {
    watchlists: mpsc::Sender<Box<Watchlist>>,
    wake: Arc<EventFd>,
    thread: JoinHandle<()>,
}

impl Guard {
    /// Starts the thread. It guards nothing before the first watchlist, and notes each growth in `files`.
    ///
    /// Errors: the kernel refuses a descriptor or the thread.
    pub fn start(reports: UnboundedSender<Report>, files: Arc<LimitFiles>) -> io::Result<Self> {
        let wake = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?);
        let (watchlists, inbox) = mpsc::channel();
        let notifications = Notifications::new(&wake)?;
        let thread = std::thread::Builder::new()
            .name("guard".to_owned())
            .spawn(move || Worker::new(notifications, reports, files).run(&inbox))?;
        Ok(Self {
            watchlists,
            wake,
            thread,
        })
    }

    /// Guards the containers of this list from now on, and no others of its pods.
    pub fn watch(&self, watchlist: Watchlist) {
        if self.watchlists.send(Box::new(watchlist)).is_err() {
            tracing::error!("the guard has ended: no limit is raised before it is reached");
        } else if let Err(error) = self.wake.write(1) {
            tracing::error!(%error, "the guard cannot be woken");
        }
    }

    /// Ends the thread, between two growths.
    pub fn stop(self) {
        // The thread ends when it is woken and finds the channel closed.
        drop(self.watchlists);
        if let Err(error) = self.wake.write(1) {
            tracing::error!(%error, "the guard cannot be woken");
        } else if self.thread.join().is_err() {
            tracing::error!("the guard panicked");
        }
    }
}

/// How long a growth takes, from the moment a reading is due. Rises at once and falls slowly.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReactionTime {
    pub(super) takes: Duration,
    /// When `takes` was measured or halved.
    at: Duration,
}

impl ReactionTime {
    const AT_FIRST: Self = Self {
        takes: ACT_AT_FIRST,
        at: Duration::ZERO,
    };

    /// Notes how long a growth took.
    pub(super) fn learn(&mut self, now: Duration, took: Duration) {
        if took >= self.takes || now.saturating_sub(self.at) >= REMEMBERED {
            (self.takes, self.at) = (took.max(self.takes / 2), now);
        }
    }
}

/// The state of the thread.
pub(super) struct Worker {
    started: Instant,
    notifications: Notifications,
    pub(super) reports: UnboundedSender<Report>,
    pub(super) files: Arc<LimitFiles>,
    /// `None` before the first watchlist.
    node: Option<Arc<Node>>,
    pub(super) settings: Settings,
    pub(super) budgets: Budgets,
    pub(super) account: Account,
    pub(super) reaction: ReactionTime,
    /// The watched containers of one pod after the other, each pod's own cgroup after its containers.
    containers: Vec<Watched>,
    next_token: Token,
}

impl Worker {
    fn new(notifications: Notifications, reports: UnboundedSender<Report>, files: Arc<LimitFiles>) -> Self {
        Self {
            started: Instant::now(),
            notifications,
            reports,
            files,
            node: None,
            settings: Settings::default(),
            budgets: Budgets::new(Budget::default(), page_size()),
            account: Account::default(),
            reaction: ReactionTime::AT_FIRST,
            containers: Vec::new(),
            next_token: FIRST,
        }
    }

    pub(super) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    fn run(mut self, watchlists: &mpsc::Receiver<Box<Watchlist>>) {
        loop {
            let dues = self.containers.iter().map(Watched::next);
            let due = dues.min().unwrap_or_else(|| self.now() + NOTHING);
            let notified = match self.notifications.wait(due.saturating_sub(self.now())) {
                Ok(notified) => notified,
                Err(error) => {
                    tracing::error!(%error, "the guard cannot wait: no limit is raised before it is reached");
                    return;
                }
            };
            let now = self.now();
            if now > due {
                self.reaction.learn(now, (now - due).min(LATEST));
            }
            loop {
                match watchlists.try_recv() {
                    Ok(watchlist) => self.watch(*watchlist),
                    Err(TryRecvError::Disconnected) => return,
                    Err(TryRecvError::Empty) => break,
                }
            }
            self.check_due(&notified);
        }
    }

    /// Guards the containers of this list from now on, and no others of its pods.
    fn watch(&mut self, list: Watchlist) {
        let node = list.node;
        self.settings = list.settings;
        self.account.set(&node.hierarchy, &node.kubepods.path, list.claims);
        let is_listed = |watched: &mut Watched| list.pods.contains_key(&watched.pod.live.id.key());
        let known = self.containers.extract_if(.., is_listed);
        let mut known: HashMap<_, Watched> = known.map(|watched| (watched.listed.key(), watched)).collect();
        let mut listed = Vec::new();
        for pod in list.pods.into_values().flatten().map(Arc::new) {
            for cgroup in pod.cgroups() {
                let terms = cgroup.terms.clone();
                let watched = known.remove(&cgroup.key());
                let watched = watched.or_else(|| self.open(&node, &pod, cgroup));
                listed.extend(watched.map(|watched| (watched, Arc::clone(&pod), terms)));
            }
        }
        for watched in known.into_values() {
            self.notifications.forget(watched.token);
            if !watched.listed.is_pod {
                self.budgets.release(&watched.of());
            }
        }
        for (mut watched, pod, terms) in listed {
            let lent = node.least_limits.get(&pod.live.id.uid, &terms.container);
            let lent = lent.filter(|_| !watched.listed.is_pod);
            watched.set_terms(pod, terms, lent, (self.now(), self.settings.quiet));
            self.notifications.subscribe(&mut watched, self.now());
            self.containers.push(watched);
        }
        let guarded = self.containers.iter();
        let namespaces = guarded.map(|watched| watched.pod.live.id.namespace.clone()).collect();
        self.budgets.set(self.settings.budget, &namespaces);
        self.node = Some(node);
    }

    fn open(&mut self, node: &Node, pod: &Arc<GuardedPod>, cgroup: GuardedCgroup) -> Option<Watched> {
        let opened = Cgroup::open(&node.hierarchy, &cgroup.path).inspect_err(|error| {
            if !error.is_gone() {
                tracing::warn!(pod = %pod.live.id, container = cgroup.name(), %error, "cannot open the cgroup: the container is not guarded");
            }
        });
        self.next_token += 1;
        Some(Watched::new(self.next_token, cgroup, opened.ok()?, Arc::clone(pod)))
    }

    /// Reads every container and pod that is due or that the kernel has notified about, except where the memory of all pods together
    /// has hardly moved. Checks that for all containers at once, so that they do not wake the guard one by one.
    fn check_due(&mut self, notified: &[Token]) {
        let Some(node) = self.node.clone() else { return };
        let (now, of_all, version) = (self.now(), self.account.movement_of_all(), node.traits.version);
        let full = self.account.is_full(now);
        let any = notified.contains(&FILES);
        let mut containers = std::mem::take(&mut self.containers);
        for index in 0..containers.len() {
            let (before, rest) = containers.split_at_mut(index);
            let Some(watched) = rest.first_mut() else { break };
            let mut notified = any || notified.contains(&watched.token);
            if notified {
                // The container does not rest before the next reading.
                watched.latest.grows = true;
                notified = watched.due > now + AGAIN;
            }
            if notified {
                watched.alarms.note_alarm(now, version);
            }
            self.check_cpu(watched);
            if !notified && (watched.can_wait(now, of_all, full) || watched.next() > now) {
                continue;
            }
            self.notifications.subscribe(watched, now);
            let rang = notified && version == CgroupVersion::V1;
            if watched.listed.is_pod {
                self.check_pod(&node, before, watched, rang);
            } else {
                self.check(&node, watched, rang);
            }
            watched.latest.of_all = of_all;
            if version == CgroupVersion::V1 {
                self.notifications.order_alarms(watched, now);
            }
        }
        self.containers = containers;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;
    use std::path::Path;

    use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

    use super::*;
    use crate::actuate::Growable;
    use crate::guard::budgets::RefusalKind;
    use crate::guard::predict::Need;
    use crate::guard::watched::ITSELF;
    use crate::guard::watched::tests::watched;
    use crate::guard::watchlist::{CpuTerms, GuardEvent, Guarded, Terms};
    use crate::model::objects::{Pod, PodId, PodKey};
    use crate::model::{Bytes, CgroupPath, LivePod, MilliCpu, Outcome};

    const MIB: u64 = 1 << 20;

    const fn mib(mebibytes: u64) -> Bytes {
        Bytes::new(mebibytes * MIB)
    }

    /// Sets the limit and the use of a cgroup, in MiB.
    fn set(directory: &Path, limit: u64, used: u64) {
        fs::create_dir_all(directory).unwrap();
        for (name, mebibytes) in [("memory.max", limit), ("memory.current", used)] {
            fs::write(directory.join(name), format!("{}\n", mebibytes * MIB)).unwrap();
        }
        fs::write(directory.join("memory.stat"), "").unwrap();
    }

    fn limit(directory: &Path) -> u64 {
        let text = fs::read_to_string(directory.join("memory.max")).unwrap();
        text.trim().parse::<u64>().unwrap() / MIB
    }

    /// A guard that may grow the limit of one container, on plain files, by 8 MiB in all.
    fn guarding(root: &Path) -> (Worker, UnboundedReceiver<Report>) {
        let example = watched(root);
        for directory in ["pod", "pod/app"] {
            set(&root.join(directory), 64, 60);
        }
        let manifest = r#"{"spec": {"containers": [{"name": "app", "resources": {"limits": {"memory": "64Mi"}}}]}}"#;
        let pod: Pod = serde_json::from_str(manifest).unwrap();
        let guarded = GuardedPod {
            live: Arc::clone(&example.pod.live),
            growable: Growable {
                targets: pod.requirements(),
                pod: Arc::new(pod),
            },
            containers: vec![example.listed.terms.clone()],
        };
        let wake = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).unwrap();
        let (files, _) = LimitFiles::below(&root.join("state")).unwrap();
        let (sender, reports) = unbounded_channel();
        let mut worker = Worker::new(Notifications::new(&Arc::new(wake)).unwrap(), sender, files);
        worker.watch(Watchlist {
            node: Arc::new(Node::on_files(root)),
            settings: Settings {
                reserve: Bytes::ZERO,
                budget: Budget {
                    pod: mib(8),
                    node: mib(1 << 20),
                },
                quiet: Duration::from_secs(60),
            },
            pods: [(guarded.live.id.key(), Some(guarded))].into(),
            claims: BTreeMap::new(),
        });
        (worker, reports)
    }

    #[test]
    fn only_a_written_growth_counts() {
        let root = tempfile::tempdir().unwrap();
        let [pod, app, old] = ["pod", "pod/app", "pod/old"].map(|directory| root.path().join(directory));
        let (mut worker, mut reports) = guarding(root.path());
        let node = worker.node.clone().unwrap();
        let least = || node.least_limits.get(&"u".into(), "app");
        let mut check = |worker: &mut Worker, directory: &Path, limit: u64, used: u64| {
            set(directory, limit, used);
            worker.containers[0].due = Duration::ZERO;
            // Readings closer together give no rate.
            std::thread::sleep(Duration::from_millis(5));
            worker.check_due(&[]);
            reports.try_recv().ok().map(|report| report.event)
        };

        // A pass raises the limit after the guard has read it: the guard reads another cgroup, which still has the limit before.
        for directory in [&pod, &app] {
            set(directory, 128, 63);
        }
        set(&old, 64, 60);
        let before = Cgroup::open(&node.hierarchy, &CgroupPath::new("/pod/old").unwrap()).unwrap();
        let cgroup = std::mem::replace(&mut worker.containers[0].cgroup, Arc::new(before));
        for used in [60, 63] {
            let event = check(&mut worker, &old, 64, used);
            assert!(event.is_none(), "{event:?}");
        }
        assert_eq!([&pod, &app].map(|directory| limit(directory)), [128, 128]);
        assert_eq!(least(), None);

        worker.containers[0].cgroup = cgroup;
        set(&pod, 64, 63);
        let Some(GuardEvent::Grew { to, grown, .. }) = check(&mut worker, &app, 64, 63) else {
            panic!("the budget is used up");
        };
        assert_eq!(
            (to, grown.from, &grown.outcome),
            (mib(72), Some(mib(64)), &Outcome::Applied)
        );
        assert_eq!([&pod, &app].map(|directory| limit(directory)), [72, 72]);
        assert_eq!(least(), Some(mib(72)));

        let event = check(&mut worker, &app, 72, 71);
        let Some(GuardEvent::Refused { kind, .. }) = event else {
            panic!("{event:?}");
        };
        assert_eq!(kind, RefusalKind::PodBudget);
        assert_eq!((limit(&app), least()), (72, Some(mib(72))));
    }

    #[test]
    fn a_growth_that_a_pass_wrote_counts() {
        let root = tempfile::tempdir().unwrap();
        let [pod, app, old] = ["pod", "pod/app", "pod/old"].map(|directory| root.path().join(directory));
        let (mut worker, mut reports) = guarding(root.path());
        let node = worker.node.clone().unwrap();
        // The guard reads another cgroup, which still has the limit before.
        for directory in [&pod, &app] {
            set(directory, 72, 63);
        }
        for used in [60, 63] {
            set(&old, 64, used);
            let before = Cgroup::open(&node.hierarchy, &CgroupPath::new("/pod/old").unwrap()).unwrap();
            (worker.containers[0].cgroup, worker.containers[0].due) = (Arc::new(before), Duration::ZERO);
            // Readings closer together give no rate.
            std::thread::sleep(Duration::from_millis(5));
            worker.check_due(&[]);
        }
        let event = reports.try_recv().unwrap().event;
        let GuardEvent::Grew { to, grown, .. } = event else {
            panic!("the growth is lost");
        };
        assert_eq!(
            (to, grown.from, &grown.outcome),
            (mib(72), Some(mib(64)), &Outcome::Applied)
        );
        assert_eq!(node.least_limits.get(&"u".into(), "app"), Some(mib(72)));
    }

    #[test]
    fn a_slower_container_may_raise_the_pod() {
        let root = tempfile::tempdir().unwrap();
        let (mut worker, mut reports) = guarding(root.path());
        let directories = ["pod", "pod/app", "pod/side"].map(|directory| root.path().join(directory));
        let [of_pod, app, side] = &directories;
        // A part of what the pod uses is in no container.
        let take = |times: u64| {
            for (directory, limit, used, more) in [(of_pod, 120, 119, 400), (app, 64, 40, 200), (side, 64, 30, 100)] {
                set(directory, limit, used);
                let bytes = used * MIB + times * more * 1024;
                fs::write(directory.join("memory.current"), format!("{bytes}\n")).unwrap();
            }
        };
        take(0);
        let manifest = r#"{"spec": {"containers": [
            {"name": "app", "resources": {"limits": {"memory": "64Mi"}}},
            {"name": "side", "resources": {"limits": {"memory": "64Mi"}}}
        ]}}"#;
        let pod: Pod = serde_json::from_str(manifest).unwrap();
        let terms = |name: &str, highest: u64| Terms {
            container: name.into(),
            memory: Some(mib(highest)),
            not_higher: None,
            for_pod: false,
            cpu: None,
            evidence: None,
        };
        let guarded = GuardedPod {
            live: Arc::new(LivePod::on_files(["app", "side"])),
            growable: Growable {
                targets: pod.requirements(),
                pod: Arc::new(pod),
            },
            containers: vec![terms("app", 64), terms("side", 1024)],
        };
        let settings = worker.settings;
        worker.watch(Watchlist {
            node: Arc::new(Node::on_files(root.path())),
            settings,
            pods: [(guarded.live.id.key(), Some(guarded))].into(),
            claims: BTreeMap::new(),
        });
        for times in [0, 1] {
            take(times);
            worker.containers.iter_mut().for_each(|one| one.due = Duration::ZERO);
            // Readings closer together give no rate.
            std::thread::sleep(Duration::from_millis(5));
            worker.check_due(&[]);
        }
        let Report { of, event } = reports.try_recv().unwrap();
        assert!(matches!(event, GuardEvent::Grew { for_pod: true, .. }), "{event:?}");
        assert_eq!(&*of.container, "side");
        assert_eq!([of_pod, app, side].map(|directory| limit(directory)), [136, 64, 72]);
    }

    #[test]
    fn pods_that_are_not_listed_stay_watched() {
        let root = tempfile::tempdir().unwrap();
        let (mut worker, _reports) = guarding(root.path());
        let mut watched_after = |pod: PodKey| {
            worker.watch(Watchlist {
                node: worker.node.clone().unwrap(),
                settings: worker.settings,
                pods: [(pod, None)].into(),
                claims: BTreeMap::new(),
            });
            worker.containers.len()
        };
        let pods = ["other", "web"].map(|name| PodKey::new("test", name));
        assert_eq!(pods.map(&mut watched_after), [1, 0]);
    }

    #[test]
    fn dropped_notices_are_about_any_container() {
        let root = tempfile::tempdir().unwrap();
        let (mut worker, _reports) = guarding(root.path());
        let mut is_read_after = |notified: &[Token]| {
            let later = worker.now() + NOTHING;
            worker.containers[0].due = later;
            worker.check_due(notified);
            worker.containers[0].due < later
        };
        let another = FIRST + 1000;
        assert!(!is_read_after(&[another]) && is_read_after(&[FILES]));
    }

    #[test]
    fn an_ended_container_is_refused_nothing() {
        let root = tempfile::tempdir().unwrap();
        let (mut worker, mut reports) = guarding(root.path());
        let [pod, app] = ["pod", "pod/app"].map(|directory| root.path().join(directory));
        let mut before = Duration::ZERO;
        for used in [60, 63] {
            set(&app, 64, used);
            worker.containers[0].due = Duration::ZERO;
            std::thread::sleep(Duration::from_millis(5));
            if used == 63 {
                // The guard still has the cgroup open, and the values of a moment ago.
                fs::rename(&pod, root.path().join("ended")).unwrap();
            }
            before = worker.now();
            worker.check_due(&[]);
        }
        assert!(reports.try_recv().is_err());
        assert!(worker.containers[0].due >= before + ITSELF);
    }

    #[test]
    fn a_container_without_limit_is_promised_nothing() {
        let root = tempfile::tempdir().unwrap();
        let (mut worker, _reports) = guarding(root.path());
        let of = worker.containers[0].of();
        let other = Guarded {
            pod: PodId {
                uid: "other".into(),
                namespace: "other".to_owned(),
                ..of.pod.clone()
            },
            ..of.clone()
        };
        worker.budgets.promise(of, 1 << 40, u64::MAX);
        fs::write(root.path().join("pod/app/memory.max"), "max\n").unwrap();
        worker.containers[0].due = Duration::ZERO;
        worker.check_due(&[]);
        let need = Need {
            at: Duration::ZERO,
            limit: mib(64),
            rate: 0,
            used: mib(60),
            wanted: mib(72),
            least: mib(68),
        };
        let granted = worker.budgets.grant(Duration::ZERO, &other, &need, mib(128), mib(12));
        assert_eq!(granted, Ok(mib(72)), "all that is free");
    }

    #[test]
    fn lasting_throttling_and_its_end_are_reported() {
        let root = tempfile::tempdir().unwrap();
        let (mut worker, mut reports) = guarding(root.path());
        worker.settings.quiet = Duration::ZERO;
        let mut app = worker.containers.remove(0);
        let (file, mut all, mut throttled) = (root.path().join("pod/app/cpu.stat"), 0, 0);
        // Six readings, with so many throttled periods of twenty after each.
        let mut after_six = |[limit, ceiling]: [u64; 2], lent: bool, more: u64| {
            let [limit, ceiling] = [limit, ceiling].map(MilliCpu::new);
            app.listed.terms.cpu = Some(CpuTerms { limit, ceiling, lent });
            for _ in 0..6 {
                fs::write(&file, format!("nr_periods {all}\nnr_throttled {throttled}\n")).unwrap();
                (all, throttled) = (all + 20, throttled + more);
                (worker.started, app.throttling.due) = (Instant::now(), Duration::ZERO);
                worker.check_cpu(&mut app);
            }
            let events = std::iter::from_fn(|| reports.try_recv().ok()).map(|report| match report.event {
                GuardEvent::Throttled { from, to, .. } => format!("{from} → {to}"),
                event => format!("{event:?}"),
            });
            (events.collect::<Vec<_>>().join(", "), app.throttling.due.as_secs())
        };
        assert_eq!(after_six([1000, 4000], false, 20), ("1 → 1500m".to_owned(), 2));
        assert_eq!(after_six([1000, 4000], false, 0), (String::new(), 10));
        assert_eq!(after_six([1500, 4000], true, 0), (["Unthrottled"; 6].join(", "), 2));
        let first = "Unthrottled".to_owned();
        assert_eq!(
            after_six([4000, 4000], true, 20),
            (first, 2),
            "no limit is above the ceiling"
        );
    }

    #[test]
    fn a_late_guard_expects_to_be_late_again() {
        let (ms, mut act) = (Duration::from_millis, ReactionTime::AT_FIRST);
        assert_eq!(act.takes, ACT_AT_FIRST);
        act.learn(ms(100), ms(50));
        // Hundreds of readings that come in time say nothing of the next one.
        for reading in 1..990 {
            act.learn(ms(100 + 10 * reading), ms(1));
            assert_eq!(act.takes, ms(50));
        }
        act.learn(ms(10_100), ms(1));
        assert_eq!(act.takes, ms(25));
        act.learn(ms(10_110), ms(30));
        assert_eq!(act.takes, ms(30));
    }
}
