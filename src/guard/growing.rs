//! Acts on one reading of a container or a pod: grows the limit of a container, refuses to, or does nothing.

use std::sync::Arc;
use std::time::Duration;

use super::budgets::{Refusal, RefusalKind, UNIT, mib};
use super::limit_files::LatestLimit;
use super::predict::{Need, Reading, Verdict};
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

/// The growth of a container's limit that a reading asks for.
struct PendingGrowth {
    need: Need,
    /// What the guard has read, as part of a sentence about the container.
    seen: String,
    /// Memory in use without page cache.
    used: Bytes,
    /// Whether the pod is about to reach its limit, not the container its own.
    for_pod: bool,
}

impl Worker {
    /// Checks, when that is due, whether the kernel throttles a container all the time. Only reports:
    /// a pass raises the limit.
    pub(super) fn check_cpu(&self, watched: &mut Watched) {
        let now = self.now();
        let Some(cpu) = watched.listed.terms.cpu.filter(|_| watched.throttling.due <= now) else {
            return;
        };
        let calm = watched.throttling.calm_since.is_some() && !cpu.lent;
        watched.throttling.due = next_multiple(now, if calm { WHILE_CALM } else { EVERY });
        let periods = watched.cgroup.periods();
        let finding = periods.map(|periods| watched.throttling.observe(now, periods, self.settings.quiet));
        let (pod, container) = (&watched.pod.live.id, watched.listed.name());
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
        if let Some((reading, verdict)) = self.read(watched, rang) {
            let limit = Bytes::new(reading.limit);
            // A container whose limit cannot grow gets nothing from the guard.
            let can_grow = watched.listed.terms.memory.is_some_and(|highest| highest > limit);
            let unused = reading.limit.saturating_sub(reading.used());
            self.budgets
                .promise(watched.of(), if can_grow { unused } else { 0 }, watched.track.rate());
            if let Verdict::Grow(need) = verdict {
                let growth = PendingGrowth {
                    need,
                    seen: describe(&need, reading.above_high),
                    used: Bytes::new(reading.in_use()),
                    for_pod: false,
                };
                self.grow(node, watched, &growth);
            }
        } else {
            // It has no limit, or has ended.
            self.budgets.release(&watched.of());
        }
        if let Some([peak, needed]) = watched.end_quiet_time(now, self.settings.quiet) {
            self.report(watched, GuardEvent::Quiet { peak, needed });
        }
    }

    /// Reads the memory of a pod, whose containers are the last of `before`, and grows a container's limit if the pod is about to
    /// reach its own. `rang` as of [`Self::check`].
    pub(super) fn check_pod(&mut self, node: &Node, before: &mut [Watched], level: &mut Watched, rang: bool) {
        let pod = Arc::clone(&level.pod);
        let containers = before.iter_mut().rev();
        let mut containers: Vec<_> = containers.take_while(|one| Arc::ptr_eq(&one.pod, &pod)).collect();
        level.take_limit_for_pod(containers.iter().map(|one| &**one));
        let Some((reading, verdict)) = self.read(level, rang) else {
            return;
        };
        let room = reading.limit.saturating_sub(reading.used());
        for container in &mut containers {
            container.note_room_of_pod(reading.limit, room);
        }
        if let Verdict::Grow(need) = verdict {
            let seen = format!("is in a pod that {}", describe(&need, reading.above_high));
            level.due = self.grow_in_pod(node, containers, need, seen);
        }
    }

    /// Grows the limit of the container that takes memory fastest, of those whose limit may rise, by as much as its pod needs, or reports
    /// why not. Leaves a container to its own reading that reaches its own limit first. Returns when to read the pod again.
    fn grow_in_pod(&mut self, node: &Node, containers: Vec<&mut Watched>, need: Need, seen: String) -> Duration {
        let guarded = containers.into_iter().filter(|one| one.listed.terms.watches_memory());
        let read = guarded.filter_map(|one| {
            let (reading, verdict) = self.read(one, false)?;
            Some((reading, verdict, one))
        });
        let fastest = read.max_by_key(|(reading, verdict, one)| {
            let highest = one.listed.terms.memory;
            let can_grow = highest.is_some_and(|highest| highest.get() > reading.limit);
            let grows_itself = need.of_container(reading, verdict).is_none();
            let rate = one.track.rate();
            ((can_grow || grows_itself) && rate > 0, rate, can_grow, reading.used())
        });
        let Some((reading, verdict, container)) = fastest else {
            return self.now() + ITSELF;
        };
        let own = container.due;
        let Some(need) = need.of_container(&reading, &verdict) else {
            // It may just have been refused: the pod is read no sooner than it would be.
            let now = self.now();
            container.due = now;
            return own.clamp(now + REFUSED, now + AT_CEILING);
        };
        let growth = PendingGrowth {
            need,
            seen,
            used: need.used,
            for_pod: true,
        };
        self.grow(node, container, &growth);
        let due = container.due;
        // A container that gets nothing now may reach its own limit before the pod is read again.
        container.due = due.min(own);
        due
    }

