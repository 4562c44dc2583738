//! Steps by example: what is written, through what, and in which order.

use super::traits;
use crate::model::{
    CgroupVersion, ControlFile, CriResources, Driver, MemoryLimit, PodTree, PodValues, Setting, Settings,
};
use crate::plan::{Plan, PlanError};

/// Settings from `file=value` words; commas stand for spaces in values.
fn settings(words: &str) -> Settings {
    let setting = |word: &str| {
        let (file, value) = word.split_once('=').unwrap();
        Setting::parse(ControlFile::named(file).unwrap(), &value.replace(',', " ")).unwrap()
    };
    words.split_whitespace().map(setting).collect()
}

fn state(pod: &str, containers: &[(&str, &str)]) -> PodValues {
    let containers = containers.iter().map(|(name, words)| ((*name).into(), settings(words)));
    let tree = PodTree {
        pod: settings(pod),
        containers: containers.collect(),
    };
    PodValues {
        tree,
        ..PodValues::default()
    }
}

/// Each step in a line.
fn planned(version: CgroupVersion, driver: Driver, observed: &PodValues, desired: &PodValues) -> Vec<String> {
    let plan = Plan::between(observed, desired, &traits(version, driver)).unwrap();
    plan.steps.iter().map(ToString::to_string).collect()
}

fn on_v2(observed: &PodValues, desired: &PodValues) -> Vec<String> {
    planned(CgroupVersion::V2, Driver::Cgroupfs, observed, desired)
}

fn on_v1(observed: &PodValues, desired: &PodValues) -> Vec<String> {
    planned(CgroupVersion::V1, Driver::Cgroupfs, observed, desired)
}

#[test]
fn growing_raises_the_pod_before_its_container() {
    let small = state(
        "cpu.max=10000,100000 memory.max=4096",
        &[("a", "cpu.max=10000,100000 memory.max=4096")],
    );
    let large = state(
        "cpu.max=20000,100000 memory.max=8192",
        &[("a", "cpu.max=20000,100000 memory.max=8192")],
    );
    assert_eq!(
        on_v2(&small, &large),
        [
            "pod through cgroup: cpu.max 10000 100000 → 20000 100000",
            "pod through cgroup: memory.max 4096 → 8192",
            "container a through cgroup: cpu.max 10000 100000 → 20000 100000",
            "container a through cgroup: memory.max 4096 → 8192",
        ]
    );
    assert_eq!(
        on_v2(&large, &small),
        [
            "container a through cgroup: cpu.max 20000 100000 → 10000 100000",
            "container a through cgroup: memory.max 8192 → 4096",
            "pod through cgroup: cpu.max 20000 100000 → 10000 100000",
            "pod through cgroup: memory.max 8192 → 4096",
        ]
    );
}

#[test]
fn growth_waits_for_no_shrink_elsewhere() {
    let observed = state(
        "memory.max=16384",
        &[("a", "memory.max=12288"), ("b", "memory.max=4096")],
    );
    let desired = state(
        "memory.max=12288",
        &[("a", "memory.max=4096"), ("b", "memory.max=8192")],
    );
    assert_eq!(
        on_v2(&observed, &desired),
        [
            "container b through cgroup: memory.max 4096 → 8192",
            "container a through cgroup: memory.max 12288 → 4096",
            "pod through cgroup: memory.max 16384 → 12288",
        ]
    );
}

#[test]
fn weights_and_reservations_rise_from_the_pod() {
    for (version, file) in [
        (CgroupVersion::V2, "cpu.weight"),
        (CgroupVersion::V2, "memory.min"),
        (CgroupVersion::V2, "memory.low"),
        (CgroupVersion::V1, "cpu.shares"),
    ] {
        let of = |value: u64| {
            let words = format!("{file}={value}");
            state(&words, &[("a", &words)])
        };
        for (from, to, targets) in [
            (4096, 8192, ["pod", "container a"]),
            (8192, 4096, ["container a", "pod"]),
        ] {
            let steps = targets.map(|target| format!("{target} through cgroup: {file} {from} → {to}"));
            assert_eq!(planned(version, Driver::Cgroupfs, &of(from), &of(to)), steps);
        }
    }
}

