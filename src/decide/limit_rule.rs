//! Which limit goes with a request: in proportion to what the container has, or as annotations of the VPA say.

use super::Note;
use super::capping::{Rounding, scale};
use crate::model::Resource;
use crate::model::objects::VerticalPodAutoscaler;
use crate::model::objects::annotation::{CPU_LIMIT, MEMORY_LIMIT};
use crate::model::quantity::Quantity;

/// How the limits of a VPA's containers follow their requests (annotations `vscaled.io/cpu-limit` and `vscaled.io/memory-limit`).
/// A container without a limit gets none by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Headroom {
    /// `ratio`: in proportion, as the VPA does it.
    #[default]
    Ratio,
    /// `keep`: the limit stays.
    Keep,
    /// `request+AMOUNT`, in thousandths of a cpu or bytes.
    Plus(u64),
    /// `request*FACTOR`, in thousandths.
    Times(u64),
}

impl Headroom {
    /// Factors beyond this are mistakes.
    const LARGEST_FACTOR: u64 = 100;
    /// Amounts for messages, in the order of [`Resource::ALL`].
    const EXAMPLES: [u64; 2] = [500, 256 << 20];

    pub(super) const fn annotation(resource: Resource) -> &'static str {
        match resource {
            Resource::Cpu => CPU_LIMIT,
            Resource::Memory => MEMORY_LIMIT,
        }
    }

    /// Reads the annotation for the limits of a resource.
    ///
    /// Errors: a note that names the annotation, its value and what is allowed.
    pub(super) fn of(vpa: &VerticalPodAutoscaler, resource: Resource) -> Result<Self, Note> {
        let annotation = Self::annotation(resource);
        let Some(text) = vpa.metadata.annotations.get(annotation) else {
            return Ok(Self::default());
        };
        Self::parse(text, resource).ok_or_else(|| {
            let amount = resource.quantity(Self::EXAMPLES[resource as usize]);
            let largest = Self::LARGEST_FACTOR;
            let allowed = format!(
                "ratio, keep, request+AMOUNT (such as request+{amount}), or request*FACTOR with 1 to {largest}"
            );
            Note::unreadable(vpa, annotation, text, &allowed)
        })
    }

    fn parse(text: &str, resource: Resource) -> Option<Self> {
        let rest = match text {
            "ratio" => return Some(Self::Ratio),
            "keep" => return Some(Self::Keep),
            _ => text.strip_prefix("request")?,
        };
        let (operator, number) = rest.split_at_checked(1)?;
        let starts_with_digit = number.starts_with(|first: char| first.is_ascii_digit());
        let number = Quantity::parse(number).ok().filter(|_| starts_with_digit)?;
        match operator {
            "+" => number.exact(resource).map(Self::Plus),
            "*" => {
                // A factor is in thousandths, as an amount of cpu is.
                let factor = number.exact(Resource::Cpu);
                let allowed = 1000..=Self::LARGEST_FACTOR * 1000;
                factor.filter(|factor| allowed.contains(factor)).map(Self::Times)
            }
            _ => None,
        }
    }
}

/// The limit that goes with a request: `request · limit / base + plus`.
#[derive(Debug, Clone, Copy)]
pub(super) struct LimitRule {
    base: u64,
    /// Zero: the container has no limit.
    limit: u64,
    plus: u64,
}

impl LimitRule {
    /// The rule of a container with this request and this limit. In place of a missing limit, which may also be zero, the LimitRange's
    /// default counts, if there is one.
    pub(super) fn new(headroom: Headroom, amounts: [Option<u64>; 2], default_limit: u64) -> Self {
        let [request, limit] = amounts.map(Option::unwrap_or_default);
        let limit = if limit == 0 { default_limit } else { limit };
        let (base, limit, plus) = match headroom {
            Headroom::Plus(plus) if limit > 0 => (1, 1, plus),
            Headroom::Times(factor) if limit > 0 => (1000, factor, 0),
            _ => (request, limit, 0),
        };
        Self { base, limit, plus }
    }

    /// The limit of a container whose request becomes `request`. None if the container has no limit now or gets no request.
    ///
    /// `getProportionalResourceLimit` (autoscaler `pkg/utils/vpa/limit_and_request_scaling.go`).
    pub(super) fn limit_for(self, request: u64) -> Option<u64> {
        if self.limit == 0 || request == 0 {
            None
        } else if self.base == 0 || self.base == self.limit {
            Some(request.saturating_add(self.plus).min(super::capping::MAX))
        } else {
            Some(scale(request, self.limit.into(), self.base.into(), u128::div_euclid))
        }
    }

