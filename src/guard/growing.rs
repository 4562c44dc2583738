//! Acts on one reading of a container: grows the limit, refuses to, or does nothing.

use std::sync::Arc;
use std::time::Duration;

use super::budgets::{Refusal, RefusalKind, UNIT, mib};
use super::predict::{Need, Verdict};
use super::thread::Worker;
use super::throttle::{EVERY, ThrottleFinding, WHILE_CALM, raised};
use super::watched::{ITSELF, Watched, next_multiple};
use super::watchlist::{GuardEvent, Report};
use crate::actuate::{Node, PodBound, PodHandles, grow_memory};
use crate::model::{Bytes, Outcome};

/// How long a container waits after its ceiling refused a growth.
const AT_CEILING: Duration = Duration::from_secs(1);
/// How long a container waits after a refusal whose reason may end at any moment.
const REFUSED: Duration = Duration::from_millis(50);

impl Worker {
    /// Checks, when that is due, whether the kernel throttles a container all the time. Only reports:
    /// a pass raises the limit.
    pub(super) fn check_cpu(&self, watched: &mut Watched) {
        let now = self.now();
        let Some(cpu) = watched.terms.cpu.filter(|_| watched.throttling.due <= now) else {
            return;
        };
        let calm = watched.throttling.is_calm() && !cpu.lent;
        watched.throttling.due = next_multiple(now, if calm { WHILE_CALM } else { EVERY });
        let periods = watched.cgroup.periods();
        let finding = periods.map(|periods| watched.throttling.observe(now, periods, self.settings.quiet));
        let (pod, container) = (&watched.pod.live.id, &watched.terms.container);
        let finding = finding.inspect_err(|error| tracing::debug!(%pod, container, %error, "throttling not known"));
        match finding {
            Ok(ThrottleFinding::Sustained(share)) => {
                if let Some(to) = raised(cpu.limit, cpu.ceiling) {
                    let from = cpu.limit;
                    let why = format!("was throttled in {share} % of all periods at a limit of {from}");
                    self.report(watched, GuardEvent::Throttled { from, to, why });
                }
            }
            Ok(ThrottleFinding::Quiet) if cpu.lent => self.report(watched, GuardEvent::Unthrottled),
            Ok(ThrottleFinding::Quiet | ThrottleFinding::Nothing) | Err(_) => {}
        }
    }

    /// Reads one container's memory, and grows its limit if it has to. `rang` if memory use passed an alarm.
    pub(super) fn check(&mut self, node: &Node, watched: &mut Watched, rang: bool) {
        let now = self.now();
        match watched.read_usage(now, self.reaction.takes, rang) {
            Ok(None) => {}
            Ok(Some((reading, verdict))) => {
                watched.trace(&reading, &verdict, self.reaction.takes);
                let limit = Bytes::new(reading.limit);
                // A container whose limit cannot grow gets nothing from the guard.
                let can_grow = watched.terms.memory.is_some_and(|highest| highest > limit);
                let unused = reading.limit.saturating_sub(reading.used());
                self.budgets
                    .promise(watched.of(), if can_grow { unused } else { 0 }, watched.track.rate());
                if let Verdict::Grow(need) = verdict {
                    self.grow(node, watched, &need);
                }
            }
            // The runtime reports the end, and the next watchlist leaves the container out.
            Err(error) if error.is_gone() => return watched.postpone(now + ITSELF),
            Err(error) => {
                let (pod, container) = (&watched.pod.live.id, &watched.terms.container);
                tracing::warn!(%pod, container, %error, "not guarded for a moment");
                watched.due = now + ITSELF;
            }
        }
        if let Some(peak) = watched.end_quiet_time(now, self.settings.quiet) {
            self.report(watched, GuardEvent::Quiet { peak });
        }
    }

    fn grow(&mut self, node: &Node, watched: &mut Watched, need: &Need) {
        let handles = match PodHandles::open(&node.hierarchy, &watched.pod.live) {
            Ok(handles) => handles,
            Err(error) => return self.refuse(watched, &error.into(), None),
        };
        let Some(highest) = watched.terms.memory else {
            // The container is watched for its evidence only.
            watched.due = self.now() + AT_CEILING;
            return self.request_evidence(node, &handles, watched, need);
        };
        let kept = watched.kept_for_evidence().unwrap_or_default();
        let refusal = match self.grant(node, &handles, watched, highest.saturating_sub(kept), need) {
            Ok(to) => return self.grow_to(node, &handles, watched, to, need),
            Err(refusal) if refusal.kind == RefusalKind::Unreadable => return self.refuse(watched, &refusal, None),
            Err(refusal) if refusal.kind == RefusalKind::Ceiling => Refusal::ceiling(highest),
            Err(refusal) => refusal,
        };
        self.refuse(watched, &refusal, Some(describe(need)));
        if let RefusalKind::Ceiling | RefusalKind::Pod | RefusalKind::PodBudget | RefusalKind::NodeBudget = refusal.kind
        {
            watched.due = self.now() + AT_CEILING;
        }
        self.request_evidence(node, &handles, watched, need);
    }

