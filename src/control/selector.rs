//! Which pods a caller means by their labels: `app=web,tier!=db,zone in (a,b),!old`. Pure.
//!
//! The notation of `kubectl --selector` (`Parse`, apimachinery `pkg/labels/selector.go`), all of whose requirements must
//! hold.

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;

/// Labels that must or must not be there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selector {
    requirements: Vec<Requirement>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Requirement {
    key: String,
    wanted: Wanted,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Wanted {
    Present,
    Absent,
    In(BTreeSet<String>),
    NotIn(BTreeSet<String>),
}

/// A text that selects nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{part:?} is no requirement on a label: write key=value, key!=value, key in (a,b), key notin (a,b), key or !key"
)]
pub struct SelectorError {
    /// What is not understood.
    pub part: String,
}

impl Selector {
    /// Whether every requirement holds for these labels.
    #[must_use]
    pub fn selects(&self, labels: &BTreeMap<String, String>) -> bool {
        self.requirements.iter().all(|requirement| {
            let value = labels.get(&requirement.key);
            match &requirement.wanted {
                Wanted::Present => value.is_some(),
                Wanted::Absent => value.is_none(),
                Wanted::In(values) => value.is_some_and(|value| values.contains(value)),
                // A label that is not there has none of the values.
                Wanted::NotIn(values) => value.is_none_or(|value| !values.contains(value)),
            }
        })
    }
}

impl FromStr for Selector {
    type Err = SelectorError;

    fn from_str(text: &str) -> Result<Self, SelectorError> {
        let requirements = parts(text).into_iter().map(requirement).collect::<Result<_, _>>()?;
        Ok(Self { requirements })
    }
}

/// The text at its commas, those in parentheses excepted.
fn parts(text: &str) -> Vec<&str> {
    let mut inside = false;
    text.split(|character| {
        match character {
            '(' => inside = true,
            ')' => inside = false,
            _ => {}
        }
        character == ',' && !inside
    })
    .collect()
}

fn requirement(part: &str) -> Result<Requirement, SelectorError> {
    let refused = || SelectorError { part: part.to_owned() };
    let text = part.trim();
    let one = |value: &str| BTreeSet::from([value.trim().to_owned()]);
    let (key, wanted) = if let Some((key, value)) = text.split_once("!=") {
        (key, Wanted::NotIn(one(value)))
    } else if let Some((key, value)) = text.split_once("==").or_else(|| text.split_once('=')) {
        (key, Wanted::In(one(value)))
    } else if let Some(key) = text.strip_prefix('!') {
        (key, Wanted::Absent)
    } else if let Some((head, values)) = text.strip_suffix(')').and_then(|text| text.split_once('(')) {
        let values = values.split(',').map(|value| value.trim().to_owned()).collect();
        match head.trim().rsplit_once(char::is_whitespace) {
            Some((key, "in")) => (key, Wanted::In(values)),
            Some((key, "notin")) => (key, Wanted::NotIn(values)),
            _ => return Err(refused()),
        }
    } else {
        (text, Wanted::Present)
    };
    let key = key.trim();
    let values_fit = match &wanted {
        Wanted::In(values) | Wanted::NotIn(values) => values.iter().all(|value| value.is_empty() || fits(value)),
        Wanted::Present | Wanted::Absent => true,
    };
    if fits(key) && values_fit {
        Ok(Requirement {
            key: key.to_owned(),
            wanted,
        })
    } else {
        Err(refused())
    }
}

/// Whether a text has only the characters that labels may have, and any at all.
fn fits(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selects(selector: &str, labels: &[(&str, &str)]) -> bool {
        let labels = labels
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect();
        selector.parse::<Selector>().unwrap().selects(&labels)
    }

    #[test]
    fn every_requirement_must_hold() {
        let web = [("app", "web"), ("tier", "front"), ("example.com/zone", "a")];
        for selector in [
            "app=web",
            "app == web",
            "app=web,tier!=back",
            "missing!=x",
            "tier in (front, back),app",
            "app notin (db,cache)",
            "!missing",
            "example.com/zone=a",
        ] {
            assert!(selects(selector, &web), "{selector}");
        }
        for selector in [
            "app=db",
            "app=web,tier=back",
            "missing",
            "!app",
            "tier in (back)",
            "app notin (web)",
            "app=",
        ] {
            assert!(!selects(selector, &web), "{selector}");
        }
    }

    #[test]
    fn what_is_no_selector_is_refused_with_the_part_that_is_not_understood() {
        for text in [
            "",
            ",",
            "app=web,",
            "=web",
            "app in web",
            "app in (a",
            "a b",
            "app=a b",
            "app~web",
            "app=(a)",
        ] {
            assert!(text.parse::<Selector>().is_err(), "{text}");
        }
        let error = "app=web,zone in x".parse::<Selector>().unwrap_err().to_string();
        assert!(
            error.starts_with("\"zone in x\" is no requirement on a label: write key=value"),
            "{error}"
        );
    }
}
