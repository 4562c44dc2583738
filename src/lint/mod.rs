//! Memory settings inside containers that a resize in place does not reach. Pure.
//!
//! A container's [`MemorySetting`]s come in. [`Finding`]s for people go out, and the [`limit_floor`] of the memory limit.
//! `docs/runtimes.md` describes what each runtime does with a setting.

mod value;

use std::fmt;

use serde::Serialize;

use crate::model::objects::{Container, MemoryOption, MemorySetting};
use crate::model::{Bytes, Requirements, Resource};
use value::{Amount, LEAST_HEAP, amount, part_of, share, with_limit};

/// Memory beside the heap for code, stacks and buffers: a tenth of the heap,
const MARGIN_DIVISOR: u64 = 10;
/// and at least this. The sum is rounded up to whole MiB.
const LEAST_MARGIN: u64 = 64 << 20;

/// The rule that a setting breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, strum::Display, strum::IntoStaticStr, strum::VariantArray)]
pub enum LintRule {
    /// The setting fixes the heap: a higher limit does not enlarge it.
    FixedHeap,
    /// The setting keeps the heap from shrinking below its value.
    FixedInitialHeap,
    /// The heap is as large as the limit or larger, however its size is written.
    HeapFillsLimit,
    /// The runtime computes the size from the limit once, when the process starts.
    ReadAtStart,
    /// The runtime does not accept the value.
    UnreadableValue,
    /// The value lacks its unit, so the runtime gets less than it needs to run.
    HeapTooSmall,
}

impl LintRule {
    pub const ALL: &[Self] = <Self as strum::VariantArray>::VARIANTS;

    pub const fn severity(self) -> LintSeverity {
        match self {
            Self::FixedHeap | Self::FixedInitialHeap | Self::ReadAtStart => LintSeverity::Warning,
            Self::HeapFillsLimit | Self::UnreadableValue | Self::HeapTooSmall => LintSeverity::Error,
        }
    }
}

/// The severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, strum::Display, strum::IntoStaticStr)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum LintSeverity {
    /// A resize has less effect than expected.
    Warning,
    /// The container does not start, or is killed before it uses its limit.
    Error,
}

/// A setting that a resize does not reach. Displays as a sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub container: String,
    pub rule: LintRule,
    pub setting: MemorySetting,
    amount: Amount,
    limit: Option<Bytes>,
}

/// The findings about a container's settings, in the order in which its runtime reads them. A container without a memory limit has
/// that of the pod's own resources (`getMemoryLimit`, kubernetes `pkg/kubelet/kuberuntime`).
pub fn findings(container: &Container, of_pod: Option<Requirements>) -> Vec<Finding> {
    let limits = container.resources.limits.nonzero();
    let limits = limits.or(of_pod.unwrap_or_default().limits.nonzero());
    let limit = limits.memory;
    let settings = counting(container);
    let restarts = container.restarts_for(Resource::Memory);
    let found = settings.filter_map(|setting| {
        let amount = amount_in(container, setting, limit);
        let fills = |heap: Bytes| limit.is_some_and(|limit| heap >= limit);
        let rule = match amount {
            Amount::Unset => return None,
            Amount::Unreadable => LintRule::UnreadableValue,
            Amount::Fixed(heap) | Amount::AtStart(Some(heap)) if heap < LEAST_HEAP => LintRule::HeapTooSmall,
            Amount::Fixed(heap) | Amount::AtStart(Some(heap)) if fills(heap) => LintRule::HeapFillsLimit,
            // A restart reads the setting again.
            Amount::AtStart(_) if restarts || follows_limit(container, setting) => return None,
            Amount::AtStart(_) => LintRule::ReadAtStart,
            Amount::Fixed(_) if setting.option.slot() == MemoryOption::JavaInitialHeap => LintRule::FixedInitialHeap,
            Amount::Fixed(_) => LintRule::FixedHeap,
        };
        Some(Finding {
            container: container.name.clone(),
            rule,
            setting: setting.clone(),
            amount,
            limit,
        })
    });
    found.collect()
}

/// Whether the process reads the limit again after a resize: automemlimit does where it has an interval, or may have one.
fn follows_limit(container: &Container, setting: &MemorySetting) -> bool {
    let is_set = |part: char| matches!(part, '1'..='9' | '{' | '$' | '`');
    let interval = setting_of(container, MemoryOption::GoRefresh);
    setting.option.slot() == MemoryOption::GoShare && interval.is_some_and(|every| every.value.contains(is_set))
}

