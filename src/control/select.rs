//! Which pod a caller means: `namespace/name`, a UID, or the beginning of a container's id.

use super::backend::ControlError;
use super::proto::Pod;

/// Shorter beginnings of container ids are not looked up: they would fit by accident.
const SHORTEST_ID: usize = 4;

/// Finds the one pod that `text` means.
///
/// A name wins over a UID, and a UID over a container id. A container id may carry its runtime, as in `containerd://1f3c…`.
///
/// # Errors
/// [`ControlError::NotFound`], or [`ControlError::Ambiguous`] with every UID that fits (a pod and its replacement may
/// share a name for a while).
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
    Err(ControlError::NotFound { pod: text.to_owned() })
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
            assert_eq!(
                found(text),
                Err(ControlError::NotFound { pod: text.to_owned() }),
                "{text}"
            );
        }
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
