//! The kernel's values for requests and limits: shares, weights, quotas, memory limits.

use serde::{Deserialize, Serialize};

use super::{Bytes, MilliCpu};

/// The cfs period in microseconds that the kubelet and every runtime use by default.
pub const DEFAULT_CFS_PERIOD_US: u64 = 100_000;
/// The kernel refuses a smaller quota (`min_cfs_quota_period`, kernel/sched/core.c).
const MIN_QUOTA_US: u64 = 1000;

/// The part of a quota that a cgroup may save up while it uses less, and spend later within one period: 0% to 100%.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, derive_more::Display)]
#[serde(transparent)]
#[display("{_0}%")]
pub struct CpuBurst(u8);

impl CpuBurst {
    pub const ZERO: Self = Self(0);

    /// The microseconds of burst beside a quota. Without a quota nothing is throttled, so there is no burst.
    pub fn beside(self, quota: CpuQuota) -> u64 {
        match quota {
            CpuQuota::Max => 0,
            CpuQuota::Micros(quota) => {
                let part = u128::from(quota) * u128::from(self.0) / 100;
                u64::try_from(part).unwrap_or(quota).min(quota)
            }
        }
    }
}

impl std::str::FromStr for CpuBurst {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        percent(text).map(Self).ok_or(())
    }
}

/// The number of a percentage from 0% to 100%.
pub fn percent(text: &str) -> Option<u8> {
    let digits = text.strip_suffix('%').filter(|digits| !digits.starts_with('+'))?;
    digits.parse().ok().filter(|percent| *percent <= 100)
}

/// The unit in which the kernel counts memory. The kernel rounds limits down to whole pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PageSize(u64);

impl PageSize {
    /// x86-64, and most kernels for arm64.
    pub const KIB_4: Self = Self(4096);
    pub const KIB_16: Self = Self(16 << 10);
    /// Some kernels for arm64 and ppc64le.
    pub const KIB_64: Self = Self(64 << 10);

    /// A page size in bytes. `None` if no kernel has such pages.
    pub fn new(bytes: u64) -> Option<Self> {
        bytes.is_power_of_two().then_some(Self(bytes))
    }

    /// In bytes.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Rounds an amount down to whole pages.
    pub const fn round_down(self, bytes: Bytes) -> Bytes {
        Bytes::new(bytes.get() / self.0 * self.0)
    }

    /// Rounds an amount up to whole pages; to the last whole page where there is none above it.
    pub const fn round_up(self, bytes: Bytes) -> Bytes {
        self.round_down(Bytes::new(bytes.get().saturating_add(self.0 - 1)))
    }
}

/// A value that the kernel keeps between [`Self::MIN`] and [`Self::MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, derive_more::Display)]
pub struct Clamped<const LEAST: u64, const MOST: u64>(u64);

/// cgroup v1 `cpu.shares`, within the kernel's bounds (`MIN_SHARES` and `MAX_SHARES`, kernel/sched/sched.h).
pub type CpuShares = Clamped<2, 262_144>;
/// cgroup v2 `cpu.weight`.
pub type CpuWeight = Clamped<1, 10_000>;

impl<const LEAST: u64, const MOST: u64> Clamped<LEAST, MOST> {
    pub const MIN: Self = Self(LEAST);
    pub const MAX: Self = Self(MOST);

    /// Clamps the value silently, like the kernel.
    pub fn new(value: u64) -> Self {
        Self(value.clamp(LEAST, MOST))
    }

    pub const fn get(self) -> u64 {
        self.0
    }
}

impl From<MilliCpu> for CpuShares {
    /// `MilliCPUToShares` (kubernetes `pkg/kubelet/cm/helpers_linux.go`).
    fn from(cpu: MilliCpu) -> Self {
        Self::new(cpu.get().saturating_mul(1024) / 1000)
    }
}

