//! Which pods a caller means by their labels: `app=web,tier!=db,zone in (a,b),!old`. Pure.
//!
//! The notation of `kubectl --selector` (`Parse`, apimachinery `pkg/labels/selector.go`), all of whose requirements must
//! hold.

use std::collections::BTreeMap;
use std::str::FromStr;

use kube::core::{self, Expression, SelectorExt};

/// Labels that must or must not be there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selector(core::Selector);

/// A text that selects nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{part:?} is no requirement on a label: write key=value, key!=value, key in (a,b), key notin (a,b), key or !key"
)]
pub struct SelectorError {
    pub part: String,
}

impl Selector {
    /// Whether every requirement holds for these labels.
    #[must_use]
    pub fn selects(&self, labels: &BTreeMap<String, String>) -> bool {
        self.0.matches(labels)
    }
}

impl FromStr for Selector {
    type Err = SelectorError;

    fn from_str(text: &str) -> Result<Self, SelectorError> {
        let read = |part: &str| expression(part).ok_or_else(|| SelectorError { part: part.to_owned() });
        let expressions: core::Selector = parts(text).into_iter().map(read).collect::<Result<_, _>>()?;
        Ok(Self(expressions))
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

fn expression(part: &str) -> Option<Expression> {
    let part = part.trim();
    let key = |text: &str| Some(text.trim().to_owned()).filter(|key| fits(key));
    let value = |text: &str| Some(text.trim().to_owned()).filter(|value| value.is_empty() || fits(value));
    if let Some((name, text)) = part.split_once("!=") {
        Some(Expression::NotEqual(key(name)?, value(text)?))
    } else if let Some((name, text)) = part.split_once("==").or_else(|| part.split_once('=')) {
        Some(Expression::Equal(key(name)?, value(text)?))
    } else if let Some(name) = part.strip_prefix('!') {
        Some(Expression::DoesNotExist(key(name)?))
    } else if let Some((head, values)) = part.strip_suffix(')').and_then(|part| part.split_once('(')) {
        let values = values.split(',').map(value).collect::<Option<_>>()?;
        match head.trim().rsplit_once(char::is_whitespace)? {
            (name, "in") => Some(Expression::In(key(name)?, values)),
            (name, "notin") => Some(Expression::NotIn(key(name)?, values)),
            _ => None,
        }
    } else {
        Some(Expression::Exists(key(part)?))
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
