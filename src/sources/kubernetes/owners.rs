//! The workloads above local pods, read one by one and kept. Pure, apart from [`fetch`].
//!
//! The agent does not watch workloads: owners and selectors hardly ever change while pods live, and every node would
//! receive every change of every workload. The agent reads a workload again after a day, and when a pod names another UID.

use std::collections::{BTreeMap, BTreeSet};
use std::iter::successors;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use super::kinds;
use super::view::may_have_vpa;
use crate::kubernetes::{ApiClient, ApiError, Call, LocalWorkloads, Problem, Timing, Verb, reduce, strip_nulls};
use crate::model::objects::{ObjectMeta, Owner, OwnerKind, Pod, Shared};
use crate::pace::{Backoff, scattered};
use crate::sources::workload::{self, Workload};

/// The most levels of owners. Only a cycle has more.
const MOST_LEVELS: usize = 8;

/// The largest size of a kept workload, in bytes of JSON. Each pod may have eight.
const LARGEST_OWNER: usize = 8 << 10;

/// A workload as an owner reference names it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct OwnerKey {
    pub(super) namespace: String,
    pub(super) kind: OwnerKind,
    pub(super) name: String,
    pub(super) uid: String,
}

/// How long a workload counts as current. Scattered. The two workloads above each pod of a full node must not
/// cost a request a minute.
const REFRESH_AFTER: Duration = Duration::from_secs(24 * 60 * 60);

/// The workloads above the pods of a namespace, and the time of the next request for each.
#[derive(Debug, Default)]
pub(super) struct Owners {
    pub(super) timing: Timing,
    pub(super) slots: BTreeMap<OwnerKey, CachedOwner>,
}

#[derive(Debug)]
pub(super) struct CachedOwner {
    /// The latest answer. The inner none means that the workload does not exist.
    pub(super) answer: Option<Option<Shared<Owner>>>,
    /// The time of the next request; none while a request is under way.
    pub(super) due: Option<Instant>,
    backoff: Backoff,
    pub(super) problem: Option<ApiError>,
}

impl Owners {
    /// Climbs from an object to its topmost well-known workload, if there is one. Adds the keys on the way to `passed`.
    ///
    /// Errors: the first unknown workload.
    pub(super) fn climb(
        &self,
        from: &ObjectMeta,
        passed: &mut BTreeSet<OwnerKey>,
    ) -> Result<Option<(OwnerKind, String)>, OwnerKey> {
        let mut top = None;
        let mut next = key_of_controller(from);
        for _ in 0..MOST_LEVELS {
            let Some(key) = next else { break };
            let Some(answer) = self.slots.get(&key).and_then(|slot| slot.answer.as_ref()) else {
                return Err(key);
            };
            passed.insert(key.clone());
            let Some(owner) = answer else { break };
            next = key_of_controller(&owner.metadata);
            top = Some((key.kind, key.name));
        }
        Ok(top)
    }

    /// The names of the workloads that own local pods or may own them: of each controller on the way up, as far as it is known,
    /// and the name from which a controller derives its own, such as `web` of the ReplicaSet `web-5c`. None if no VPA can target a pod.
    pub(super) fn local(&self, pods: &[Arc<Pod>]) -> Option<LocalWorkloads> {
        let mut local = None;
        for pod in pods.iter().filter(|pod| may_have_vpa(pod)) {
            let names: &mut LocalWorkloads = local.get_or_insert_default();
            let levels = successors(Some(&pod.metadata), |below| self.known_controller(below));
            for controller in levels.take(MOST_LEVELS).filter_map(ObjectMeta::controller) {
                let name = &controller.name;
                names.insert(name.clone());
                names.extend(name.rsplit_once('-').map(|(above, _)| above.to_owned()));
            }
        }
        local
    }

    fn known_controller(&self, of: &ObjectMeta) -> Option<&ObjectMeta> {
        let slot = self.slots.get(&key_of_controller(of)?)?;
        Some(&slot.answer.as_ref()?.as_ref()?.metadata)
    }

    /// Stores an answer. After a failure, a backoff delays the next request.
    pub(super) fn store(&mut self, key: OwnerKey, answer: Result<Option<Owner>, ApiError>, now: Instant) {
        let slot = self.slot(key, now);
        match answer {
            Ok(owner) => {
                slot.due = Some(now + scattered(REFRESH_AFTER));
                slot.backoff.reset();
                (slot.answer, slot.problem) = (Some(owner.map(Shared::from)), None);
            }
            Err(error) => {
                let before = slot.problem.as_ref().map(ToString::to_string);
                // An outage has a line of its own.
                if !error.problem.is_silence() && before != Some(error.to_string()) {
                    tracing::warn!("{error}");
                }
                slot.due = Some(now + slot.backoff.next(error.problem.retry_after()));
                slot.problem = Some(error);
            }
        }
    }

