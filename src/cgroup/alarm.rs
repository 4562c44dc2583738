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
    /// Has the kernel tell an eventfd whenever use passes one of these amounts, up or down (v1 only). The alarms
    /// end when the eventfd is closed. Blocks for some ten milliseconds each: the kernel waits for all
    /// processors (`synchronize_rcu` in `__mem_cgroup_usage_register_event`, mm/memcontrol-v1.c).
    pub fn alarm_at(&self, amounts: &[Bytes], told: &EventFd) -> Result<(), CgroupError> {
        let usage = self
            .dir(Resource::Memory)
            .open_file(usage_file(ControlFile::MemoryLimit), OFlag::O_RDONLY)?;
        let amounts = amounts.iter().map(|amount| amount.get().to_string());
        self.order(&usage, told, amounts)
    }

    /// Has the kernel tell an eventfd whenever memory runs out at the limit of this cgroup or of one around it (v1 only):
    /// before it kills anybody, here or elsewhere, and perhaps several times for one kill (`mem_cgroup_oom_notify`,
    /// mm/memcontrol-v1.c); and when this cgroup is removed. It is not told when memory runs out on the node. Does not
    /// block. To order it again is to be told twice.
    pub fn alarm_at_oom(&self, told: &EventFd) -> Result<(), CgroupError> {
        let control = self
            .dir(Resource::Memory)
            .open_file("memory.oom_control", OFlag::O_RDONLY)?;
        self.order(&control, told, [String::new()])
    }

    /// Orders one alarm for each argument.
    fn order(
        &self,
        about: &ControlFd<'_>,
        told: &EventFd,
        arguments: impl IntoIterator<Item = String>,
    ) -> Result<(), CgroupError> {
        let control = self.dir(Resource::Memory).open_file(CONTROL, OFlag::O_WRONLY)?;
        let (told, about) = (told.as_raw_fd(), about.as_fd().as_raw_fd());
        for argument in arguments {
            control
                .write(&format!("{told} {about} {argument}"))
                .map_err(|errno| control.failed(errno, "set an alarm"))?;
        }
        Ok(())
    }
}