#[test]
fn values_that_mean_the_same_are_left_alone() {
    let observed = state("memory.max=19996672 cpu.weight=39", &[]);
    let mut desired = state("cpu.weight=39", &[]);
    desired
        .tree
        .pod
        .insert(Setting::MemoryMax(MemoryLimit::Bytes(20_000_001)));
    assert_eq!(on_v2(&observed, &desired), [""; 0]);
}

#[test]
fn missing_files_and_containers_are_skipped() {
    let observed = state("cpu.weight=39", &[("a", "cpu.weight=39")]);
    let desired = state(
        "cpu.weight=79 memory.max=4096",
        &[("a", "memory.max=4096"), ("gone", "cpu.weight=1")],
    );
    assert_eq!(on_v2(&observed, &desired), ["pod through cgroup: cpu.weight 39 → 79"]);
}

#[test]
fn v1_swap_limits_rise_first_fall_last() {
    let files = |limit: u64| format!("memory.limit_in_bytes={limit} memory.memsw.limit_in_bytes={limit}");
    let observed = state("", &[("a", &files(8192))]);
    let to = |limit: u64| {
        on_v1(
            &observed,
            &state("", &[("a", &format!("memory.limit_in_bytes={limit}"))]),
        )
    };
    assert_eq!(
        to(12288),
        [
            "container a through cgroup: memory.memsw.limit_in_bytes 8192 → 12288",
            "container a through cgroup: memory.limit_in_bytes 8192 → 12288",
        ]
    );
    assert_eq!(
        to(4096),
        [
            "container a through cgroup: memory.limit_in_bytes 8192 → 4096",
            "container a through cgroup: memory.memsw.limit_in_bytes 8192 → 4096",
        ]
    );
}

#[test]
fn an_unbounded_swap_limit_stays() {
    let observed = state("memory.limit_in_bytes=4096 memory.memsw.limit_in_bytes=-1", &[]);
    let desired = state("memory.limit_in_bytes=8192", &[]);
    assert_eq!(
        on_v1(&observed, &desired),
        ["pod through cgroup: memory.limit_in_bytes 4096 → 8192"]
    );
}

#[test]
fn v1_quota_and_period_fit_under_the_pod() {
    let cgroup = |quota: u64, period: u64| format!("cpu.cfs_quota_us={quota} cpu.cfs_period_us={period}");
    let container = |quota, period| state(&cgroup(50_000, 100_000), &[("a", &cgroup(quota, period))]);
    // The old quota in the new period would be twice the pod's.
    assert_eq!(
        on_v1(&container(50_000, 100_000), &container(25_000, 50_000)),
        [
            "container a through cgroup: cpu.cfs_quota_us 50000 → 25000",
            "container a through cgroup: cpu.cfs_period_us 100000 → 50000",
        ]
    );
    // And back, the new quota in the old period.
    assert_eq!(
        on_v1(&container(25_000, 50_000), &container(50_000, 100_000)),
        [
            "container a through cgroup: cpu.cfs_period_us 50000 → 100000",
            "container a through cgroup: cpu.cfs_quota_us 25000 → 50000",
        ]
    );
}

#[test]
fn what_the_v1_kernel_refuses_has_no_plan() {
    let cgroup = |quota: u64| format!("cpu.cfs_quota_us={quota} cpu.cfs_period_us=100000");
    let observed = state(&cgroup(20_000), &[("a", &cgroup(20_000))]);
    let desired = state("", &[("a", &cgroup(30_000))]);
    let traits = traits(CgroupVersion::V1, Driver::Cgroupfs);
    let error = Plan::between(&observed, &desired, &traits).unwrap_err();
    assert!(matches!(&error, PlanError { container, .. } if container == "a"));
    assert_eq!(
        error.to_string(),
        "container a: quota and period 30000 100000 exceed its pod's 20000 100000, which the kernel refuses: \
         the pod's limit has to grow as well"
    );
}

