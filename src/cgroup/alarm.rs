//! v1's alarms: the kernel signals an eventfd about a cgroup's memory.
//!
//! In come an open cgroup and an eventfd. From then on the kernel raises the eventfd, until the caller closes it or the cgroup
//! is removed. No other descriptor stays open: the kernel holds the cgroup itself (`memcg_write_event_control`,
//! mm/memcontrol-v1.c). v2 has no such alarms; inotify reports changes of its files.

use std::os::fd::{AsFd, AsRawFd};

use nix::fcntl::OFlag;
use nix::sys::eventfd::EventFd;

use super::memory::usage_file;
use super::{CgroupDir, CgroupError};
use crate::model::{ControlFile, Resource};

const CONTROL: &str = "cgroup.event_control";

impl CgroupDir {
    /// Has the kernel raise an eventfd whenever use passes one of these amounts of bytes, up or down (v1 only). The
    /// alarms end when the caller closes the eventfd. Blocks for some ten milliseconds for each amount: the kernel
    /// waits for all processors (`synchronize_rcu` in `__mem_cgroup_usage_register_event`, mm/memcontrol-v1.c).
    pub fn alarm_at(&self, amounts: &[u64], event_fd: &EventFd) -> Result<(), CgroupError> {
        let amounts = amounts.iter().map(u64::to_string);
        self.set_alarms(usage_file(ControlFile::MemoryLimit), event_fd, amounts)
    }

    /// Has the kernel raise an eventfd whenever memory runs out at the limit of this cgroup or of an ancestor, and when this
    /// cgroup is removed (v1 only). The kernel raises it before it kills any process, here or elsewhere, and perhaps several
    /// times for one kill (`mem_cgroup_oom_notify`, mm/memcontrol-v1.c), but not when memory runs out on the node. Does not
    /// block. Set twice, the alarm is raised twice.
    pub fn alarm_at_oom(&self, event_fd: &EventFd) -> Result<(), CgroupError> {
        self.set_alarms("memory.oom_control", event_fd, [String::new()])
    }

    /// Sets one alarm about a file for each argument.
    fn set_alarms(
        &self,
        about: &'static str,
        event_fd: &EventFd,
        arguments: impl IntoIterator<Item = String>,
    ) -> Result<(), CgroupError> {
        let dir = self.dir(Resource::Memory);
        let about = dir.open_file(about, OFlag::O_RDONLY)?;
        let control = dir.open_file(CONTROL, OFlag::O_WRONLY)?;
        let (event_fd, about) = (event_fd.as_raw_fd(), about.as_fd().as_raw_fd());
        for argument in arguments {
            control
                .write(&format!("{event_fd} {about} {argument}"))
                .map_err(|errno| control.failed(errno, "set an alarm"))?;
        }
        Ok(())
    }
}
