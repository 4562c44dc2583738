//! Promise: a real kill is reported at once, with the right process, cgroup and level, and the counters of its
//! cgroups rise. Needs root; the same on cgroup v1 and v2.

mod alarm;
mod burst;
mod pod;

use std::time::Duration;

use tokio::time::{sleep, timeout};
use vscaled::oom::counters::{Counter, EVENTS, OOM_CONTROL};
use vscaled::oom::kmsg::{DEVICE, KmsgReader, LogEvent, Notice, monotonic};
use vscaled::oom::{Event, Kill, Level, Limit};

use pod::{CONTAINER, POD_UID, TestPod};

/// A kernel that has not logged a kill within this time will not do so.
const PATIENCE: Duration = Duration::from_secs(120);
/// The kernel logs ten kills in five seconds for the whole machine, where other processes may be killed too.
const ATTEMPTS: usize = 16;

/// The next kill of this process, with the sequence number of its record and whether it was logged before.
async fn told(reader: &mut KmsgReader, pid: u32) -> (Kill, u64, bool) {
    let next_kill = async {
        loop {
            match reader.next().await.expect("the reader to go on") {
                Notice::Event(LogEvent {
                    event: Event::Kill(kill),
                    seq,
                    replayed,
                    ..
                }) if kill.pid == pid => return (*kill, seq, replayed),
                Notice::Event(_) | Notice::Lost => {}
            }
        }
    };
    timeout(PATIENCE, next_kill).await.expect("the kernel to log the kill")
}

fn started() -> KmsgReader {
    let mut reader = KmsgReader::new(DEVICE.into());
    assert!(reader.open(monotonic()));
    reader
}

fn caught_up() -> KmsgReader {
    let mut reader = started();
    while reader.read_up_to().is_none() {
        reader.next_now().expect("the reader to go on");
    }
    reader
}

/// Repeats a kill until the kernel logs it.
async fn explained_kill(reader: &mut KmsgReader, pod: &TestPod) -> (Kill, u64, u64) {
    for kills in 1..=ATTEMPTS {
        let pid = pod.exceed();
        let (kill, seq, replayed) = told(reader, pid).await;
        assert!(!replayed);
        assert_eq!(kill.comm, "sh");
        if kill.limit != Limit::Unknown {
            return (kill, seq, u64::try_from(kills).unwrap());
        }
        sleep(Duration::from_secs(2)).await;
    }
    panic!("the kernel kept back {ATTEMPTS} reports");
}

#[tokio::test]
async fn a_container_over_its_limit_is_counted() {
    let pod = TestPod::new();
    pod.limit_container();
    let counted = || (pod.kills(&pod.container).count.kills, pod.kills(&pod.pod).count.kills);
    let (container, of_pod) = counted();
    let mut reader = caught_up();
    let (kill, _, kills) = explained_kill(&mut reader, &pod).await;
    assert_eq!(kill.limit, Limit::Cgroup(pod.container.clone()));
    assert_eq!(kill.task_cgroup, Some(pod.container.clone()));
    assert_eq!(kill.limit.level(), Level::Container);
    let (place, container_place) = kill.victim();
    assert_eq!(place.unwrap().uid.as_str(), POD_UID);
    assert_eq!(container_place.unwrap().as_str(), CONTAINER);
    assert!(kill.memory.anon_rss_bytes > 0 && kill.memory.anon_rss_bytes <= kill.memory.total_vm_bytes);
    let above = if pod.counts_hierarchically() { kills } else { 0 };
    assert_eq!(
        counted(),
        (container + kills, of_pod + above),
        "v1 counts where the process was, v2 also above"
    );
}

#[tokio::test]
async fn a_full_pod_is_not_the_containers_fault() {
    let pod = TestPod::new();
    pod.limit_pod();
    let mut reader = caught_up();
    let (kill, ..) = explained_kill(&mut reader, &pod).await;
    assert_eq!(kill.limit.level(), Level::Pod);
    assert_eq!(
        (kill.limit, kill.task_cgroup),
        (Limit::Cgroup(pod.pod.clone()), Some(pod.container.clone()))
    );
}

#[tokio::test]
async fn a_kill_is_repeated_to_unaware_receivers() {
    let pod = TestPod::new();
    pod.limit_container();
    let mut reader = caught_up();
    let first = pod.exceed();
    let (_, number, _) = told(&mut reader, first).await;
    drop(reader);
    let missed = pod.exceed();
    let mut reader = started();
    let (_, same, replayed) = told(&mut reader, first).await;
    assert_eq!((same, replayed), (number, true));
    let (_, later, replayed) = told(&mut reader, missed).await;
    assert!(later > number && replayed);
}

#[test]
fn a_removed_containers_counter_is_gone() {
    let pod = TestPod::new();
    pod.limit_container();
    pod.exceed();
    let known = pod.kills(&pod.container);
    assert_eq!(known.count.kills, 1);
    pod.remove_container();
    for file in [EVENTS, OOM_CONTROL] {
        let gone = Counter::open(pod.directory(&pod.container).join(file));
        assert!(gone.unwrap().is_none());
    }
    pod.make_container();
    pod.limit_container();
    let again = pod.kills(&pod.container);
    assert_ne!(again.inode, known.inode);
    assert_eq!(again.count.kills, 0);
}