#[test]
fn only_a_new_excess_of_quotas_has_no_plan() {
    let v1 = |quota: u64| format!("cpu.cfs_quota_us={quota} cpu.cfs_period_us=100000");
    let v2 = |quota: u64| format!("cpu.max={quota},100000");
    let has_plan = |version, observed: &PodValues, desired: &str| {
        let desired = state("", &[("a", desired)]);
        Plan::between(observed, &desired, &traits(version, Driver::Cgroupfs)).is_ok()
    };
    let [within, beyond] = [20_000, 30_000].map(|own| state(&v1(20_000), &[("a", &v1(own))]));
    assert!(!has_plan(CgroupVersion::V1, &within, &v1(40_000)));
    assert!(
        has_plan(CgroupVersion::V1, &beyond, &v1(40_000)),
        "it is beyond already"
    );
    let within = state(&v2(20_000), &[("a", &v2(20_000))]);
    assert!(has_plan(CgroupVersion::V2, &within, &v2(40_000)), "the lower one binds");
    let memory = "memory.limit_in_bytes=4096";
    let within = state(memory, &[("a", memory)]);
    assert!(has_plan(CgroupVersion::V1, &within, "memory.limit_in_bytes=8192"));
}

#[test]
fn the_runtime_gets_changes_after_the_files() {
    let spec = |shares, quota, memory| CriResources {
        cpu_shares: Some(shares),
        cpu_quota: Some(quota),
        cpu_period: Some(100_000),
        memory_limit_in_bytes: Some(memory),
    };
    let mut observed = state("", &[("a", "memory.max=4096"), ("b", "memory.max=4096")]);
    let mut desired = state("", &[("a", "memory.max=8192"), ("b", "memory.max=4096")]);
    observed.specs = [
        ("a", spec(2, 1000, 4096)),
        ("b", spec(2, 1000, 4096)),
        ("c", spec(2, 1000, 1)),
    ]
    .map(|(name, spec)| (name.into(), spec))
    .into();
    desired.specs = [
        ("a", spec(2, 1000, 8192)),
        ("b", spec(2, -1, 4097)),
        ("unknown", spec(2, 1, 1)),
    ]
    .map(|(name, spec)| (name.into(), spec))
    .into();
    assert_eq!(
        on_v2(&observed, &desired),
        [
            "container a through cgroup: memory.max 4096 → 8192",
            "container a through cri: memory_limit_in_bytes 4096 → 8192",
            "container b through cri: cpu_quota 1000 → -1, cpu_period 100000 → 100000",
        ]
    );
}

#[test]
fn an_unspecified_stored_field_is_unbounded() {
    let mut observed = state("", &[("a", "")]);
    let mut desired = observed.clone();
    observed.specs.insert("a".into(), CriResources::default());
    let unbounded = CriResources {
        cpu_quota: Some(-1),
        cpu_period: Some(100_000),
        memory_limit_in_bytes: Some(-1),
        ..CriResources::default()
    };
    desired.specs.insert("a".into(), unbounded);
    assert_eq!(on_v2(&observed, &desired), [""; 0]);
}

#[test]
fn a_burst_stays_the_same_part() {
    let cgroup = |quota: u64, burst: u64| format!("cpu.max={quota},100000 cpu.max.burst={burst}");
    let small = state(&cgroup(30_000, 0), &[("a", &cgroup(30_000, 10_001))]);
    let to = |quota: &str| state(quota, &[("a", quota)]);
    assert_eq!(
        on_v2(&small, &to("cpu.max=60000,100000")),
        [
            "pod through cgroup: cpu.max 30000 100000 → 60000 100000",
            "container a through cgroup: cpu.max 30000 100000 → 60000 100000",
            "container a through cgroup: cpu.max.burst 10001 → 20002",
        ]
    );
    assert_eq!(
        on_v2(&small, &to("cpu.max=10000,100000")),
        [
            "container a through cgroup: cpu.max.burst 10001 → 3333",
            "container a through cgroup: cpu.max 30000 100000 → 10000 100000",
            "pod through cgroup: cpu.max 30000 100000 → 10000 100000",
        ]
    );
    assert_eq!(
        on_v2(&small, &to("cpu.max=max,100000")).len(),
        2,
        "no bound keeps the burst"
    );
}

