//! The workloads above local pods: asked for one by one when a pod first needs them, and kept. Pure, apart from [`fetch`].
//!
//! Not watched: an owner's owner and its selector hardly ever change while its pods live, and every node would be told of
//! every change of every workload. What is kept is asked for again after a while, and when a pod names another UID.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use tokio::time::Instant;

use super::kinds;
use crate::kubernetes::{ApiClient, ApiError, Call, Problem, Verb, strip_nulls};
use crate::model::objects::{ObjectMeta, Owner, OwnerKind, OwnerReference};
use crate::sources::workload::{self, Workload};

/// Nothing is owned over more levels than this; only a circle goes on for ever.
const HIGHEST: usize = 8;

/// A workload, as those it owns name it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct OwnerKey {
    pub(super) namespace: String,
    pub(super) kind: OwnerKind,
    pub(super) name: String,
    pub(super) uid: String,
}

/// What is known of the workloads above pods.
#[derive(Debug, Default)]
pub(super) struct Owners(BTreeMap<OwnerKey, Slot>);

#[derive(Debug)]
struct Slot {
    /// None: there is no such workload (any more).
    owner: Option<Owner>,
    stale_at: Instant,
}

/// How far the way up from a pod is known.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Climb {
    /// To its end: the topmost workload, if there is one.
    Top(Option<(OwnerKind, String)>),
    /// This workload is not known yet.
    Unknown(OwnerKey),
}

impl Owners {
    /// Climbs from an object to its topmost well-known workload. Keys passed on the way are noted.
    pub(super) fn climb(&self, from: &ObjectMeta, passed: &mut BTreeSet<OwnerKey>) -> Climb {
        let mut top = None;
        let mut next = key_of_controller(from);
        for _ in 0..HIGHEST {
            let Some(key) = next else { break };
            let Some(slot) = self.0.get(&key) else {
                return Climb::Unknown(key);
            };
            passed.insert(key.clone());
            let Some(owner) = &slot.owner else { break };
            next = key_of_controller(&owner.metadata);
            top = Some((key.kind, key.name));
        }
        Climb::Top(top)
    }

    pub(super) fn put(&mut self, key: OwnerKey, owner: Option<Owner>, stale_at: Instant) {
        self.0.insert(key, Slot { owner, stale_at });
    }

    /// Forgets what nobody passes any more.
    pub(super) fn retain(&mut self, passed: &BTreeSet<OwnerKey>) {
        self.0.retain(|key, _| passed.contains(key));
    }

    /// What should be asked for again.
    pub(super) fn stale(&self, now: Instant) -> impl Iterator<Item = &OwnerKey> {
        self.0
            .iter()
            .filter(move |(_, slot)| slot.stale_at <= now)
            .map(|(key, _)| key)
    }

    /// When something should next be asked for again.
    pub(super) fn next_stale(&self) -> Option<Instant> {
        self.0.values().map(|slot| slot.stale_at).min()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Owner> {
        self.0.values().filter_map(|slot| slot.owner.as_ref())
    }
}

/// The controller of an object, if it is of a well-known kind; of several the last, as upstream.
fn key_of_controller(metadata: &ObjectMeta) -> Option<OwnerKey> {
    let reference = controller(metadata)?;
    Some(OwnerKey {
        namespace: metadata.namespace.clone(),
        kind: OwnerKind::named(&reference.kind)?,
        name: reference.name.clone(),
        uid: reference.uid.clone(),
    })
}

/// The managing controller of an object.
pub(super) fn controller(metadata: &ObjectMeta) -> Option<&OwnerReference> {
    let mut references = metadata.owner_references.iter().rev();
    references.find(|reference| reference.controller == Some(true))
}

/// Asks for a workload. None if there is none of this UID.
pub(super) async fn fetch(client: &ApiClient, key: &OwnerKey) -> Result<Option<Owner>, ApiError> {
    let mut missing = None;
    for kind in kinds::workloads(key.kind) {
        let call = Call::new(Verb::Get, kind).within(Some(&key.namespace)).named(&key.name);
        // The API server's cache will do, unless it has not heard of the workload yet.
        for call in [call.clone().with("resourceVersion", "0"), call] {
            match client.read::<Value>(&call).await {
                Ok(value) => return owner(&call, key, value),
                Err(error) if matches!(error.problem, Problem::NotFound(_)) => missing = Some(error),
                Err(error) => return Err(error),
            }
        }
    }
    tracing::debug!(?missing, "an owner of a pod is not there");
    Ok(None)
}

fn owner(call: &Call, key: &OwnerKey, mut value: Value) -> Result<Option<Owner>, ApiError> {
    strip_nulls(&mut value);
    workload::in_one_notation(key.kind, &mut value);
    let workload: Workload = serde_path_to_error::deserialize(value).map_err(|error| ApiError {
        call: call.to_string(),
        problem: Problem::Unreadable(error.to_string()),
    })?;
    let mut owner = workload.into_owner(key.kind);
    owner.metadata.resource_version.clear();
    owner.metadata.annotations.clear();
    owner.metadata.labels.clear();
    // A namesake that came later owns none of these pods.
    Ok(Some(owner).filter(|owner| owner.metadata.uid == key.uid))
}
