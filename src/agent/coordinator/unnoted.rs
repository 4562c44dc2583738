//! What an agent had lent that was killed before it could note it: the limit is there, and nobody says why.

use jiff::Timestamp;

use crate::actuate::{Node, PodHandles};
use crate::agent::entry::Entry;
use crate::agent::standing::Lent;
use crate::cgroup::{CgroupError, MemoryMeter};
use crate::guard::LentLast;
use crate::model::{Bytes, LivePod, MemoryLimit, Resource, Target};

const WHY: &str = "an earlier agent was killed before it noted why";

/// Takes over, as loans, the memory limits that are as high as they were lent last, and higher than anybody has noted. A
/// pod for which nothing stands then goes back to its spec.
pub(super) fn take_over(entry: &mut Entry, lent: &LentLast, node: Option<&Node>, now: Timestamp) {
    if let (Some(node), Some(live)) = (node, entry.live.clone()) {
        match held(node, &live, lent) {
            Ok(held) => {
                for (container, to) in held {
                    lend(entry, container, to, now);
                }
            }
            Err(error) => tracing::warn!(pod = %live.id, %error, "what was lent to it is taken back"),
        }
    }
    entry.standing.returning |= entry.standing.is_empty();
    entry.standing.scope.resources.insert(Resource::Memory);
}

/// Which containers still hold what they were lent.
fn held<'a>(node: &Node, live: &LivePod, lent: &'a LentLast) -> Result<Vec<(&'a str, Bytes)>, CgroupError> {
    let handles = PodHandles::open(&node.hierarchy, live)?;
    let mut held = Vec::new();
    for (container, to) in lent {
        let Some(cgroup) = handles.get(&Target::Container(container.clone())) else {
            continue;
        };
        let limit = MemoryMeter::open(cgroup)?.limit()?.map(MemoryLimit::Bytes);
        if limit == Some(MemoryLimit::Bytes(node.traits.page.round_down(*to).get())) {
            held.push((container.as_str(), *to));
        }
    }
    Ok(held)
}

fn lend(entry: &mut Entry, container: &str, to: Bytes, now: Timestamp) {
    let noted = entry.standing.limit(&entry.pod, container, Resource::Memory);
    let by_hand = entry.standing.is_set_by_hand(container, Resource::Memory);
    let Some(from) = noted.filter(|noted| *noted < to.get() && !by_hand) else {
        return;
    };
    entry.standing.remember_origin(&entry.pod);
    entry.standing.lend(Lent {
        container,
        resource: Resource::Memory,
        from,
        to: to.get(),
        why: WHY.to_owned(),
        now,
    });
}
