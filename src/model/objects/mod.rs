//! The Kubernetes objects decisions are made from, reduced to the fields that matter.
//!
//! Slim on purpose: a decoded `k8s_openapi` Pod holds about twenty times the memory. Enumerations of the API that may
//! grow are kept as text and interpreted where they are used, so that a value nobody has heard of never breaks a list.
//! Unknown fields are ignored.

pub mod annotation;
mod binding;
mod command_line;
mod memory_settings;
mod meta;
mod pod;
mod vpa;
mod workload;

pub use binding::{MIRROR_ANNOTATION, PodId, pod_of_uid};
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
