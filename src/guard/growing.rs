//! What one look leads to: a growth, a refusal, or nothing.

use std::sync::Arc;
use std::time::Duration;

use super::budgets::{Refusal, UNIT};
use super::predict::{Need, Verdict};
use super::thread::Worker;
use super::throttle::{Finding, raised};
use super::watched::{ITSELF, Watched};
use super::watchlist::{GuardEvent, Report};
use crate::actuate::{Node, PodBound, PodHandles, grow_memory};
use crate::model::{Bytes, Outcome};

/// How long a container waits after a growth was refused for its ceiling, and for what may change at any moment.
const AT_CEILING: Duration = Duration::from_secs(1);
const REFUSED: Duration = Duration::from_millis(50);

impl Worker {
    /// Looks at whether a container is held back by its cpu limit. Nothing is written: that can wait for a pass.
    pub(super) fn look_at_cpu(&self, watched: &mut Watched) {
        let Some(cpu) = watched.terms.cpu else { return };
        let finding = watched.observe_cpu(self.now(), self.settings.quiet);
        let (pod, container) = (&watched.pod.live.id, &watched.terms.container);
        let finding = finding.inspect_err(|error| tracing::debug!(%pod, container, %error, "throttling not known"));
        match finding {
            Ok(Finding::Sustained(share)) => {
                if let Some(to) = raised(cpu.limit, cpu.ceiling) {
                    let from = cpu.limit;
                    let why = format!("was throttled in {share} % of all periods at a limit of {from}");
                    self.report(watched, GuardEvent::Throttled { from, to, why });
                }
            }
            Ok(Finding::Quiet) if cpu.lent => self.report(watched, GuardEvent::Unthrottled),
            Ok(Finding::Quiet | Finding::Nothing) | Err(_) => {}
        }
    }

    /// Looks at one container's memory, and grows its limit if it has to. `rang` if it passed an alarm.
    pub(super) fn check(&mut self, node: &Node, watched: &mut Watched, rang: bool) {
        let now = self.now();
        match watched.read_usage(now, self.act.takes, rang) {
            Ok(None) => {}
            Ok(Some((look, verdict))) => {
                watched.trace(&look, &verdict, self.act.takes);
                let limit = Bytes::new(look.limit);
                if watched.is_taking() || watched.loan.limit.is_some() {
                    self.budgets.promise(watched.of(), limit, Bytes::new(look.used()));
                } else {
                    self.budgets.release(&watched.of());
                }
                if let Verdict::Grow(need) = verdict {
                    self.grow(node, watched, limit, &need);
                }
            }
            // The runtime tells, and the next watchlist is without it.
            Err(error) if error.is_gone() => return watched.postpone(now + ITSELF),
            Err(error) => {
                let (pod, container) = (&watched.pod.live.id, &watched.terms.container);
                tracing::warn!(%pod, container, %error, "not guarded for a moment");
                watched.due = now + ITSELF;
            }
        }
        if let Some(peak) = watched.quiet(now, self.settings.quiet) {
            self.report(watched, GuardEvent::Quiet { peak });
        }
    }

    fn grow(&mut self, node: &Node, watched: &mut Watched, limit: Bytes, need: &Need) {
        let opened = PodHandles::open(&node.hierarchy, &watched.pod.live).map_err(|error| error.to_string());
        let handles = match opened {
            Ok(handles) => handles,
            Err(unreadable) => return self.refuse(watched, None, unreadable),
        };
        let Some(highest) = watched.terms.memory else {
            // Watched for nothing but the evidence.
            watched.due = self.now() + AT_CEILING;
            return self.press(node, &handles, watched, limit, need);
        };
        let kept = watched.kept().unwrap_or_default();
        let granted = match self.grant(node, &handles, watched, (limit, highest.saturating_sub(kept)), need) {
            Ok(granted) => granted,
            Err(unreadable) => return self.refuse(watched, None, unreadable),
        };
        let refusal = match granted {
            Ok(to) => return self.carry_out(node, &handles, watched, (limit, to), need),
            Err(Refusal::Ceiling { .. }) => Refusal::Ceiling { ceiling: highest },
            Err(refusal) => refusal,
        };
        let why = format!("{refusal}; it {}", describe(limit, need));
        self.refuse(watched, Some(refusal), why);
        if let Refusal::Ceiling { .. } | Refusal::Pod { .. } = refusal {
            watched.due = self.now() + AT_CEILING;
        }
        self.press(node, &handles, watched, limit, need);
    }

