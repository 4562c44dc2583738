//! Pure: which fields an update sends, and which values it refuses to send.

use crate::cgroup::page_size;
use crate::model::CriResources;

use super::error::Problem;
use super::proto::LinuxContainerResources;

/// The request that changes exactly the fields that are set.
///
/// On the wire zero means "leave it", so a zero is refused here: it would silently change nothing. The bounds are the
/// kernel's (`kernel/sched/core.c`: quota at least 1 ms, period 1 ms to 1 s; `cpu.shares` at least 2).
pub(super) fn request(resources: &CriResources) -> Result<LinuxContainerResources, Problem> {
    let CriResources {
        cpu_shares,
        cpu_quota,
        cpu_period,
        memory_limit_in_bytes,
    } = *resources;
    if *resources == CriResources::default() {
        return Err(Problem::Invalid {
            field: "the number of changed fields",
            value: 0,
            allowed: "at least 1",
        });
    }
    Ok(LinuxContainerResources {
        cpu_shares: field("cpu_shares", cpu_shares, "2 to 262144", |shares| {
            (2..=262_144).contains(&shares)
        })?,
        cpu_quota: field("cpu_quota", cpu_quota, "-1 (unbounded) or at least 1000 µs", |quota| {
            quota == -1 || quota >= 1000
        })?,
        cpu_period: field("cpu_period", cpu_period, "1000 to 1000000 µs", |period| {
            (1000..=1_000_000).contains(&period)
        })?,
        memory_limit_in_bytes: field(
            "memory_limit_in_bytes",
            memory_limit_in_bytes,
            "-1 (unbounded) or at least one page of memory",
            |limit| limit == -1 || u64::try_from(limit).is_ok_and(|limit| limit >= page_size().get()),
        )?,
    })
}

fn field(
    field: &'static str,
    value: Option<i64>,
    allowed: &'static str,
    is_allowed: impl Fn(i64) -> bool,
) -> Result<i64, Problem> {
    match value {
        None => Ok(0),
        Some(value) if is_allowed(value) => Ok(value),
        Some(value) => Err(Problem::Invalid { field, value, allowed }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_fields_that_change_are_sent() {
        let memory = CriResources {
            memory_limit_in_bytes: Some(64 << 20),
            ..CriResources::default()
        };
        let expected = LinuxContainerResources {
            memory_limit_in_bytes: 64 << 20,
            ..LinuxContainerResources::default()
        };
        assert_eq!(request(&memory).unwrap(), expected);
    }

    #[test]
    fn unbounded_is_minus_one() {
        let unbounded = CriResources {
            cpu_quota: Some(-1),
            memory_limit_in_bytes: Some(-1),
            ..CriResources::default()
        };
        let sent = request(&unbounded).unwrap();
        assert_eq!((sent.cpu_quota, sent.memory_limit_in_bytes), (-1, -1));
    }

    #[test]
    fn a_zero_that_would_change_nothing_is_refused() {
        let zero = CriResources {
            cpu_quota: Some(0),
            ..CriResources::default()
        };
        assert_eq!(
            request(&zero).unwrap_err().to_string(),
            "cpu_quota must be -1 (unbounded) or at least 1000 µs, not 0; nothing was sent"
        );
        assert!(request(&CriResources::default()).is_err());
    }

    #[test]
    fn values_the_kernel_would_refuse_are_not_sent() {
        for (shares, quota, period, memory) in [
            (Some(1), None, None, None),
            (Some(262_145), None, None, None),
            (None, Some(999), None, None),
            (None, Some(-2), None, None),
            (None, None, Some(1_000_001), None),
            (None, None, None, Some(4095)),
            (None, None, None, Some(i64::MIN)),
        ] {
            let resources = CriResources {
                cpu_shares: shares,
                cpu_quota: quota,
                cpu_period: period,
                memory_limit_in_bytes: memory,
            };
            assert!(request(&resources).is_err(), "{resources:?}");
        }
    }
}
