//! v1's alarms: the kernel signals an eventfd about a cgroup's memory.
//!
//! In come an open cgroup and an eventfd. From then on the kernel raises the eventfd, until the caller closes it or the cgroup
//! is removed. No other descriptor stays open: the kernel holds the cgroup itself (`memcg_write_event_control`,
//! mm/memcontrol-v1.c). v2 has no such alarms; inotify reports changes of its files.

use std::os::fd::AsRawFd;

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
        let (event_fd, about_fd) = (event_fd.as_raw_fd(), about.file.as_raw_fd());
        for argument in arguments {
            control
                .write(&format!("{event_fd} {about_fd} {argument}"))
                .map_err(|errno| control.failed(errno, "set an alarm"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::cgroup::{Hierarchy, Reason};
    use crate::model::CgroupPath;

    #[test]
    fn an_alarm_is_about_its_own_file() {
        let root = tempfile::tempdir().unwrap();
        for directory in ["cpu/app", "memory/app"] {
            fs::create_dir_all(root.path().join(directory)).unwrap();
        }
        let file = |name: &str| root.path().join("memory/app").join(name);
        fs::write(file(CONTROL), "").unwrap();
        let hierarchy = Hierarchy::of_tree(root.path()).unwrap();
        let cgroup = CgroupDir::open(&hierarchy, &CgroupPath::new("/app").unwrap()).unwrap();
        let event_fd = EventFd::new().unwrap();
        let number = event_fd.as_raw_fd().to_string();
        let at_use = || cgroup.alarm_at(&[4096], &event_fd).map_err(|error| error.reason);
        let at_oom = || cgroup.alarm_at_oom(&event_fd).map_err(|error| error.reason);
        for (name, argument) in [("memory.usage_in_bytes", Some("4096")), ("memory.oom_control", None)] {
            fs::write(file(name), "0\n").unwrap();
            let (here, elsewhere) = match argument {
                Some(_) => (at_use(), at_oom()),
                None => (at_oom(), at_use()),
            };
            assert_eq!((here, elsewhere), (Ok(()), Err(Reason::Absent)), "{name}");
            let text = fs::read_to_string(file(CONTROL)).unwrap();
            let words: Vec<_> = text.lines().next().unwrap().split_whitespace().collect();
            assert_eq!((words[0], words.get(2).copied()), (number.as_str(), argument), "{text}");
            fs::remove_file(file(name)).unwrap();
            fs::write(file(CONTROL), "").unwrap();
        }
    }
}
