//! Reads memory limits that the controller has to know: pods whose limit is below those of their containers, and limits that
//! an earlier agent grew and could not save before it was killed.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Discovery;
use crate::actuate::{Node, PodHandles};
use crate::cgroup::CgroupError;
use crate::guard::{LatestLimits, MarkedLimits};
use crate::model::objects::{Pod, PodUid};
use crate::model::{BoundPod, LivePod, MemoryLimit, Target};
use crate::plan::LowPodLevel;
use crate::reconcile::inventory::Inventory;

/// The compared pods by UID, each with the result.
pub(super) type PodLevels = BTreeMap<PodUid, (BoundPod, Option<LowPodLevel>)>;

impl Discovery {
    /// The pods, managed or not, whose cgroup allows less memory than their containers' do together, by UID. Reads changed
    /// pods, and those with a low limit, which another process may have raised.
    pub(super) fn find_low_pod_levels(
        &mut self,
        node: &Node,
        inventory: &Inventory,
        pods: &[Arc<Pod>],
    ) -> BTreeMap<PodUid, LowPodLevel> {
        let mut earlier = std::mem::take(&mut self.pod_levels);
        for pod in pods.iter().filter_map(|pod| BoundPod::new(pod, inventory.find(pod)?)) {
            let uid = pod.live().id.uid.clone();
            let known = earlier.remove(&uid);
            let is_in_order = known.is_some_and(|(known, low)| low.is_none() && known == pod);
            let low = if is_in_order {
                Ok(None)
            } else {
                low_pod_level(node, &pod)
            };
            match low {
                Ok(low) => drop(self.pod_levels.insert(uid, (pod, low))),
                // The pod may just have ended. The next discovery reads it again.
                Err(error) => {
                    tracing::debug!(pod = %pod.live().id, %error, "its memory limits cannot be compared");
                }
            }
        }
        let levels = self.pod_levels.iter();
        let low = levels.filter_map(|(uid, (_, low))| Some((uid.clone(), (*low)?)));
        low.collect()
    }

    /// The containers of newly found pods that still have temporary limits of an earlier agent. Each pod is in one result only.
    pub(super) fn find_unsaved_limits(&mut self, node: &Node, inventory: &Inventory) -> BTreeMap<PodUid, LatestLimits> {
        let found = inventory.pods().filter_map(|live| {
            let held = held(node, live, self.links.unsaved.remove(&live.id.uid)?);
            let held = held.inspect_err(
                |error| tracing::warn!(pod = %live.id, %error, "its temporary limits end because they cannot be read"),
            );
            Some((live.id.uid.clone(), held.unwrap_or_default()))
        });
        found.collect()
    }
}

fn low_pod_level(node: &Node, pod: &BoundPod) -> Result<Option<LowPodLevel>, CgroupError> {
    let held = PodHandles::open(&node.hierarchy, pod.live())?.read()?;
    Ok(LowPodLevel::find(pod.object(), &held, node.traits.page))
}

/// The temporary limits among `lent` that containers still have. Of equal ones the latest counts.
fn held(node: &Node, live: &LivePod, lent: MarkedLimits) -> Result<LatestLimits, CgroupError> {
    let handles = PodHandles::open(&node.hierarchy, live)?;
    let mut held = LatestLimits::new();
    for (container, lent) in lent {
        let limit = MemoryLimit::Bytes(node.traits.page.round_down(lent.to).get());
        let cgroup = handles.get(&Target::Container(container.clone()));
        if let Some(cgroup) = cgroup
            && cgroup.memory_limit()? == limit
        {
            held.insert(container, lent);
        }
    }
    Ok(held)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::guard::LatestLimit;
    use crate::model::Bytes;

    fn limit(mebibytes: u64, for_pod: bool) -> LatestLimit {
        let to = Bytes::new(mebibytes << 20);
        LatestLimit { to, for_pod }
    }

    /// The limits of these that a container with 2 MiB has.
    fn held_of(lent: &[LatestLimit]) -> LatestLimits {
        let root = tempfile::tempdir().unwrap();
        let node = Node::on_files(root.path());
        let cgroup = root.path().join("pod/app");
        fs::create_dir_all(&cgroup).unwrap();
        fs::write(cgroup.join("memory.max"), "2097152\n").unwrap();
        let lent: MarkedLimits = lent.iter().map(|limit| ("app".into(), *limit)).collect();
        held(&node, &LivePod::on_files(["app"]), lent).unwrap()
    }

    #[test]
    fn a_limit_of_an_earlier_line_is_held() {
        // The agent was killed after it had noted the last limit, and before it wrote it.
        let lent = [1, 2, 4].map(|mebibytes| limit(mebibytes, false));
        assert_eq!(held_of(&lent), [("app".into(), limit(2, false))].into());
    }

    #[test]
    fn the_latest_of_equal_lines_is_held() {
        for for_pod in [false, true] {
            let lent = [!for_pod, for_pod].map(|for_pod| limit(2, for_pod));
            assert_eq!(held_of(&lent), [("app".into(), limit(2, for_pod))].into());
        }
    }
}
