//! A process that takes memory, and what the guard lends its container.

use std::time::{Duration, Instant};

use super::pods::{CONTAINERS, LENT};
use super::world::World;
use crate::support::allocator::{Allocator, Appetite};

/// How long until what is lent is known everywhere, and until it has ended.
const PATIENCE: Duration = Duration::from_secs(75);

impl World {
    /// A process takes memory in the container, in place of an earlier one.
    pub(super) fn grow(&mut self, until: u64, rate: u64) {
        self.end_growth();
        let cgroup = &self.slots[LENT].pod.containers[CONTAINERS[0]].cgroup;
        let appetite = Appetite { rate, until };
        let killed = self.node.cgroups().oom_kills(cgroup);
        self.growth = Some((Allocator::start(self.node.cgroups(), cgroup, appetite), killed));
    }

    /// Ends the process, if the kernel has not: that is a kill like others. The kernel says so; a process that it has killed
    /// lives on until its cgroup has processor time for its end.
    pub(super) fn end_growth(&mut self) {
        let Some((process, before)) = self.growth.take() else {
            return;
        };
        drop(process);
        let cgroup = &self.slots[LENT].pod.containers[CONTAINERS[0]].cgroup;
        let killed = self.node.cgroups().oom_kills(cgroup) - before;
        self.kills += usize::try_from(killed).unwrap();
        if killed > 0 {
            self.note(&format!("{killed} killed while it took memory"));
        }
    }

    /// What is in the spec was recommended or is lent; the kernel has it.
    pub(super) async fn loans_are_recorded(&self) {
        self.wait_for_loan(Some, "what is lent to be everywhere").await;
    }

    /// Nobody needs what was lent any more: what was recommended is there again.
    pub(super) async fn loans_end(&self) {
        self.wait_for_loan(|_| None, "what was lent to be given back").await;
    }

    async fn wait_for_loan(&self, expected: impl Fn(String) -> Option<String>, what: &str) {
        let since = Instant::now();
        while let Err(why) = self.compare_loan(&expected).await {
            assert!(since.elapsed() < PATIENCE, "waited in vain for {what}: {why}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Compares the spec with what is lent, or what of that is expected, or else what is recommended.
    async fn compare_loan(&self, expected: impl Fn(String) -> Option<String>) -> Result<(), String> {
        let slot = &self.slots[LENT];
        let pod = self.agent.pod(slot.pod.name).await.ok_or("no agent, or no pod")?;
        let mut leases = pod.leases.iter();
        let lent = leases.find(|lease| lease.resource == "memory" && lease.container == CONTAINERS[0]);
        let lent = lent.and_then(|lease| expected(lease.to.clone()));
        let wanted = lent.unwrap_or_else(|| format!("{}Mi", 2 * slot.recommended[0].memory));
        let object = self.api.get("pods", &slot.pod.full_name()).ok_or("no pod")?;
        let spec = &object["spec"]["containers"][0]["resources"]["limits"]["memory"];
        // What was lent comes down later where a process filled the lower limit: the agent says so, and when.
        let comes_later = pod.state == "Refused" && pod.detail.contains("a lower memory limit was undone");
        if *spec != wanted.as_str() && !comes_later {
            return Err(format!("{spec} in the spec instead of {wanted}: {pod:#?}"));
        }
        self.holds_what_was_granted()
    }
}
