//! The Kubernetes objects that decisions need, reduced to the fields that matter.
//!
//! A decoded `k8s_openapi` Pod takes about twenty times the memory. Fields whose enumeration may grow in the API are text and
//! are interpreted where they are used, so that an unknown value never breaks a list. Unknown fields are ignored.

pub mod annotation;
mod binding;
mod command_line;
mod memory_settings;
mod meta;
mod pod;
mod vpa;
mod workload;

pub use binding::{PodId, pod_of_uid};
pub use memory_settings::{MemoryOption, MemorySetting, SettingSource};
pub use meta::{ObjectMeta, OwnerReference};
pub use pod::{
    Container, ContainerState, ContainerStatus, Pod, PodCondition, PodSpec, PodStatus, ResizePolicy, Running,
    Terminated,
};
pub use vpa::{
    ContainerPolicy, ContainerRecommendation, ControlledValues, CpuBoost, Recommendation, RecommenderSelector,
    ResourcePolicy, StartupBoost, TargetRef, UpdateMode, UpdatePolicy, VerticalPodAutoscaler, VpaSpec, VpaStatus,
};
pub use workload::{
    HorizontalPodAutoscaler, HpaMetric, HpaSpec, LabelSelector, LimitRange, LimitRangeItem, LimitRangeSpec,
    MetricSource, Node, NodeInfo, NodeStatus, Owner, OwnerKind, SelectorRequirement,
};
