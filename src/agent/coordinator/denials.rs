//! Temporary limits that the API server denies: they end, and no more is lent to their container for a while.
//!
//! A tenant's quota or a LimitRange counts what the pod's spec asks for. A limit that the guard has grown and that the API
//! server will not have in the spec would let the tenant use what a rule denies for as long as they use it. So it ends after
//! the guard's quiet period, quiet or not, and comes down as any lower memory limit does, once less is in use.

use jiff::{SignedDuration, Timestamp};

use super::Coordinator;
use super::guarding::release_floors;
use crate::actuate::Asked;
use crate::actuate::shrink::Lowering;
use crate::agent::entry::{Entry, LendingPause};
use crate::guard::lease::{Denied, Lease};
use crate::model::{Cause, MemoryLimit, Resource, Target};

/// How long a container is lent nothing after its first denial. Doubles with each further one.
const FIRST_PAUSE: SignedDuration = SignedDuration::from_mins(5);
const LONGEST_PAUSE: SignedDuration = SignedDuration::from_hours(1);

impl Coordinator {
    /// Ends what the API server has denied for long enough.
    pub(super) fn end_denied_loans(&mut self, now: Timestamp) {
        for entry in self.entries.values_mut() {
            let over = |lease: &Lease| lease.denied.as_ref().is_some_and(|denied| denied.ends <= now);
            let leases = std::mem::take(&mut entry.standing.leases);
            let (ended, kept): (Vec<Lease>, Vec<Lease>) = leases.into_iter().partition(over);
            entry.standing.leases = kept;
            if ended.is_empty() {
                continue;
            }
            entry.standing.returning |= entry.standing.is_empty();
            release_floors(&self.floors, entry, &ended);
            entry.start_over();
            for Lease { container, denied, .. } in ended {
                let why = denied.map(|denied| denied.why).unwrap_or_default();
                tracing::warn!(
                    pod = entry.pod.full_name(),
                    container,
                    why,
                    "what was lent and is denied ends"
                );
                entry.ask(Cause::LoanDenied { container, why }, true);
            }
            self.unsaved = true;
            self.unwatched = true;
        }
    }
}

impl Entry {
    /// The API server denies a request with these words: what is lent ends at this time, and no more is lent for a while.
    /// Returns a sentence for each loan of which that is news.
    pub(super) fn deny_loans(&mut self, why: &str, now: Timestamp, quiet: SignedDuration) -> Vec<String> {
        let memory_ends = now.checked_add(quiet).unwrap_or(Timestamp::MAX);
        let mut said = Vec::new();
        let leases = self.standing.leases.iter_mut();
        let spec_lacks = |lease: &&mut Lease| {
            let container = self.pod.container(&lease.container);
            container.and_then(|container| container.resources.limits.get(lease.resource)) < Some(lease.to)
        };
        for lease in leases.filter(|lease| lease.denied.is_none()).filter(spec_lacks) {
            let ends = match lease.resource {
                Resource::Memory => memory_ends,
                // Nothing was written before the API server was asked.
                Resource::Cpu => now,
            };
            lease.denied = Some(Denied {
                ends,
                why: why.to_owned(),
            });
            let container = &lease.container;
            let spec = self
                .pod
                .container(container)
                .map(|container| container.resources.limits);
            let times = self.lending_pauses.get(container).map_or(0, |pause| pause.times);
            let pause = FIRST_PAUSE
                .checked_mul(1 << times.min(8))
                .map_or(LONGEST_PAUSE, |pause| pause.min(LONGEST_PAUSE));
            let until = ends.checked_add(pause).unwrap_or(Timestamp::MAX);
            self.lending_pauses.insert(
                container.clone(),
                LendingPause {
                    until,
                    times: times.saturating_add(1),
                    limits: spec.unwrap_or_default(),
                    denied: MemoryLimit::Bytes(lease.to),
                },
            );
            let sentence = format!("the {} lent to container {container} ends at {ends:.0}", lease.resource);
            self.not_saved.insert(
                container.clone(),
                format!("the API server denies a higher limit, and none is lent before {until:.0}: {why}"),
            );
            said.push(sentence);
        }
        said
    }

    /// The API server has accepted this request: what of it is lent is denied no more.
    pub(super) fn accept_loans(&mut self, asked: &Asked) {
        for lease in &mut self.standing.leases {
            let accepted = asked.targets.iter().find(|target| target.name == lease.container);
            let limit = accepted.and_then(|target| target.resources.limits.get(lease.resource));
            if limit >= Some(lease.to) && lease.denied.take().is_some() {
                self.lending_pauses.remove(&lease.container);
                self.not_saved.remove(&lease.container);
            }
        }
    }

    /// Whether a container may be lent more: not for a while after a denial, unless its spec has other limits since.
    pub(super) fn may_lend(&self, container: &str, now: Timestamp) -> bool {
        let Some(pause) = self.lending_pauses.get(container) else {
            return true;
        };
        let limits = self
            .pod
            .container(container)
            .map(|container| container.resources.limits);
        pause.until <= now || limits != Some(pause.limits)
    }

    /// Whether these are memory limits that come down from what the API server has denied. A container that fills the limit
    /// of its spec again is no reason to undo that.
    pub(super) fn takes_back_denied(&self, lowered: &[Lowering], now: Timestamp) -> bool {
        lowered.iter().any(|lowering| {
            let Target::Container(name) = &lowering.target else {
                return false;
            };
            let pause = self.lending_pauses.get(name).filter(|_| !self.may_lend(name, now));
            pause.is_some_and(|pause| lowering.from <= pause.denied)
        })
    }

    /// When the first denied loan ends.
    pub(super) fn denied_loan_ends(&self) -> Option<Timestamp> {
        let leases = self.standing.leases.iter();
        leases
            .filter_map(|lease| lease.denied.as_ref())
            .map(|denied| denied.ends)
            .min()
    }
}
