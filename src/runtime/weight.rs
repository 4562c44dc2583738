//! Which formula the node's OCI runtime uses to turn shares into weights.
//!
//! The formula is runc's or crun's, and neither CRI nor containerd's version shows which of them runs at what version. Every
//! container shows it: the shares in the runtime's stored spec and the weight in the container's `cpu.weight` are one pair of
//! the formula. In come such pairs; out comes the formula. cgroup v1 has no weights. This module does no I/O.

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

#[cfg(test)]
mod tests {
    use super::*;
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
    fn pairs_that_both_or_neither_formula_explains_say_nothing() {
        assert_eq!(detect([]), None);
        assert_eq!(detect([pair(2, 1), pair(262_144, 10_000), pair(1024, 77)]), None);
        assert_eq!(
            detect([pair(2, 1), pair(1024, 77), pair(102, 17)]),
            Some(WeightFormula::Quadratic)
        );
    }

    #[test]
    fn the_youngest_container_speaks_for_the_runtime_of_now() {
        assert_eq!(
            detect([pair(512, 59), pair(512, 20), pair(1024, 39)]),
            Some(WeightFormula::Quadratic)
        );
    }

    proptest! {
        #[test]
        fn what_a_formula_made_is_never_taken_for_the_other(shares in 0_u64..300_000) {
            let shares = CpuShares::new(shares);
            for formula in [WeightFormula::Linear, WeightFormula::Quadratic] {
                let detected = detect([(shares, formula.weight(shares))]);
                prop_assert!(detected.is_none_or(|detected| detected == formula));
            }
        }
    }
}
