//! A process that allocates memory, and the guard's temporary limit for its container.

use std::time::{Duration, Instant};

use super::pods::{CONTAINERS, GUARDED};
use super::world::World;
use crate::support::allocator::{Allocation, Allocator};

/// The longest time until a temporary limit is known everywhere, and until it has ended.
const PATIENCE: Duration = Duration::from_secs(150);

impl World {
    /// Starts a process that allocates memory in the container, in place of an earlier one.
    pub(super) fn grow(&mut self, until: u64, rate: u64) {
        self.end_growth();
        let cgroup = &self.slots[GUARDED].pod.containers[CONTAINERS[0]].cgroup;
        let allocation = Allocation { rate, until };
        let killed = self.node.cgroups().oom_kills(cgroup);
        self.growth = Some((Allocator::start(self.node.cgroups(), cgroup, allocation), killed));
    }

    /// Ends the process. If the kernel has killed it, that counts as a kill. The kernel's counter decides, because a
    /// killed process exists until its cgroup has processor time for the exit.
    pub(super) fn end_growth(&mut self) {
        let Some((process, before)) = self.growth.take() else {
            return;
        };
        let pid = process.pid();
        drop(process);
        let cgroup = &self.slots[GUARDED].pod.containers[CONTAINERS[0]].cgroup;
        let killed = self.node.cgroups().oom_kills(cgroup) - before;
        assert!(killed < 2, "{killed} kills of one process");
        if killed > 0 {
            self.killed.push(pid);
            self.note(&format!("{pid} was killed while it took memory"));
        }
    }

    /// Checks that the spec has the recommended or the temporary limit, and that the kernel holds it.
    pub(super) async fn temporary_limits_are_recorded(&self) {
        self.wait_for_memory_limit(Some, "what is lent to be everywhere").await;
    }

    /// Checks that the recommended limit returns when the container needs no temporary limit any more.
    pub(super) async fn temporary_limits_end(&self) {
        self.wait_for_memory_limit(|_| None, "what was lent to be given back")
            .await;
    }

    async fn wait_for_memory_limit(&self, expected: impl Fn(String) -> Option<String>, what: &str) {
        let since = Instant::now();
        while let Err(why) = self.compare_memory_limit(&expected).await {
            assert!(since.elapsed() < PATIENCE, "waited in vain for {what}: {why}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Compares the spec with the temporary limit, as far as `expected` accepts it, or else with the recommendation.
    async fn compare_memory_limit(&self, expected: impl Fn(String) -> Option<String>) -> Result<(), String> {
        let slot = &self.slots[GUARDED];
        let pod = self.agent.pod(slot.pod.name).await.ok_or("no agent, or no pod")?;
        let mut leases = pod.leases.iter();
        let limit = leases.find(|lease| lease.resource == "memory" && lease.container == CONTAINERS[0]);
        let limit = limit.and_then(|lease| expected(lease.to.clone()));
        let wanted = limit.unwrap_or_else(|| format!("{}Mi", 2 * slot.recommended[0].memory));
        let object = self.api.get("pods", &slot.pod.full_name()).ok_or("no pod")?;
        let spec = &object["spec"]["containers"][0]["resources"]["limits"]["memory"];
        // The limit comes down later where a process uses more than the lower limit. The agent reports this with the
        // next time.
        let comes_later = pod.state == "Refused" && pod.detail.contains("a lower memory limit was undone");
        if *spec != wanted.as_str() && !comes_later {
            return Err(format!("{spec} in the spec instead of {wanted}: {pod:#?}"));
        }
        self.holds_what_was_granted()
    }
}
