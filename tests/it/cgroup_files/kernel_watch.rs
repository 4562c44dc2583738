//! vscaled notices writes by any process without polling.

use std::fs;
use std::process::Command;
use std::time::Duration;

use vscaled::cgroup::{Notice, Reason, Watch};
use vscaled::model::ControlFile;

use super::kernel_writes::quota;
use super::tree::Tree;

/// A valid value of each file that differs from a new cgroup's.
const fn other_value(file: ControlFile) -> &'static str {
    match file {
        ControlFile::CpuMax => "20000 100000",
        ControlFile::CpuMaxBurst | ControlFile::CfsBurst => "10000",
        ControlFile::CpuWeight => "39",
        ControlFile::CpuShares => "512",
        ControlFile::CfsQuota => "20000",
        ControlFile::CfsPeriod => "50000",
        ControlFile::MemoryHigh | ControlFile::MemoryMax | ControlFile::MemoryLimit => "20000000",
        ControlFile::MemoryMin | ControlFile::MemoryLow => "10000000",
        ControlFile::MemswLimit => "40000000",
    }
}

#[test]
fn a_write_by_another_process_is_noticed_in_every_file() {
    let Some(tree) = Tree::new("foreign") else { return };
    let mut watch = Watch::new().unwrap();
    let bystander = watch.add(&tree.open_pair(&tree.below("bystander"))).unwrap();
    let path = tree.below("pod");
    let token = watch.add(&tree.open_pair(&path)).unwrap();
    assert_ne!(token, bystander);
    assert_eq!(watch.drain().unwrap(), []);
    for setting in tree.open(&path).read_all().unwrap().iter() {
        let file = setting.file();
        let script = format!("echo {} >{}", other_value(file), tree.file(&path, file).display());
        assert!(
            Command::new("sh").args(["-c", &script]).status().unwrap().success(),
            "{file}"
        );
        assert_eq!(watch.drain().unwrap(), [Notice::Changed(token)], "{file}");
    }
}

#[test]
fn a_cgroup_no_longer_watched_is_silent() {
    let Some(tree) = Tree::new("unwatched") else { return };
    let mut watch = Watch::new().unwrap();
    let cgroup = tree.open_pair(&tree.path);
    let wanted = quota(tree.hierarchy.version(), 20_000);
    let token = watch.add(&cgroup).unwrap();
    assert!(cgroup.write(wanted).is_ok());
    watch.remove(token);
    assert_eq!(watch.drain().unwrap(), [], "not even what was queued");
    let again = watch.add(&cgroup).unwrap();
    assert!(cgroup.write(wanted).is_ok());
    assert_eq!(watch.drain().unwrap(), [Notice::Changed(again)]);
}

#[test]
fn the_watch_is_on_what_was_opened() {
    let Some(tree) = Tree::new("watch-identity") else {
        return;
    };
    let mut watch = Watch::new().unwrap();
    let path = tree.below("pod");
    let before = tree.open_pair(&path);
    let token = watch.add(&before).unwrap();
    tree.remove(&path);
    tree.make(&path);
    assert!(tree.open(&path).write(quota(tree.hierarchy.version(), 20_000)).is_ok());
    let notices = watch.drain().unwrap();
    assert!(
        notices.iter().all(|notice| *notice == Notice::Changed(token)),
        "{notices:?}"
    );
    assert_eq!(watch.add(&before).unwrap_err().reason, Reason::Recreated);
}

#[test]
fn too_many_notices_become_one_to_check_everything() {
    let Some(tree) = Tree::new("overflow") else { return };
    let mut watch = Watch::new().unwrap();
    let cgroup = tree.open(&tree.path);
    watch.add(&tree.open_pair(&tree.path)).unwrap();
    let limit: usize = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events")
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    // The kernel merges equal consecutive notifications, so two files alternate.
    let settings: Vec<_> = cgroup.read_all().unwrap().iter().take(2).collect();
    for turn in 0..=limit {
        assert!(cgroup.write(settings[turn % 2]).is_ok());
    }
    assert_eq!(watch.drain().unwrap().last(), Some(&Notice::Overflow));
    assert_eq!(watch.drain().unwrap(), []);
}

#[tokio::test]
async fn an_event_loop_can_wait_for_notices() {
    let Some(tree) = Tree::new("async") else { return };
    let mut watch = Watch::new().unwrap();
    let cgroup = tree.open_pair(&tree.path);
    let token = watch.add(&cgroup).unwrap();
    let mut watch = watch.into_async().unwrap();
    let wanted = quota(tree.hierarchy.version(), 20_000);
    assert!(cgroup.write(wanted).is_ok());
    let ready = tokio::time::timeout(Duration::from_secs(30), watch.readable_mut()).await;
    let notices = ready.expect("readable").unwrap().get_inner_mut().drain().unwrap();
    assert_eq!(notices, [Notice::Changed(token)]);
}
