//! vscaled notices writes by any process without polling.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use std::time::Duration;

use vscaled::cgroup::{Reason, Watch};
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

/// The answer of a watch after writes to the files with these keys.
fn written<const N: usize>(keys: [u8; N]) -> Option<BTreeSet<u8>> {
    Some(keys.into())
}

#[test]
fn a_write_by_another_process_is_noticed_in_every_file() {
    let Some(tree) = Tree::new("foreign") else { return };
    let mut watch = Watch::new().unwrap();
    watch.add(&tree.open_pair(&tree.below("bystander")), &1).unwrap();
    let path = tree.below("pod");
    watch.add(&tree.open_pair(&path), &2).unwrap();
    assert_eq!(watch.drain().unwrap(), written([]));
    for setting in tree.open(&path).read_all().unwrap().iter() {
        let file = setting.file();
        let script = format!("echo {} >{}", other_value(file), tree.file(&path, file).display());
        assert!(
            Command::new("sh").args(["-c", &script]).status().unwrap().success(),
            "{file}"
        );
        assert_eq!(watch.drain().unwrap(), written([2]), "{file}");
    }
}

#[test]
fn a_cgroup_no_longer_watched_is_silent() {
    let Some(tree) = Tree::new("unwatched") else { return };
    let mut watch = Watch::new().unwrap();
    let cgroup = tree.open_pair(&tree.path);
    let wanted = quota(tree.hierarchy.version(), 20_000);
    watch.add(&cgroup, &1).unwrap();
    assert!(cgroup.write(wanted).is_ok());
    watch.remove(&1);
    assert_eq!(watch.drain().unwrap(), written([]), "not even what was queued");
    watch.add(&cgroup, &2).unwrap();
    assert!(cgroup.write(wanted).is_ok());
    assert_eq!(watch.drain().unwrap(), written([2]));
}

#[test]
fn the_watch_is_on_what_was_opened() {
    let Some(tree) = Tree::new("watch-identity") else {
        return;
    };
    let mut watch = Watch::new().unwrap();
    let path = tree.below("pod");
    let before = tree.open_pair(&path);
    watch.add(&before, &1).unwrap();
    tree.remove(&path);
    tree.make(&path);
    assert!(tree.open(&path).write(quota(tree.hierarchy.version(), 20_000)).is_ok());
    let keys = watch.drain().unwrap();
    assert!([written([]), written([1])].contains(&keys), "{keys:?}");
    assert_eq!(watch.add(&before, &1).unwrap_err().reason, Reason::Recreated);
}

#[test]
fn too_many_notices_become_one_to_check_everything() {
    let Some(tree) = Tree::new("overflow") else { return };
    let mut watch = Watch::new().unwrap();
    let cgroup = tree.open(&tree.path);
    watch.add(&tree.open_pair(&tree.path), &1).unwrap();
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
    assert_eq!(watch.drain().unwrap(), None);
    assert_eq!(watch.drain().unwrap(), written([]));
}

#[tokio::test]
async fn an_event_loop_can_wait_for_notices() {
    let Some(tree) = Tree::new("async") else { return };
    let mut watch = Watch::new().unwrap();
    let cgroup = tree.open_pair(&tree.path);
    watch.add(&cgroup, &1).unwrap();
    let mut watch = watch.into_async().unwrap();
    let wanted = quota(tree.hierarchy.version(), 20_000);
    assert!(cgroup.write(wanted).is_ok());
    let ready = tokio::time::timeout(Duration::from_secs(30), watch.readable_mut()).await;
    let keys = ready.expect("readable").unwrap().get_inner_mut().drain().unwrap();
    assert_eq!(keys, written([1]));
}
