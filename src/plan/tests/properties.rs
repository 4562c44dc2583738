//! Plans between random trees, run on a model of the kernel.

use proptest::prelude::*;

use super::trees::{Case, case, drop_followers};
use crate::model::{ControlFile, CpuQuota, MemoryLimit, PageSize, PodTree, PodValues, Setting, Settings, Step, Target};
use crate::plan::Plan;
use crate::plan::kernel_model::Machine;
use crate::plan::order::edges;

/// The limit of memory and swap and `memory.high` follow the limit of memory, a burst follows its quota; nobody wants them
/// for themselves.
fn without_followers(state: &PodValues) -> PodValues {
    let mut without = state.clone();
    for cgroup in without.tree.containers.values_mut().chain([&mut without.tree.pod]) {
        drop_followers(cgroup);
    }
    without
}

/// A cgroup's burst and quota in microseconds, if there is a burst and the quota is bounded.
fn burst_and_quota(tree: &PodTree, target: &Target) -> Option<(u128, u128)> {
    let cgroup = tree.get(target)?;
    let burst = cgroup.burst()?.burst_us()?;
    match cgroup.cpu_max()?.quota {
        CpuQuota::Micros(quota) => Some((burst.into(), quota.into())),
        CpuQuota::Max => None,
    }
}

fn memory_high(cgroup: &Settings) -> Option<MemoryLimit> {
    match cgroup.get(ControlFile::MemoryHigh) {
        Some(Setting::MemoryHigh(limit)) => Some(limit),
        _ => None,
    }
}

/// A cgroup's `memory.high` and limit in pages, where both are bounded.
fn high_and_limit(tree: &PodTree, target: &Target, page: PageSize) -> Option<(u128, u128)> {
    let cgroup = tree.get(target)?;
    match (memory_high(cgroup)?, cgroup.memory_limit()?) {
        (MemoryLimit::Bytes(high), MemoryLimit::Bytes(limit)) => {
            Some(((high / page.get()).into(), (limit / page.get()).into()))
        }
        _ => None,
    }
}

impl Case {
    /// The same with a runtime that has stored what the files hold: one that has not cannot be brought back to both.
    fn with_agreeing_runtime(mut self) -> Self {
        for (name, stored) in &mut self.observed.specs {
            *stored = self.truths[name];
        }
        self
    }

    fn machine(&self) -> Machine {
        Machine::new(self.observed.clone(), self.traits, self.usage.clone())
    }

    fn plan_from(&self, machine: &Machine) -> Plan {
        Plan::between(&machine.state, &self.desired, &self.traits).unwrap()
    }

    fn targets(&self) -> impl Iterator<Item = Target> {
        let containers = self.observed.tree.containers.keys().cloned().map(Target::Container);
        containers.chain([Target::Pod])
    }

    /// Whether no `memory.high` is a smaller part of its limit than in `before`, but for half a page.
    fn brakes_no_earlier(&self, before: &PodTree, machine: &Machine) -> bool {
        let part = |tree, target: &Target| high_and_limit(tree, target, self.traits.page);
        self.targets().all(
            |target| match (part(before, &target), part(&machine.state.tree, &target)) {
                (Some((old, old_limit)), Some((new, new_limit))) => (2 * new + 1) * old_limit >= 2 * old * new_limit,
                _ => true,
            },
        )
    }

    /// Runs steps, looking after each that none is refused and that no container gets above its pod.
    fn run(&self, machine: &mut Machine, steps: &[Step]) -> Result<(), TestCaseError> {
        let before = machine.state.tree.clone();
        for (index, step) in steps.iter().enumerate() {
            let outcome = machine.run(step);
            prop_assert_eq!(outcome, Ok(()), "step {} of {:#?}", index, steps);
            prop_assert!(
                self.brakes_no_earlier(&before, machine),
                "step {} of {:#?}",
                index,
                steps
            );
            for edge in edges(&machine.state.tree) {
                prop_assert!(
                    edge.holds(&machine.state.tree),
                    "{:?} after step {} of {:#?}",
                    edge,
                    index,
                    steps
                );
            }
        }
        Ok(())
    }