/// The formula that turns shares into a v2 weight. Siblings at one level always have the same formula. Levels may differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, derive_more::Display)]
#[display(rename_all = "lowercase")]
#[serde(rename_all = "lowercase")]
pub enum WeightFormula {
    /// `1 + (shares − 2) · 9999 / 262142`: the kubelet at every version so far, runc before 1.3.2, crun before 1.23.
    Linear,
    /// `⌈10^((l² + 125·l) / 612 − 7/34)⌉` with `l = log2(shares)`: runc from 1.3.2, crun from 1.23.
    Quadratic,
}

impl WeightFormula {
    /// The weight for these shares.
    pub fn weight(self, shares: CpuShares) -> CpuWeight {
        if shares <= CpuShares::MIN {
            return CpuWeight::MIN;
        }
        match self {
            Self::Linear => CpuWeight::new(1 + (shares.0 - 2) * 9999 / 262_142),
            Self::Quadratic => {
                // At most 262143: exact in f64, as is the result, at most 10000.
                let l = libm::log2(u32::try_from(shares.0).map_or(f64::MAX, f64::from));
                let exponent = (l * l + 125.0 * l) / 612.0 - 7.0 / 34.0;
                #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "1 to 10000")]
                let weight = libm::pow(10.0, exponent).ceil() as u64;
                CpuWeight::new(weight)
            }
        }
    }
}

/// The cpu time in each period, or no bound. Prints as in v2.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, derive_more::Display)]
pub enum CpuQuota {
    /// At most this many microseconds in a period, at least 1000. Ordered before [`Self::Max`].
    Micros(u64),
    /// No bound: `max` in v2, `-1` in v1.
    #[display("max")]
    Max,
}

/// Quota and period together, as in v2 `cpu.max`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, derive_more::Display)]
#[display("{quota} {period_us}")]
pub struct CpuMax {
    pub quota: CpuQuota,
    /// The period in microseconds, 1000 to 1000000.
    pub period_us: u64,
}

impl CpuMax {
    /// The quota for a cpu limit. No limit and zero are unbounded.
    ///
    /// `MilliCPUToQuota` (kubernetes `pkg/kubelet/cm/helpers_linux.go`): at least 1000 µs, so the smallest effective limit is
    /// 10m with the default period.
    pub fn of_limit(limit: Option<MilliCpu>, period_us: u64) -> Self {
        let quota = match limit {
            None | Some(MilliCpu::ZERO) => CpuQuota::Max,
            Some(cpu) => CpuQuota::Micros((cpu.get().saturating_mul(period_us) / 1000).max(MIN_QUOTA_US)),
        };
        Self { quota, period_us }
    }

    /// Rounds up to a full percent of one cpu, as systemd does with `CPUQuotaPerSecUSec`
    /// (opencontainers/cgroups `systemd/common.go:addCPUQuota`). The result is never below the kernel's minimum.
    pub fn systemd_rounded(self) -> Self {
        const STEP_US: u64 = 10_000;
        let (CpuQuota::Micros(quota), 1..) = (self.quota, self.period_us) else {
            return self;
        };
        let per_second = quota.saturating_mul(1_000_000) / self.period_us;
        let rounded = per_second.div_ceil(STEP_US).saturating_mul(STEP_US);
        Self {
            quota: CpuQuota::Micros((rounded.saturating_mul(self.period_us) / 1_000_000).max(MIN_QUOTA_US)),
            ..self
        }
    }

    /// Whether this bound allows at least as much as `other`. Compares the ratios exactly.
    pub fn allows(self, other: Self) -> bool {
        let (CpuQuota::Micros(own), CpuQuota::Micros(others)) = (self.quota, other.quota) else {
            return self.quota >= other.quota;
        };
        u128::from(own) * u128::from(other.period_us) >= u128::from(others) * u128::from(self.period_us)
    }
}

/// A memory limit: `max` in v2, a number near `i64::MAX` in v1, or bytes. Prints as in v2.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, derive_more::Display)]
pub enum MemoryLimit {
    /// In bytes. Ordered before [`Self::Max`].
    Bytes(u64),
    #[display("max")]
    Max,
}

