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

use super::desk::{Desk, Of};
use super::judge::AGAIN;
use super::ledger::Claimant;
use super::marks::Marks;
use super::pods::Pod;
use super::watched::{ITSELF, Watched};
use super::watchlist::{Report, Watchlist};
use super::wires::{FIRST, Token, Wires};
use crate::model::CgroupVersion;

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
    /// Starts the thread. Nothing is guarded before the first watchlist. Pods that are lent memory are marked.
    ///
    /// # Errors
    /// What the kernel says to the descriptors and the thread.
    pub fn start(reports: UnboundedSender<Report>, marks: Marks) -> io::Result<Self> {
        let wake = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?);
        let (orders, inbox) = mpsc::channel();
        let wires = Wires::new(Arc::clone(&wake))?;
        let thread = std::thread::Builder::new()
            .name("guard".to_owned())
            .spawn(move || Work::new(wires, reports, Arc::new(marks)).run(&inbox))?;
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

/// What the thread works with.
struct Work {
    started: Instant,
    wires: Wires,
    reports: UnboundedSender<Report>,
    marks: Arc<Marks>,
    /// None before the first watchlist of a known node.
    desk: Option<Desk>,
    pods: Vec<Pod>,
    next_token: Token,
}

impl Work {
    fn new(wires: Wires, reports: UnboundedSender<Report>, marks: Arc<Marks>) -> Self {
        Self {
            started: Instant::now(),
            wires,
            reports,
            marks,
            desk: None,
            pods: Vec::new(),
            next_token: FIRST,
        }
    }

    fn run(mut self, orders: &mpsc::Receiver<Order>) {
        loop {
            let due = self.next_due();
            let told = match self.wires.wait(due.saturating_sub(self.started.elapsed())) {
                Ok(told) => told,
                Err(error) => {
                    tracing::error!(%error, "the guard cannot wait; no limit is grown in an emergency any more");
                    return;
                }
            };
            let now = self.started.elapsed();
            if let (true, Some(desk)) = (told.is_empty() && now > due, &mut self.desk) {
                desk.took((now - due).min(LATEST));
            }
            loop {
                match orders.try_recv() {
                    Ok(Order::Watch(watchlist)) => self.watch(*watchlist),
                    Ok(Order::Stop) | Err(mpsc::TryRecvError::Disconnected) => return,
                    Err(mpsc::TryRecvError::Empty) => break,
                }
            }
            self.take_alarms();
            self.round(&told);
        }
    }

    fn watched(&self) -> impl Iterator<Item = &Watched> {
        self.pods.iter().flat_map(|pod| &pod.containers)
    }

    fn next_due(&self) -> Duration {
        let dues = self.watched().map(Watched::next);
        dues.min().unwrap_or_else(|| self.started.elapsed() + NOTHING)
    }

    fn watch(&mut self, watchlist: Watchlist) {
        let Watchlist {
            node,
            settings,
            pods,
            claims,
        } = watchlist;
        let Some(node) = node else {
            self.pods.clear();
            return;
        };
        let (started, reports, marks) = (self.started, &self.reports, &self.marks);
        let desk = self
            .desk
            .get_or_insert_with(|| Desk::new(started, Arc::clone(&node), settings, reports.clone(), Arc::clone(marks)));
        desk.set(Arc::clone(&node), settings, claims);
        let now = started.elapsed();
        let mut known: HashMap<String, Pod> = std::mem::take(&mut self.pods)
            .into_iter()
            .map(|pod| (pod.live.id.uid.clone(), pod))
            .collect();
        for guarded in pods {
            let uid = &guarded.live.id.uid;
            let growable = guarded.growable;
            let kept = match known.remove(uid) {
                Some(pod) if pod.live == guarded.live => Some(Pod {
                    growable: growable.clone(),
                    ..pod
                }),
                Some(other) => {
                    known.insert(uid.clone(), other);
                    None
                }
                None => None,
            };
            let Some(mut pod) = kept.or_else(|| Pod::open(&node, guarded.live, growable)) else {
                continue;
            };
            for container in pod.set(&node, guarded.containers, &mut self.next_token, (now, settings.quiet)) {
                self.wires.forget(container.token);
                desk.ledger.release(&claimant(&pod, &container));
            }
            self.pods.push(pod);
        }
        for (pod, container) in known
            .values()
            .flat_map(|pod| pod.containers.iter().map(move |one| (pod, one)))
        {
            self.wires.forget(container.token);
            desk.ledger.release(&claimant(pod, container));
        }
        for pod in &mut self.pods {
            let handles = &pod.handles;
            for watched in pod.containers.iter_mut().filter(|watched| !watched.told_of_reclaim) {
                let name = &watched.terms.container;
                watched.told_of_reclaim = self.wires.tell_of_reclaim(watched.token, handles, name);
            }
        }
        for pod in &self.pods {
            for watched in &pod.containers {
                let claimant = claimant(pod, watched);
                match watched.lent {
                    Some(lent) => desk.ledger.promise(&claimant, lent, watched.used()),
                    None => desk.ledger.release(&claimant),
                }
            }
        }
    }

    fn take_alarms(&mut self) {
        loop {
            match self.wires.armed() {
                Ok(Some(armed)) => {
                    let mut containers = self.pods.iter_mut().flat_map(|pod| &mut pod.containers);
                    if let Some(watched) = containers.find(|watched| watched.token == armed.token) {
                        watched.armed(armed);
                    }
                }
                Ok(None) => return,
                Err(error) => tracing::warn!(%error, "an alarm is not heard; looking by the clock"),
            }
        }
    }

    /// Looks at every container that is due or was told about, except where memory in use by all pods together says that
    /// nothing can have happened. That is asked about all of them each time, so that they do not wake the guard one by one.
    fn round(&mut self, told: &[Token]) {
        let now = self.started.elapsed();
        let Some(desk) = &mut self.desk else { return };
        let of_all = desk.usage_of_all();
        for pod in &mut self.pods {
            for watched in &mut pod.containers {
                let told = told.contains(&watched.token) && !watched.is_due_within(now, AGAIN);
                if watched.cpu_is_due(now) {
                    desk.look_at_cpu(&pod.live.id, watched);
                }
                if !told && (watched.rests(now, of_all) || watched.next() > now) {
                    continue;
                }
                let version = desk.node.traits.version;
                let rang = told && version == CgroupVersion::V1;
                let of = Of {
                    id: &pod.live.id,
                    growable: &pod.growable,
                    handles: &pod.handles,
                };
                if !desk.check(of, watched, rang) {
                    // The runtime tells, and the next watchlist is without it.
                    watched.postpone(now + ITSELF);
                }
                watched.looked_with(of_all);
                if let Some(amounts) = watched.alarms_to_order(now, version) {
                    self.wires
                        .arm(watched.token, &pod.handles, &watched.terms.container, amounts);
                }
            }
        }
    }
}

fn claimant(pod: &Pod, watched: &Watched) -> Claimant {
    Claimant {
        pod: pod.live.id.uid.clone(),
        container: watched.terms.container.clone(),
    }
}
