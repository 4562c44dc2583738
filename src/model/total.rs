//! The amounts of a whole pod, summed up from its containers as the kubelet, the scheduler and the API server do.

use super::objects::{Container, Pod};
use super::{PodAmounts, Requirements, ResourceList};

/// One container's part of its pod's amounts. Init containers come after regular containers, in the spec's order.
#[derive(Debug, Clone, Copy)]
pub struct Part<'a> {
    /// The container's name.
    pub name: &'a str,
    /// An init container, also if it is a sidecar.
    pub is_init: bool,
    /// The container runs for the pod's whole life: a regular container or a sidecar.
    pub runs: bool,
    pub resources: Requirements,
}

/// The needs of all containers: the sum over all that run for the pod's whole life, or the largest init step
/// (`AggregateContainerRequests`, kubernetes `component-helpers/resource/helpers.go`).
pub fn total<'a>(parts: impl Iterator<Item = Part<'a>> + Clone, of: fn(&Requirements) -> ResourceList) -> ResourceList {
    let running = parts.clone().filter(|part| part.runs);
    let sum = running.fold(ResourceList::default(), |sum, part| {
        sum.combine(of(&part.resources), u64::saturating_add)
    });
    init_steps(parts, of).fold(sum, |sum, step| sum.combine(step, u64::max))
}

/// The pod's needs while each init container starts: the container's own amounts, and those of all sidecars that were
/// started before it.
pub fn init_steps<'a>(
    parts: impl Iterator<Item = Part<'a>>,
    of: fn(&Requirements) -> ResourceList,
) -> impl Iterator<Item = ResourceList> {
    let init = parts.filter(|part| part.is_init);
    init.scan(ResourceList::default(), move |sidecars, part| {
        let step = sidecars.combine(of(&part.resources), u64::saturating_add);
        if part.runs {
            *sidecars = step;
        }
        Some(step)
    })
}

impl Pod {
    /// All containers once regular containers and sidecars have these amounts.
    pub fn parts<'a>(&'a self, with: &'a PodAmounts) -> impl Iterator<Item = Part<'a>> + Clone {
        let part = move |container: &'a Container, is_init: bool| Part {
            name: &container.name,
            is_init,
            runs: !is_init || container.is_sidecar(),
            resources: *with.container(&container.name).unwrap_or(&container.resources),
        };
        let regular = self.spec.containers.iter().map(move |regular| part(regular, false));
        regular.chain(self.spec.init_containers.iter().map(move |init| part(init, true)))
    }

    /// The needs of all containers once regular containers and sidecars have these amounts, init containers included.
    pub fn total(&self, with: &PodAmounts, of: fn(&Requirements) -> ResourceList) -> ResourceList {
        total(self.parts(with), of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::MilliCpu;

    fn part(is_init: bool, runs: bool, cpu: u64) -> Part<'static> {
        let mut resources = Requirements::default();
        resources.requests.cpu = Some(MilliCpu::new(cpu));
        Part {
            name: "",
            is_init,
            runs,
            resources,
        }
    }

    #[test]
    fn sidecars_count_with_later_init_containers() {
        let (app, sidecar) = (part(false, true, 100), part(true, true, 50));
        let cpu = |list: ResourceList| list.cpu.map_or(0, MilliCpu::get);
        for (parts, steps, needs) in [
            (vec![app, part(true, false, 120)], vec![120], 120),
            (vec![app, part(true, false, 80)], vec![80], 100),
            (vec![app, sidecar, part(true, false, 120)], vec![50, 170], 170),
            (vec![app, part(true, false, 120), sidecar], vec![120, 50], 150),
            (vec![app, app], vec![], 200),
        ] {
            let each = init_steps(parts.iter().copied(), |has| has.requests);
            assert_eq!(each.map(cpu).collect::<Vec<u64>>(), steps);
            assert_eq!(cpu(total(parts.iter().copied(), |has| has.requests)), needs);
        }
    }
}
