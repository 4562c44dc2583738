//! Messages and stubs generated from `proto/kubelet/pods/v1alpha1/api.proto` and `proto/k8s/core/v1/pod.proto`.

#![allow(
    unreachable_pub,
    unused_qualifications,
    clippy::all,
    clippy::allow_attributes_without_reason,
    reason = "generated code; the proto files document it"
)]

use std::collections::HashMap;

use jiff::Timestamp;

tonic::include_proto!("v1alpha1");

/// A pod as the kubelet sends it.
pub mod core {
    use super::HashMap;

    tonic::include_proto!("k8s.core.v1");
}

/// A time of all zeros is none, and one that no calendar has is none either.
impl From<core::Time> for Option<Timestamp> {
    fn from(time: core::Time) -> Self {
        let is_set = time != core::Time::default();
        is_set.then(|| Timestamp::new(time.seconds, time.nanos).ok()).flatten()
    }
}
