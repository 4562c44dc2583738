//! Random pods: what their cgroups hold, what they should hold, what the runtime has stored.
//!
//! Both ends are ones the kernel accepts; on the way between them nothing is promised.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::traits;
use crate::model::{
    CgroupVersion, ContainerName, ControlFile, CpuMax, CpuQuota, CpuShares, CriResources, Driver, MemoryLimit,
    NodeTraits, PageSize, PodTree, PodValues, Resource, Setting, Settings, Target, WeightFormula,
};
use crate::plan::order::edges;

/// Under systemd only periods of which a percent is a whole number of microseconds: of others it writes less than the
/// percents it keeps, by a microsecond.
fn period(raw: &Raw, traits: NodeTraits) -> u64 {
    let uneven = match traits.driver {
        Driver::Cgroupfs => 33_333,
        Driver::Systemd => 33_300,
    };
    [10_000, 25_000, uneven, 50_000, 100_000, 250_000][raw.period]
}

/// Numbers a cgroup is made of.
#[derive(Debug, Clone)]
struct Raw {
    bounded: bool,
    milli: u64,
    period: usize,
    limited: bool,
    pages: u64,
    shares: u64,
    /// v1: no file, unbounded, or this many pages above the limit.
    memsw: Option<Option<u64>>,
    /// No file, or this many thousandths of the quota.
    burst: Option<u64>,
    /// v2: unbounded, or this many thousandths of the limit.
    high: Option<u64>,
}

/// A container before and after; what is not declared has no value after.
#[derive(Debug, Clone)]
struct RawContainer {
    old: Raw,
    new: Raw,
    stored: Raw,
    cpu_declared: bool,
    memory_declared: bool,
    spec_known: bool,
    used: u8,
}

/// The pod before and after, relative to what its containers need.
#[derive(Debug, Clone)]
struct RawPod {
    old: Raw,
    new: Raw,
    cpu_declared: bool,
    memory_declared: bool,
}

fn raw() -> impl Strategy<Value = Raw> {
    let memsw = prop_oneof![
        Just(None),
        Just(Some(None)),
        Just(Some(Some(0))),
        (0_u64..4096).prop_map(|pages| Some(Some(pages)))
    ];
    let burst = prop_oneof![Just(None), Just(Some(0)), (0_u64..=1000).prop_map(Some)];
    let high = prop_oneof![Just(None), (1_u64..=1500).prop_map(Some)];
    let numbers = (10_u64..4000, 0_usize..6, 1_u64..100_000, 2_u64..10_000);
    (
        prop::bool::weighted(0.8),
        prop::bool::weighted(0.8),
        numbers,
        memsw,
        (burst, high),
    )
        .prop_map(
            |(bounded, limited, (milli, period, pages, shares), memsw, (burst, high))| Raw {
                bounded,
                milli,
                period,
                limited,
                pages,
                shares,
                memsw,
                burst,
                high,
            },
        )
}

fn raw_container() -> impl Strategy<Value = RawContainer> {
    let declared = || prop::bool::weighted(0.8);
    (raw(), raw(), raw(), declared(), declared(), any::<bool>(), any::<u8>()).prop_map(
        |(old, new, stored, cpu_declared, memory_declared, spec_known, used)| RawContainer {
            old,
            new,
            stored,
            cpu_declared,
            memory_declared,
            spec_known,
            used,
        },
    )
}

fn raw_pod() -> impl Strategy<Value = RawPod> {
    (raw(), raw(), any::<bool>(), any::<bool>()).prop_map(|(old, new, cpu_declared, memory_declared)| RawPod {
        old,
        new,
        cpu_declared,
        memory_declared,
    })
}

/// A pod with up to six containers: what is there and what should be.
#[derive(Debug)]
pub(super) struct Case {
    pub(super) traits: NodeTraits,
    pub(super) observed: PodValues,
    pub(super) desired: PodValues,
    /// Bytes in use, by container: no more than both ends allow.
    pub(super) usage: BTreeMap<ContainerName, u64>,
    /// What a runtime would have stored that had written the files itself.
    pub(super) truths: BTreeMap<ContainerName, CriResources>,
}

/// Any pod on any node.
pub(super) fn case() -> impl Strategy<Value = Case> {
    let version = prop_oneof![Just(CgroupVersion::V1), Just(CgroupVersion::V2)];
    let driver = prop_oneof![Just(Driver::Cgroupfs), Just(Driver::Systemd)];
    let page = prop::sample::select(vec![PageSize::KIB_4, PageSize::KIB_16, PageSize::KIB_64]);
    let containers = prop::collection::vec(raw_container(), 1..=6);
    let given = (version, driver, page, raw_pod(), containers, any::<bool>());
    given.prop_map(|(version, driver, page, pod, containers, bursts)| {
        let traits = NodeTraits {
            page,
            ..traits(version, driver)
        };
        let mut case = build(traits, &pod, &containers);
        if bursts {
            let news = containers.iter().map(|container| &container.new);
            want_bursts(&mut case, std::iter::once(&pod.new).chain(news));
        }
        case
    })
}

