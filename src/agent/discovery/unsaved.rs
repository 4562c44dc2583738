//! Memory limits that an earlier agent grew and was killed before it saved them: the limit is there, and nothing says why.

use std::collections::BTreeMap;

use crate::actuate::{Node, PodHandles};
use crate::cgroup::CgroupError;
use crate::guard::LentLast;
use crate::model::{Bytes, LivePod, MemoryLimit, Target};
use crate::reconcile::inventory::Inventory;

/// What the marks of an earlier agent say, until their pods are found.
#[derive(Debug, Default)]
pub(in crate::agent) struct UnsavedLimits {
    marked: BTreeMap<String, LentLast>,
}

impl UnsavedLimits {
    /// `marked` is what each pod was lent last. An intact state file says of the pods without a temporary limit
    /// all there is to know.
    pub(in crate::agent) fn new(mut marked: BTreeMap<String, LentLast>, state_is_lost: bool) -> Self {
        marked.retain(|_, lent| state_is_lost || !lent.is_empty());
        Self { marked }
    }

    /// Which containers of the pods that are found now still hold what they were lent. Each pod is told of once.
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