    /// Requests the evidence of a container whose limit will be reached and cannot grow, once, with
    /// the memory kept for that.
    fn request_evidence(&mut self, node: &Node, handles: &PodHandles, watched: &mut Watched, need: &Need) {
        let Some(kept) = watched.request_evidence() else { return };
        let limit = need.limit;
        let need = Need {
            wanted: limit.saturating_add(kept),
            least: limit.saturating_add(Bytes::new(UNIT)),
            ..*need
        };
        let ceiling = watched.terms.memory.filter(|_| need.least <= need.wanted);
        let granted = ceiling.and_then(|ceiling| self.grant(node, handles, watched, ceiling, &need).ok());
        if let Some(to) = granted {
            self.grow_to(node, handles, watched, to, &need);
        }
        let lent = granted.filter(|to| watched.lent.limit == Some(*to)).unwrap_or(limit);
        self.report(watched, GuardEvent::Pressure { limit, lent });
    }

    /// The limit that a container is granted.
    ///
    /// Errors: why no limit is granted.
    fn grant(
        &mut self,
        node: &Node,
        handles: &PodHandles,
        watched: &Watched,
        ceiling: Bytes,
        need: &Need,
    ) -> Result<Bytes, Refusal> {
        if ceiling <= need.limit {
            return Err(Refusal::ceiling(ceiling));
        }
        let (now, pod, of) = (self.now(), &watched.pod, watched.of());
        let reserve = self.settings.reserve;
        let memory = self.account.read(&node.hierarchy, now, &of.pod.uid, reserve)?;
        let bound = pod.growable.bound(node, handles, &of.container, ceiling)?;
        match bound.filter(|bound| bound.left <= ceiling) {
            Some(PodBound { limit: of_pod, left }) if left.get() < need.limit.get() + UNIT => {
                let left = mib(left);
                let why = format!("its pod's limit of {of_pod} stands, of which the other containers leave it {left}");
                Err(Refusal::new(RefusalKind::Pod, why))
            }
            bound => {
                let ceiling = bound.map_or(ceiling, |bound| bound.left);
                self.budgets.grant(now, &of, need, ceiling, memory)
            }
        }
    }

    /// Reports a refusal, unless the guard has just reported it. `seen` describes the container's memory use.
    fn refuse(&self, watched: &mut Watched, refusal: &Refusal, seen: Option<String>) {
        let now = self.now();
        watched.due = now + REFUSED;
        if watched.refuse(now, refusal.kind.into()) {
            let seen = seen.map(|seen| format!("; it {seen}")).unwrap_or_default();
            let (kind, why) = (refusal.kind, format!("{refusal}{seen}"));
            self.report(watched, GuardEvent::Refused { kind, why });
        }
    }

    /// Writes the granted limit, after it has become the least limit for all passes.
    fn grow_to(&mut self, node: &Node, handles: &PodHandles, watched: &mut Watched, to: Bytes, need: &Need) {
        let (pod, of) = (Arc::clone(&watched.pod), watched.of());
        let (uid, name) = (&of.pod.uid, &of.container);
        self.files.note_lent(uid, name, to);
        node.least_limits.raise(uid, name, to);
        let grown = grow_memory(node, handles, &pod.growable, name, to);
        let now = self.now();
        self.note_reaction(now.saturating_sub(need.at));
        if matches!(grown.outcome, Outcome::Applied) {
            watched.lend(to, now, self.settings.quiet);
        } else {
            node.least_limits.end_raise(uid, name, to);
            self.budgets.undo(&of);
            watched.due = now + REFUSED;
            if !watched.did_not_grow(now, &grown.outcome) {
                return;
            }
        }
        let (used, why, grown) = (need.used, describe(need), Box::new(grown));
        self.report(watched, GuardEvent::Grew { used, to, why, grown });
    }

    fn report(&self, watched: &Watched, event: GuardEvent) {
        let of = watched.of();
        if self.reports.send(Report { of, event }).is_err() {
            tracing::debug!("the controller takes no reports: shutting down");
        }
    }
}

/// `used 120 MiB of 128Mi and grew by 500 MiB/s`.
fn describe(need: &Need) -> String {
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    let (used, rate, limit) = (mib(need.used.get()), mib(need.rate), need.limit);
    format!("used {used} MiB of {limit} and grew by {rate} MiB/s")
}