    /// Reads a cgroup's memory, and sets the time of its next reading. `None` where it has no limit, or cannot be read.
    fn read(&self, watched: &mut Watched, rang: bool) -> Option<(Reading, Verdict)> {
        match watched.read_usage(|| self.now(), self.reaction.takes, rang) {
            Ok(read) => read,
            // The runtime reports the end, and the next watchlist leaves the container out.
            Err(error) if error.is_gone() => {
                watched.postpone(self.now() + ITSELF);
                None
            }
            Err(error) => {
                let (pod, container) = (&watched.pod.live.id, watched.listed.name());
                tracing::warn!(%pod, container, %error, "cannot read the container; the guard tries again soon");
                watched.due = self.now() + ITSELF;
                None
            }
        }
    }

    fn grow(&mut self, node: &Node, watched: &mut Watched, growth: &PendingGrowth) {
        let handles = match PodHandles::open(&node.hierarchy, &watched.pod.live) {
            Ok(handles) => handles,
            Err(_) if watched.has_ended() => return watched.postpone(self.now() + ITSELF),
            Err(error) => return self.refuse(watched, &error.into(), None),
        };
        let Some(highest) = watched.listed.terms.memory else {
            // The container is watched for its evidence only.
            watched.due = self.now() + AT_CEILING;
            return self.request_evidence(node, &handles, watched, growth);
        };
        let kept = watched.kept_for_evidence().unwrap_or_default();
        let refusal = match self.grant(node, &handles, watched, highest.saturating_sub(kept), growth) {
            Ok(to) => return self.grow_to(node, &handles, watched, to, growth),
            // It ended after its reading.
            Err(_) if watched.has_ended() => return watched.postpone(self.now() + ITSELF),
            Err(refusal) if refusal.kind == RefusalKind::Unreadable => return self.refuse(watched, &refusal, None),
            Err(refusal) if refusal.kind == RefusalKind::Ceiling => match &watched.listed.terms.not_higher {
                Some(why) => Refusal::new(RefusalKind::Ceiling, why.clone()),
                None => Refusal::ceiling(highest),
            },
            Err(refusal) => refusal,
        };
        self.refuse(watched, &refusal, Some(&growth.seen));
        if refusal.kind != RefusalKind::Node {
            watched.due = self.now() + AT_CEILING;
        }
        self.request_evidence(node, &handles, watched, growth);
    }

