//! Finds memory limits that an earlier agent grew, and could not save before it was killed.

use std::collections::BTreeMap;

use crate::actuate::{Node, PodHandles};
use crate::cgroup::CgroupError;
use crate::guard::LentLast;
use crate::model::{Bytes, LivePod, MemoryLimit, Target};
use crate::reconcile::inventory::Inventory;

/// The limits in the limit files of an earlier agent, until discovery finds their pods.
#[derive(Debug, Default)]
pub(in crate::agent) struct UnsavedLimits {
    marked: BTreeMap<String, LentLast>,
}

impl UnsavedLimits {
    /// `marked` has the last temporary limits of each pod, by UID. An intact state file is complete for pods without one.
    pub(in crate::agent) fn new(mut marked: BTreeMap<String, LentLast>, state_is_lost: bool) -> Self {
        marked.retain(|_, lent| state_is_lost || !lent.is_empty());
        Self { marked }
    }

    /// The containers of newly found pods that still have their temporary limits. Each pod is in one result only.
    pub(super) fn find(&mut self, node: &Node, inventory: &Inventory) -> BTreeMap<String, BTreeMap<String, Bytes>> {
        let mut found = BTreeMap::new();
        for live in inventory.pods() {
            let Some(lent) = self.marked.remove(&live.id.uid) else {
                continue;
            };
            let held = held(node, live, &lent).unwrap_or_else(|error| {
                tracing::warn!(pod = %live.id, %error, "what was lent to it is taken back");
                BTreeMap::new()
            });
            found.insert(live.id.uid.clone(), held);
        }
        found
    }
}

fn held(node: &Node, live: &LivePod, lent: &LentLast) -> Result<BTreeMap<String, Bytes>, CgroupError> {
    let handles = PodHandles::open(&node.hierarchy, live)?;
    let mut held = BTreeMap::new();
    for (container, to) in lent {
        let Some(cgroup) = handles.get(&Target::Container(container.clone())) else {
            continue;
        };
        if cgroup.memory_limit()? == MemoryLimit::Bytes(node.traits.page.round_down(*to).get()) {
            held.insert(container.clone(), *to);
        }
    }
    Ok(held)
}