/// Whether the program uses automemlimit. A share without a switch counts: some programs use it, and others take the same flags.
fn uses_share(container: &Container) -> bool {
    let is_off = |text: &str| ["false", "f", "0"].contains(&text.to_ascii_lowercase().as_str());
    let switch = setting_of(container, MemoryOption::GoSwitch);
    switch.is_none_or(|switch| switch.option != MemoryOption::GoSwitchOff && !is_off(&switch.value))
}

/// The setting in a slot, of which a container has at most one.
fn setting_of(container: &Container, slot: MemoryOption) -> Option<&MemorySetting> {
    let mut settings = container.memory_settings.iter();
    settings.find(|setting| setting.option.slot() == slot)
}

/// The memory limit below which the kernel kills a full heap of fixed size: the largest such heap and a margin.
pub fn limit_floor(container: &Container) -> Option<Bytes> {
    let fixed = counting(container).filter_map(|setting| match amount_in(container, setting, None) {
        Amount::Fixed(heap) => Some(with_margin(heap)),
        Amount::AtStart(_) | Amount::Unreadable | Amount::Unset => None,
    });
    fixed.max()
}

/// The heap of HotSpot that the maximum of small containers is compared with (`Arguments::set_heap_size`, `MaxHeapSize` on
/// 64 bits: 96 MiB and a third of the machine word's overhead).
const JAVA_DEFAULT_HEAP: Bytes = Bytes::new((96 << 20) * 13 / 10);

/// The amount of a setting in its container. HotSpot takes the maximum of a small container from `MinRAMPercentage` (50 by default)
/// instead of `MaxRAMPercentage` (25), and makes no initial heap larger than the maximum. `MaxRAM` replaces the limit in that: then it
/// sizes the heap, and the shares alone do not.
fn amount_in(container: &Container, setting: &MemorySetting, limit: Option<Bytes>) -> Amount {
    use MemoryOption as Option;
    let share_of = |slot| setting_of(container, slot).and_then(|one| share(one.option, &one.value));
    // A limit that the container lacks is filled in from its pod (`defaultPodLimitsForDownwardAPI`, kubernetes `pkg/kubelet`). A share
    // that is filled in grows twice with that limit: it is a share of the limit, and its number grows.
    let of_pod = limit.filter(|_| container.resources.limits.nonzero().memory.is_none());
    let filled_in = |one: &MemorySetting| match (amount(one, limit), of_pod) {
        (Amount::AtStart(Some(heap)), Some(limit)) if one.value.contains("{limits.memory}") => {
            Amount::AtStart(Some(with_limit(heap, limit)))
        }
        (amount, _) => amount,
    };
    let ram = setting_of(container, Option::JavaMaxRam).map(filled_in);
    let memory = match ram {
        Some(Amount::Fixed(ram)) => Some(ram),
        Some(Amount::AtStart(ram)) => ram,
        Some(Amount::Unreadable | Amount::Unset) | None => limit,
    };
    let least = share_of(Option::JavaMinRamPercentage).unwrap_or(500_000);
    let is_small = memory.map(|memory| part_of(memory, least) < JAVA_DEFAULT_HEAP);
    let most = share_of(Option::JavaMaxRamPercentage).unwrap_or(250_000);
    let heap = |ram| part_of(ram, if is_small == Some(true) { least } else { most });
    match (setting.option.slot(), filled_in(setting)) {
        (Option::JavaMaxRam, Amount::Fixed(ram)) => Amount::Fixed(heap(ram)),
        (Option::JavaMaxRam, Amount::AtStart(ram)) => Amount::AtStart(ram.map(heap)),
        (Option::JavaMaxRamPercentage, Amount::AtStart(_)) if ram.is_some() => Amount::Unset,
        (Option::JavaMinRamPercentage, Amount::AtStart(_)) if ram.is_some() || is_small == Some(false) => Amount::Unset,
        (Option::JavaMaxRamPercentage, Amount::AtStart(_)) if is_small == Some(true) => Amount::AtStart(None),
        (Option::JavaInitialRamPercentage, Amount::AtStart(_)) => Amount::AtStart(None),
        (_, amount) => amount,
    }
}