    /// The request that goes with a limit: rounded up, the lowest with that limit or more; rounded down, the highest within it, zero if
    /// there is none. None without a limit.
    ///
    /// `GetBoundaryRequest` (autoscaler `pkg/utils/vpa/limit_and_request_scaling.go`).
    pub(super) fn request_for(self, limit: u64, rounding: Rounding) -> Option<u64> {
        let limit = limit.saturating_sub(self.plus);
        match (self.base, self.limit) {
            (_, 0) => None,
            (0, _) => Some(limit),
            (base, own) => Some(scale(limit, base.into(), own.into(), rounding)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::capping::MAX;
    use super::*;
    use proptest::prelude::*;

    fn ratio(request: u64, limit: u64, default_limit: u64) -> LimitRule {
        LimitRule::new(Headroom::Ratio, [Some(request), Some(limit)], default_limit)
    }

    #[test]
    fn a_limit_keeps_its_ratio_to_the_request() {
        assert_eq!(ratio(1000, 2000, 0).limit_for(10_000), Some(20_000));
        assert_eq!(ratio(1500, 2000, 0).limit_for(1000), Some(1333), "rounded down");
        assert_eq!(ratio(1, 10_000_000_000_000, 0).limit_for(10_000_000_000_000), Some(MAX));
    }

    #[test]
    fn only_a_default_adds_a_missing_limit() {
        assert_eq!(ratio(1000, 0, 0).limit_for(10_000), None);
        assert_eq!(ratio(1000, 0, 2000).limit_for(10_000), Some(20_000));
        assert_eq!(
            LimitRule::new(Headroom::Plus(5), [Some(1000), None], 0).limit_for(10_000),
            None
        );
        assert_eq!(
            LimitRule::new(Headroom::Times(1500), [Some(1000), Some(0)], 0).limit_for(10_000),
            None
        );
    }

    #[test]
    fn a_limit_without_request_follows_it() {
        assert_eq!(ratio(0, 2000, 0).limit_for(10_000), Some(10_000));
        assert_eq!(ratio(2000, 2000, 0).limit_for(10_000), Some(10_000));
    }

    #[test]
    fn a_bound_on_the_limit_bounds_the_request() {
        let at = |rule: LimitRule| rule.request_for(3001, u128::div_euclid);
        assert_eq!(at(ratio(1000, 2000, 0)), Some(1500));
        assert_eq!(at(ratio(0, 2000, 0)), Some(3001));
        assert_eq!(at(ratio(1000, 0, 0)), None, "no limit to bound");
    }

    #[test]
    fn annotations_say_what_is_added_to_the_request() {
        let read = |text| Headroom::parse(text, Resource::Memory);
        assert_eq!(read("ratio"), Some(Headroom::Ratio));
        assert_eq!(read("keep"), Some(Headroom::Keep));
        assert_eq!(read("request+256Mi"), Some(Headroom::Plus(256 << 20)));
        assert_eq!(read("request*1.5"), Some(Headroom::Times(1500)));
        assert_eq!(read("request+0"), Some(Headroom::Plus(0)));
        assert_eq!(read("request*1"), Some(Headroom::Times(1000)));
        assert_eq!(read("request*100"), Some(Headroom::Times(100_000)));
        assert_eq!(
            Headroom::parse("request+500m", Resource::Cpu),
            Some(Headroom::Plus(500))
        );
        let malformed = [
            "",
            "request",
            "request+",
            "request*",
            "request+256MB",
            "request-1Gi",
            "request+-1Gi",
            "request*0.9",
            "request*101",
            "request*1.2345",
            "request + 1Gi",
            "+256Mi",
            "Ratio",
            "request+500m",
            "request*1e9",
            "request\u{20ac}1",
        ];
        for text in malformed {
            assert_eq!(read(text), None, "{text}");
        }
        assert_eq!(Headroom::parse("request+100u", Resource::Cpu), None);
    }

    proptest! {
        #[test]
        fn bounds_on_limits_hold_for_every_rule(
            request in 1_u64..=MAX, limit in 1_u64..=MAX, bound in 1_u64..=MAX, number in 1000_u64..=100_000, which in 0_usize..3,
        ) {
            let headroom = [Headroom::Ratio, Headroom::Plus(number), Headroom::Times(number)][which];
            let rule = LimitRule::new(headroom, [Some(request), Some(limit)], 0);
            let limit_at = |limit, rounding| rule.limit_for(rule.request_for(limit, rounding)?);
            if let Some(largest) = limit_at(bound, u128::div_euclid) {
                prop_assert!(largest <= bound);
            }
            let reached = limit_at(bound.min(limit), u128::div_ceil);
            if headroom == Headroom::Ratio {
                prop_assert!(reached.is_some_and(|reached| (bound.min(limit)..=limit).contains(&reached)));
            } else {
                prop_assert!(reached.is_none_or(|reached| reached >= bound.min(limit) || reached == MAX));
            }
        }
    }
}
