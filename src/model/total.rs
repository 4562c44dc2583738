//! The amounts of a whole pod, summed up from its containers as the kubelet, the scheduler and the API server do.

use super::ResourceList;

/// One container's part of its pod's amounts. Init containers come after regular containers, in the spec's order.
#[derive(Debug, Clone, Copy)]
pub struct Part {
    /// An init container, also if it is a sidecar.
    pub is_init: bool,
    /// The container runs for the pod's whole life: a regular container or a sidecar.
    pub runs: bool,
    pub amounts: ResourceList,
}

/// The needs of all containers: the sum over all that run for the pod's whole life, or the largest init step
/// (`AggregateContainerRequests`, kubernetes `component-helpers/resource/helpers.go`).
pub fn total(parts: impl Iterator<Item = Part> + Clone) -> ResourceList {
    let running = parts.clone().filter(|part| part.runs);
    let sum = running.fold(ResourceList::default(), |sum, part| {
        sum.combine(part.amounts, u64::saturating_add)
    });
    init_steps(parts).fold(sum, |sum, step| sum.combine(step, u64::max))
}

/// The pod's needs while each init container starts: the container's own amounts, and those of all sidecars that were
/// started before it.
pub fn init_steps(parts: impl Iterator<Item = Part>) -> impl Iterator<Item = ResourceList> {
    let init = parts.filter(|part| part.is_init);
    init.scan(ResourceList::default(), |sidecars, part| {
        let step = sidecars.combine(part.amounts, u64::saturating_add);
        if part.runs {
            *sidecars = step;
        }
        Some(step)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::MilliCpu;

    fn part(is_init: bool, runs: bool, cpu: u64) -> Part {
        Part {
            is_init,
            runs,
            amounts: ResourceList {
                cpu: Some(MilliCpu::new(cpu)),
                memory: None,
            },
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
            let each = init_steps(parts.iter().copied());
            assert_eq!(each.map(cpu).collect::<Vec<u64>>(), steps);
            assert_eq!(cpu(total(parts.iter().copied())), needs);
        }
    }
}
