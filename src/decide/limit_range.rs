//! The LimitRanges of a namespace, merged (`limit_range_calculator.go`, autoscaler `pkg/utils/limitrange`).

use crate::model::objects::{LimitRange, LimitRangeItem};
use crate::model::{Resource, ResourceList};

/// Bounds for one type of object. An absent amount bounds nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Bounds {
    pub(super) min: ResourceList,
    pub(super) max: ResourceList,
    pub(super) default: ResourceList,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Limits {
    pub(super) container: Bounds,
    pub(super) pod: Bounds,
}

impl Limits {
    /// Tightens the bounds by another LimitRange of the namespace.
    pub(super) fn add(&mut self, range: &LimitRange) {
        for item in &range.spec.limits {
            match item.kind.as_str() {
                "Container" => self.container.add(item),
                "Pod" => self.pod.add(item),
                _ => {}
            }
        }
    }
}

impl Bounds {
    /// The highest minimum and the lowest maximum count. The last list of defaults replaces the one before.
    fn add(&mut self, item: &LimitRangeItem) {
        for resource in Resource::ALL {
            tighten(&mut self.min, item.min, resource, u64::max);
            tighten(&mut self.max, item.max, resource, u64::min);
        }
        if !item.default.is_empty() {
            self.default = item.default;
        }
    }
}

fn tighten(bounds: &mut ResourceList, other: ResourceList, resource: Resource, pick: fn(u64, u64) -> u64) {
    if let Some(bound) = other.get(resource) {
        let tighter = bounds.get(resource).map_or(bound, |present| pick(present, bound));
        bounds.set(resource, Some(tighter));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::MilliCpu;

    fn cpu(milli: u64) -> ResourceList {
        ResourceList {
            cpu: Some(MilliCpu::new(milli)),
            memory: None,
        }
    }

    fn range(kind: &str, min: u64, max: u64, default: u64) -> LimitRange {
        let mut range = LimitRange::default();
        range.spec.limits.push(LimitRangeItem {
            kind: kind.to_owned(),
            min: cpu(min),
            max: cpu(max),
            default: cpu(default),
        });
        range
    }

    #[test]
    fn the_tightest_bounds_and_the_last_default_count() {
        let mut limits = Limits::default();
        limits.add(&range("Container", 100, 2000, 500));
        limits.add(&range("Container", 50, 1500, 300));
        limits.add(&range("PersistentVolumeClaim", 1000, 1000, 1000));
        let mut without_default = range("Container", 1, 3000, 0);
        without_default.spec.limits[0].default = ResourceList::default();
        limits.add(&without_default);
        assert_eq!(
            limits.container,
            Bounds {
                min: cpu(100),
                max: cpu(1500),
                default: cpu(300)
            }
        );
        assert_eq!(limits.pod, Bounds::default());
    }
}
