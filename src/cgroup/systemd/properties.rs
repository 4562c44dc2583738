//! Settings as properties of a unit, and back. Pure.

use std::collections::BTreeMap;

use cgroups_rs::systemd::{
    CPU_QUOTA_PER_SEC_US, CPU_QUOTA_PERIOD_US, CPU_SHARES, CPU_WEIGHT, MEMORY_LIMIT, MEMORY_LOW, MEMORY_MAX,
};

use crate::model::{
    Bytes, CgroupVersion, ControlFile, CpuMax, CpuQuota, CpuShares, CpuWeight, DEFAULT_CFS_PERIOD_US, MemoryLimit,
    Setting, Settings,
};

/// `memory.high` and `memory.min`, which cgroups-rs has no names for; v2 only.
const MEMORY_HIGH: &str = "MemoryHigh";
const MEMORY_MIN: &str = "MemoryMin";
/// systemd's "infinity", and its "not set".
const INFINITY: u64 = u64::MAX;
/// The first systemd with `CPUQuotaPeriodUSec`; before it the period is always 100 ms.
const FIRST_WITH_PERIOD: u32 = 242;

/// Properties by name, such as `MemoryMax`. D-Bus carries each as an unsigned 64-bit number; `u64::MAX` is no bound.
pub type Properties = BTreeMap<&'static str, u64>;

/// The properties that make systemd write these settings. `memsw` and bursts have none; systemd leaves those files alone.
///
/// Rounds a quota up to a full percent of a cpu ([`CpuMax::systemd_rounded`]): systemd stores percents, so a finer quota would
/// be smaller after the next reload.
///
/// Errors: a sentence, for a quota without its period, or a period without its quota (v1): systemd knows only their ratio.
pub fn properties(settings: &Settings, systemd_version: u32) -> Result<Properties, &'static str> {
    let mut properties = Properties::new();
    let half = |file| settings.get(file).is_some();
    if half(ControlFile::CfsQuota) != half(ControlFile::CfsPeriod) {
        return Err("cpu.cfs_quota_us and cpu.cfs_period_us make one systemd property: set both, or neither");
    }
    if let Some(max) = settings.cpu_max() {
        properties.insert(CPU_QUOTA_PER_SEC_US, per_second(max.systemd_rounded()));
        if systemd_version >= FIRST_WITH_PERIOD {
            properties.insert(CPU_QUOTA_PERIOD_US, max.period_us);
        }
    }
    let bytes = |limit: MemoryLimit| limit.bounded().map_or(INFINITY, Bytes::get);
    for setting in settings.iter() {
        properties.extend(match setting {
            Setting::CpuWeight(weight) => Some((CPU_WEIGHT, weight.get())),
            Setting::CpuShares(shares) => Some((CPU_SHARES, shares.get())),
            Setting::MemoryHigh(limit) => Some((MEMORY_HIGH, bytes(limit))),
            Setting::MemoryMax(limit) => Some((MEMORY_MAX, bytes(limit))),
            Setting::MemoryMin(least) => Some((MEMORY_MIN, bytes(least))),
            Setting::MemoryLow(least) => Some((MEMORY_LOW, bytes(least))),
            Setting::MemoryLimit(limit) => Some((MEMORY_LIMIT, bytes(limit))),
            // One property for quota and period, above.
            Setting::CpuMax(_) | Setting::CfsQuota(_) | Setting::CfsPeriod(_) => None,
            Setting::MemswLimit(_) | Setting::CpuMaxBurst(_) | Setting::CfsBurst(_) => None,
        });
    }
    Ok(properties)
}

/// The properties of a unit's settings, by cgroup version.
pub(super) fn names(version: CgroupVersion) -> [&'static str; 4] {
    let [weight, memory] = version.v1_or_v2([CPU_SHARES, MEMORY_LIMIT], [CPU_WEIGHT, MEMORY_MAX]);
    [CPU_QUOTA_PER_SEC_US, CPU_QUOTA_PERIOD_US, weight, memory]
}

/// The values that systemd would write into a unit's files, from its properties. Leaves out a weight that is not
/// set: the kernel's default applies.
pub fn settings(properties: &Properties, version: CgroupVersion) -> Settings {
    let mut settings = Settings::default();
    if let Some(per_second) = properties.get(CPU_QUOTA_PER_SEC_US) {
        let period_us = properties.get(CPU_QUOTA_PERIOD_US).copied();
        let period_us = period_us.filter(|period_us| *period_us != INFINITY);
        let max = bound(*per_second, period_us.unwrap_or(DEFAULT_CFS_PERIOD_US));
        match version {
            CgroupVersion::V1 => {
                settings.insert(Setting::CfsQuota(max.quota));
                settings.insert(Setting::CfsPeriod(max.period_us));
            }
            CgroupVersion::V2 => settings.insert(Setting::CpuMax(max)),
        }
    }
    for (name, value) in properties {
        match (*name, *value) {
            (CPU_SHARES | CPU_WEIGHT, INFINITY) => {}
            (CPU_SHARES, shares) => settings.insert(Setting::CpuShares(CpuShares::new(shares))),
            (CPU_WEIGHT, weight) => settings.insert(Setting::CpuWeight(CpuWeight::new(weight))),
            (MEMORY_LIMIT, bytes) => settings.insert(Setting::MemoryLimit(MemoryLimit::of_bytes(bytes))),
            (MEMORY_MAX, bytes) => settings.insert(Setting::MemoryMax(MemoryLimit::of_bytes(bytes))),
            _ => {}
        }
    }
    settings
}