/// Wants bursts of the pod, then of its containers, where the kernel has them.
fn want_bursts<'a>(case: &mut Case, news: impl Iterator<Item = &'a Raw>) {
    let end = case.observed.tree.clone().overlaid(&case.desired.tree);
    let containers = end.containers.keys().cloned().map(Target::Container);
    for (target, new) in std::iter::once(Target::Pod).chain(containers).zip(news) {
        let there = case.observed.tree.get(&target).and_then(Settings::burst);
        let quota = end.get(&target).and_then(Settings::cpu_max).map(|max| max.quota);
        let (Some(file), Some(quota), Some(thousandths)) = (there, quota, new.burst) else {
            continue;
        };
        case.desired
            .tree
            .set(&target, file.map_burst(|_| burst(quota, thousandths)));
    }
}

fn burst(quota: CpuQuota, thousandths: u64) -> u64 {
    match quota {
        CpuQuota::Micros(quota) => quota * thousandths / 1000,
        CpuQuota::Max => thousandths * 1000,
    }
}

fn build(traits: NodeTraits, pod: &RawPod, containers: &[RawContainer]) -> Case {
    let mut observed = PodValues::default();
    let mut desired = PodValues::default();
    let (mut usage, mut truths) = (BTreeMap::new(), BTreeMap::new());
    for (index, container) in containers.iter().enumerate() {
        let name = ContainerName::from(format!("c{index}"));
        let old = settings(&container.old, traits, WeightFormula::Quadratic);
        let mut new = settings(&container.new, traits, WeightFormula::Quadratic);
        drop_followers(&mut new);
        undeclare(&mut new, container.cpu_declared, container.memory_declared);
        if container.spec_known {
            let wanted = spec(&new, container.new.shares);
            observed
                .specs
                .insert(name.clone(), stored(container, &old, &wanted, traits));
            desired.specs.insert(name.clone(), wanted);
        }
        truths.insert(name.clone(), spec(&old, container.old.shares));
        usage.insert(name.clone(), used(container.used, &old, &new));
        observed.tree.containers.insert(name.clone(), old);
        desired.tree.containers.insert(name, new);
    }
    let held = above(&pod.old, &observed.tree, &usage, traits);
    observed.tree.pod = held.in_pages(traits.page);
    let end = observed.tree.clone().overlaid(&desired.tree);
    let mut new = above(&pod.new, &end, &usage, traits);
    drop_followers(&mut new);
    // An undeclared limit is kept; where that is not enough for the end, there is a new one.
    let enough = |resource| {
        edges(&end)
            .filter(|edge| edge.resource == resource)
            .all(|edge| edge.holds(&end))
    };
    undeclare(
        &mut new,
        pod.cpu_declared || !enough(Resource::Cpu),
        pod.memory_declared || !enough(Resource::Memory),
    );
    desired.tree.pod = new;
    Case {
        traits,
        observed,
        desired,
        usage,
        truths,
    }
}

fn bound(raw: &Raw, traits: NodeTraits) -> CpuMax {
    let period_us = period(raw, traits);
    let quota = match raw.bounded {
        true => CpuQuota::Micros((raw.milli * period_us / 1000).max(1000)),
        false => CpuQuota::Max,
    };
    let exact = CpuMax { quota, period_us };
    match traits.driver {
        Driver::Cgroupfs => exact,
        Driver::Systemd => exact.systemd_rounded(),
    }
}

fn settings(raw: &Raw, traits: NodeTraits, formula: WeightFormula) -> Settings {
    let limit = match raw.limited {
        true => MemoryLimit::Bytes(raw.pages * traits.page.get()),
        false => MemoryLimit::Max,
    };
    files(raw, bound(raw, traits), limit, traits, formula)
}

fn files(raw: &Raw, cpu: CpuMax, limit: MemoryLimit, traits: NodeTraits, formula: WeightFormula) -> Settings {
    let shares = CpuShares::new(raw.shares);
    let burst = raw.burst.map(|thousandths| burst(cpu.quota, thousandths));
    if traits.version == CgroupVersion::V2 {
        let files = [
            Setting::CpuMax(cpu),
            Setting::CpuWeight(formula.weight(shares)),
            Setting::MemoryMax(limit),
            Setting::MemoryHigh(high(raw, limit, traits.page)),
        ];
        return files.into_iter().chain(burst.map(Setting::CpuMaxBurst)).collect();
    }
    let mut files = Settings::from_iter([
        Setting::CfsQuota(cpu.quota),
        Setting::CfsPeriod(cpu.period_us),
        Setting::CpuShares(shares),
        Setting::MemoryLimit(limit),
    ]);
    if let Some(burst) = burst {
        files.insert(Setting::CfsBurst(burst));
    }
    match (raw.memsw, limit) {
        (None, _) => {}
        (Some(Some(extra)), MemoryLimit::Bytes(bytes)) => {
            files.insert(Setting::MemswLimit(MemoryLimit::Bytes(
                bytes + extra * traits.page.get(),
            )));
        }
        (Some(_), _) => files.insert(Setting::MemswLimit(MemoryLimit::Max)),
    }
    files
}

