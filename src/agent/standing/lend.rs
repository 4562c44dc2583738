//! Loans: limits that were grown in an emergency, laid over everything else that stands.
//!
//! Pure. A limit that an operator has set is the operator's: nothing is lent on top of it.

use jiff::Timestamp;

use super::Standing;
use crate::guard::lease::Lease;
use crate::model::objects::Pod;
use crate::model::{NamedRequirements, Resource};

/// A growth that has just happened.
#[derive(Debug)]
pub(in crate::agent) struct Lent<'a> {
    /// The container.
    pub(in crate::agent) container: &'a str,
    /// Which of its limits.
    pub(in crate::agent) resource: Resource,
    /// The limit before, in bytes or thousandths of a cpu.
    pub(in crate::agent) from: u64,
    /// The limit now, in the same unit.
    pub(in crate::agent) to: u64,
    /// Why, in a sentence.
    pub(in crate::agent) why: String,
    /// When.
    pub(in crate::agent) now: Timestamp,
}

impl Standing {
    /// What was lent of one limit.
    pub(in crate::agent) fn lease(&self, container: &str, resource: Resource) -> Option<&Lease> {
        let same = |lease: &&Lease| lease.container == container && lease.resource == resource;
        self.leases.iter().find(same)
    }

    /// Notes a growth; one that continues an earlier one keeps its beginning.
    pub(in crate::agent) fn lend(&mut self, lent: Lent<'_>) {
        let earlier = self.lease(lent.container, lent.resource);
        let lease = Lease {
            container: lent.container.to_owned(),
            resource: lent.resource,
            from: earlier.map_or(lent.from, |earlier| earlier.from),
            to: lent.to,
            since: earlier.map_or(lent.now, |earlier| earlier.since),
            renewed: lent.now,
            why: lent.why,
            denied: earlier.and_then(|earlier| earlier.denied.clone()),
        };
        self.take_back(lent.container, lent.resource);
        self.leases.push(lease);
    }

    /// Puts an earlier loan back, unless more has been lent since.
    pub(in crate::agent) fn keep_higher(&mut self, earlier: Lease) {
        let since = self.lease(&earlier.container, earlier.resource);
        if since.is_none_or(|since| since.to < earlier.to) {
            self.take_back(&earlier.container, earlier.resource);
            self.leases.push(earlier);
        }
    }

    /// Keeps only so much of a loan.
    pub(in crate::agent) fn lower_lease(&mut self, container: &str, resource: Resource, to: u64, now: Timestamp) {
        let same = |lease: &&mut Lease| lease.container == container && lease.resource == resource;
        if let Some(lease) = self.leases.iter_mut().find(same) {
            lease.to = to;
            lease.renewed = now;
        }
    }

    /// Ends a loan. If nothing else stands then, the pod goes back to its spec.
    pub(in crate::agent) fn end_lease(&mut self, container: &str, resource: Resource) {
        self.take_back(container, resource);
        self.returning |= self.is_empty();
    }

    /// Ends the loans that the limits would be as high without.
    pub(in crate::agent) fn end_overtaken(&mut self, pod: &Pod) -> Vec<Lease> {
        let base = self.without_loans(pod);
        let overtaken = |lease: &Lease| limit_in(&base, &lease.container, lease.resource) >= Some(lease.to);
        let (ended, kept) = std::mem::take(&mut self.leases).into_iter().partition(overtaken);
        self.leases = kept;
        ended
    }

    /// Ends the loans of limits that an operator has set.
    pub(super) fn end_overridden_loans(&mut self) {
        let leases = std::mem::take(&mut self.leases);
        let kept = leases
            .into_iter()
            .filter(|lease| !self.is_set_by_hand(&lease.container, lease.resource));
        self.leases = kept.collect();
    }

    /// Whether an operator has set this limit.
    pub(in crate::agent) fn is_set_by_hand(&self, container: &str, resource: Resource) -> bool {
        let values = self.overridden.as_ref().map(|overridden| &overridden.values);
        values.is_some_and(|values| limit_in(values, container, resource).is_some())
    }

    /// The limit as it stands, or in the spec where nothing does, in bytes or thousandths of a cpu.
    pub(in crate::agent) fn limit(&self, pod: &Pod, container: &str, resource: Resource) -> Option<u64> {
        let standing = self.targets(pod).unwrap_or_else(|| pod.requirements());
        limit_in(&standing, container, resource)
    }

    /// The limit as it would be if nothing was lent, in bytes or thousandths of a cpu.
    pub(in crate::agent) fn limit_without_loan(&self, pod: &Pod, container: &str, resource: Resource) -> Option<u64> {
        limit_in(&self.without_loans(pod), container, resource)
    }

    fn take_back(&mut self, container: &str, resource: Resource) {
        self.leases
            .retain(|lease| lease.container != container || lease.resource != resource);
    }
}

fn limit_in(list: &[NamedRequirements], container: &str, resource: Resource) -> Option<u64> {
    let found = list.iter().find(|named| named.name == container)?;
    found.resources.limits.get(resource)
}

/// Puts what was lent in the place of a lower limit.
pub(super) fn lay_over(targets: &mut [NamedRequirements], lease: &Lease) {
    if let Some(target) = targets.iter_mut().find(|target| target.name == lease.container) {
        target.resources.lift(lease.resource, lease.to);
    }
}

#[cfg(test)]
mod tests;