impl MemoryLimit {
    /// The number that v1 shows for no bound: `PAGE_COUNTER_MAX` pages in bytes, with 4 KiB pages.
    pub const V1_MAX: u64 = i64::MAX as u64 / PageSize::KIB_4.0 * PageSize::KIB_4.0;
    /// From this number on there is no bound: the smallest number that v1 shows for it, with the largest pages.
    const UNBOUNDED: u64 = i64::MAX as u64 / PageSize::KIB_64.0 * PageSize::KIB_64.0;

    /// The limit for a number that the kernel shows. Numbers beyond the largest counter are unbounded.
    pub const fn of_bytes(bytes: u64) -> Self {
        if bytes < Self::UNBOUNDED {
            Self::Bytes(bytes)
        } else {
            Self::Max
        }
    }

    /// The limit in bytes, if there is one.
    pub const fn bounded(self) -> Option<Bytes> {
        match self {
            Self::Bytes(bytes) => Some(Bytes::new(bytes)),
            Self::Max => None,
        }
    }

    /// Rounds down to whole pages, as the kernel does.
    #[must_use]
    pub const fn in_pages(self, page: PageSize) -> Self {
        match self {
            Self::Bytes(bytes) => Self::of_bytes(bytes / page.0 * page.0),
            Self::Max => Self::Max,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quadratic_weights_are_those_of_the_c_library() {
        for shares in CpuShares::MIN.0 + 1..=CpuShares::MAX.0 {
            let l = f64::from(u32::try_from(shares).unwrap()).log2();
            let weight = 10_f64.powf((l * l + 125.0 * l) / 612.0 - 7.0 / 34.0).ceil();
            let ours = WeightFormula::Quadratic.weight(CpuShares::new(shares)).get();
            assert_eq!(u32::try_from(ours).map(f64::from), Ok(weight), "{shares} shares");
        }
    }

    #[test]
    fn weight_formulas_agree_with_upstream() {
        // mCPU, shares, linear, quadratic: vectors from running upstream's functions.
        let vectors = [
            (2, 2, 1, 1),
            (10, 10, 1, 4),
            (50, 51, 2, 11),
            (100, 102, 4, 17),
            (250, 256, 10, 35),
            (500, 512, 20, 59),
            (1000, 1024, 39, 100),
            (1500, 1536, 59, 138),
            (2000, 2048, 79, 174),
            (4000, 4096, 157, 303),
            (8000, 8192, 313, 532),
            (64_000, 65_536, 2500, 3023),
            (256_000, 262_144, 10_000, 10_000),
        ];
        for (milli, shares, linear, quadratic) in vectors {
            let got = CpuShares::from(MilliCpu::new(milli));
            assert_eq!(got.get(), shares, "{milli}m");
            assert_eq!(WeightFormula::Linear.weight(got).get(), linear, "{milli}m linear");
            assert_eq!(
                WeightFormula::Quadratic.weight(got).get(),
                quadratic,
                "{milli}m quadratic"
            );
        }
    }

    #[test]
    fn tiny_cpu_limits_get_the_kernels_minimum() {
        let quota = |milli: Option<u64>| CpuMax::of_limit(milli.map(MilliCpu::new), DEFAULT_CFS_PERIOD_US).quota;
        assert_eq!(quota(Some(5)), CpuQuota::Micros(1000));
        assert_eq!(quota(Some(11)), CpuQuota::Micros(1100));
        assert_eq!(quota(Some(0)), CpuQuota::Max);
        assert_eq!(quota(None), CpuQuota::Max);
    }

    #[test]
    fn systemd_keeps_whole_percents() {
        let rounded = |quota| {
            CpuMax {
                quota: CpuQuota::Micros(quota),
                period_us: 100_000,
            }
            .systemd_rounded()
            .quota
        };
        assert_eq!(rounded(17_500), CpuQuota::Micros(18_000));
        assert_eq!(rounded(18_000), CpuQuota::Micros(18_000));
        assert_eq!(rounded(1_100), CpuQuota::Micros(2_000));
        let unbounded = CpuMax::of_limit(None, DEFAULT_CFS_PERIOD_US);
        assert_eq!(unbounded.systemd_rounded(), unbounded);
    }

    #[test]
    fn memory_limits_are_kept_in_pages() {
        for (page, kept) in [
            (PageSize::KIB_4, 19_996_672),
            (PageSize::KIB_16, 19_988_480),
            (PageSize::KIB_64, 19_988_480),
        ] {
            assert_eq!(MemoryLimit::Bytes(20_000_001).in_pages(page), MemoryLimit::Bytes(kept));
            assert_eq!(MemoryLimit::Bytes(u64::MAX).in_pages(page), MemoryLimit::Max);
            let unbounded = i64::MAX.unsigned_abs() / page.get() * page.get();
            assert_eq!(MemoryLimit::of_bytes(unbounded), MemoryLimit::Max);
        }
        assert_eq!(MemoryLimit::V1_MAX, 9_223_372_036_854_771_712);
        assert_eq!(PageSize::new(0), None);
        assert!(MemoryLimit::Bytes(u64::MAX) < MemoryLimit::Max);
    }

    #[test]
    fn bounds_compare_as_ratios() {
        let bound = |quota, period_us| CpuMax {
            quota: CpuQuota::Micros(quota),
            period_us,
        };
        assert!(bound(50_000, 100_000).allows(bound(25_000, 50_000)));
        assert!(!bound(10_000, 100_000).allows(bound(3_334, 33_333)));
        assert!(bound(10_000, 100_000).allows(bound(3_333, 33_333)));
        let unbounded = CpuMax::of_limit(None, DEFAULT_CFS_PERIOD_US);
        assert!(unbounded.allows(bound(1000, 1000)));
        assert!(!bound(1_000_000, 1000).allows(unbounded));
    }

    #[test]
    fn a_burst_is_a_part_of_its_quota() {
        let burst = |text: &str| text.parse::<CpuBurst>();
        let beside = |text: &str, quota| burst(text).unwrap().beside(quota);
        assert_eq!(beside("50%", CpuQuota::Micros(25_001)), 12_500);
        assert_eq!(beside("100%", CpuQuota::Micros(u64::MAX)), u64::MAX);
        assert_eq!(beside("0%", CpuQuota::Micros(25_000)), 0);
        assert_eq!(beside("50%", CpuQuota::Max), 0);
        assert_eq!(burst("50%").unwrap().to_string(), "50%");
        for text in ["101%", "50", "+5%", "-1%", "", "%"] {
            assert_eq!(burst(text), Err(()), "{text}");
        }
    }

    #[test]
    fn amounts_round_to_whole_pages() {
        let page = PageSize::new(4096).unwrap();
        for (bytes, down, up) in [(0, 0, 0), (1, 0, 4096), (4096, 4096, 4096), (4097, 4096, 8192)] {
            assert_eq!(page.round_down(Bytes::new(bytes)).get(), down);
            assert_eq!(page.round_up(Bytes::new(bytes)).get(), up);
        }
        assert_eq!(page.round_up(Bytes::MAX).get() % 4096, 0);
        assert_eq!(PageSize::new(4097), None);
    }

    #[test]
    fn shares_and_weights_have_the_kernels_bounds() {
        let shares = [0, 2, 262_144, 262_145].map(|value| CpuShares::new(value).get());
        assert_eq!(shares, [2, 2, 262_144, 262_144]);
        let weights = [0, 1, 10_000, 10_001].map(|value| CpuWeight::new(value).get());
        assert_eq!(weights, [1, 1, 10_000, 10_000]);
        let half = CpuMax {
            quota: CpuQuota::Micros(17_500),
            period_us: 50_000,
        };
        assert_eq!(half.systemd_rounded(), half, "35% is a whole percent");
        assert_eq!(
            CpuMax::of_limit(Some(MilliCpu::new(500)), 50_000).to_string(),
            "25000 50000"
        );
    }
}
