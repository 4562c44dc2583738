//! Finds pods, managed or not, whose memory limit is below those of their containers. Reads changed pods only.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::actuate::{Node, PodHandles};
use crate::model::LivePod;
use crate::model::objects::Pod;
use crate::plan::LowPodLevel;
use crate::reconcile::inventory::Inventory;

/// The result for each pod, by UID, and the objects behind it.
#[derive(Debug, Default)]
pub(super) struct PodLevels {
    read: BTreeMap<String, PodLevel>,
}

#[derive(Debug)]
struct PodLevel {
    live: Arc<LivePod>,
    object: Arc<Pod>,
    low: Option<LowPodLevel>,
}

impl PodLevels {
    /// The pods whose cgroup allows less memory than their containers' do together, by UID.
    pub(super) fn find(
        &mut self,
        node: &Node,
        inventory: &Inventory,
        pods: &[Arc<Pod>],
    ) -> BTreeMap<String, LowPodLevel> {
        let mut earlier = std::mem::take(&mut self.read);
        for object in pods {
            let Some(live) = inventory.find(object) else { continue };
            let known = earlier.remove(&live.id.uid).filter(|known| known.is_of(object, live));
            let level = known.unwrap_or_else(|| PodLevel {
                live: Arc::clone(live),
                object: Arc::clone(object),
                low: read(node, live, object),
            });
            self.read.insert(live.id.uid.clone(), level);
        }
        let low = |(uid, level): (&String, &PodLevel)| Some((uid.clone(), level.low?));
        self.read.iter().filter_map(low).collect()
    }
}

impl PodLevel {
    /// Whether the result still holds. A low limit is read again, because another process may have raised it.
    fn is_of(&self, object: &Arc<Pod>, live: &Arc<LivePod>) -> bool {
        self.low.is_none() && *self.live == **live && (Arc::ptr_eq(&self.object, object) || self.object == *object)
    }
}

fn read(node: &Node, live: &LivePod, object: &Pod) -> Option<LowPodLevel> {
    let held = PodHandles::open(&node.hierarchy, live).and_then(|handles| handles.read());
    match held {
        Ok(held) => LowPodLevel::find(object, &held),
        Err(error) => {
            // The pod may just have ended.
            tracing::debug!(pod = %live.id, %error, "its memory limits cannot be compared");
            None
        }
    }
}
