//! Finds the pods that a request names: one by `namespace/name`, a UID, or the beginning of a container's id, or several by
//! their labels: `app=web,tier!=db,zone in (a,b),!old`. Pure.
//!
//! Labels have the notation of `kubectl --selector` (`Parse`, apimachinery `pkg/labels/selector.go`). All requirements of a
//! selector must hold.

use kube::core::{Expression, Selector};

use super::ControlError;
use super::proto::Pod;
use crate::model::objects::{LONGEST_LABEL, LONGEST_SUBDOMAIN};

/// The shortest beginning of a container id: a shorter one would fit by accident.
const SHORTEST_ID: usize = 4;

/// The least likeness of a name to suggest. 1 means equal.
const ALIKE: f64 = 0.6;
/// The most names to suggest.
const OFFERED: usize = 3;
/// The longest text that is compared with names: no pod has a longer one. The comparison takes the product of both lengths, for
/// each pod, and no other task runs meanwhile.
pub(super) const LONGEST_NAME: usize = LONGEST_LABEL + 1 + LONGEST_SUBDOMAIN;

/// Finds the one pod that `text` names.
///
/// A name wins over a UID, and a UID over a container id. A container id may carry its runtime, as in `containerd://1f3c…`.
///
/// Errors: [`ControlError::NotFound`] with the most similar names, or [`ControlError::Invalid`] with every UID that fits
/// (a pod and its replacement may share a name for a while).
pub fn find_pod<'a>(pods: &'a [Pod], text: &str) -> Result<&'a Pod, ControlError> {
    let by_name = |pod: &Pod| text.split_once('/') == Some((&pod.namespace, &pod.name));
    let by_uid = |pod: &Pod| !text.is_empty() && pod.uid == text;
    let by_container = |pod: &Pod| {
        let mut ids = pod.containers.iter().filter_map(|container| container.id.as_deref());
        ids.any(|id| names_container(text, id))
    };
    let rules: [&dyn Fn(&Pod) -> bool; 3] = [&by_name, &by_uid, &by_container];
    for rule in rules {
        let fitting: Vec<&Pod> = pods.iter().filter(|pod| rule(pod)).collect();
        match fitting.as_slice() {
            [] => {}
            [pod] => return Ok(pod),
            several => {
                let uids: Vec<&str> = several.iter().map(|pod| pod.uid.as_str()).collect();
                let fitting = format!("{text:?} fits {}: name one of them", uids.join(" and "));
                return Err(ControlError::Invalid(fitting));
            }
        }
    }
    Err(ControlError::no_pod(text, &nearest(pods, text)))
}

/// The names most like `text`, best first. A text without a namespace is compared with the names alone.
fn nearest(pods: &[Pod], text: &str) -> Vec<String> {
    if text.len() > LONGEST_NAME {
        return Vec::new();
    }
    let likeness = |pod: &Pod| match text.split_once('/') {
        Some((namespace, name)) => alike(&pod.namespace, namespace).min(alike(&pod.name, name)),
        None => alike(&pod.name, text),
    };
    let all = pods
        .iter()
        .map(|pod| (likeness(pod), format!("{}/{}", pod.namespace, pod.name)));
    let mut all: Vec<_> = all.filter(|(likeness, _)| *likeness >= ALIKE).collect();
    all.sort_by(|(a, first), (b, second)| b.total_cmp(a).then_with(|| first.cmp(second)));
    all.dedup();
    all.into_iter().map(|(_, name)| name).take(OFFERED).collect()
}

/// The likeness of two names: 1 means equal. A name that begins with the typed text is very similar, because pods' names
/// end in generated letters and numbers.
fn alike(name: &str, typed: &str) -> f64 {
    let begun = !typed.is_empty() && name.starts_with(typed);
    let edits = strsim::normalized_damerau_levenshtein(name, typed);
    if begun { edits.max(0.9) } else { edits }
}

/// Whether the text is the beginning of the container's id. Both may carry the runtime, as in `containerd://1f3c…`.
pub fn names_container(text: &str, id: &str) -> bool {
    let prefix = bare_id(text);
    prefix.len() >= SHORTEST_ID && bare_id(id).starts_with(prefix)
}

/// The container id without the scheme of its runtime.
fn bare_id(id: &str) -> &str {
    id.split_once("://").map_or(id, |(_runtime, id)| id)
}

