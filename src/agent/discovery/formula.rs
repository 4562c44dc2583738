//! Which formula the runtime turns cpu shares into cgroup v2 weights with.
//!
//! No runtime tells, but its containers show: the shares are in the stored spec, the weight it made of them is in the
//! kernel's file. Only the youngest speak for the runtime of now, since an upgrade of its OCI runtime leaves older
//! containers as they were. So each container is asked about once, when it is new, and a node on which nothing starts
//! asks nothing. What was learned stands until a container shows something else.

use std::cmp::Reverse;

use jiff::Timestamp;

use crate::cgroup::{Cgroup, Hierarchy, PodEntry};
use crate::model::{CgroupPath, ControlFile, CpuShares, CpuWeight, CriResources, Setting, WeightFormula};
use crate::runtime::{ContainerRuntime, ListedContainer, weight};

/// How many containers are asked about at once, at most.
const AT_ONCE: usize = 5;

/// What is known of the formula.
#[derive(Debug, Default)]
pub(super) struct LearnedFormula {
    /// The formula, once a container has shown it or a pass has seen the runtime write a weight.
    pub(super) known: Option<WeightFormula>,
    /// When the youngest container asked about was made; older ones are not asked about any more.
    asked_until: Option<Timestamp>,
}

impl LearnedFormula {
    /// The runtime may be another one now: the youngest containers are asked about anew.
    pub(super) const fn doubt(&mut self) {
        self.asked_until = None;
    }

    /// Asks about the containers that are new in the list. With a runtime that does not answer, they stay new.
    pub(super) async fn learn(
        &mut self,
        runtime: &dyn ContainerRuntime,
        hierarchy: &Hierarchy,
        listed: &[ListedContainer],
        scanned: &[PodEntry],
    ) {
        let new = self.new_among(listed);
        let Some(youngest) = new.first() else { return };
        let mut pairs = Vec::new();
        for container in &new {
            let stored = match runtime.stored(&container.id).await {
                Ok(stored) => stored,
                Err(error) if error.is_retryable() => return,
                Err(error) => {
                    tracing::debug!(%error, "a container says nothing about the formula of weights");
                    None
                }
            };
            let shares = stored.and_then(shares);
            let weight = place(scanned, &container.id).and_then(|path| weight_at(hierarchy, path));
            pairs.extend(shares.zip(weight));
        }
        self.asked_until = youngest.created_at;
        let Some(shown) = weight::detect(pairs) else { return };
        if self.known != Some(shown) {
            tracing::info!(formula = %shown, "the runtime's formula for cpu weights");
            self.known = Some(shown);
        }
    }

    /// Those not asked about yet, the youngest first.
    fn new_among<'a>(&self, listed: &'a [ListedContainer]) -> Vec<&'a ListedContainer> {
        let is_new = |container: &&ListedContainer| container.created_at > self.asked_until;
        let mut new: Vec<_> = listed.iter().filter(is_new).collect();
        new.sort_by_key(|container| Reverse(container.created_at));
        new.truncate(AT_ONCE);
        new
    }
}

fn shares(stored: CriResources) -> Option<CpuShares> {
    u64::try_from(stored.cpu_shares?).ok().map(CpuShares::new)
}

fn place<'a>(scanned: &'a [PodEntry], id: &str) -> Option<&'a CgroupPath> {
    let mut containers = scanned.iter().flat_map(|pod| &pod.containers);
    containers
        .find(|container| container.place.id.as_str() == id)
        .map(|container| &container.path)
}

/// `None` also where the cgroup has gone meanwhile.
fn weight_at(hierarchy: &Hierarchy, path: &CgroupPath) -> Option<CpuWeight> {
    let settings = Cgroup::open(hierarchy, path).and_then(|cgroup| cgroup.read_all());
    match settings.ok()?.get(ControlFile::CpuWeight)? {
        Setting::CpuWeight(weight) => Some(weight),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::objects::PodId;

    fn listed(id: &str, created_at: i64) -> ListedContainer {
        ListedContainer {
            id: id.to_owned(),
            name: "app".to_owned(),
            pod: PodId {
                uid: "uid".to_owned(),
                name: "web".to_owned(),
                namespace: "default".to_owned(),
            },
            restart_count: 0,
            created_at: Some(Timestamp::from_second(created_at).unwrap()),
        }
    }

    fn ids(learned: &LearnedFormula, listed: &[ListedContainer]) -> Vec<String> {
        let new = learned.new_among(listed);
        new.into_iter().map(|container| container.id.clone()).collect()
    }

    fn asked_until(second: i64) -> LearnedFormula {
        LearnedFormula {
            known: Some(WeightFormula::Linear),
            asked_until: Some(Timestamp::from_second(second).unwrap()),
        }
    }

    #[test]
    fn of_a_full_node_only_the_youngest_few_are_asked_about() {
        let node: Vec<_> = (0..250).map(|second| listed(&second.to_string(), second)).collect();
        assert_eq!(
            ids(&LearnedFormula::default(), &node),
            ["249", "248", "247", "246", "245"]
        );
    }

    #[test]
    fn a_node_on_which_nothing_started_is_asked_nothing() {
        assert!(ids(&asked_until(2), &[listed("a", 1), listed("b", 2)]).is_empty());
    }

    #[test]
    fn a_container_that_started_since_is_asked_about() {
        assert_eq!(ids(&asked_until(2), &[listed("b", 2), listed("c", 3)]), ["c"]);
    }

    #[test]
    fn doubt_asks_anew_and_forgets_nothing() {
        let mut learned = asked_until(2);
        learned.doubt();
        assert_eq!(ids(&learned, &[listed("a", 1), listed("b", 2)]), ["b", "a"]);
        assert_eq!(learned.known, Some(WeightFormula::Linear));
    }

    #[test]
    fn a_container_of_unknown_age_never_speaks_for_the_runtime() {
        let mut ageless = listed("a", 1);
        ageless.created_at = None;
        assert!(ids(&LearnedFormula::default(), &[ageless]).is_empty());
    }
}
