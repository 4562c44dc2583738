//! Learns the formula by which the runtime converts cpu shares to cgroup v2 weights.
//!
//! No runtime reports its formula, but its containers show it: the stored spec has the shares, and the kernel's file
//! has the weight. Only the youngest containers show the formula of the present OCI runtime, because an upgrade leaves
//! older containers as they are. So the agent reads the stored spec of each new container once, and none on a node
//! where no container starts. The agent uses the learned formula until a container shows another one.

use std::cmp::Reverse;

use jiff::Timestamp;

use crate::cgroup::{Cgroup, Hierarchy, PodEntry};
use crate::model::{ControlFile, CpuShares, Setting, WeightFormula};
use crate::runtime::{ContainerRuntime, ListedContainer, weight};

/// The most stored specs that one discovery reads.
const AT_ONCE: usize = 5;

/// The formula, as far as the agent has learned it.
#[derive(Debug, Default)]
pub(super) struct LearnedFormula {
    /// The formula, once a container has shown it or a pass has seen the runtime write a weight.
    pub(super) known: Option<WeightFormula>,
    /// The creation time of the youngest examined container. The agent examines younger ones only.
    asked_until: Option<Timestamp>,
}

impl LearnedFormula {
    /// Examines the youngest containers anew: the runtime may have been upgraded.
    pub(super) const fn doubt(&mut self) {
        self.asked_until = None;
    }

    /// Examines the new containers in the list. They stay new while the runtime does not answer.
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
            let shares = stored.and_then(|stored| u64::try_from(stored.cpu_shares?).ok());
            let mut places = scanned.iter().flat_map(|pod| &pod.containers);
            let place = places.find(|place| place.id.as_str() == container.id);
            let cgroup = place.map(|place| Cgroup::open(hierarchy, &place.path).and_then(|cgroup| cgroup.read_all()));
            // The cgroup may have gone meanwhile.
            let settings = cgroup.and_then(Result::ok);
            if let Some(Setting::CpuWeight(weight)) = settings.and_then(|settings| settings.get(ControlFile::CpuWeight))
            {
                pairs.extend(shares.map(|shares| (CpuShares::new(shares), weight)));
            }
        }
        self.asked_until = youngest.created_at;
        let Some(shown) = weight::detect(pairs) else { return };
        if self.known != Some(shown) {
            tracing::info!(formula = %shown, "the runtime's formula for cpu weights");
            self.known = Some(shown);
        }
    }

    /// The containers that are not examined yet, the youngest first.
    fn new_among<'a>(&self, listed: &'a [ListedContainer]) -> Vec<&'a ListedContainer> {
        let is_new = |container: &&ListedContainer| container.created_at > self.asked_until;
        let mut new: Vec<_> = listed.iter().filter(is_new).collect();
        new.sort_by_key(|container| Reverse(container.created_at));
        new.truncate(AT_ONCE);
        new
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
