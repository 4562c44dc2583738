//! Memory settings inside containers that a resize in place does not reach. Pure.
//!
//! A container's [`MemorySetting`]s come in. [`Finding`]s for people go out, and the [`limit_floor`] of the memory limit.
//! `docs/runtimes.md` describes what each runtime does with a setting.

mod value;

use std::fmt;

use serde::Serialize;

use crate::model::objects::{Container, MemoryOption, MemorySetting};
use crate::model::{Bytes, Resource};
use value::{Amount, LEAST_HEAP, amount, with_wrong_unit};

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
    /// The fixed heap is as large as the limit or larger.
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

/// The findings about a container's settings, in the order in which its runtime reads them.
pub fn findings(container: &Container) -> Vec<Finding> {
    let limit = container.resources.limits.memory.filter(|limit| limit.get() > 0);
    let settings = counting(container);
    let found = settings.filter_map(|setting| {
        let amount = with_wrong_unit(setting, limit).unwrap_or_else(|| amount(setting));
        let fills = |heap: Bytes| limit.is_some_and(|limit| heap >= limit);
        let rule = match amount {
            Amount::Unset => return None,
            // A restart reads the setting again.
            Amount::ShareAtStart | Amount::KnownAtStart if container.restarts_for(Resource::Memory) => return None,
            Amount::ShareAtStart | Amount::KnownAtStart => LintRule::ReadAtStart,
            Amount::Unreadable => LintRule::UnreadableValue,
            Amount::Fixed(heap) if heap < LEAST_HEAP => LintRule::HeapTooSmall,
            Amount::Fixed(heap) if fills(heap) => LintRule::HeapFillsLimit,
            Amount::Fixed(_) if is_initial(setting.option) => LintRule::FixedInitialHeap,
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

/// The memory limit below which the kernel kills a full heap of fixed size: the largest such heap and a margin.
pub fn limit_floor(container: &Container) -> Option<Bytes> {
    let fixed = counting(container).filter_map(|setting| match amount(setting) {
        Amount::Fixed(heap) => Some(with_margin(heap)),
        Amount::ShareAtStart | Amount::KnownAtStart | Amount::Unreadable | Amount::Unset => None,
    });
    fixed.max()
}

/// The settings that take effect: in HotSpot and .NET, a size in bytes disables a share of the limit.
fn counting(container: &Container) -> impl Iterator<Item = &MemorySetting> {
    let settings = &container.memory_settings;
    let has = |options: &[MemoryOption]| {
        let mut sizes = settings.iter().filter(|setting| options.contains(&setting.option));
        sizes.any(|setting| amount(setting) != Amount::Unset)
    };
    let java = has(&[MemoryOption::JavaMaxHeap, MemoryOption::JavaMaxHeapSize]);
    let dotnet = has(&[MemoryOption::DotnetHeapLimit]);
    settings.iter().filter(move |setting| match setting.option {
        MemoryOption::JavaMaxRamPercentage | MemoryOption::JavaMaxRamFraction => !java,
        MemoryOption::DotnetHeapLimitPercent => !dotnet,
        _ => true,
    })
}

fn with_margin(heap: Bytes) -> Bytes {
    let heap = heap.get();
    let with_margin = heap.saturating_add((heap / MARGIN_DIVISOR).max(LEAST_MARGIN));
    Bytes::new(with_margin.checked_next_multiple_of(1 << 20).unwrap_or(with_margin))
}

const fn is_initial(option: MemoryOption) -> bool {
    matches!(
        option,
        MemoryOption::JavaInitialHeap | MemoryOption::JavaInitialHeapSize
    )
}

/// The memory that an option sizes, and how its size can follow the limit.
const fn heap_of(option: MemoryOption) -> (&'static str, &'static str) {
    use MemoryOption as Option;
    match option {
        Option::JavaMaxHeap
        | Option::JavaMaxHeapSize
        | Option::JavaInitialHeap
        | Option::JavaInitialHeapSize
        | Option::JavaMaxRamPercentage
        | Option::JavaMaxRamFraction => ("the Java heap", "use -XX:MaxRAMPercentage, which a restart reads again"),
        Option::GoMemoryLimit => (
            "the memory of the Go runtime",
            "let the program call debug.SetMemoryLimit when its limit changes",
        ),
        Option::NodeOldSpace | Option::NodeOldSpacePercentage => (
            "the old space of Node's heap",
            "use --max-old-space-size-percentage, which a restart reads again",
        ),
        Option::DotnetHeapLimit | Option::DotnetHeapLimitPercent => (
            "the .NET heap (a hexadecimal value)",
            "use DOTNET_GCHeapHardLimitPercent and call GC.RefreshMemoryLimit() when the limit changes",
        ),
    }
}

/// The runtime's reaction to an unreadable value, and the values that it reads.
const fn after_unreadable(option: MemoryOption) -> &'static str {
    use MemoryOption as Option;
    match option {
        Option::JavaMaxRamPercentage | Option::JavaMaxRamFraction | Option::NodeOldSpacePercentage => {
            "the process does not start with it; write a percentage above 0 and up to 100"
        }
        Option::JavaMaxHeap | Option::JavaMaxHeapSize | Option::JavaInitialHeap | Option::JavaInitialHeapSize => {
            "the JVM does not start with it; write a whole number of bytes, or one with k, m, g or t"
        }
        Option::GoMemoryLimit => {
            "a Go program does not start with it; write bytes, or a whole number with KiB, MiB, GiB or TiB"
        }
        Option::NodeOldSpace => "node does not start with it; write a whole number of MiB",
        Option::DotnetHeapLimit => {
            "the .NET runtime passes it over; write a hexadecimal number, 0x20000000 for 512 MiB"
        }
        Option::DotnetHeapLimitPercent => {
            "the .NET runtime passes it over; write a hexadecimal number, 0x4B for 75 percent"
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MemorySetting {
            option, source, value, ..
        } = &self.setting;
        let (name, (heap, follow)) = (option.name(), heap_of(*option));
        write!(f, "{name} {value:?} in {source} ")?;
        match (self.rule, self.amount) {
            (LintRule::HeapFillsLimit, Amount::Fixed(size)) => {
                let limit = self.limit.unwrap_or(size);
                write!(
                    f,
                    "lets {heap} have {size}, and the memory limit is {limit}: the kernel kills the container before the heap is \
                     full. Set {name} lower, or the limit to {} or more",
                    with_margin(size)
                )
            }
            (LintRule::HeapTooSmall, Amount::Fixed(_)) => write!(
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
            (_, Amount::Unreadable) => write!(f, "cannot be read: {}", after_unreadable(*option)),
            (_, Amount::KnownAtStart | Amount::ShareAtStart | Amount::Unset) => {
                let from = if self.amount == Amount::KnownAtStart {
                    "a value that is filled in"
                } else {
                    "a share of the limit that is computed"
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
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn container(mut declared: Value) -> Container {
        declared["name"] = json!("app");
        serde_json::from_value(declared).unwrap()
    }

    fn rules(declared: Value) -> Vec<(LintRule, String)> {
        let found = findings(&container(declared)).into_iter();
        found.map(|finding| (finding.rule, finding.setting.value)).collect()
    }

    fn with_limit(words: &Value, limit: &str) -> Value {
        json!({"args": words, "resources": {"limits": {"memory": limit}}})
    }

    #[test]
    fn a_heap_that_fills_its_limit_is_an_error() {
        let of = |heap: &str, limit: &str| rules(with_limit(&json!([format!("-Xmx{heap}")]), limit))[0].0;
        assert_eq!(of("512m", "1Gi"), LintRule::FixedHeap);
        assert_eq!(of("512m", "512Mi"), LintRule::HeapFillsLimit);
        assert_eq!(of("512m", "500Mi"), LintRule::HeapFillsLimit);
        assert_eq!(LintRule::HeapFillsLimit.severity(), LintSeverity::Error);
    }

    #[test]
    fn a_size_switches_a_share_off() {
        let found = rules(json!({"args": ["-XX:MaxRAMPercentage=75", "-Xmx1g"]}));
        assert_eq!(found, [(LintRule::FixedHeap, "1g".to_owned())]);
        let found = rules(json!({"args": ["-XX:MaxRAMPercentage=75"]}));
        assert_eq!(found, [(LintRule::ReadAtStart, "75".to_owned())]);
    }

    #[test]
    fn what_a_restart_reads_again_is_no_finding_where_a_resize_restarts() {
        let restarts = json!([{"resourceName": "memory", "restartPolicy": "RestartContainer"}]);
        let of = |words: Value| rules(json!({"args": words, "resizePolicy": restarts}));
        assert_eq!(of(json!(["-XX:MaxRAMPercentage=75"])), []);
        assert_eq!(of(json!(["-Xmx1g"])), [(LintRule::FixedHeap, "1g".to_owned())]);
    }

    #[test]
    fn a_number_in_the_wrong_unit_is_an_error() {
        let of = |setting: &str, divisor: Value, limit: Value| {
            let from = json!({"resourceFieldRef": {"resource": "limits.memory", "divisor": divisor}});
            let mut env = vec![json!({"name": "M", "valueFrom": from})];
            let (name, value) = setting.split_once('=').unwrap();
            let mut args = Vec::new();
            if name.starts_with('-') {
                args.push(json!(setting));
            } else {
                env.push(json!({"name": name, "value": value}));
            }
            let found = rules(json!({"args": args, "env": env, "resources": {"limits": {"memory": limit}}}));
            found.into_iter().map(|(rule, _)| rule).collect::<Vec<_>>()
        };
        let (fine, limit) = (LintRule::ReadAtStart, json!("512Mi"));
        for (setting, divisor, expected) in [
            ("GOMEMLIMIT=$(M)", Value::Null, fine),
            ("GOMEMLIMIT=$(M)", json!("1"), fine),
            ("GOMEMLIMIT=$(M)", json!(0), fine),
            ("GOMEMLIMIT=$(M)", json!("1Mi"), LintRule::HeapTooSmall),
            ("GOMEMLIMIT=$(M)", json!("1Ki"), LintRule::HeapTooSmall),
            ("GOMEMLIMIT=$(M)MiB", json!("1Mi"), fine),
            ("GOMEMLIMIT=$(M)MiB", json!("1"), LintRule::HeapFillsLimit),
            ("GOMEMLIMIT=$(M)Mi", json!("1Mi"), LintRule::UnreadableValue),
            ("-XX:MaxHeapSize=$(M)", json!("1"), fine),
            ("-XX:MaxHeapSize=$(M)m", json!("1Mi"), fine),
            ("-XX:MaxHeapSize=$(M)", json!("1Mi"), LintRule::HeapTooSmall),
            ("--max-old-space-size=$(M)", json!("1Mi"), fine),
            ("--max-old-space-size=$(M)", json!("1"), LintRule::HeapFillsLimit),
            ("DOTNET_GCHeapHardLimit=$(M)", json!("1"), LintRule::HeapFillsLimit),
            ("-XX:MaxRAMPercentage=$(M)", json!("1Mi"), LintRule::UnreadableValue),
            ("GOMEMLIMIT=512", Value::Null, LintRule::HeapTooSmall),
            ("-XX:MaxHeapSize=512", Value::Null, LintRule::HeapTooSmall),
        ] {
            assert_eq!(
                of(setting, divisor.clone(), limit.clone()),
                [expected],
                "{setting} {divisor}"
            );
        }
        // Without a limit it is what the node has, which is known well enough for that.
        assert_eq!(
            of("GOMEMLIMIT=$(M)", json!("1Mi"), Value::Null),
            [LintRule::HeapTooSmall]
        );
        assert_eq!(of("-XX:MaxHeapSize=$(M)m", json!("1Mi"), Value::Null), [fine]);
    }

    #[test]
    fn the_floor_is_the_largest_fixed_heap_and_a_margin() {
        let floor = |words: Value| limit_floor(&container(json!({ "args": words }))).map(Bytes::get);
        assert_eq!(floor(json!(["-Xms100m", "-Xmx200m"])), Some(264 << 20));
        assert_eq!(floor(json!(["-Xmx10g"])), Some(11 << 30));
        assert_eq!(floor(json!(["-Xmx1g"])), Some(1127 << 20));
        assert_eq!(floor(json!(["-XX:MaxRAMPercentage=75"])), None);
        assert_eq!(floor(json!(["-Xmxabc", "-Xmx12q"])), None);
    }

    #[test]
    fn messages_name_the_setting_the_reason_and_what_to_do() {
        let env = |name: &str, from: Value| {
            let mut variable = from;
            variable["name"] = json!(name);
            json!({ "env": [variable] })
        };
        for (declared, message) in [
            (
                with_limit(&json!(["-Xmx512m"]), "1Gi"),
                "-Xmx \"512m\" in args fixes the Java heap at 512Mi when the process starts: a higher memory limit does not \
                 enlarge it, and vscaled does not lower the limit below 576Mi. Change -Xmx with the limit and restart, or use \
                 -XX:MaxRAMPercentage, which a restart reads again",
            ),
            (
                with_limit(&json!(["-Xmx2g"]), "1Gi"),
                "-Xmx \"2g\" in args lets the Java heap have 2Gi, and the memory limit is 1Gi: the kernel kills the container \
                 before the heap is full. Set -Xmx lower, or the limit to 2253Mi or more",
            ),
            (
                with_limit(&json!(["-Xms512m"]), "1Gi"),
                "-Xms \"512m\" in args keeps the Java heap at 512Mi or more: a shrink of the memory limit frees nothing below \
                 that, and vscaled does not lower the limit below 576Mi. Set -Xms lower to let the heap shrink",
            ),
            (
                json!({"args": ["--max-old-space-size=4g"]}),
                "--max-old-space-size \"4g\" in args cannot be read: node does not start with it; write a whole number of MiB",
            ),
            (
                env(
                    "GOMEMLIMIT",
                    json!({"valueFrom": {"resourceFieldRef": {"resource": "limits.memory"}}}),
                ),
                "GOMEMLIMIT \"{limits.memory}\" in env GOMEMLIMIT gives the memory of the Go runtime a value that is filled in \
                 once, when the container starts: after a resize in place it stays as it was. Set resizePolicy RestartContainer \
                 for memory, or restart the container after a resize",
            ),
            (
                env("GOMEMLIMIT", json!({"value": "512"})),
                "GOMEMLIMIT \"512\" in env GOMEMLIMIT gives the memory of the Go runtime less than 1Mi, too little for any process: \
                 give the number its unit, or the reference another divisor",
            ),
            (
                env("DOTNET_GCHeapHardLimit", json!({"value": "0x20000000"})),
                "DOTNET_GCHeapHardLimit \"0x20000000\" in env DOTNET_GCHeapHardLimit fixes the .NET heap (a hexadecimal value) at 512Mi when the \
                 process starts: a higher memory limit does not enlarge it, and vscaled does not lower the limit below 576Mi. \
                 Change DOTNET_GCHeapHardLimit with the limit and restart, or use DOTNET_GCHeapHardLimitPercent and call \
                 GC.RefreshMemoryLimit() when the limit changes",
            ),
        ] {
            assert_eq!(findings(&container(declared))[0].to_string(), message);
        }
    }

    proptest! {
        #[test]
        fn any_value_is_judged(value in r#"(off|[0-9a-fA-FxX]{0,20}|[kmgtKMGT]i?B?|\PC{0,4}){0,3}"#) {
            let env: Vec<Value> = ["GOMEMLIMIT", "DOTNET_GCHeapHardLimit", "DOTNET_GCHeapHardLimitPercent"]
                .iter().map(|name| json!({"name": name, "value": value})).collect();
            let args = ["-Xmx", "-Xms", "-XX:MaxRAMPercentage=", "-XX:MaxRAMFraction=", "--max-old-space-size="]
                .map(|flag| format!("{flag}{value}"));
            let container = container(json!({"args": args, "env": env}));
            for finding in findings(&container) {
                prop_assert!(finding.to_string().contains(finding.setting.option.name()));
            }
            prop_assert!(limit_floor(&container).is_none_or(|floor| floor.get() > LEAST_MARGIN));
        }
    }
}