/// A pod that lets through what its containers have, and a little more; or everything.
fn above(raw: &Raw, tree: &PodTree, usage: &BTreeMap<ContainerName, u64>, traits: NodeTraits) -> Settings {
    let period_us = period(raw, traits);
    let bounds = tree.containers.values().filter_map(Settings::cpu_max);
    let largest = bounds.filter_map(|bound| match bound.quota {
        CpuQuota::Micros(quota) => Some((quota * period_us).div_ceil(bound.period_us)),
        CpuQuota::Max => None,
    });
    let quota = match raw.bounded {
        true => CpuQuota::Micros(largest.max().unwrap_or(0).max(1000) + raw.milli % 50 * period_us / 1000),
        false => CpuQuota::Max,
    };
    let limits = tree.containers.values().filter_map(Settings::memory_limit);
    let bounded = limits.filter(|limit| *limit != MemoryLimit::Max).max();
    let page = traits.page.get();
    let floor = MemoryLimit::Bytes(usage.values().sum::<u64>().next_multiple_of(page) + raw.pages % 100 * page + 1);
    let limit = match raw.limited {
        true => bounded.unwrap_or(floor).max(floor),
        false => MemoryLimit::Max,
    };
    files(raw, CpuMax { quota, period_us }, limit, traits, WeightFormula::Linear)
}

fn high(raw: &Raw, limit: MemoryLimit, page: PageSize) -> MemoryLimit {
    match (raw.high, limit) {
        (Some(thousandths), MemoryLimit::Bytes(limit)) => MemoryLimit::Bytes(limit / 1000 * thousandths).in_pages(page),
        (Some(thousandths), MemoryLimit::Max) => MemoryLimit::Bytes(page.get() * thousandths),
        (None, _) => MemoryLimit::Max,
    }
}

/// Drops the values that follow other values: no plan wants them for themselves.
pub(super) fn drop_followers(settings: &mut Settings) {
    for file in [
        ControlFile::MemswLimit,
        ControlFile::MemoryHigh,
        ControlFile::CpuMaxBurst,
        ControlFile::CfsBurst,
    ] {
        settings.remove(file);
    }
}

fn undeclare(settings: &mut Settings, cpu_declared: bool, memory_declared: bool) {
    let cpu = [ControlFile::CpuMax, ControlFile::CfsQuota, ControlFile::CfsPeriod];
    let memory = [ControlFile::MemoryMax, ControlFile::MemoryLimit];
    for (files, declared) in [(&cpu[..], cpu_declared), (&memory[..], memory_declared)] {
        for file in files.iter().filter(|_| !declared) {
            settings.remove(*file);
        }
    }
}

fn spec(files: &Settings, shares: u64) -> CriResources {
    let signed = |number: u64| i64::try_from(number).unwrap();
    let cpu = files.cpu_max();
    CriResources {
        cpu_shares: Some(signed(shares)),
        cpu_quota: cpu.map(|cpu| match cpu.quota {
            CpuQuota::Max => -1,
            CpuQuota::Micros(quota) => signed(quota),
        }),
        cpu_period: cpu.map(|cpu| signed(cpu.period_us)),
        memory_limit_in_bytes: files.memory_limit().map(|limit| match limit {
            MemoryLimit::Max => -1,
            MemoryLimit::Bytes(bytes) => signed(bytes),
        }),
    }
}

/// What the runtime has stored: anything at all in the fields that will be sent, the truth in others.
fn stored(container: &RawContainer, old: &Settings, wanted: &CriResources, traits: NodeTraits) -> CriResources {
    let random = spec(
        &settings(&container.stored, traits, WeightFormula::Quadratic),
        container.stored.shares,
    );
    let truth = spec(old, container.old.shares);
    let cpu = if wanted.cpu_quota.is_some() { random } else { truth };
    let memory = if wanted.memory_limit_in_bytes.is_some() {
        random
    } else {
        truth
    };
    CriResources {
        cpu_shares: random.cpu_shares,
        cpu_quota: cpu.cpu_quota,
        cpu_period: cpu.cpu_period,
        memory_limit_in_bytes: memory.memory_limit_in_bytes,
    }
}

/// Memory in use: a part of what both ends allow.
fn used(part: u8, old: &Settings, new: &Settings) -> u64 {
    let limit = |settings: &Settings| match settings.memory_limit() {
        Some(MemoryLimit::Bytes(bytes)) => bytes,
        Some(MemoryLimit::Max) | None => 1 << 30,
    };
    limit(old).min(limit(new)) / 256 * u64::from(part)
}
