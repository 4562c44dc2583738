//! The guard's thread: sleeps, looks, grows.
//!
//! In come watchlists; out come [`Report`]s. It waits for nobody but the kernel: not for the coordinator, not for the runtime, not
//! for the disk. Whatever it grows is the least limit for all passes from before the write on.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::eventfd::{EfdFlags, EventFd};
use tokio::sync::mpsc::UnboundedSender;

use super::account::Account;
use super::budgets::{Budget, Budgets};
use super::limit_files::LimitFiles;
use super::notifications::{FIRST, Notifications, Token};
use super::predict::AGAIN;
use super::watched::Watched;
use super::watchlist::{Report, Settings, Watchlist};
use crate::actuate::Node;
use crate::cgroup::{Cgroup, CgroupError, page_size};
use crate::model::{CgroupVersion, LivePod};

/// How long acting is taken to last before that was measured.
const ACT_AT_FIRST: Duration = Duration::from_millis(5);
/// For how long the slowest time counts, before it counts half. A machine on which the guard was late is busy for longer than
/// the looks take that then come in time, and a growth may begin at any moment.
const REMEMBERED: Duration = Duration::from_secs(10);

/// No look is taken to have been later than this: more is a machine that slept.
const LATEST: Duration = Duration::from_millis(50);
/// How long to sleep where nothing is guarded.
const NOTHING: Duration = Duration::from_secs(3600);

/// What the thread is ordered.
#[derive(Debug)]
enum Order {
    Watch(Box<Watchlist>),
    Stop,
}

/// The guard, as the agent has it. Dropping it without [`Self::stop`] leaves the thread to end by itself.
#[derive(Debug)]
pub struct Guard {
    orders: mpsc::Sender<Order>,
    wake: Arc<EventFd>,
    thread: JoinHandle<()>,
}

impl Guard {
    /// Starts the thread. Nothing is guarded before the first watchlist. What pods are lent is noted in `files`.
    ///
    /// # Errors
    /// What the kernel says to the descriptors and the thread.
    pub fn start(reports: UnboundedSender<Report>, files: Arc<LimitFiles>) -> io::Result<Self> {
        let wake = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?);
        let (orders, inbox) = mpsc::channel();
        let notifications = Notifications::new(Arc::clone(&wake))?;
        let thread = std::thread::Builder::new()
            .name("guard".to_owned())
            .spawn(move || Worker::new(notifications, reports, files).run(&inbox))?;
        Ok(Self { orders, wake, thread })
    }

    /// Guards these from now on, and no others.
    pub fn watch(&self, watchlist: Watchlist) {
        self.order(Order::Watch(Box::new(watchlist)));
    }

    /// Ends the thread, between two growths.
    pub fn stop(self) {
        self.order(Order::Stop);
        if self.thread.join().is_err() {
            tracing::error!("the guard ended early");
        }
    }

    fn order(&self, order: Order) {
        if self.orders.send(order).is_err() {
            tracing::error!("the guard has ended; no limit is grown in an emergency any more");
        } else if let Err(error) = self.wake.write(1) {
            tracing::error!(%error, "the guard cannot be woken");
        }
    }
}

/// How long acting takes: quick to rise, slow to fall.
#[derive(Debug, Clone, Copy)]
pub(super) struct Acting {
    pub(super) takes: Duration,
    /// When that was learnt, or halved.
    at: Duration,
}

impl Default for Acting {
    fn default() -> Self {
        Self {
            takes: ACT_AT_FIRST,
            at: Duration::ZERO,
        }
    }
}

impl Acting {
    fn learn(&mut self, now: Duration, took: Duration) {
        if took >= self.takes || now.saturating_sub(self.at) >= REMEMBERED {
            (self.takes, self.at) = (took.max(self.takes / 2), now);
        }
    }
}

