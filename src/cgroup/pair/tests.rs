use std::fs;
use std::path::Path;

use tempfile::TempDir;

use super::*;
use crate::model::{ControlFile, CpuMax, CpuQuota, CpuWeight, DEFAULT_CFS_PERIOD_US};

const SCOPE: &str = "/kubepods.slice/crio-a.scope";

/// A v2 tree of plain files with a scope, and crun's inner cgroup if values for it are given.
fn scope(outer: [&str; 3], inner: Option<[&str; 3]>) -> (TempDir, Hierarchy) {
    let root = TempDir::new().unwrap();
    fs::write(root.path().join("cgroup.controllers"), "cpu memory\n").unwrap();
    let fill = |path: &Path, values: [&str; 3]| {
        fs::create_dir_all(path).unwrap();
        for (name, value) in ["cpu.max", "cpu.weight", "memory.max"].into_iter().zip(values) {
            fs::write(path.join(name), format!("{value}\n")).unwrap();
        }
        fs::write(path.join("memory.current"), "1048576\n").unwrap();
    };
    let path = root.path().join(SCOPE.trim_start_matches('/'));
    fill(&path, outer);
    if let Some(inner) = inner {
        fill(&path.join(INNER), inner);
    }
    let hierarchy = Hierarchy::of_tree(root.path()).unwrap();
    (root, hierarchy)
}

fn open(hierarchy: &Hierarchy, path: &str) -> Cgroup {
    Cgroup::open(hierarchy, &CgroupPath::new(path).unwrap()).unwrap()
}

fn values(cgroup: &CgroupDir) -> Vec<String> {
    cgroup
        .read_all()
        .unwrap()
        .iter()
        .map(|setting| setting.to_string())
        .collect()
}

#[test]
fn a_scope_without_an_inner_cgroup_is_one() {
    let (_tree, hierarchy) = scope(["max 100000", "39", "max"], None);
    let cgroup = open(&hierarchy, SCOPE);
    assert_eq!(cgroup.dirs().count(), 1);
    assert_eq!(cgroup.read_all().unwrap(), cgroup.outer().read_all().unwrap());
}

#[test]
fn the_inner_path_stands_for_its_scope() {
    let (_tree, hierarchy) = scope(["max 100000", "39", "max"], Some(["max 100000", "100", "max"]));
    let by_process = open(&hierarchy, &format!("{SCOPE}/container"));
    assert_eq!(by_process.path().as_str(), SCOPE);
    assert_eq!(
        by_process.outer().identity(),
        open(&hierarchy, SCOPE).outer().identity()
    );
    assert_eq!(by_process.dirs().count(), 2);
}

#[test]
fn the_tighter_limit_and_outer_weight_bind() {
    let (_tree, hierarchy) = scope(
        ["20000 100000", "39", "8388608"],
        Some(["25000 50000", "100", "4194304"]),
    );
    let read = open(&hierarchy, SCOPE).read_all().unwrap();
    let texts: Vec<String> = read.iter().map(|setting| setting.to_string()).collect();
    assert_eq!(texts, ["20000 100000", "39", "4194304"]);
    let limit = open(&hierarchy, SCOPE).memory_limit();
    assert_eq!(limit, Ok(MemoryLimit::Bytes(4_194_304)));
}

#[test]
fn a_write_reaches_both() {
    let (_tree, hierarchy) = scope(
        ["20000 100000", "39", "8388608"],
        Some(["20000 100000", "100", "8388608"]),
    );
    let cgroup = open(&hierarchy, SCOPE);
    let max = |quota| {
        Setting::CpuMax(CpuMax {
            quota: CpuQuota::Micros(quota),
            period_us: DEFAULT_CFS_PERIOD_US,
        })
    };
    for wanted in [
        max(40_000),
        max(10_000),
        Setting::CpuWeight(CpuWeight::new(5)),
        Setting::MemoryMax(MemoryLimit::Bytes(4 << 20)),
        Setting::MemoryMax(MemoryLimit::Max),
    ] {
        let written = cgroup.write(wanted).unwrap();
        assert_eq!(written, wanted);
    }
    for dir in cgroup.dirs() {
        assert_eq!(values(dir), ["10000 100000", "5", "max"]);
    }
}