    /// A limit will be reached and cannot grow: asks for the container's evidence, once, and lends what is kept for it.
    fn press(&mut self, node: &Node, handles: &PodHandles, watched: &mut Watched, limit: Bytes, need: &Need) {
        let Some(kept) = watched.press() else { return };
        let need = Need {
            wanted: limit.saturating_add(kept),
            least: limit.saturating_add(Bytes::new(UNIT)),
            ..*need
        };
        let ceiling = watched.terms.memory.filter(|_| need.least <= need.wanted);
        let granted = ceiling.and_then(|ceiling| {
            let granted = self.grant(node, handles, watched, (limit, ceiling), &need);
            granted.ok()?.ok()
        });
        if let Some(to) = granted {
            self.carry_out(node, handles, watched, (limit, to), &need);
        }
        let lent = granted.filter(|to| watched.loan.limit == Some(*to)).unwrap_or(limit);
        self.report(watched, GuardEvent::Pressure { limit, lent });
    }

    /// The limit that a container is granted, or why none is.
    ///
    /// Errors: a sentence, where the kernel does not say what there is.
    fn grant(
        &mut self,
        node: &Node,
        handles: &PodHandles,
        watched: &Watched,
        (limit, ceiling): (Bytes, Bytes),
        need: &Need,
    ) -> Result<Result<Bytes, Refusal>, String> {
        let (now, pod, of) = (self.now(), &watched.pod, watched.of());
        let memory = self
            .account
            .read(&node.hierarchy, now, &of.pod.uid, self.settings.reserve)?;
        let bound = if ceiling > limit {
            let bound = pod.growable.bound(node, handles, &of.container, ceiling);
            bound.map_err(|error| error.to_string())?
        } else {
            None
        };
        Ok(match bound.filter(|bound| bound.left <= ceiling) {
            Some(PodBound { limit: of_pod, left }) if left.get() < limit.get() + UNIT => {
                Err(Refusal::Pod { limit: of_pod, left })
            }
            bound => {
                let ceiling = bound.map_or(ceiling, |bound| bound.left);
                self.budgets.grant(now, &of, limit, need, ceiling, memory)
            }
        })
    }

    fn refuse(&self, watched: &mut Watched, refused: Option<Refusal>, why: String) {
        let now = self.now();
        watched.due = now + REFUSED;
        if watched.refuse(now, refused.map_or("unknown", Refusal::word)) {
            self.report(watched, GuardEvent::Refused { refused, why });
        }
    }

    /// Writes what was granted. It is the least limit for all passes before it is written.
    fn carry_out(
        &mut self,
        node: &Node,
        handles: &PodHandles,
        watched: &mut Watched,
        (limit, to): (Bytes, Bytes),
        need: &Need,
    ) {
        let (pod, of) = (Arc::clone(&watched.pod), watched.of());
        let (uid, name) = (&of.pod.uid, &of.container);
        self.files.note_lent(uid, name, to);
        node.least_limits.raise(uid, name, to);
        let grown = grow_memory(node, handles, &pod.growable, name, to);
        self.learn_act(grown.took);
        let now = self.now();
        if matches!(grown.outcome, Outcome::Applied) {
            watched.lend(to, now, self.settings.quiet);
        } else {
            node.least_limits.change(uid, name, Some(to), watched.loan.limit);
            self.budgets.undo(&of, watched.loan.limit.map(|lent| (lent, need.used)));
            watched.due = now + REFUSED;
            if !watched.refuse(now, grown.outcome.word()) {
                return;
            }
        }
        let (why, grown) = (describe(limit, need), Box::new(grown));
        let used = need.used;
        self.report(watched, GuardEvent::Grew { used, to, why, grown });
    }

    fn report(&self, watched: &Watched, event: GuardEvent) {
        let of = watched.of();
        if self.reports.send(Report { of, event }).is_err() {
            tracing::debug!("the guard reports to nobody: shutting down");
        }
    }
}

/// `used 120 MiB of 128Mi and grew by 500 MiB/s`.
fn describe(limit: Bytes, need: &Need) -> String {
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    let (used, rate) = (mib(need.used.get()), mib(need.rate));
    format!("used {used} MiB of {limit} and grew by {rate} MiB/s")
}
