//! The kernel's notification before a kill: v1's alarm.

use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use vscaled::cgroup::{CgroupDir, CgroupError, Hierarchy, Reason};

use super::pod::TestPod;
use super::*;

/// Waits until the alarm fires, and resets it.
fn is_raised(told: &EventFd) -> bool {
    let patience = PollTimeout::try_from(PATIENCE).unwrap();
    let raised = poll(&mut [PollFd::new(told.as_fd(), PollFlags::POLLIN)], patience).unwrap();
    raised == 1 && told.read().unwrap() > 0
}

#[test]
fn a_v1_alarm_covers_container_pod_and_removal() {
    let pod = TestPod::new();
    let told = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC).unwrap();
    let hierarchy = Hierarchy::discover(None).unwrap();
    let ordered = CgroupDir::open(&hierarchy, &pod.container).unwrap().alarm_at_oom(&told);
    if pod.counts_hierarchically() {
        let refused = matches!(
            ordered,
            Err(CgroupError {
                reason: Reason::Absent,
                ..
            })
        );
        assert!(refused, "v2 has no alarms: {ordered:?}");
        return;
    }
    ordered.unwrap();
    assert_eq!(told.read(), Err(Errno::EAGAIN), "nothing has happened");
    pod.limit_pod();
    pod.exceed();
    assert!(is_raised(&told), "at the pod's limit");
    pod.limit_container();
    pod.exceed();
    assert!(is_raised(&told), "at the container's own");
    pod.remove_container();
    assert!(is_raised(&told), "at its end");
    pod.make_container();
    pod.exceed();
    assert_eq!(told.read(), Err(Errno::EAGAIN), "it was another's");
}
