//! v1's alarms: has the kernel tell an eventfd about a cgroup's memory.
//!
//! In come an open cgroup and an eventfd; from then on the kernel raises the eventfd, until that is closed or the cgroup is
//! removed. No other descriptor stays open: the kernel holds the cgroup itself (`memcg_write_event_control`,
//! mm/memcontrol-v1.c). v2 has no such alarms; its files tell whoever watches them.

use std::os::fd::{AsFd, AsRawFd};

use nix::fcntl::OFlag;
use nix::sys::eventfd::EventFd;

use super::file::ControlFd;
use super::limits::usage_file;
use super::{CgroupDir, CgroupError};
use crate::model::{Bytes, ControlFile, Resource};

const CONTROL: &str = "cgroup.event_control";

impl CgroupDir {
    /// Has the kernel raise an eventfd whenever use passes one of these amounts, up or down (v1 only). The alarms
    /// end when the eventfd is closed. Blocks for some ten milliseconds each: the kernel waits for all
    /// processors (`synchronize_rcu` in `__mem_cgroup_usage_register_event`, mm/memcontrol-v1.c).
    pub fn alarm_at(&self, amounts: &[Bytes], event_fd: &EventFd) -> Result<(), CgroupError> {
        let usage = self
            .dir(Resource::Memory)
            .open_file(usage_file(ControlFile::MemoryLimit), OFlag::O_RDONLY)?;
        let amounts = amounts.iter().map(|amount| amount.get().to_string());
        self.set_alarms(&usage, event_fd, amounts)
    }

    /// Has the kernel raise an eventfd whenever memory runs out at the limit of this cgroup or of one around it (v1 only):
    /// before it kills anybody, here or elsewhere, and perhaps several times for one kill (`mem_cgroup_oom_notify`,
    /// mm/memcontrol-v1.c); and when this cgroup is removed. The kernel does not when memory runs out on the node. Does not
    /// block. Set twice, the alarm is raised twice.
    pub fn alarm_at_oom(&self, event_fd: &EventFd) -> Result<(), CgroupError> {
        let control = self
            .dir(Resource::Memory)
            .open_file("memory.oom_control", OFlag::O_RDONLY)?;
        self.set_alarms(&control, event_fd, [String::new()])
    }

    /// Sets one alarm for each argument.
    fn set_alarms(
        &self,
        about: &ControlFd<'_>,
        event_fd: &EventFd,
        arguments: impl IntoIterator<Item = String>,
    ) -> Result<(), CgroupError> {
        let control = self.dir(Resource::Memory).open_file(CONTROL, OFlag::O_WRONLY)?;
        let (event_fd, about) = (event_fd.as_raw_fd(), about.as_fd().as_raw_fd());
        for argument in arguments {
            control
                .write(&format!("{event_fd} {about} {argument}"))
                .map_err(|errno| control.failed(errno, "set an alarm"))?;
        }
        Ok(())
    }
}