/// Microseconds of cpu time in each second.
fn per_second(max: CpuMax) -> u64 {
    match max.quota {
        CpuQuota::Max => INFINITY,
        CpuQuota::Micros(quota) => quota.saturating_mul(1_000_000) / max.period_us.max(1),
    }
}

fn bound(per_second: u64, period_us: u64) -> CpuMax {
    let quota = match per_second {
        INFINITY => CpuQuota::Max,
        micros => CpuQuota::Micros(micros.saturating_mul(period_us) / 1_000_000),
    };
    CpuMax { quota, period_us }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn v2(quota: CpuQuota, weight: u64, memory: MemoryLimit) -> Settings {
        let max = CpuMax {
            quota,
            period_us: DEFAULT_CFS_PERIOD_US,
        };
        [
            Setting::CpuMax(max),
            Setting::CpuWeight(CpuWeight::new(weight)),
            Setting::MemoryMax(memory),
        ]
        .into_iter()
        .collect()
    }

    fn pairs(settings: &Settings, systemd: u32) -> Vec<(&'static str, u64)> {
        properties(settings, systemd).unwrap().into_iter().collect()
    }

    #[test]
    fn a_pods_settings_become_four_properties() {
        let settings = v2(CpuQuota::Micros(17_500), 39, MemoryLimit::Bytes(134_217_728));
        let expected = [
            ("CPUQuotaPerSecUSec", 180_000),
            ("CPUQuotaPeriodUSec", 100_000),
            ("CPUWeight", 39),
            ("MemoryMax", 134_217_728),
        ];
        assert_eq!(pairs(&settings, 257), expected);
        assert!(
            !pairs(&settings, 219)
                .iter()
                .any(|(name, _)| *name == "CPUQuotaPeriodUSec"),
            "unknown before 242"
        );
    }

    #[test]
    fn v1_has_its_own_names_and_none_for_swap() {
        let settings: Settings = [
            Setting::CpuShares(CpuShares::new(512)),
            Setting::CfsQuota(CpuQuota::Max),
            Setting::CfsPeriod(100_000),
            Setting::MemoryLimit(MemoryLimit::Max),
            Setting::MemswLimit(MemoryLimit::Max),
        ]
        .into_iter()
        .collect();
        let expected = [
            ("CPUQuotaPerSecUSec", u64::MAX),
            ("CPUQuotaPeriodUSec", 100_000),
            ("CPUShares", 512),
            ("MemoryLimit", u64::MAX),
        ];
        assert_eq!(pairs(&settings, 252), expected);
    }

    #[test]
    fn brakes_and_reservations_have_properties() {
        let bytes = MemoryLimit::Bytes;
        let wanted = Settings::from_iter([
            Setting::MemoryMin(bytes(4096)),
            Setting::MemoryLow(bytes(8192)),
            Setting::MemoryHigh(bytes(16_384)),
        ]);
        let expected = [("MemoryHigh", 16_384), ("MemoryLow", 8192), ("MemoryMin", 4096)];
        assert_eq!(pairs(&wanted, 257), expected);
    }

    #[test]
    fn v1_values_are_read_back() {
        let wanted = Settings::from_iter([
            Setting::CfsQuota(CpuQuota::Micros(50_000)),
            Setting::CfsPeriod(250_000),
            Setting::CpuShares(CpuShares::new(512)),
            Setting::MemoryLimit(MemoryLimit::Bytes(1 << 20)),
        ]);
        let read = |systemd| settings(&properties(&wanted, systemd).unwrap(), CgroupVersion::V1);
        assert_eq!(read(257), wanted);
        let without_period = CpuMax {
            quota: CpuQuota::Micros(20_000),
            period_us: DEFAULT_CFS_PERIOD_US,
        };
        assert_eq!(read(241).cpu_max(), Some(without_period));
    }

    #[test]
    fn only_what_is_given_is_set() {
        let weight: Settings = [Setting::CpuWeight(CpuWeight::new(5))].into_iter().collect();
        assert_eq!(pairs(&weight, 257), [("CPUWeight", 5)]);
        let half: Settings = [Setting::CfsQuota(CpuQuota::Max)].into_iter().collect();
        assert!(properties(&half, 257).unwrap_err().ends_with("set both, or neither"));
    }

    #[test]
    fn a_weight_that_is_not_set_is_not_a_weight() {
        let unset = names(CgroupVersion::V2).map(|name| (name, INFINITY)).into();
        let read = settings(&unset, CgroupVersion::V2);
        assert_eq!(read.get(ControlFile::CpuWeight), None);
        assert_eq!(read.cpu_max(), Some(CpuMax::of_limit(None, DEFAULT_CFS_PERIOD_US)));
        assert_eq!(read.memory_limit(), Some(MemoryLimit::Max));
    }

    proptest! {
        #[test]
        fn what_is_set_is_read_back_rounded_up(quota in 1000_u64..100_000_000, weight in 1_u64..=10_000, memory in 0_u64..1 << 40) {
            let wanted = v2(CpuQuota::Micros(quota), weight, MemoryLimit::Bytes(memory));
            let read = settings(&properties(&wanted, 257).unwrap(), CgroupVersion::V2);
            let rounded = wanted.cpu_max().unwrap().systemd_rounded();
            prop_assert_eq!(read.cpu_max(), Some(rounded));
            prop_assert!(rounded.allows(wanted.cpu_max().unwrap()));
            prop_assert_eq!(read.memory_limit(), wanted.memory_limit());
            prop_assert_eq!(read.get(ControlFile::CpuWeight), wanted.get(ControlFile::CpuWeight));
            // Once rounded, nothing moves any more.
            prop_assert_eq!(settings(&properties(&read, 257).unwrap(), CgroupVersion::V2), read);
        }
    }
}