    /// Looks that every burst that nobody wants for itself is the part of its quota that it was, but for rounding down.
    fn assert_bursts(&self, machine: &Machine) -> Result<(), TestCaseError> {
        let wanted = |target: &Target| self.desired.tree.get(target).and_then(Settings::burst);
        for target in self.targets().filter(|target| wanted(target).is_none()) {
            let ends = [&self.observed.tree, &machine.state.tree].map(|tree| burst_and_quota(tree, &target));
            if let [Some((old, old_quota)), Some((new, new_quota))] = ends {
                prop_assert_eq!(new, old * new_quota / old_quota, "{}", target);
            }
        }
        Ok(())
    }

    /// Looks that every bounded `memory.high` is the part of its limit that it was, to the nearest page, and that none was set.
    fn assert_highs(&self, machine: &Machine) -> Result<(), TestCaseError> {
        for target in self.targets() {
            let trees = [&self.observed.tree, &machine.state.tree];
            let [old, new] = trees.map(|tree| tree.get(&target).and_then(memory_high));
            if old == Some(MemoryLimit::Max) || old.is_none() {
                prop_assert_eq!(new, old, "{}", target);
            }
            let ends = trees.map(|tree| high_and_limit(tree, &target, self.traits.page));
            if let [Some((old, old_limit)), Some((new, new_limit))] = ends {
                prop_assert_eq!(new, (2 * old * new_limit + old_limit) / (2 * old_limit), "{}", target);
            }
        }
        Ok(())
    }

    fn assert_arrived(&self, machine: &Machine) -> Result<(), TestCaseError> {
        prop_assert_eq!(self.plan_from(machine), Plan::default());
        let wanted = &self.desired.tree;
        let containers = wanted.containers.keys().cloned().map(Target::Container);
        for target in containers.chain([Target::Pod]) {
            for setting in wanted.get(&target).into_iter().flat_map(Settings::iter) {
                let held = machine
                    .state
                    .tree
                    .get(&target)
                    .and_then(|cgroup| cgroup.get(setting.file()));
                prop_assert!(
                    held.is_some_and(|held| held == setting.in_pages(self.traits.page)),
                    "{} holds {:?}",
                    target,
                    held
                );
            }
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn no_step_is_refused_on_the_way(case in case()) {
        let mut machine = case.machine();
        let plan = case.plan_from(&machine);
        case.run(&mut machine, &plan.steps)?;
        case.assert_arrived(&machine)?;
        case.assert_bursts(&machine)?;
        case.assert_highs(&machine)?;
    }

    #[test]
    fn a_cut_plan_is_completed_by_the_next(case in case(), cut in any::<prop::sample::Index>()) {
        let mut machine = case.machine();
        let plan = case.plan_from(&machine);
        let (first, _) = plan.steps.split_at(cut.index(plan.steps.len() + 1));
        case.run(&mut machine, first)?;
        let rest = case.plan_from(&machine);
        case.run(&mut machine, &rest.steps)?;
        case.assert_arrived(&machine)?;
    }

    #[test]
    fn planning_back_undoes_a_plan_cut_anywhere(case in case(), cut in any::<prop::sample::Index>()) {
        let case = case.with_agreeing_runtime();
        let mut machine = case.machine();
        let plan = case.plan_from(&machine);
        let (first, _) = plan.steps.split_at(cut.index(plan.steps.len() + 1));
        case.run(&mut machine, first)?;
        let back = Case { desired: without_followers(&case.observed), ..case };
        let undo = back.plan_from(&machine);
        back.run(&mut machine, &undo.steps)?;
        back.assert_arrived(&machine)?;
    }
}