/// The settings that take effect: in HotSpot, Go, .NET and VictoriaMetrics, a size in bytes disables a share of the limit, and so
/// does a switch of the program.
fn counting(container: &Container) -> impl Iterator<Item = &MemorySetting> {
    use MemoryOption as Option;
    let has = move |slot| setting_of(container, slot).is_some_and(|size| amount(size, None) != Amount::Unset);
    let settings = container.memory_settings.iter();
    settings.filter(move |setting| match setting.option.slot() {
        Option::JavaMaxRam | Option::JavaMaxRamPercentage | Option::JavaMinRamPercentage => !has(Option::JavaMaxHeap),
        Option::JavaInitialRamPercentage => !has(Option::JavaInitialHeap),
        Option::DotnetHeapLimitPercent => !has(Option::DotnetHeapLimit),
        Option::VictoriaMetricsPercent => !has(Option::VictoriaMetricsBytes),
        Option::GoShare => uses_share(container) && setting_of(container, Option::GoMemoryLimit).is_none(),
        Option::GoRefresh | Option::GoSwitch => false,
        _ => true,
    })
}

fn with_margin(heap: Bytes) -> Bytes {
    let heap = heap.get();
    let with_margin = heap.saturating_add((heap / MARGIN_DIVISOR).max(LEAST_MARGIN));
    Bytes::new(with_margin.checked_next_multiple_of(1 << 20).unwrap_or(with_margin))
}

/// The memory that an option sizes, how its size can follow the limit, and the runtime's reaction to an unreadable value with the values
/// that it reads: from the line of `texts.txt` with the option's name.
fn texts(option: MemoryOption) -> [&'static str; 3] {
    let name = format!("{option:?}");
    let mut lines = include_str!("texts.txt").lines().map(|line| line.split(" | "));
    let texts = lines.find_map(|mut line| line.next()?.split(' ').any(|one| one == name).then_some(line));
    let mut texts = texts.into_iter().flatten();
    [(); 3].map(|()| texts.next().unwrap_or_default())
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MemorySetting {
            option, source, value, ..
        } = &self.setting;
        let (name, [heap, follow, after_unreadable]) = (option.name(), texts(*option));
        write!(f, "{name} {value:?} in {source} ")?;
        match (self.rule, self.amount) {
            (LintRule::HeapFillsLimit, Amount::Fixed(size) | Amount::AtStart(Some(size))) => {
                let limit = self.limit.unwrap_or(size);
                write!(
                    f,
                    "lets {heap} have {size}, and the memory limit is {limit}: the kernel kills the container before the heap is \
                     full. "
                )?;
                match self.amount {
                    Amount::Fixed(_) => write!(f, "Set {name} lower, or the limit to {} or more", with_margin(size)),
                    _ => write!(
                        f,
                        "Leave a part of the limit to the rest of the process: give {name} at most nine tenths"
                    ),
                }
            }
            (LintRule::HeapTooSmall, Amount::Fixed(_) | Amount::AtStart(_)) => write!(
                f,
                "gives {heap} less than {LEAST_HEAP}, too little for any process: give the number its unit, or the reference another \
                 divisor"
            ),
            (LintRule::FixedInitialHeap, Amount::Fixed(size)) => write!(
                f,
                "keeps {heap} at {size} or more: a shrink of the memory limit frees nothing below that, and vscaled does not \
                 lower the limit below {}. Set {name} lower to let the heap shrink",
                with_margin(size)
            ),
            (_, Amount::Fixed(size)) => write!(
                f,
                "fixes {heap} at {size} when the process starts: a higher memory limit does not enlarge it, and vscaled does not \
                 lower the limit below {}. Change {name} with the limit and restart, or {follow}",
                with_margin(size)
            ),
            (_, Amount::Unreadable) => write!(f, "cannot be read: {after_unreadable}"),
            (_, Amount::AtStart(_) | Amount::Unset) => {
                let from = if share(*option, value).is_some() {
                    "a share of the limit that is computed"
                } else {
                    "a value that is filled in"
                };
                write!(
                    f,
                    "gives {heap} {from} once, when the container starts: after a resize in place it stays as it was. Set resizePolicy \
                     RestartContainer for memory, or restart the container after a resize"
                )
            }
        }
    }
}

#[cfg(test)]
mod tests;