    /// Requests the evidence of a container whose limit will be reached and cannot grow, once, with
    /// the memory kept for that.
    fn request_evidence(&mut self, node: &Node, handles: &PodHandles, watched: &mut Watched, growth: &PendingGrowth) {
        let Some(kept) = watched.request_evidence() else { return };
        let limit = growth.need.limit;
        let need = Need {
            wanted: limit.saturating_add(kept),
            least: limit.saturating_add(Bytes::new(UNIT)),
            ..growth.need
        };
        let ceiling = watched.listed.terms.memory.filter(|_| need.least <= need.wanted);
        let growth = PendingGrowth {
            need,
            seen: growth.seen.clone(),
            ..*growth
        };
        let granted = ceiling.and_then(|ceiling| self.grant(node, handles, watched, ceiling, &growth).ok());
        if let Some(to) = granted {
            self.grow_to(node, handles, watched, to, &growth);
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
        growth: &PendingGrowth,
    ) -> Result<Bytes, Refusal> {
        let PendingGrowth { need, for_pod, .. } = growth;
        if ceiling <= need.limit {
            return Err(Refusal::ceiling(ceiling));
        }
        let (now, pod, of) = (self.now(), &watched.pod, watched.of());
        let reserve = self.settings.reserve;
        let memory = self.account.read(&node.hierarchy, now, &of.pod.key(), reserve)?;
        let (bound, before) = pod.growable.bound(node, handles, &of.container, ceiling)?;
        match bound.filter(|bound| *for_pod || bound.left <= ceiling) {
            Some(PodBound { limit: of_pod, left }) if *for_pod || left.get() < need.limit.get() + UNIT => {
                let left = mib(left);
                let why =
                    format!("its pod's limit of {of_pod} cannot be raised, and the other containers leave it {left}");
                Err(Refusal::new(RefusalKind::Pod, why))
            }
            bound => {
                let ceiling = bound.map_or(ceiling, |bound| bound.left);
                let mut need = *need;
                if *for_pod {
                    let Some(before) = before else {
                        let why = format!("its pod's limit does not rise with a limit of up to {ceiling}");
                        return Err(Refusal::new(RefusalKind::Pod, why));
                    };
                    need = need.after(before);
                }
                self.budgets.grant(now, &of, &need, ceiling, memory)
            }
        }
    }

    /// Reports a refusal, unless the guard has just reported it. `seen` as of [`PendingGrowth`].
    fn refuse(&self, watched: &mut Watched, refusal: &Refusal, seen: Option<&str>) {
        let now = self.now();
        watched.due = now + REFUSED;
        if watched.refuse(now, refusal.kind.into()) {
            let seen = seen.map(|seen| format!("; it {seen}")).unwrap_or_default();
            let (kind, why) = (refusal.kind, format!("{refusal}{seen}"));
            self.report(watched, GuardEvent::Refused { kind, why });
        }
    }

    /// Writes the granted limit, after it has become the least limit for all passes.
    fn grow_to(&mut self, node: &Node, handles: &PodHandles, watched: &mut Watched, to: Bytes, growth: &PendingGrowth) {
        let need = &growth.need;
        let (pod, of) = (Arc::clone(&watched.pod), watched.of());
        let (uid, name) = (&of.pod.uid, &of.container);
        let for_pod = watched.lent.for_pod || growth.for_pod;
        self.files.note_lent(uid, name, LatestLimit { to, for_pod });
        node.least_limits.raise(uid, name, to);
        let mut grown = grow_memory(node, handles, &pod.growable, name, to);
        if (&grown.outcome, grown.from) == (&Outcome::Unchanged, Some(to)) {
            // A pass has found the least limit, and has written it first.
            (grown.from, grown.outcome) = (Some(need.limit), Outcome::Applied);
        }
        let now = self.now();
        self.reaction.learn(now, now.saturating_sub(need.at));
        if matches!(grown.outcome, Outcome::Applied) {
            watched.lend(to, now, self.settings.quiet);
            watched.lent.for_pod = for_pod;
        } else {
            node.least_limits.end_raise(uid, name, to);
            self.budgets.undo(&of);
            watched.due = now + REFUSED;
            if !watched.did_not_grow(now, &grown.outcome) {
                return;
            }
        }
        let event = GuardEvent::Grew {
            used: growth.used,
            to,
            why: growth.seen.clone(),
            for_pod: growth.for_pod,
            grown: Box::new(grown),
        };
        self.report(watched, event);
    }

    fn report(&self, watched: &Watched, event: GuardEvent) {
        let of = watched.of();
        if self.reports.send(Report { of, event }).is_err() {
            tracing::debug!("the controller takes no reports: shutting down");
        }
    }
}

impl Watched {
    /// Takes over, for a pod, a temporary limit that one of its containers has for it: while there is one, the guard reads the pod's use
    /// without page cache, and sees the peak.
    fn take_limit_for_pod<'a>(&mut self, containers: impl IntoIterator<Item = &'a Self>) {
        let mut containers = containers.into_iter();
        self.lent.limit = containers.find_map(|one| one.lent.limit.filter(|_| one.lent.for_pod));
    }
}

/// `used 120 MiB of 128 MiB and grew by 500 MiB/s`; of `memory.high` where a part of the limit is above that.
fn describe(need: &Need, above_high: u64) -> String {
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    let below_high = |amount: Bytes| mib(amount.get().saturating_sub(above_high));
    let [used, limit] = [need.used, need.limit].map(below_high);
    let (of, rate) = (if above_high > 0 { " (memory.high)" } else { "" }, mib(need.rate));
    format!("used {used} MiB of {limit} MiB{of} and grew by {rate} MiB/s")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::guard::watched::tests::watched;

    #[test]
    fn a_growth_is_explained_below_memory_high() {
        let mib = |mebibytes: u64| Bytes::new(mebibytes << 20);
        let need = Need {
            at: Duration::ZERO,
            limit: mib(128),
            rate: 500 << 20,
            used: mib(120),
            wanted: mib(372),
            least: mib(132),
        };
        assert_eq!(describe(&need, 0), "used 120 MiB of 128 MiB and grew by 500 MiB/s");
        assert_eq!(
            describe(&need, 12 << 20),
            "used 108 MiB of 116 MiB (memory.high) and grew by 500 MiB/s"
        );
    }

    #[test]
    fn page_cache_keeps_no_limit_for_a_pod() {
        let (root, seconds) = (tempfile::tempdir().unwrap(), Duration::from_secs);
        let [mut container, mut level] = [(); 2].map(|()| watched(root.path()));
        level.listed.is_pod = true;
        for (name, text) in [("memory.current", "3072\n"), ("memory.stat", "inactive_file 2048\n")] {
            fs::write(root.path().join("pod/app").join(name), text).unwrap();
        }
        container.lend(Bytes::new(160), seconds(1), seconds(60));
        for (for_pod, used, now) in [(false, 3072, 10), (true, 1024, 20)] {
            container.lent.for_pod = for_pod;
            level.take_limit_for_pod([&container]);
            let read = level.read_usage(|| seconds(now), Duration::from_millis(5), false);
            let (reading, _) = read.unwrap().unwrap();
            assert_eq!((reading.limit, reading.used()), (4096, used));
        }
    }
}
