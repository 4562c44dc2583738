use std::fs;
use std::path::PathBuf;

use super::*;

/// A tree of plain files, which accept alarms and have no effect.
struct Tree {
    directory: tempfile::TempDir,
    hierarchy: Hierarchy,
}

impl Tree {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        for name in ["cpu", "memory"] {
            fs::create_dir(directory.path().join(name)).unwrap();
        }
        let hierarchy = Hierarchy::of_tree(directory.path()).unwrap();
        Self { directory, hierarchy }
    }

    fn memory(&self, name: &str) -> PathBuf {
        self.directory.path().join("memory").join(name)
    }

    fn make(&self, name: &str) -> CgroupPath {
        for controller in ["cpu", "memory"] {
            fs::create_dir_all(self.directory.path().join(controller).join(name)).unwrap();
        }
        for file in ["memory.oom_control", "cgroup.event_control"] {
            fs::write(self.memory(name).join(file), "").unwrap();
        }
        CgroupPath::new(&format!("/{name}")).unwrap()
    }

    /// The alarms that were set since the last call.
    fn ordered(&self, name: &str) -> String {
        let file = self.memory(name).join("cgroup.event_control");
        let ordered = fs::read_to_string(&file).unwrap();
        fs::write(&file, "").unwrap();
        ordered
    }
}

#[tokio::test]
async fn an_alarm_is_registered_for_each_container() {
    let tree = Tree::new();
    let containers = ["a", "b"].map(|name| tree.make(name));
    let mut wake_up = WakeUp::default();
    wake_up.register(&tree.hierarchy, containers.iter()).unwrap();
    for name in ["a", "b"] {
        let order = tree.ordered(name);
        let numbers: Vec<u32> = order.split_whitespace().map(|number| number.parse().unwrap()).collect();
        assert_eq!(numbers.len(), 2, "{order:?}");
    }
    wake_up.register(&tree.hierarchy, containers.iter()).unwrap();
    // A container that is left out for a while keeps its alarm.
    wake_up.register(&tree.hierarchy, containers[..1].iter()).unwrap();
    wake_up.register(&tree.hierarchy, containers.iter()).unwrap();
    assert_eq!((tree.ordered("a"), tree.ordered("b")), (String::new(), String::new()));
    fs::rename(tree.memory("b"), tree.memory("elsewhere")).unwrap();
    tree.make("b");
    wake_up.register(&tree.hierarchy, containers.iter()).unwrap();
    assert_eq!(tree.ordered("a"), "");
    assert_ne!(tree.ordered("b"), "");
}

#[tokio::test]
async fn alarms_bear_with_missing_containers() {
    let tree = Tree::new();
    let [gone, refuses, heard] = ["gone", "refuses", "heard"].map(|name| tree.make(name));
    fs::remove_dir_all(tree.memory("gone")).unwrap();
    let mut wake_up = WakeUp::default();
    wake_up.register(&tree.hierarchy, [&gone].into_iter()).unwrap();
    fs::remove_file(tree.memory("refuses").join("cgroup.event_control")).unwrap();
    let all = [&gone, &refuses, &heard];
    let problem = wake_up.register(&tree.hierarchy, all.into_iter()).unwrap_err();
    assert!(problem.contains("refuses/cgroup.event_control"), "{problem}");
    assert_ne!(tree.ordered("heard"), "");
    tree.make("refuses");
    wake_up.register(&tree.hierarchy, all.into_iter()).unwrap();
    assert_ne!(tree.ordered("refuses"), "");
}

#[tokio::test]
async fn an_endless_alarm_is_heard_at_times() {
    let mut wake_up = WakeUp::default();
    let tree = Tree::new();
    wake_up
        .register(&tree.hierarchy, [&tree.make("a")].into_iter())
        .unwrap();
    let before = Instant::now();
    for _ in 0..10 {
        let WakeUp::Alarms { alarm, .. } = &wake_up else {
            panic!("there is no alarm");
        };
        alarm.get_ref().write(1).unwrap();
        assert_eq!(wake_up.notified().await.unwrap(), WakeUpReason::Expected);
    }
    assert!(before.elapsed() >= MIN_INTERVAL * 9);
}