#[test]
fn a_refused_shrink_leaves_the_scope_alone() {
    let (_tree, hierarchy) = scope(["max 100000", "39", "8388608"], Some(["max 100000", "39", "8388608"]));
    let cgroup = open(&hierarchy, SCOPE);
    let error = cgroup.write(Setting::MemoryMax(MemoryLimit::Bytes(4096))).unwrap_err();
    assert!(error.file.ends_with("container/memory.max"), "{error}");
    for dir in cgroup.dirs() {
        assert_eq!(values(dir), ["max 100000", "39", "8388608"]);
    }
}

#[test]
fn a_burst_is_given_only_where_one_is() {
    let (tree, hierarchy) = scope(["20000 100000", "39", "max"], Some(["20000 100000", "100", "max"]));
    let scope = tree.path().join(SCOPE.trim_start_matches('/'));
    let file = |dir: &str| scope.join(dir).join("cpu.max.burst");
    for (outer, inner) in [("0", "8000"), ("8000", "0"), ("8000", "4000")] {
        fs::write(file(""), outer).unwrap();
        fs::write(file(INNER), inner).unwrap();
        let cgroup = open(&hierarchy, SCOPE);
        assert_eq!(cgroup.read_all().unwrap().burst(), Some(Setting::CpuMaxBurst(8000)));
        assert!(cgroup.write(Setting::CpuMaxBurst(2000)).is_ok());
        for (dir, before) in cgroup.dirs().zip([outer, inner]) {
            let expected = if before == "0" { 0 } else { 2000 };
            assert_eq!(dir.read_all().unwrap().burst(), Some(Setting::CpuMaxBurst(expected)));
        }
    }
    // Both have the quota.
    for dir in ["", INNER] {
        fs::write(file(dir), "0").unwrap();
    }
    let cgroup = open(&hierarchy, SCOPE);
    assert!(cgroup.write(Setting::CpuMaxBurst(2000)).is_ok());
    let both = cgroup.dirs().map(|dir| dir.read_all().unwrap().burst());
    assert!(both.into_iter().all(|burst| burst == Some(Setting::CpuMaxBurst(2000))));
}

#[test]
fn memory_high_binds_in_either_cgroup() {
    let values = ["max 100000", "39", "4096"];
    let (tree, hierarchy) = scope(values, Some(values));
    let cgroup = open(&hierarchy, SCOPE);
    assert_eq!(cgroup.memory_high().unwrap(), MemoryLimit::Max, "neither has the file");
    let inner = tree.path().join(SCOPE.trim_start_matches('/')).join(INNER);
    fs::write(inner.join("memory.high"), "2048\n").unwrap();
    assert_eq!(cgroup.memory_high().unwrap(), MemoryLimit::Bytes(2048));
}

fn setting(file: &str, value: &str) -> Setting {
    Setting::parse(ControlFile::named(file).unwrap(), value).unwrap()
}

#[test]
fn a_failed_growth_leaves_the_scope_looser() {
    let before = ["20000 100000", "39", "8388608"];
    for wanted in [setting("cpu.max", "40000 100000"), setting("memory.max", "16777216")] {
        let (tree, hierarchy) = scope(before, Some(before));
        let inner = tree.path().join(SCOPE.trim_start_matches('/')).join(INNER);
        fs::remove_file(inner.join(wanted.file().name())).unwrap();
        let cgroup = open(&hierarchy, SCOPE);
        let error = cgroup.write(wanted).unwrap_err();
        assert!(error.file.starts_with(&inner), "{error}");
        assert_eq!(cgroup.outer().read(wanted.file()), Ok(Some(wanted)));
    }
}

