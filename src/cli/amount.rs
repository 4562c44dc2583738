//! Prints amounts and the values of cgroup files for people.

use super::output::{optional, or_dash};
use crate::control::proto;
use crate::model::quantity::Quantity;
use crate::model::{Bytes, ControlFile, MemoryLimit, Requirements, Resource, ResourceList, Setting};

/// The requests and limits of an answer. A text that is no amount counts as unset.
pub(super) fn read(values: Option<&proto::Requirements>) -> Requirements {
    Requirements {
        requests: list(values.and_then(|values| values.requests.as_ref())),
        limits: list(values.and_then(|values| values.limits.as_ref())),
    }
}

/// The amounts of an answer. A text that is no amount counts as unset.
pub(super) fn list(list: Option<&proto::Amounts>) -> ResourceList {
    ResourceList {
        cpu: list.and_then(|list| list.cpu.as_deref()?.parse().ok()),
        memory: list.and_then(|list| list.memory.as_deref()?.parse().ok()),
    }
}

/// For each resource: the container's name, the resource, request and limit, as `from → to` where they differ.
pub(super) fn rows(container: &str, from: &Requirements, to: &Requirements) -> [[String; 4]; 2] {
    let mut name = container.to_owned();
    Resource::ALL.map(|resource| {
        let change = |list: fn(&Requirements) -> &ResourceList| {
            let texts = [from, to].map(|side| list(side).text(resource));
            let [from, to] = both(resource.name(), texts.each_ref().map(Option::as_deref));
            if from == to { to } else { format!("{from} → {to}") }
        };
        let (request, limit) = (change(|side| &side.requests), change(|side| &side.limits));
        [std::mem::take(&mut name), resource.to_string(), request, limit]
    })
}

/// Two amounts of the resource of that name, in one unit; a dash for none.
pub(super) fn both(resource: &str, texts: [Option<&str>; 2]) -> [String; 2] {
    let resource = Resource::ALL.into_iter().find(|one| one.name() == resource);
    let amount = |text: Option<&str>| Some((resource?, Quantity::parse(text?).ok()?));
    match texts.map(amount) {
        [Some((Resource::Cpu, one)), Some((cpu, other))] => cpu.quantities([one, other].map(Quantity::milli_value)),
        [Some((_, one)), Some((memory, other))] => memory.quantities([one, other].map(Quantity::value)),
        _ => texts.map(optional),
    }
}

/// An amount in thousandths of a cpu or in bytes, in few digits and a unit, or a dash.
pub(super) fn short(resource: Resource, amount: Option<u64>) -> String {
    let Some(amount) = amount else { return "-".to_owned() };
    let (units, step): (&[&str], _) = match resource {
        Resource::Cpu => (&["m", "", "k"], 1000),
        Resource::Memory => (&["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"], 1024),
    };
    // Most amounts have these two units, so that those that stand together can be compared.
    let most = |unit: &str| match unit {
        "m" => 100_000,
        "Mi" => 10_000,
        _ => step,
    };
    let (mut whole, mut rest, mut unit) = (amount, 0, 0);
    while whole >= most(units[unit]) && unit + 1 < units.len() {
        (whole, rest, unit) = (whole / step, whole % step, unit + 1);
    }
    match rest * 10 / step {
        tenth if tenth > 0 && whole < 100 => format!("{whole}.{tenth}{}", units[unit]),
        _ => format!("{whole}{}", units[unit]),
    }
}

/// The value of a file, and for bytes of memory also their quantity: `201326592 (192Mi)`.
pub(super) fn describe(file: &str, text: &str) -> String {
    let shown = or_dash(text);
    match memory(file, text) {
        Some(MemoryLimit::Max) if text.starts_with(|first: char| first.is_ascii_digit()) => format!("{shown} (none)"),
        Some(MemoryLimit::Bytes(bytes)) if bytes.is_multiple_of(1024) && bytes > 0 => {
            format!("{shown} ({})", Bytes::new(bytes))
        }
        _ => shown,
    }
}

/// Whether the value is memory without a limit.
pub(super) fn is_unlimited(file: &str, text: &str) -> bool {
    memory(file, text) == Some(MemoryLimit::Max)
}

fn memory(file: &str, text: &str) -> Option<MemoryLimit> {
    Setting::parse(ControlFile::named(file)?, text).ok()?.memory()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_memory_has_its_unit_beside_it() {
        let cases = [
            ("memory.max", "201326592", "201326592 (192Mi)"),
            ("memory.max", "max", "max"),
            (
                "memory.limit_in_bytes",
                "9223372036854771712",
                "9223372036854771712 (none)",
            ),
            ("memory.limit_in_bytes", "1000", "1000"),
            ("memory.max", "", "-"),
            ("cpu.cfs_quota_us", "20480", "20480"),
            ("MemoryMax", "1048576", "1048576"),
        ];
        for (file, text, shown) in cases {
            assert_eq!(describe(file, text), shown);
        }
    }
}
