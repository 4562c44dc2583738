//! What one look leads to: a growth, a refusal, or nothing.
//!
//! Holds the one account of the node's memory, so that growths are decided one after the other.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::UnboundedSender;

use super::account::Account;
use super::judge::{Need, Verdict};
use super::ledger::{Claimant, Ledger, Refusal, UNIT};
use super::marks::Marks;
use super::throttle::{Finding, raised};
use super::watched::{ITSELF, Seen, Watched};
use super::watchlist::{Claim, Guarded, Report, Settings};
use crate::actuate::{Growable, Node, PodBound, PodHandles, grow_memory};
use crate::model::objects::PodId;
use crate::model::{Bytes, Outcome};

/// How long acting is taken to last before that was measured.
const ACT_AT_FIRST: Duration = Duration::from_millis(5);
/// How long a container waits after a growth was refused for its ceiling, and for what may change at any moment.
const AT_CEILING: Duration = Duration::from_secs(1);
const REFUSED: Duration = Duration::from_millis(50);

/// The pod of a container that is looked at.
#[derive(Debug, Clone, Copy)]
pub(super) struct Of<'a> {
    pub(super) id: &'a PodId,
    pub(super) growable: &'a Growable,
    pub(super) handles: &'a PodHandles,
}

/// Where growths are decided.
pub(super) struct Desk {
    started: Instant,
    pub(super) node: Arc<Node>,
    pub(super) settings: Settings,
    pub(super) ledger: Ledger,
    account: Account,
    /// How long it takes from the moment a look is due until a limit is grown.
    act: Duration,
    reports: UnboundedSender<Report>,
    marks: Arc<Marks>,
}

impl Desk {
    pub(super) fn new(
        started: Instant,
        node: Arc<Node>,
        settings: Settings,
        reports: UnboundedSender<Report>,
        marks: Arc<Marks>,
    ) -> Self {
        let page = node.traits.page;
        Self {
            started,
            node,
            settings,
            ledger: Ledger::new(settings.budget, page),
            account: Account::default(),
            act: ACT_AT_FIRST,
            reports,
            marks,
        }
    }

    /// Takes in how the node and the settings are now.
    pub(super) fn set(&mut self, node: Arc<Node>, settings: Settings, claims: Vec<Claim>) {
        self.account.set(&node, claims);
        self.ledger.set_budget(settings.budget);
        self.node = node;
        self.settings = settings;
    }

    pub(super) fn usage_of_all(&self) -> Option<u64> {
        self.account.usage_of_all()
    }

    pub(super) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Learns how long acting takes: quick to rise, slow to fall.
    pub(super) fn took(&mut self, time: Duration) {
        self.act = time.max(self.act - self.act / 16);
    }

    /// Looks at whether a container is held back by its cpu limit. Nothing is written: that can wait for a pass.
    pub(super) fn look_at_cpu(&self, pod: &PodId, watched: &mut Watched) {
        let finding = match watched.look_at_cpu(self.now(), self.settings.quiet) {
            Ok(finding) => finding,
            Err(error) => {
                tracing::debug!(%pod, container = watched.terms.container, %error, "throttling not known");
                return;
            }
        };
        let Some(cpu) = watched.terms.cpu else { return };
        let of = guarded(pod, watched);
        match finding {
            Finding::Sustained(share) => {
                if let Some(to) = raised(cpu.limit, cpu.ceiling) {
                    let why = format!("was throttled in {share} % of all periods at a limit of {}", cpu.limit);
                    let from = cpu.limit;
                    self.report(Report::Throttled { of, from, to, why });
                }
            }
            Finding::Quiet if cpu.lent => self.report(Report::Unthrottled { of }),
            Finding::Quiet | Finding::Nothing => {}
        }
    }

    /// Looks at one container of a pod, and grows its limit if it has to. `rang` if it passed an alarm. Whether it is still there.
    pub(super) fn check(&mut self, of: Of<'_>, watched: &mut Watched, rang: bool) -> bool {
        let (pod, now) = (of.id, self.now());
        match watched.read_usage(now, self.act, rang) {
            Ok(Seen::Unlimited) => {}
            Ok(Seen::Look(look, verdict)) => {
                let claimant = claimant(pod, watched);
                let used = Bytes::new(look.used());
                if watched.is_taking() {
                    self.ledger.promise(&claimant, Bytes::new(look.limit), used);
                } else if watched.lent.is_some() {
                    self.ledger.uses(&claimant, used);
                } else {
                    self.ledger.release(&claimant);
                }
                if let Verdict::Grow(need) = verdict {
                    self.grow(of, watched, Bytes::new(look.limit), &need);
                }
            }
            Err(error) if error.is_gone() => return false,
            Err(error) => {
                tracing::warn!(%pod, container = watched.terms.container, %error, "not guarded for a moment");
                watched.due = now + ITSELF;
            }
        }
        if let Some(peak) = watched.quiet(now, self.settings.quiet) {
            let of = guarded(pod, watched);
            self.report(Report::Quiet { of, peak });
        }
        true
    }

