//! Limits in proportion to requests. Amounts are plain numbers, thousandths of a cpu or bytes. Zero means unset.
//!
//! Products have 128 bits and results saturate at [`MAX`]. Upstream's saturate there too, or wrap for some shares of a pod's
//! bound.

/// The largest amount a Kubernetes quantity holds.
pub(super) const MAX: u64 = i64::MAX as u64;

/// How the quotient of a proportion is rounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rounding {
    Down,
    Up,
}

/// `amount · numerator / denominator`, or the amount itself if the denominator is zero.
pub(super) fn scale(amount: u64, numerator: u128, denominator: u128, rounding: Rounding) -> u64 {
    if denominator == 0 {
        return amount.min(MAX);
    }
    let product = u128::from(amount).saturating_mul(numerator);
    let quotient = match rounding {
        Rounding::Down => product / denominator,
        Rounding::Up => product.div_ceil(denominator),
    };
    u64::try_from(quotient).map_or(MAX, |quotient| quotient.min(MAX))
}

/// The request and limit whose ratio a new limit keeps.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ratio {
    request: u64,
    limit: u64,
}

impl Ratio {
    /// In place of a missing limit the LimitRange's default counts, if there is one.
    pub(super) const fn new(request: u64, limit: u64, default_limit: u64) -> Self {
        Self {
            request,
            limit: if limit == 0 { default_limit } else { limit },
        }
    }

    /// The limit of a container whose request becomes `request`. None if the container has no limit now or gets no request.
    ///
    /// `getProportionalResourceLimit` (autoscaler `pkg/utils/vpa/limit_and_request_scaling.go`).
    pub(super) fn limit_for(self, request: u64) -> Option<u64> {
        if self.limit == 0 || request == 0 {
            None
        } else if self.request == 0 || self.request == self.limit {
            Some(request)
        } else {
            let (limit, base) = (u128::from(self.limit), u128::from(self.request));
            Some(scale(request, limit, base, Rounding::Down))
        }
    }

    /// The lowest request whose limit is `limit` or more. None if there is no limit.
    pub(super) fn request_reaching(self, limit: u64) -> Option<u64> {
        if self.limit == 0 {
            None
        } else if self.request == 0 {
            Some(limit)
        } else {
            let (request, whole) = (u128::from(self.request), u128::from(self.limit));
            Some(scale(limit, request, whole, Rounding::Up))
        }
    }

    /// The request whose limit is `bound`. None if there is no limit or no bound.
    ///
    /// `GetBoundaryRequest` (autoscaler `pkg/utils/vpa/limit_and_request_scaling.go`).
    pub(super) fn request_at(self, bound: u64) -> Option<u64> {
        let request = if self.limit == 0 {
            0
        } else if self.request == 0 {
            bound
        } else {
            scale(self.request, u128::from(bound), u128::from(self.limit), Rounding::Down)
        };
        (request > 0).then_some(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_limit_keeps_its_ratio_to_the_request() {
        assert_eq!(Ratio::new(1000, 2000, 0).limit_for(10_000), Some(20_000));
        assert_eq!(Ratio::new(1500, 2000, 0).limit_for(1000), Some(1333), "rounded down");
        assert_eq!(
            Ratio::new(1, 10_000_000_000_000, 0).limit_for(10_000_000_000_000),
            Some(MAX)
        );
    }

    #[test]
    fn a_missing_limit_stays_missing_unless_there_is_a_default() {
        assert_eq!(Ratio::new(1000, 0, 0).limit_for(10_000), None);
        assert_eq!(Ratio::new(1000, 0, 2000).limit_for(10_000), Some(20_000));
    }

    #[test]
    fn a_limit_without_or_equal_to_its_request_follows_the_request() {
        assert_eq!(Ratio::new(0, 2000, 0).limit_for(10_000), Some(10_000));
        assert_eq!(Ratio::new(2000, 2000, 0).limit_for(10_000), Some(10_000));
    }

    #[test]
    fn a_bound_on_the_limit_bounds_the_request() {
        assert_eq!(Ratio::new(1000, 2000, 0).request_at(3000), Some(1500));
        assert_eq!(Ratio::new(0, 2000, 0).request_at(3000), Some(3000));
        assert_eq!(Ratio::new(1000, 0, 0).request_at(3000), None, "no limit to bound");
        assert_eq!(Ratio::new(1000, 2000, 0).request_at(0), None, "no bound");
    }

    proptest! {
        #[test]
        fn the_request_reaching_a_limit_has_that_limit_and_no_higher_one_than_there_was(
            request in 1_u64..=MAX, limit in 1_u64..=MAX, floor in 1_u64..=MAX,
        ) {
            let ratio = Ratio::new(request, limit, 0);
            let floor = floor.min(limit);
            let reached = ratio.request_reaching(floor).and_then(|request| ratio.limit_for(request)).unwrap();
            prop_assert!((floor..=limit).contains(&reached), "{reached}");
        }

        #[test]
        fn the_bounded_request_keeps_its_limit_within_the_bound(
            request in 1_u64..=MAX, limit in 1_u64..=MAX, bound in 1_u64..=MAX,
        ) {
            let ratio = Ratio::new(request, limit, 0);
            if let Some(largest) = ratio.request_at(bound).and_then(|largest| ratio.limit_for(largest)) {
                prop_assert!(largest <= bound);
            }
        }
    }
}