#[test]
fn only_a_looser_value_reaches_the_scope_first() {
    for (file, tight, loose) in [
        ("cpu.max", "20000 100000", "20000 50000"),
        ("cpu.cfs_quota_us", "20000", "-1"),
        ("cpu.cfs_period_us", "100000", "50000"),
        ("memory.max", "4096", "max"),
        ("memory.limit_in_bytes", "4096", "8192"),
        ("memory.memsw.limit_in_bytes", "4096", "8192"),
        ("memory.min", "0", "4096"),
        ("memory.low", "0", "4096"),
    ] {
        let [tight, loose] = [tight, loose].map(|value| setting(file, value));
        assert_eq!([loosens(tight, loose), loosens(loose, tight)], [true, false], "{file}");
    }
}

#[test]
fn the_lower_brake_and_higher_reservation_bind() {
    let values = |values: [&str; 3]| {
        let files = ["memory.high", "memory.min", "memory.low"];
        let settings = files.into_iter().zip(values);
        settings.map(|(file, value)| setting(file, value)).collect::<Settings>()
    };
    let [one, other] = [["8192", "0", "max"], ["4096", "4096", "8192"]].map(values);
    let expected = values(["4096", "4096", "max"]);
    assert_eq!(binding(one.clone(), &other), expected);
    assert_eq!(binding(other, &one), expected);
}

#[test]
fn a_container_is_throttled_by_either_cgroup() {
    let values = ["20000 100000", "39", "max"];
    let (tree, hierarchy) = scope(values, Some(values));
    let outer = tree.path().join(SCOPE.trim_start_matches('/'));
    let write = |directory: &Path, all: u64, throttled: u64, micros: u64| {
        let stat = format!("nr_periods {all}\nnr_throttled {throttled}\nthrottled_usec {micros}\n");
        fs::write(directory.join("cpu.stat"), stat).unwrap();
    };
    write(&outer, 10, 3, 500);
    for (inner, throttled) in [(4, 7), (9, 10)] {
        write(&outer.join(INNER), 9, inner, 700);
        let periods = open(&hierarchy, SCOPE).periods().unwrap();
        assert_eq!((periods.all, periods.throttled), (10, throttled));
        assert_eq!(periods.throttled_for.as_micros(), 1200);
    }
}

/// As kernels before Linux 6.12 and newer ones show its weight.
#[test]
fn an_idle_cgroup_gets_no_weight() {
    for shown in ["0", "1"] {
        let (tree, hierarchy) = scope(["max 100000", "39", "max"], Some(["max 100000", shown, "max"]));
        let inner = tree.path().join(SCOPE.trim_start_matches('/')).join(INNER);
        let cgroup = open(&hierarchy, SCOPE);
        let weight = Setting::CpuWeight(CpuWeight::new(5));
        for (idle, is_idle, after) in [("1", true, shown), ("0", false, "5")] {
            fs::write(inner.join("cpu.idle"), format!("{idle}\n")).unwrap();
            assert_eq!(cgroup.is_idle(), Ok(is_idle));
            assert_eq!(cgroup.write(weight), Ok(weight));
            let held = fs::read_to_string(inner.join("cpu.weight")).unwrap();
            assert_eq!(held.trim(), after, "{shown} {idle}");
        }
    }
}

#[test]
fn an_idle_cgroup_shows_no_weight() {
    let root = TempDir::new().unwrap();
    for directory in ["cpu/app", "memory/app"] {
        fs::create_dir_all(root.path().join(directory)).unwrap();
    }
    let set =
        |file: &str, value: &str| fs::write(root.path().join("cpu/app").join(file), format!("{value}\n")).unwrap();
    let hierarchy = Hierarchy::of_tree(root.path()).unwrap();
    for (idle, shares, is_shown) in [("1", "3", false), ("0", "3", true), ("0", "1024", true)] {
        set("cpu.idle", idle);
        set("cpu.shares", shares);
        let expected = is_shown.then(|| setting("cpu.shares", shares));
        let held = open(&hierarchy, "/app").read_all().unwrap();
        assert_eq!(held.get(ControlFile::CpuShares), expected, "{idle} {shares}");
    }
}
