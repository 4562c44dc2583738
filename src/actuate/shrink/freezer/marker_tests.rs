//! Markers, and what the next start of an agent makes of them.

use super::*;

/// Plain files in the place of a cgroup.
fn cgroup(root: &Path, freeze: &str) -> Dir {
    let directory = root.join("cgroup");
    fs::create_dir_all(&directory).unwrap();
    fs::write(directory.join("cgroup.freeze"), freeze).unwrap();
    fs::write(directory.join("cgroup.events"), "populated 1\nfrozen 0\n").unwrap();
    Dir::open(directory).unwrap()
}

fn asked(cgroup: &Dir) -> bool {
    cgroup.freezer_state().unwrap().unwrap().requested
}

#[test]
fn what_was_left_frozen_is_thawed() {
    let root = tempfile::tempdir().unwrap();
    let markers = Freezer::below(root.path()).unwrap();
    let freezer = cgroup(root.path(), "1\n");
    drop(markers.place_marker(&freezer, BTreeMap::new()).unwrap());
    assert_eq!(markers.thaw_left_behind(), [Ok(freezer.path().to_owned())]);
    assert!(!asked(&freezer));
    assert_eq!(markers.thaw_left_behind(), Vec::new());
}

#[test]
fn frozen_cgroups_come_before_limits() {
    let root = tempfile::tempdir().unwrap();
    let markers = Freezer::below(root.path()).unwrap();
    for name in (0..16).flat_map(|number| [format!("{number}-limits.json"), format!("{number}.json")]) {
        fs::write(markers.directory.join(name), "{}").unwrap();
    }
    let all = markers.markers().unwrap();
    let (frozen, limits) = all.split_at(16);
    let has_limits = |marker: &Marker| marker.0.to_string_lossy().ends_with("-limits.json");
    assert!(!frozen.iter().any(has_limits), "{all:?}");
    assert!(limits.iter().all(has_limits), "{all:?}");
}

#[test]
fn a_cgroup_reusing_a_path_is_left_alone() {
    let root = tempfile::tempdir().unwrap();
    let markers = Freezer::below(root.path()).unwrap();
    drop(
        markers
            .place_marker(&cgroup(root.path(), "0\n"), BTreeMap::new())
            .unwrap(),
    );
    fs::rename(root.path().join("cgroup"), root.path().join("earlier")).unwrap();
    let other = cgroup(root.path(), "1\n");
    assert_eq!(markers.thaw_left_behind(), Vec::new());
    assert!(asked(&other), "somebody else froze it");
}

#[test]
fn a_marker_without_a_cgroup_is_removed() {
    let root = tempfile::tempdir().unwrap();
    let markers = Freezer::below(root.path()).unwrap();
    drop(
        markers
            .place_marker(&cgroup(root.path(), "0\n"), BTreeMap::new())
            .unwrap(),
    );
    fs::remove_dir_all(root.path().join("cgroup")).unwrap();
    assert_eq!(markers.thaw_left_behind(), Vec::new());
    fs::write(markers.directory.join("1.json"), "{\"cgro").unwrap();
    assert!(matches!(markers.thaw_left_behind().as_slice(), [Err(_)]));
    assert_eq!(markers.thaw_left_behind(), Vec::new());
}

#[test]
fn drift_without_an_agent_is_repaired() {
    let root = tempfile::tempdir().unwrap();
    let markers = Freezer::below(root.path()).unwrap();
    cgroup(root.path(), "1\n");
    let file = root.path().join("cgroup/memory.swap.max");
    fs::write(&file, "104857600\n").unwrap();
    let dir = Dir::open(root.path().join("cgroup")).unwrap();
    let chosen = dir.custom_limits().unwrap();
    drop(markers.place_marker(&dir, chosen).unwrap());
    fs::write(&file, "0\n").unwrap();
    assert_eq!(markers.thaw_left_behind(), Vec::new(), "it was not frozen");
    assert_eq!(fs::read_to_string(&file).unwrap().lines().next(), Some("104857600"));
    fs::write(&file, "0\n").unwrap();
    assert_eq!(markers.thaw_left_behind(), Vec::new());
    assert_eq!(
        fs::read_to_string(&file).unwrap().lines().next(),
        Some("0"),
        "forgotten"
    );
}

#[test]
fn what_a_pass_has_changed_since_is_left_alone() {
    let root = tempfile::tempdir().unwrap();
    let markers = Freezer::below(root.path()).unwrap();
    cgroup(root.path(), "1\n");
    let file = |name: &str| root.path().join("cgroup").join(name);
    let write = |limit: &str, high: &str, swap: &str| {
        for (name, value) in [("memory.max", limit), ("memory.high", high), ("memory.swap.max", swap)] {
            fs::write(file(name), format!("{value}\n")).unwrap();
        }
    };
    let held = |name: &str| {
        let text = fs::read_to_string(file(name)).unwrap();
        text.lines().next().unwrap().to_owned()
    };
    let dir = Dir::open(root.path().join("cgroup")).unwrap();
    for (noted, high) in [(true, "4194304"), (false, "2097152")] {
        write("4194304", "2097152", "104857600");
        let mut chosen = dir.custom_limits().unwrap();
        chosen.retain(|name, _| noted || name != "memory.max");
        drop(markers.place_marker(&dir, chosen).unwrap());
        // The update was late, and a later pass raised the limit.
        write("8388608", "4194304", "0");
        assert_eq!(markers.thaw_left_behind(), Vec::new());
        assert_eq!(held("memory.high"), high, "noted: {noted}");
        assert_eq!(held("memory.swap.max"), "104857600");
    }
}

#[test]
fn a_failed_marker_keeps_the_one_before() {
    let root = tempfile::tempdir().unwrap();
    let markers = Freezer::below(root.path()).unwrap();
    let dir = cgroup(root.path(), "0\n");
    let limits = |value: &str| BTreeMap::from([("memory.high".to_owned(), value.to_owned())]);
    let marker = markers.place_marker(&dir, limits("1048576")).unwrap();
    let new = marker.0.with_extension(NEW);
    // A directory in the place of the file beside makes the write fail, also for root.
    fs::create_dir(&new).unwrap();
    markers.place_marker(&dir, limits("2097152")).unwrap_err();
    let (_, left) = markers.limits_left(&dir).unwrap();
    assert_eq!(left, limits("1048576"));
    fs::remove_dir(&new).unwrap();
    // The disk was full, or the agent was killed.
    fs::write(&new, "{\"cgro").unwrap();
    assert_eq!(markers.thaw_left_behind(), Vec::new());
    assert!(!new.exists());
}

#[test]
fn a_failed_marker_leaves_nothing() {
    let root = tempfile::tempdir().unwrap();
    let markers = Freezer::below(root.path()).unwrap();
    let dir = cgroup(root.path(), "0\n");
    // A directory in the place of the marker makes the last step fail, also for root.
    fs::create_dir(markers.path(&dir, "")).unwrap();
    markers.place_marker(&dir, BTreeMap::new()).unwrap_err();
    assert_eq!(fs::read_dir(&markers.directory).unwrap().count(), 1);
}
