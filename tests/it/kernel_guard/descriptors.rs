//! The number of open descriptors for a container does not grow with the number of changes.

use std::fs;
use std::path::PathBuf;

use vscaled::model::CgroupVersion;

use super::{APP, mebibytes, vpa};
use crate::support::agent::Agent;
use crate::support::amounts::Amounts;
use crate::support::bare::{BareNode, BarePod};

const PODS: usize = 60;
/// A recommendation of more than the current values.
const LARGER: Amounts = Amounts::doubled(1000, 96);

/// The targets of the agent's descriptors.
fn descriptors(agent: &Agent) -> Vec<PathBuf> {
    let entries = fs::read_dir(format!("/proc/{}/fd", agent.pid())).unwrap();
    // A descriptor may be closed meanwhile.
    entries
        .filter_map(|entry| fs::read_link(entry.unwrap().path()).ok())
        .collect()
}

#[tokio::test]
async fn a_guarded_container_takes_four_descriptors() {
    let mut node = BareNode::new();
    let mut agent = Agent::new(&node.kubepods());
    let pods: Vec<BarePod> = (0..PODS)
        .map(|number| {
            let uid: &'static str = format!("0a1b2c3d-0000-4000-8000-{number:012x}").leak();
            let name: &'static str = format!("web-{number}").leak();
            node.run(name, uid, &[("app", APP)])
        })
        .collect();
    for pod in &pods {
        agent.write(
            &format!("{}.yaml", pod.name),
            &format!("{}---\n{}", pod.manifest(), vpa(pod.name, "4Gi", LARGER.memory)),
        );
    }
    agent.start().await;
    for pod in &pods {
        agent.reaches(pod.name, "InSync").await;
    }
    assert!(
        pods.iter()
            .all(|pod| mebibytes(&node.held(pod)["app"]) == 2 * LARGER.memory)
    );
    let is_eventfd = |path: &PathBuf| path.ends_with("anon_inode:[eventfd]");
    // On v1, one descriptor for each container's alarms.
    let alarms = match node.cgroups().version() {
        CgroupVersion::V1 => PODS,
        CgroupVersion::V2 => 0,
    };
    let set = || descriptors(&agent).iter().filter(|path| is_eventfd(path)).count() >= alarms;
    agent.wait_for("the alarms to be set", set).await;
    let few = || descriptors(&agent).len() <= 4 * PODS;
    agent.wait_for("passes to close what they opened", few).await;
}