    fn grow(&mut self, of: Of<'_>, watched: &mut Watched, limit: Bytes, need: &Need) {
        let (pod, now) = (of.id, self.now());
        let claimant = claimant(pod, watched);
        let Some(ceiling) = watched.terms.memory else { return };
        let memory = match self.account.read(now, &pod.uid, self.settings.reserve) {
            Ok(memory) => memory,
            Err(error) => return self.refuse(pod, watched, None, error),
        };
        let pod_bound = if ceiling > limit {
            of.growable.bound(&self.node, of.handles, &claimant.container, ceiling)
        } else {
            Ok(None)
        };
        let pod_bound = match pod_bound {
            Ok(bound) => bound.filter(|bound| bound.left <= ceiling),
            Err(error) => return self.refuse(pod, watched, None, error.to_string()),
        };
        let granted = match pod_bound {
            Some(PodBound { limit: of_pod, left }) if left.get() < limit.get() + UNIT => {
                Err(Refusal::Pod { limit: of_pod, left })
            }
            bound => {
                let ceiling = bound.map_or(ceiling, |bound| bound.left);
                self.ledger.grant(now, &claimant, limit, need, ceiling, memory)
            }
        };
        match granted {
            Ok(to) => self.carry_out(of, watched, (limit, to), need),
            Err(refusal) => {
                let why = format!("{refusal}; it {}", describe(limit, need));
                self.refuse(pod, watched, Some(refusal), why);
                if let Refusal::Ceiling { .. } | Refusal::Pod { .. } = refusal {
                    watched.due = now + AT_CEILING;
                }
            }
        }
    }

    fn refuse(&self, pod: &PodId, watched: &mut Watched, refused: Option<Refusal>, why: String) {
        let now = self.now();
        watched.due = now + REFUSED;
        if watched.refuse(now, refused.map_or("unknown", Refusal::word)) {
            let of = guarded(pod, watched);
            self.report(Report::Refused { of, refused, why });
        }
    }

    /// Writes what was granted. It is the least limit for all passes before it is written.
    fn carry_out(&mut self, of: Of<'_>, watched: &mut Watched, (limit, to): (Bytes, Bytes), need: &Need) {
        let pod = of.id;
        let name = watched.terms.container.clone();
        self.marks.place(&pod.uid, &name, to);
        self.node.least_limits.raise(&pod.uid, &name, to);
        let grown = grow_memory(&self.node, of.handles, of.growable, &name, to);
        self.took(grown.took);
        let now = self.now();
        if matches!(grown.outcome, Outcome::Applied) {
            watched.lend(to, now, self.settings.quiet);
        } else {
            self.withdraw(pod, watched, to, need);
            watched.due = now + REFUSED;
            if !watched.refuse(now, grown.outcome.word()) {
                return;
            }
        }
        self.report(Report::Grew {
            of: guarded(pod, watched),
            to,
            why: describe(limit, need),
            grown: Box::new(grown),
        });
    }

    /// Takes back a growth that was not carried out.
    fn withdraw(&mut self, pod: &PodId, watched: &Watched, to: Bytes, need: &Need) {
        let lent = watched.lent;
        let least_limits = &self.node.least_limits;
        least_limits.change(&pod.uid, &watched.terms.container, Some(to), lent);
        let before = lent.map(|lent| (lent, need.used));
        self.ledger.undo(&claimant(pod, watched), before);
    }

    fn report(&self, report: Report) {
        if self.reports.send(report).is_err() {
            tracing::debug!("the guard reports to nobody: shutting down");
        }
    }
}

fn guarded(pod: &PodId, watched: &Watched) -> Guarded {
    Guarded {
        pod: pod.clone(),
        container: watched.terms.container.clone(),
    }
}

fn claimant(pod: &PodId, watched: &Watched) -> Claimant {
    Claimant {
        pod: pod.uid.clone(),
        container: watched.terms.container.clone(),
    }
}

/// `used 120 MiB of 128Mi and grew by 500 MiB/s`.
fn describe(limit: Bytes, need: &Need) -> String {
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    let (used, rate) = (mib(need.used.get()), mib(need.rate));
    format!("used {used} MiB of {limit} and grew by {rate} MiB/s")
}
