//! Which formula the node's OCI runtime uses to turn shares into weights.
//!
//! The formula is runc's or crun's, and neither CRI nor containerd's version shows which of them runs at what version. Every
//! container shows it: the cpu request of its spec, or the shares in the runtime's stored spec, and the weight in the container's
//! `cpu.weight` are one pair of the formula. In come such pairs; out comes the formula. cgroup v1 has no weights. This module does no I/O.

use std::cmp::Ordering;

use crate::model::{CpuShares, CpuWeight, WeightFormula};

/// The newest runtimes' formula, which the agent assumes until a pair shows the formula.
///
/// A wrong assumption costs one resize: its weight reads back as the other formula's, and that pair corrects the assumption.
pub const ASSUMED: WeightFormula = WeightFormula::Quadratic;

/// The formula of the first pair that only one formula explains.
///
/// Give the youngest containers first: after an upgrade of the OCI runtime, older containers still have weights of the old
/// formula. Pairs that both formulas explain (2 shares or fewer, 262144 or more) and pairs that neither explains (another
/// process wrote the weight) are skipped.
pub fn detect(pairs: impl IntoIterator<Item = (CpuShares, CpuWeight)>) -> Option<WeightFormula> {
    pairs.into_iter().find_map(|(shares, weight)| {
        let explains = |formula: WeightFormula| formula.weight(shares) == weight;
        match (explains(WeightFormula::Linear), explains(WeightFormula::Quadratic)) {
            (true, false) => Some(WeightFormula::Linear),
            (false, true) => Some(WeightFormula::Quadratic),
            _ => None,
        }
    })
}

/// How many of the youngest containers [`agreed`] hears.
pub const WITNESSES: usize = 5;

/// The formula that most of the youngest containers show; the youngest is last. `None` if as many show the one as the other.
///
/// A container whose weight another process wrote may show the wrong formula, so one container does not overrule two. After an
/// upgrade of the OCI runtime, three new containers are enough on every node.
pub fn agreed(shown: &[WeightFormula]) -> Option<WeightFormula> {
    let youngest = &shown[shown.len().saturating_sub(WITNESSES)..];
    let of = |formula: WeightFormula| youngest.iter().filter(|shown| **shown == formula).count();
    match of(WeightFormula::Linear).cmp(&of(WeightFormula::Quadratic)) {
        Ordering::Greater => Some(WeightFormula::Linear),
        Ordering::Less => Some(WeightFormula::Quadratic),
        Ordering::Equal => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::MilliCpu;
    use proptest::prelude::*;

    fn pair(shares: u64, weight: u64) -> (CpuShares, CpuWeight) {
        (CpuShares::new(shares), CpuWeight::new(weight))
    }

    #[test]
    fn one_telling_pair_is_enough() {
        assert_eq!(detect([pair(1024, 39)]), Some(WeightFormula::Linear));
        assert_eq!(detect([pair(1024, 100)]), Some(WeightFormula::Quadratic));
    }

    #[test]
    fn ambiguous_weights_show_no_formula() {
        assert_eq!(detect([]), None);
        assert_eq!(detect([pair(2, 1), pair(262_144, 10_000), pair(1024, 77)]), None);
        assert_eq!(
            detect([pair(2, 1), pair(1024, 77), pair(102, 17)]),
            Some(WeightFormula::Quadratic)
        );
    }

    #[test]
    fn the_youngest_container_shows_the_formula() {
        assert_eq!(
            detect([pair(512, 59), pair(512, 20), pair(1024, 39)]),
            Some(WeightFormula::Quadratic)
        );
    }

    proptest! {
        #[test]
        fn no_formula_is_taken_for_the_other(shares in 0_u64..300_000) {
            let shares = CpuShares::new(shares);
            for formula in [WeightFormula::Linear, WeightFormula::Quadratic] {
                let detected = detect([(shares, formula.weight(shares))]);
                prop_assert!(detected.is_none_or(|detected| detected == formula));
            }
        }

        #[test]
        fn a_majority_of_containers_is_an_upgrade(
            older in proptest::collection::vec(any::<bool>(), 0..8), liars in proptest::sample::subsequence(vec![0, 1, 2, 3, 4], 2),
        ) {
            let formula = |linear| if linear { WeightFormula::Linear } else { WeightFormula::Quadratic };
            let mut shown: Vec<_> = older.into_iter().map(formula).collect();
            shown.extend((0..WITNESSES).map(|witness| formula(liars.contains(&witness))));
            prop_assert_eq!(agreed(&shown), Some(WeightFormula::Quadratic));
            shown.extend([WeightFormula::Linear; 3]);
            prop_assert_eq!(agreed(&shown), Some(WeightFormula::Linear));
        }

        #[test]
        fn containers_that_agree_show_the_formula(linear: bool, milli in proptest::collection::vec(0_u64..300_000, 1..8)) {
            let formula = if linear { WeightFormula::Linear } else { WeightFormula::Quadratic };
            let shares = milli.into_iter().map(|milli| CpuShares::from(MilliCpu::new(milli)));
            let shown: Vec<_> = shares.filter_map(|shares| detect([(shares, formula.weight(shares))])).collect();
            prop_assert!(agreed(&shown) == (!shown.is_empty()).then_some(formula));
        }
    }
}
