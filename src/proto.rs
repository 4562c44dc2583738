//! Messages, clients and servers generated from the files below `proto/`, which document them.

#![allow(
    unreachable_pub,
    unused_qualifications,
    clippy::all,
    clippy::allow_attributes_without_reason,
    reason = "generated code; the proto files document it"
)]

/// `vscaled.control.v1`: the control socket.
pub mod control {
    tonic::include_proto!("vscaled.control.v1");
}

/// `vscaled.report.v1`: what reports say of pods, containers, limits and memory, everywhere and on disk as well.
pub mod report {
    use serde::{Serialize, Serializer};

    tonic::include_proto!("vscaled.report.v1");

    /// Prints a value of an enumeration; one of a newer agent is unknown.
    fn word<E: TryFrom<i32> + Default + Serialize, S: Serializer>(
        value: &i32,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        E::try_from(*value).unwrap_or_default().serialize(serializer)
    }

    fn time<S: Serializer>(time: &Option<prost_types::Timestamp>, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&time.unwrap_or_default())
    }
}

/// CRI v1. Public for tests and benchmarks, which make pods as a kubelet would.
pub mod cri {
    tonic::include_proto!("runtime.v1");
}

/// The kubelet's own socket for pods.
pub mod kubelet {
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
}
