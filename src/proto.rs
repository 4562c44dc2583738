//! Messages, clients and servers that are generated from the files in `proto/`. Those files document them.

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

/// `vscaled.report.v1`: reports of kills, for receivers and for the kill log on disk.
pub mod report {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    tonic::include_proto!("vscaled.report.v1");

    /// Serializes a value of an enumeration. A value of a newer agent becomes the default one.
    fn word<E: TryFrom<i32> + Default + Serialize, S: Serializer>(
        value: &i32,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        E::try_from(*value).unwrap_or_default().serialize(serializer)
    }

    /// Deserializes a value of an enumeration.
    fn number<'de, E: Deserialize<'de> + Into<i32>, D: Deserializer<'de>>(from: D) -> Result<i32, D::Error> {
        E::deserialize(from).map(Into::into)
    }

    fn time<S: Serializer>(time: &Option<prost_types::Timestamp>, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&time.unwrap_or_default())
    }
}

/// CRI v1. Public because tests and benchmarks create pods like a kubelet.
pub mod cri {
    tonic::include_proto!("runtime.v1");
}

/// containerd's event and task services. Public for benchmarks.
pub mod containerd {
    tonic::include_proto!("containerd.events");
    tonic::include_proto!("containerd.services.events.v1");
    tonic::include_proto!("containerd.services.tasks.v1");
}

/// The kubelet's socket that lists pods.
pub mod kubelet {
    use std::collections::HashMap;

    use jiff::Timestamp;

    tonic::include_proto!("v1alpha1");

    /// Pods as the kubelet sends them.
    pub mod core {
        use super::HashMap;

        tonic::include_proto!("k8s.core.v1");
    }

    /// `None` for a time of zero, and for a time that is out of range.
    impl From<core::Time> for Option<Timestamp> {
        fn from(time: core::Time) -> Self {
            let is_set = time != core::Time::default();
            is_set.then(|| Timestamp::new(time.seconds, time.nanos).ok()).flatten()
        }
    }
}
