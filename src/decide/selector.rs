//! Label selectors, with the API's semantics (`LabelSelectorAsSelector`, apimachinery `pkg/apis/meta/v1/helpers.go`).

use std::collections::BTreeMap;

use crate::model::objects::{LabelSelector, SelectorRequirement};

/// Whether every requirement holds. A selector without requirements selects everything; one that the
/// API would refuse selects nothing.
pub(super) fn selects(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> bool {
    let equal = selector
        .match_labels
        .iter()
        .all(|(key, value)| labels.get(key) == Some(value));
    equal
        && selector
            .match_expressions
            .iter()
            .all(|requirement| holds(requirement, labels))
}

fn holds(requirement: &SelectorRequirement, labels: &BTreeMap<String, String>) -> bool {
    let values = &requirement.values;
    let label = labels.get(&requirement.key);
    match requirement.operator.as_str() {
        "In" => label.is_some_and(|label| values.contains(label)),
        // An absent label is not in any set. An empty set is malformed.
        "NotIn" => !values.is_empty() && label.is_none_or(|label| !values.contains(label)),
        "Exists" => values.is_empty() && label.is_some(),
        "DoesNotExist" => values.is_empty() && label.is_none(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requirement(operator: &str, values: &[&str]) -> SelectorRequirement {
        SelectorRequirement {
            key: "tier".to_owned(),
            operator: operator.to_owned(),
            values: values.iter().map(|value| (*value).to_owned()).collect(),
        }
    }

    fn holds_for(tier: Option<&str>, operator: &str, values: &[&str]) -> bool {
        let labels = tier
            .map(|tier| ("tier".to_owned(), tier.to_owned()))
            .into_iter()
            .collect();
        let selector = LabelSelector {
            match_expressions: vec![requirement(operator, values)],
            ..LabelSelector::default()
        };
        selects(&selector, &labels)
    }

    #[test]
    fn expressions_mean_what_the_api_says() {
        assert!(holds_for(Some("db"), "In", &["web", "db"]));
        assert!(!holds_for(None, "In", &["db"]));
        assert!(!holds_for(Some("db"), "NotIn", &["db"]));
        assert!(holds_for(None, "NotIn", &["db"]));
        assert!(holds_for(Some("db"), "Exists", &[]));
        assert!(!holds_for(None, "Exists", &[]));
        assert!(holds_for(None, "DoesNotExist", &[]));
        assert!(!holds_for(Some("db"), "DoesNotExist", &[]));
    }

    #[test]
    fn a_malformed_expression_selects_nothing() {
        for tier in [None, Some("db")] {
            assert!(!holds_for(tier, "In", &[]));
            assert!(!holds_for(tier, "NotIn", &[]));
            assert!(!holds_for(tier, "Exists", &["db"]));
            assert!(!holds_for(tier, "DoesNotExist", &["db"]));
            assert!(!holds_for(tier, "Gt", &["1"]));
        }
    }

    #[test]
    fn labels_and_expressions_must_all_hold() {
        let labels = BTreeMap::from([("app".to_owned(), "web".to_owned())]);
        let mut selector = LabelSelector::default();
        assert!(selects(&selector, &labels), "no requirement at all");
        selector.match_labels.clone_from(&labels);
        assert!(selects(&selector, &labels));
        selector.match_expressions.push(requirement("Exists", &[]));
        assert!(!selects(&selector, &labels));
    }
}
