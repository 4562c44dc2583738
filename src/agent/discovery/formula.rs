//! Learns the formula by which the runtime converts cpu shares to cgroup v2 weights.
//!
//! No runtime reports its formula, but its containers show it: a container's spec has the shares, and the kernel's file has the
//! weight. Only the youngest containers show the formula of the present OCI runtime, because an upgrade leaves older containers
//! as they are. So the agent reads each new container once, and none on a node where no container starts. The pods' specs are the
//! first witness, and most of the youngest containers decide. Where the specs show nothing, the runtime's stored specs do.
//! The agent uses the learned formula until containers show another one. A file keeps it: an agent that starts while every pod is
//! being resized finds no witness, and would take the weights that it writes by a wrong formula for the runtime's.

use std::cmp::Reverse;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;

use crate::cgroup::{Cgroup, Hierarchy, PodEntry};
use crate::files::replace_atomically;
use crate::model::objects::Pod;
use crate::model::{CgroupPath, ControlFile, CpuShares, CpuWeight, LiveContainer, Setting, WeightFormula};
use crate::reconcile::inventory::Inventory;
use crate::runtime::{ContainerRuntime, ListedContainer, weight};

/// The most stored specs that one discovery reads.
const AT_ONCE: usize = 5;

/// The name of the file with the learned formula, in the state directory.
const FILE_NAME: &str = "weight-formula.json";

/// The formula, as far as the agent has learned it.
#[derive(Debug, Default)]
pub(super) struct LearnedFormula {
    /// The formula, once a container has shown it or a pass has seen the runtime write a weight.
    pub(super) known: Option<WeightFormula>,
    /// The file that keeps it.
    file: PathBuf,
    /// The creation time of the youngest examined container. The agent examines younger ones only.
    asked_until: Option<Timestamp>,
    /// The same for containers whose pods' specs show their shares.
    compared_until: Option<Timestamp>,
    /// The formulas that containers show beside their pods' specs, that of the youngest last.
    shown: Vec<WeightFormula>,
}

impl LearnedFormula {
    /// What an earlier agent has learned, if anything.
    pub(super) fn kept_in(state_dir: &Path) -> Self {
        let file = state_dir.join(FILE_NAME);
        let kept = fs::read(&file).ok();
        Self {
            known: kept.and_then(|text| serde_json::from_slice(&text).ok()),
            file,
            ..Self::default()
        }
    }

    /// Examines the youngest containers anew: the runtime may have been upgraded.
    pub(super) fn doubt(&mut self) {
        (self.asked_until, self.compared_until) = (None, None);
        self.shown.clear();
    }

    /// Compares the weights of new containers with the cpu requests of their specs. Returns whether the specs have shown a
    /// formula.
    pub(super) fn compare(&mut self, hierarchy: &Hierarchy, inventory: &Inventory, pods: &[Arc<Pod>]) -> bool {
        let live = pods.iter().filter_map(|pod| Some((pod, inventory.find(pod)?)));
        let started = live.flat_map(|(pod, live)| {
            let containers = live.containers.iter();
            containers.filter_map(|(name, container)| Some((started_with(pod, name, container)?, &container.path)))
        });
        let mut new: Vec<_> = started
            .filter(|((started, _), _)| Some(*started) > self.compared_until)
            .collect();
        new.sort_by_key(|((started, _), _)| *started);
        for ((started, shares), path) in new.split_off(new.len().saturating_sub(weight::WITNESSES)) {
            let weight = read_weight(hierarchy, path);
            self.shown.extend(weight::detect(weight.map(|weight| (shares, weight))));
            self.compared_until = Some(started);
        }
        self.shown.drain(..self.shown.len().saturating_sub(weight::WITNESSES));
        self.note(weight::agreed(&self.shown));
        !self.shown.is_empty()
    }

    /// Notes the formula that containers, or a pass, have shown.
    pub(super) fn note(&mut self, shown: Option<WeightFormula>) {
        if let Some(formula) = shown.filter(|shown| self.known != Some(*shown)) {
            tracing::info!(%formula, "the runtime's formula for cpu weights");
            self.known = Some(formula);
            let replaced = replace_atomically(&self.file, |new| Ok(serde_json::to_writer(new, &formula)?));
            if let Err(error) = replaced {
                tracing::warn!(file = %self.file.display(), %error, "cannot save the formula for cpu weights for the next start");
            }
        }
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
            let weight = place.and_then(|place| read_weight(hierarchy, &place.path));
            pairs.extend(weight.and_then(|weight| Some((CpuShares::new(shares?), weight))));
        }
        self.asked_until = youngest.created_at;
        self.note(weight::detect(pairs));
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

/// When the container started, and the shares that its spec has. `None` for a container that does not run, requests no cpu, or is
/// being resized: its weight is that of another request.
fn started_with(pod: &Pod, name: &str, live: &LiveContainer) -> Option<(Timestamp, CpuShares)> {
    let status = pod
        .container_status(name)
        .filter(|status| status.bare_id() == Some(&live.id))?;
    let request = pod.container(name)?.resources.requests.cpu?;
    let in_force = status.resources.map(|in_force| in_force.requests.cpu);
    let started = status.state.running.as_ref()?.started_at?;
    in_force
        .is_none_or(|in_force| in_force == Some(request))
        .then(|| (started, CpuShares::from(request)))
}

/// The weight of a container. `None` where its cgroup has ended.
fn read_weight(hierarchy: &Hierarchy, path: &CgroupPath) -> Option<CpuWeight> {
    let cgroup = Cgroup::open(hierarchy, path).ok()?;
    match cgroup.outer().read(ControlFile::CpuWeight).ok()?? {
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
                uid: "uid".into(),
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
            ..LearnedFormula::default()
        }
    }

    #[test]
    fn only_the_youngest_containers_are_listed() {
        let node: Vec<_> = (0..250).map(|second| listed(&second.to_string(), second)).collect();
        assert_eq!(
            ids(&LearnedFormula::default(), &node),
            ["249", "248", "247", "246", "245"]
        );
    }

    #[test]
    fn a_node_without_starts_needs_no_call() {
        assert!(ids(&asked_until(2), &[listed("a", 1), listed("b", 2)]).is_empty());
    }

    #[test]
    fn a_container_that_started_since_is_listed() {
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
    fn the_next_agent_knows_the_formula() {
        let directory = tempfile::tempdir().unwrap();
        let mut learned = LearnedFormula::kept_in(directory.path());
        assert_eq!(learned.known, None);
        learned.note(Some(WeightFormula::Linear));
        learned.note(None);
        let known = || LearnedFormula::kept_in(directory.path()).known;
        assert_eq!(known(), Some(WeightFormula::Linear));
        fs::write(&learned.file, "\"cubic\"").unwrap();
        assert_eq!(known(), None, "it is learned again");
    }

    #[test]
    fn a_container_of_unknown_age_shows_no_formula() {
        let mut ageless = listed("a", 1);
        ageless.created_at = None;
        assert!(ids(&LearnedFormula::default(), &[ageless]).is_empty());
    }
}