/// What the thread works with.
pub(super) struct Worker {
    started: Instant,
    notifications: Notifications,
    pub(super) reports: UnboundedSender<Report>,
    pub(super) files: Arc<LimitFiles>,
    /// None before the first watchlist of a known node.
    node: Option<Arc<Node>>,
    pub(super) settings: Settings,
    /// The one account of the node's memory: growths are decided one after the other.
    pub(super) budgets: Budgets,
    pub(super) account: Account,
    /// How long it takes from the moment a look is due until a limit is grown.
    pub(super) act: Acting,
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
            act: Acting::default(),
            containers: Vec::new(),
            next_token: FIRST,
        }
    }

    pub(super) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Learns how long acting takes.
    pub(super) fn learn_act(&mut self, took: Duration) {
        self.act.learn(self.now(), took);
    }

    fn run(mut self, orders: &mpsc::Receiver<Order>) {
        loop {
            let dues = self.containers.iter().map(Watched::next);
            let due = dues.min().unwrap_or_else(|| self.now() + NOTHING);
            let told = match self.notifications.wait(due.saturating_sub(self.now())) {
                Ok(told) => told,
                Err(error) => {
                    tracing::error!(%error, "the guard cannot wait; no limit is grown in an emergency any more");
                    return;
                }
            };
            let now = self.now();
            if told.is_empty() && now > due {
                self.learn_act((now - due).min(LATEST));
            }
            loop {
                match orders.try_recv() {
                    Ok(Order::Watch(watchlist)) => self.watch(*watchlist),
                    Ok(Order::Stop) | Err(mpsc::TryRecvError::Disconnected) => return,
                    Err(mpsc::TryRecvError::Empty) => break,
                }
            }
            self.take_alarms();
            self.check_due(&told);
        }
    }

    /// Guards these from now on, and no others.
    fn watch(&mut self, watchlist: Watchlist) {
        let known = std::mem::take(&mut self.containers);
        let Some(node) = watchlist.node else { return };
        self.settings = watchlist.settings;
        self.budgets.budget = self.settings.budget;
        self.account.set(&node, watchlist.claims);
        let mut known: HashMap<String, Watched> =
            known.into_iter().map(|watched| (watched.id.clone(), watched)).collect();
        for pod in watchlist.pods.into_iter().map(Arc::new) {
            for terms in pod.containers.iter().cloned() {
                let Some(container) = pod.live.containers.get(&terms.container) else {
                    continue;
                };
                let watched = known.remove(&container.id).or_else(|| {
                    let opened = Cgroup::open(&node.hierarchy, &container.path);
                    let cgroup = unless_gone(opened, &pod.live, &terms.container)?;
                    self.next_token += 1;
                    Some(Watched::new(
                        self.next_token,
                        container.id.clone(),
                        cgroup,
                        terms.clone(),
                        &pod,
                    ))
                });
                self.containers.extend(watched.map(|mut watched| {
                    let lent = node.least_limits.get(&pod.live.id.uid, &terms.container);
                    watched.set_terms(
                        Arc::clone(&pod),
                        terms,
                        lent,
                        (self.started.elapsed(), self.settings.quiet),
                    );
                    watched.subscribed = self.notifications.subscribe(&watched);
                    match lent {
                        Some(lent) => self.budgets.promise(watched.of(), lent, watched.used()),
                        None => self.budgets.release(&watched.of()),
                    }
                    watched
                }));
            }
        }
        for watched in known.into_values() {
            self.notifications.forget(watched.token);
            self.budgets.release(&watched.of());
        }
        self.node = Some(node);
    }

    fn take_alarms(&mut self) {
        loop {
            match self.notifications.armed() {
                Ok(Some(armed)) => {
                    if let Some(watched) = self.containers.iter_mut().find(|watched| watched.token == armed.token) {
                        watched.alarms.set(armed);
                    }
                }
                Ok(None) => return,
                Err(error) => tracing::warn!(%error, "an alarm is not heard; looking by the clock"),
            }
        }
    }

    /// Looks at every container that is due or was told about, except where memory in use by all pods together says that
    /// nothing can have happened. That is asked about all of them each time, so that they do not wake the guard one by one.
    fn check_due(&mut self, told: &[Token]) {
        let Some(node) = self.node.clone() else { return };
        let (now, of_all, version) = (self.now(), self.account.usage_of_all(), node.traits.version);
        let mut containers = std::mem::take(&mut self.containers);
        for watched in &mut containers {
            let mut told = told.contains(&watched.token);
            if told {
                watched.stir();
                told = watched.due > now + AGAIN;
            }
            if watched.cpu_is_due(now) {
                self.look_at_cpu(watched);
            }
            if !told && (watched.rests(now, of_all) || watched.next() > now) {
                continue;
            }
            self.check(&node, watched, told && version == CgroupVersion::V1);
            watched.looked_with(of_all);
            if let Some(amounts) = watched.alarms_to_order(now, version) {
                self.notifications.arm(watched, amounts);
            }
        }
        self.containers = containers;
    }
}

/// What was opened; none if it has just ended, or cannot be opened, which is said.
fn unless_gone<T>(opened: Result<T, CgroupError>, live: &LivePod, container: &str) -> Option<T> {
    let failed = |error: &CgroupError| {
        if !error.is_gone() {
            tracing::warn!(pod = %live.id, container, %error, "not guarded");
        }
    };
    opened.inspect_err(failed).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guard_that_was_late_expects_to_be_late_again_for_a_while() {
        let (ms, mut act) = (Duration::from_millis, Acting::default());
        assert_eq!(act.takes, ACT_AT_FIRST);
        act.learn(ms(100), ms(50));
        // Hundreds of looks that come in time say nothing of the next one.
        for look in 1..990 {
            act.learn(ms(100 + 10 * look), ms(1));
            assert_eq!(act.takes, ms(50));
        }
        act.learn(ms(10_100), ms(1));
        assert_eq!(act.takes, ms(25));
        act.learn(ms(10_110), ms(30));
        assert_eq!(act.takes, ms(30));
    }
}