    /// Takes the keys to request now: unknown ones, and passed ones that are stale. Forgets the workloads
    /// that are in neither set.
    pub(super) fn take_due(
        &mut self,
        needed: &BTreeSet<OwnerKey>,
        passed: &BTreeSet<OwnerKey>,
        now: Instant,
    ) -> Vec<OwnerKey> {
        for key in needed {
            self.slot(key.clone(), now);
        }
        self.slots
            .retain(|key, slot| slot.due.is_none() || needed.contains(key) || passed.contains(key));
        let due = self.slots.iter_mut().filter_map(|(key, slot)| {
            slot.due.take_if(|at| *at <= now)?;
            Some(key.clone())
        });
        due.collect()
    }

    fn slot(&mut self, key: OwnerKey, now: Instant) -> &mut CachedOwner {
        self.slots.entry(key).or_insert_with(|| CachedOwner {
            answer: None,
            due: Some(now),
            backoff: Backoff::new(self.timing.first_pause, self.timing.longest_pause),
            problem: None,
        })
    }

    /// Whether requests for a workload are refused until a change of rules, or the workload cannot be read.
    pub(super) fn is_refused(&self, key: &OwnerKey) -> bool {
        let problem = self.slots.get(key).and_then(|slot| slot.problem.as_ref());
        problem.is_some_and(|error| error.problem.is_denial() || matches!(error.problem, Problem::Unreadable(_)))
    }
}

/// The controller of an object, if its kind is well-known.
fn key_of_controller(metadata: &ObjectMeta) -> Option<OwnerKey> {
    let reference = metadata.controller()?;
    Some(OwnerKey {
        namespace: metadata.namespace.clone(),
        kind: OwnerKind::of(&reference.api_version, &reference.kind)?,
        name: reference.name.clone(),
        uid: reference.uid.clone(),
    })
}

/// Requests a workload. None if no workload has this UID.
///
/// Errors: also a 404 of a proxy, which says nothing of the workload.
pub(super) async fn fetch(client: &ApiClient, key: &OwnerKey) -> Result<Option<Owner>, ApiError> {
    let (mut is_known, mut unserved) = (false, None);
    for kind in kinds::workloads(key.kind) {
        let call = Call::new(Verb::Get, kind).within(Some(&key.namespace)).named(&key.name);
        // First from the API server's cache, which may lack a new workload, or have an earlier one of its name.
        for (call, is_latest) in [(call.clone().with("resourceVersion", "0"), false), (call, true)] {
            match client.read::<Value>(&call).await {
                Ok(value) => {
                    if let Some(owner) = owner(&call, key, value)? {
                        return Ok(Some(owner));
                    }
                    is_known |= is_latest;
                }
                Err(error) if error.problem.names_no_object() => is_known |= is_latest,
                Err(error) if error.problem.status() == Some(404) => unserved = Some(error),
                Err(error) => return Err(error),
            }
        }
    }
    let unknown = unserved.filter(|_| !is_known);
    tracing::debug!(?key, ?unknown, "an owner of a pod was not found");
    unknown.map_or(Ok(None), Err)
}

fn owner(call: &Call, key: &OwnerKey, mut value: Value) -> Result<Option<Owner>, ApiError> {
    strip_nulls(&mut value);
    workload::in_one_notation(key.kind, &mut value);
    let unreadable = |why: String| ApiError::of(call, Problem::Unreadable(why));
    let workload: Workload = serde_path_to_error::deserialize(value).map_err(|error| unreadable(error.to_string()))?;
    let mut owner = workload.into_owner(key.kind);
    let (size, _) = reduce(&mut owner).map_err(unreadable)?;
    if size > LARGEST_OWNER {
        return Err(unreadable(format!(
            "the fields of the workload that vscaled reads take {size} bytes; allowed are {LARGEST_OWNER}"
        )));
    }
    // A later workload of the same name does not own these pods.
    Ok(Some(owner).filter(|owner| owner.metadata.uid == key.uid))
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn a_workload_that_is_too_large_cannot_be_read() {
        for (count, is_kept) in [(60, true), (100, false)] {
            // Of about a hundred bytes each.
            let labels = (0..count).map(|number| (format!("label-{number}"), json!("x".repeat(80))));
            let labels: serde_json::Map<_, _> = labels.collect();
            let selector = json!({"matchLabels": labels});
            let metadata = json!({"name": "web", "namespace": "shop", "uid": "r"});
            let answer = json!({"metadata": metadata, "spec": {"selector": selector}}).to_string();
            let client = ApiClient::to(&Router::new().fallback(async move || answer.clone()));
            let key = OwnerKey {
                namespace: "shop".to_owned(),
                kind: OwnerKind::ReplicaSet,
                name: "web".to_owned(),
                uid: "r".to_owned(),
            };
            let read = fetch(&client, &key).await;
            let why = read.as_ref().err().map(ToString::to_string);
            assert_eq!(read.is_ok_and(|owner| owner.is_some()), is_kept);
            assert!(why.is_none_or(|why| why.ends_with("; allowed are 8192")), "{count}");
        }
    }
}