#[test]
fn a_burst_rises_after_and_falls_before_quota() {
    let cgroup = |quota: u64, burst: u64| format!("cpu.max={quota},100000 cpu.max.burst={burst}");
    let state_of = |quota, burst| state(&cgroup(quota, burst), &[("a", &cgroup(quota, burst))]);
    let (small, large) = (state_of(20_000, 20_000), state_of(50_000, 25_000));
    assert_eq!(
        on_v2(&small, &large),
        [
            "pod through cgroup: cpu.max 20000 100000 → 50000 100000",
            "pod through cgroup: cpu.max.burst 20000 → 25000",
            "container a through cgroup: cpu.max 20000 100000 → 50000 100000",
            "container a through cgroup: cpu.max.burst 20000 → 25000",
        ]
    );
    assert_eq!(
        on_v2(&large, &small),
        [
            "container a through cgroup: cpu.max.burst 25000 → 20000",
            "container a through cgroup: cpu.max 50000 100000 → 20000 100000",
            "pod through cgroup: cpu.max.burst 25000 → 20000",
            "pod through cgroup: cpu.max 50000 100000 → 20000 100000",
        ]
    );
    assert_eq!(
        on_v2(&small, &state_of(20_000, 0)),
        [
            "pod through cgroup: cpu.max.burst 20000 → 0",
            "container a through cgroup: cpu.max.burst 20000 → 0",
        ],
        "the quota stays"
    );
    let without = state("cpu.max=20000,100000", &[("a", "cpu.max=20000,100000")]);
    assert_eq!(
        on_v2(&without, &small),
        <[String; 0]>::default(),
        "the kernel has no bursts"
    );
}

#[test]
fn a_burst_comes_down_to_a_new_quota() {
    let v1 =
        |quota: i64, burst: u64| format!("cpu.cfs_quota_us={quota} cpu.cfs_period_us=100000 cpu.cfs_burst_us={burst}");
    let unbounded = state(&v1(-1, 50_000), &[]);
    let bounded = state("cpu.cfs_quota_us=20000 cpu.cfs_period_us=100000", &[]);
    assert_eq!(
        on_v1(&unbounded, &bounded),
        [
            "pod through cgroup: cpu.cfs_burst_us 50000 → 20000",
            "pod through cgroup: cpu.cfs_quota_us -1 → 20000",
        ]
    );
    let traits = traits(CgroupVersion::V1, Driver::Systemd);
    let plan = Plan::between(&unbounded, &bounded, &traits).unwrap();
    let through: Vec<_> = plan.steps.iter().map(|step| step.change.via().to_string()).collect();
    assert_eq!(through, ["cgroup", "systemd"], "systemd has no property for bursts");
    let unbounded = state("cpu.max=max,100000 cpu.max.burst=50000", &[]);
    assert_eq!(
        planned(
            CgroupVersion::V2,
            Driver::Systemd,
            &unbounded,
            &state("cpu.max=20000,100000", &[])
        ),
        [
            "pod through cgroup: cpu.max.burst 50000 → 20000",
            "pod through systemd: cpu.max max 100000 → 20000 100000",
        ]
    );
}

#[test]
fn systemd_sets_properties_of_the_slice() {
    let observed = state(
        "cpu.max=10000,100000 cpu.weight=4 memory.max=8192",
        &[("a", "cpu.max=10000,100000")],
    );
    let desired = state(
        "cpu.max=20000,100000 cpu.weight=8 memory.max=4096",
        &[("a", "cpu.max=20000,100000")],
    );
    assert_eq!(
        planned(CgroupVersion::V2, Driver::Systemd, &observed, &desired),
        [
            "pod through systemd: cpu.max 10000 100000 → 20000 100000, cpu.weight 4 → 8",
            "container a through cgroup: cpu.max 10000 100000 → 20000 100000",
            "pod through systemd: memory.max 8192 → 4096",
        ]
    );
}

#[test]
fn a_value_systemd_rounds_is_written_too() {
    let observed = state("cpu.max=30000,100000", &[]);
    let desired = state("cpu.max=17500,100000", &[]);
    assert_eq!(
        planned(CgroupVersion::V2, Driver::Systemd, &observed, &desired),
        [
            "pod through systemd: cpu.max 30000 100000 → 17500 100000",
            "pod through cgroup: cpu.max 18000 100000 → 17500 100000"
        ]
    );
}