/// Parses requirements on labels.
///
/// Errors: the mistake in the text, for people.
pub fn selector(text: &str) -> Result<Selector, String> {
    const ALLOWED: &str = "write key=value, key!=value, key in (a,b), key notin (a,b), key or !key";
    let refused = |part| format!("{part:?} is no requirement on a label: {ALLOWED}");
    let read = |part| expression(part).ok_or_else(|| refused(part));
    parts(text).into_iter().map(read).collect()
}

/// Splits the text at its commas, except those in parentheses.
fn parts(text: &str) -> Vec<&str> {
    let mut inside = false;
    text.split(|character: char| {
        inside = character == '(' || (inside && character != ')');
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

/// Whether a text is not empty and has only the characters of labels.
fn fits(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte);
    !text.is_empty() && text.bytes().all(is_allowed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::proto::Container;

    fn pod(name: &str, uid: &str, container_id: &str) -> Pod {
        Pod {
            namespace: "shop".to_owned(),
            name: name.to_owned(),
            uid: uid.to_owned(),
            containers: vec![Container {
                id: Some(container_id.to_owned()),
                ..Container::default()
            }],
            ..Pod::default()
        }
    }

    fn found(text: &str) -> Result<String, ControlError> {
        let pods = [
            pod("web", "u-1", "containerd://abcd1111"),
            pod("db", "u-2", "abcd2222"),
            pod("static", "u-3", "eeee3333"),
            pod("static", "u-4", "ffff4444"),
        ];
        find_pod(&pods, text).map(|pod| pod.uid.clone())
    }

    #[test]
    fn a_pod_is_found_by_name_uid_or_container_id() {
        for text in ["shop/web", "u-1", "abcd1", "containerd://abcd1111"] {
            assert_eq!(found(text), Ok("u-1".to_owned()), "{text}");
        }
    }

    #[test]
    fn what_fits_nothing_is_not_found() {
        for text in ["", "/", "web", "shop/", "shop/none", "abc", "abcd3", "containerd://"] {
            let answer = found(text);
            let named = format!("is called {text:?}");
            assert!(
                matches!(&answer, Err(ControlError::NotFound(why)) if why.contains(&named)),
                "{text}: {answer:?}"
            );
        }
    }

    /// The names in the error of a pod that is not found.
    fn offered(error: &ControlError) -> Vec<String> {
        let text = error.to_string();
        let offer = text
            .split_once("(did you mean ")
            .and_then(|(_, rest)| rest.split_once("?)"));
        let names = offer.into_iter().flat_map(|(names, _)| names.split(" or "));
        names.map(str::to_owned).collect()
    }

    #[test]
    fn similar_names_are_offered() {
        let offered = |text: &str| offered(&found(text).unwrap_err());
        assert_eq!(offered("web"), ["shop/web"]);
        assert_eq!(offered("wbe"), ["shop/web"]);
        assert_eq!(offered("shop/w"), ["shop/web"]);
        assert_eq!(offered("shpo/statik"), ["shop/static"]);
        assert!(offered("shop/none").is_empty());
        assert!(offered("entirely-different").is_empty());
    }

    #[test]
    fn an_endless_name_is_compared_with_none() {
        let pods = [pod(&"x".repeat(1000), "u-1", "abcd1111")];
        let offered = |length| offered(&find_pod(&pods, &"x".repeat(length)).unwrap_err()).len();
        assert_eq!((offered(317), offered(318)), (1, 0));
    }

    #[test]
    fn what_fits_several_names_them_all() {
        for (text, why) in [
            ("abcd", "\"abcd\" fits u-1 and u-2: name one of them"),
            ("shop/static", "\"shop/static\" fits u-3 and u-4: name one of them"),
        ] {
            assert_eq!(found(text), Err(ControlError::Invalid(why.to_owned())));
        }
    }
}

#[cfg(test)]
mod selector_tests {
    use super::*;
    use kube::core::SelectorExt;

    fn selects(selector: &str, labels: &[(&str, &str)]) -> bool {
        let labels = labels
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect();
        super::selector(selector).unwrap().matches(&labels)
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
    fn a_bad_selector_is_refused_with_its_part() {
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
            assert!(selector(text).is_err(), "{text}");
        }
        let error = selector("app=web,zone in x").unwrap_err();
        assert!(
            error.starts_with("\"zone in x\" is no requirement on a label: write key=value"),
            "{error}"
        );
    }
}
