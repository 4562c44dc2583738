use procfs::FromBufRead;
use procfs::process::MountInfos;
use tempfile::TempDir;

use super::*;

fn of_table(table: &str) -> Result<Hierarchy> {
    let table = MountInfos::from_buf_read(table.as_bytes()).unwrap();
    Hierarchy::of_mounts(&table.0, "a test")
}

/// A tree with these directories and these files in it.
fn tree(directories: &[&str], files: &[(&str, &str)]) -> TempDir {
    let root = TempDir::new().unwrap();
    for directory in directories {
        fs::create_dir_all(root.path().join(directory)).unwrap();
    }
    for (file, content) in files {
        fs::write(root.path().join(file), content).unwrap();
    }
    root
}

const HYBRID: &str = "\
31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
";

#[test]
fn a_hybrid_machine_is_v1() {
    let hierarchy = of_table(HYBRID).unwrap();
    assert_eq!(hierarchy.version(), CgroupVersion::V1);
    assert_eq!(hierarchy.mount(Resource::Cpu), Path::new("/sys/fs/cgroup/cpu,cpuacct"));
    assert_eq!(hierarchy.mount(Resource::Memory), Path::new("/sys/fs/cgroup/memory"));
}

#[test]
fn controllers_of_v2_are_read_from_its_root() {
    let root = tree(&[], &[("cgroup.controllers", "cpuset cpu io memory pids\n")]);
    let line = format!("30 23 0:26 / {} rw - cgroup2 cgroup2 rw\n", root.path().display());
    let hierarchy = of_table(&line).unwrap();
    assert_eq!(hierarchy.version(), CgroupVersion::V2);
    assert_eq!(hierarchy.mount(Resource::Cpu), root.path());
    assert_eq!(hierarchy, Hierarchy::of_tree(root.path()).unwrap());

    fs::write(root.path().join("cgroup.controllers"), "cpuset cpu io pids\n").unwrap();
    let error = of_table(&line).unwrap_err().to_string();
    assert!(error.contains("the memory controller is not mounted"), "{error}");
}

#[test]
fn controllers_of_two_versions_are_refused() {
    let root = tree(&[], &[("cgroup.controllers", "memory\n")]);
    let table = format!(
        "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n41 31 0:38 / {} rw - cgroup2 cgroup2 rw\n",
        root.path().display()
    );
    let refusal = |table: &str| of_table(table).unwrap_err().to_string();
    assert!(refusal(&table).contains("are divided between cgroup v1"));
    fs::write(root.path().join("cgroup.controllers"), "").unwrap();
    assert!(refusal(&table).starts_with("the memory controller is not mounted"));
    assert!(refusal("").starts_with("the cpu controller is not mounted"));
}

#[test]
fn the_mount_that_shows_most_wins() {
    let host = HYBRID.replace(" / /sys/fs/cgroup/", " /../../.. /host/sys/fs/cgroup/");
    let hierarchy = of_table(&format!("{HYBRID}{host}")).unwrap();
    assert_eq!(
        hierarchy.mount(Resource::Memory),
        Path::new("/host/sys/fs/cgroup/memory")
    );
    let visible = |printed| hierarchy.visible(Resource::Memory, printed);
    assert_eq!(
        visible("/../../../kubepods/burstable").unwrap().as_str(),
        "/kubepods/burstable"
    );
    assert_eq!(visible("/../../..").unwrap(), CgroupPath::root());
    assert!(visible("/../sibling").is_none(), "a path from another point of view");
}

#[test]
fn paths_are_seen_from_the_mounts_top() {
    let kind = HYBRID.replace(" / /sys/fs/cgroup/", " /docker/abc /sys/fs/cgroup/");
    let visible = |printed: &str| of_table(&kind).unwrap().visible(Resource::Cpu, printed);
    assert_eq!(
        visible("/docker/abc/kubelet/kubepods").unwrap().as_str(),
        "/kubelet/kubepods"
    );
    assert_eq!(visible("/docker/abc").unwrap(), CgroupPath::root());
    assert!(visible("/docker/abcdef").is_none());
    assert!(visible("/system.slice").is_none());
    let whole = of_table(HYBRID).unwrap();
    assert_eq!(whole.visible(Resource::Cpu, "/").unwrap(), CgroupPath::root());
    assert_eq!(whole.visible(Resource::Cpu, "/kubepods").unwrap().as_str(), "/kubepods");
}

#[test]
fn a_plain_tree_is_read_by_its_names() {
    let v1 = tree(&["cpu,cpuacct", "cpuset", "memory", "unified", "systemd"], &[]);
    let hierarchy = Hierarchy::of_tree(v1.path()).unwrap();
    assert_eq!(hierarchy.version(), CgroupVersion::V1);
    assert_eq!(hierarchy.mount(Resource::Cpu), v1.path().join("cpu,cpuacct"));
    fs::create_dir(v1.path().join("cpu")).unwrap();
    assert_eq!(
        Hierarchy::of_tree(v1.path()).unwrap().mount(Resource::Cpu),
        v1.path().join("cpu")
    );
    assert_eq!(
        Hierarchy::discover(Some(v1.path())).unwrap().mount(Resource::Cpu),
        v1.path().join("cpu")
    );

    let no_memory = tree(&["cpu", "cpuset"], &[]);
    let refusal = |root: &Path| Hierarchy::of_tree(root).unwrap_err().to_string();
    assert!(refusal(no_memory.path()).starts_with("the memory controller is not mounted"));
    assert!(refusal(Path::new("/nonexistent")).starts_with("cannot read /nonexistent: "));
}