#[test]
fn systemd_gets_quota_and_period_together() {
    let files = |quota, limit| {
        format!(
            "cpu.cfs_quota_us={quota} cpu.cfs_period_us=100000 \
             memory.limit_in_bytes={limit} memory.memsw.limit_in_bytes={limit}"
        )
    };
    let observed = state(&files(10_000, 4096), &[]);
    let desired = state(&files(20_000, 8192), &[]);
    assert_eq!(
        planned(CgroupVersion::V1, Driver::Systemd, &observed, &desired),
        [
            "pod through systemd: cpu.cfs_quota_us 10000 → 20000, cpu.cfs_period_us 100000 → 100000",
            "pod through cgroup: memory.memsw.limit_in_bytes 4096 → 8192",
            "pod through systemd: memory.limit_in_bytes 4096 → 8192",
        ]
    );
}

#[test]
fn a_slices_files_never_bind_more_in_between() {
    let files = |version, observed: &str, desired: &str| -> Vec<String> {
        let (observed, desired) = (state(observed, &[]), state(desired, &[]));
        let plan = Plan::between(&observed, &desired, &traits(version, Driver::Systemd)).unwrap();
        let [step] = &plan.steps[..] else { panic!("{plan:?}") };
        let files = step.change.files().into_iter();
        files.map(|(_, to)| format!("{}={to}", to.file())).collect()
    };
    let (long, short) = (
        "cpu.cfs_quota_us=50000 cpu.cfs_period_us=100000",
        "cpu.cfs_quota_us=25000 cpu.cfs_period_us=50000",
    );
    assert_eq!(
        files(CgroupVersion::V1, long, short),
        ["cpu.cfs_period_us=50000", "cpu.cfs_quota_us=25000"]
    );
    assert_eq!(
        files(CgroupVersion::V1, short, long),
        ["cpu.cfs_quota_us=50000", "cpu.cfs_period_us=100000"]
    );
    assert_eq!(
        files(
            CgroupVersion::V2,
            "memory.max=2097152 memory.high=1884160",
            "memory.max=1048576"
        ),
        ["memory.max=1048576", "memory.high=942080"]
    );
}

#[test]
fn memory_high_rises_first_and_falls_last() {
    let small = state(
        "memory.max=1048576 memory.high=max",
        &[("a", "memory.max=1048576 memory.high=942080")],
    );
    let desired = state("memory.max=2097152", &[("a", "memory.max=2097152")]);
    let grow = on_v2(&small, &desired);
    assert_eq!(
        grow,
        [
            "pod through cgroup: memory.max 1048576 → 2097152",
            "container a through cgroup: memory.high 942080 → 1884160",
            "container a through cgroup: memory.max 1048576 → 2097152",
        ]
    );
    let large = state(
        "memory.max=2097152 memory.high=max",
        &[("a", "memory.max=2097152 memory.high=1884160")],
    );
    let back = state("memory.max=1048576", &[("a", "memory.max=1048576")]);
    assert_eq!(
        on_v2(&large, &back),
        [
            "container a through cgroup: memory.max 2097152 → 1048576",
            "container a through cgroup: memory.high 1884160 → 942080",
            "pod through cgroup: memory.max 2097152 → 1048576",
        ]
    );
}

#[test]
fn memory_high_follows_only_where_it_was() {
    let bounded = state("", &[("a", "memory.max=1048576 memory.high=942080")]);
    let unbounded = state("", &[("a", "memory.max=max")]);
    assert_eq!(
        on_v2(&bounded, &unbounded),
        [
            "container a through cgroup: memory.high 942080 → max",
            "container a through cgroup: memory.max 1048576 → max",
        ]
    );
    let brake = state("", &[("a", "memory.max=max memory.high=942080")]);
    let limited = state("", &[("a", "memory.max=1048576")]);
    assert_eq!(
        on_v2(&brake, &limited),
        ["container a through cgroup: memory.max max → 1048576"]
    );
}

#[test]
fn systemd_is_told_a_pods_memory_high_with_its_limit() {
    let observed = state("memory.max=1048576 memory.high=942080", &[]);
    let desired = state("memory.max=2097152", &[]);
    let plan = Plan::between(&observed, &desired, &traits(CgroupVersion::V2, Driver::Systemd)).unwrap();
    let [step] = &plan.steps[..] else { panic!("{plan:?}") };
    let written: Vec<String> = step.change.files().iter().map(|(_, to)| to.to_string()).collect();
    assert_eq!(written, ["1884160", "2097152"], "memory.high first");
}
