//! Which pod a caller means: `namespace/name`, a UID, or the beginning of a container's id.

use super::error::ControlError;
use super::proto::Pod;

/// Shorter beginnings of container ids are not looked up: they would fit by accident.
const SHORTEST_ID: usize = 4;

/// A name is offered in place of one that fits nothing from this likeness on, 1 being the same.
const ALIKE: f64 = 0.6;
/// At most so many names are offered.
const OFFERED: usize = 3;

/// Finds the one pod that `text` means.
///
/// A name wins over a UID, and a UID over a container id. A container id may carry its runtime, as in `containerd://1f3c…`.
///
/// Errors: [`ControlError::NotFound`] with the names most like it, or [`ControlError::Ambiguous`] with every UID that fits
/// (a pod and its replacement may share a name for a while).
pub fn find_pod<'a>(pods: &'a [Pod], text: &str) -> Result<&'a Pod, ControlError> {
    let by_name = |pod: &Pod| text.split_once('/') == Some((&pod.namespace, &pod.name));
    let by_uid = |pod: &Pod| !text.is_empty() && pod.uid == text;
    let prefix = bare_id(text);
    let by_container = |pod: &Pod| {
        prefix.len() >= SHORTEST_ID
            && pod.containers.iter().any(|container| {
                container
                    .id
                    .as_deref()
                    .is_some_and(|id| bare_id(id).starts_with(prefix))
            })
    };
    let rules: [&dyn Fn(&Pod) -> bool; 3] = [&by_name, &by_uid, &by_container];
    for rule in rules {
        let fitting: Vec<&Pod> = pods.iter().filter(|pod| rule(pod)).collect();
        match fitting.as_slice() {
            [] => {}
            [pod] => return Ok(pod),
            several => {
                return Err(ControlError::Ambiguous {
                    pod: text.to_owned(),
                    candidates: several.iter().map(|pod| pod.uid.clone()).collect(),
                });
            }
        }
    }
    Err(ControlError::NotFound {
        pod: text.to_owned(),
        nearest: nearest(pods, text),
    })
}

/// The names most like `text`, best first. Without a namespace it is compared with the names alone.
fn nearest(pods: &[Pod], text: &str) -> Vec<String> {
    let likeness = |pod: &Pod| match text.split_once('/') {
        Some((namespace, name)) => alike(&pod.namespace, namespace).min(alike(&pod.name, name)),
        None => alike(&pod.name, text),
    };
    let mut all: Vec<(f64, String)> = pods
        .iter()
        .map(|pod| (likeness(pod), format!("{}/{}", pod.namespace, pod.name)))
        .filter(|(likeness, _)| *likeness >= ALIKE)
        .collect();
    all.sort_by(|(a, first), (b, second)| b.total_cmp(a).then_with(|| first.cmp(second)));
    all.dedup();
    all.truncate(OFFERED);
    all.into_iter().map(|(_, name)| name).collect()
}

/// How much two names are alike: 1 is the same. A name that begins as typed is very much so, because pods' names end
/// in generated letters and numbers.
fn alike(name: &str, typed: &str) -> f64 {
    let begun = !typed.is_empty() && name.starts_with(typed);
    let edits = strsim::normalized_damerau_levenshtein(name, typed);
    if begun { edits.max(0.9) } else { edits }
}

/// A container id without the runtime in front of it.
fn bare_id(id: &str) -> &str {
    id.split_once("://").map_or(id, |(_runtime, id)| id)
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
    fn a_pod_answers_to_its_name_its_uid_and_its_containers_ids() {
        for text in ["shop/web", "u-1", "abcd1", "containerd://abcd1111"] {
            assert_eq!(found(text), Ok("u-1".to_owned()), "{text}");
        }
    }

    #[test]
    fn what_fits_nothing_is_not_found() {
        for text in ["", "/", "web", "shop/", "shop/none", "abc", "abcd3", "containerd://"] {
            let answer = found(text);
            assert!(
                matches!(&answer, Err(ControlError::NotFound { pod, .. }) if pod == text),
                "{text}: {answer:?}"
            );
        }
    }

    #[test]
    fn names_like_the_one_that_was_typed_are_offered() {
        let offered = |text: &str| match found(text) {
            Err(ControlError::NotFound { nearest, .. }) => nearest,
            other => panic!("{other:?}"),
        };
        assert_eq!(offered("web"), ["shop/web"]);
        assert_eq!(offered("wbe"), ["shop/web"]);
        assert_eq!(offered("shop/w"), ["shop/web"]);
        assert_eq!(offered("shpo/statik"), ["shop/static"]);
        assert!(offered("shop/none").is_empty());
        assert!(offered("entirely-different").is_empty());
    }

    #[test]
    fn what_fits_several_names_them_all() {
        for (text, uids) in [("abcd", ["u-1", "u-2"]), ("shop/static", ["u-3", "u-4"])] {
            let candidates = uids.map(str::to_owned).to_vec();
            let pod = text.to_owned();
            assert_eq!(found(text), Err(ControlError::Ambiguous { pod, candidates }));
        }
    }
}
