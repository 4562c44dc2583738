//! Messages and stubs of `vscaled.report.v1`, generated from `proto/vscaled/report/v1/report.proto`. What a report says of a
//! pod, a container, a limit and memory is said in these messages everywhere, also on disk.

#![allow(
    unreachable_pub,
    unused_qualifications,
    clippy::all,
    clippy::allow_attributes_without_reason,
    reason = "generated code; the proto file documents it"
)]

use serde::{Serialize, Serializer};

tonic::include_proto!("vscaled.report.v1");

/// Prints a value of an enumeration; one of a newer agent is unknown.
fn word<E: TryFrom<i32> + Default + Serialize, S: Serializer>(value: &i32, serializer: S) -> Result<S::Ok, S::Error> {
    E::try_from(*value).unwrap_or_default().serialize(serializer)
}

fn time<S: Serializer>(time: &Option<prost_types::Timestamp>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&time.unwrap_or_default())
}
