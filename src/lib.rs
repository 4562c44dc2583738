//! vscaled: resizes running containers in place on one Kubernetes node.
//!
//! The agent learns what each local container *should* have (a VerticalPodAutoscaler's recommendation, or an operator at
//! a socket), makes the running container have it without a restart, keeps it so, and says what it did and why.
//!
//! # One direction
//! ```text
//!  sources            decide           plan                 actuate                     report
//!  directory  ─┐                                            ┌ cgroup v1 / v2 files      history, watch,
//!              ├─► NodeView ─► Target ─► ordered Steps ───► ┤ systemd's properties      explain, metrics
//!  control    ─┘   (facts)     (pure)    (pure)             └ CRI UpdateContainerRes.
//!                                          ▲
//!                                          └ observe: what the files and the runtime hold ◄── verify
//! ```
//! Facts in, effects out, mathematics in the middle: [`decide`] and [`plan`] are pure functions over plain data. The unit
//! of work is one pass over one pod ([`actuate::reconcile`]), whoever asked for it; every pass starts from what is
//! really there, so a lost event costs time and never correctness.
//!
//! # The rooms
//! - [`model`]: the vocabulary: quantities, Kubernetes objects, pods of the node, steps and records. Plain data.
//! - [`kubernetes`]: the API server: how to reach it, and what its answers mean.
//! - [`sources`]: where facts come from → one [`sources::NodeView`].
//! - [`lint`]: memory settings inside containers that no resize reaches. Pure.
//! - [`decide`]: what a pod's containers should have, by the VPA's rules. Pure.
//! - [`proto`]: what is generated from the protocol files.
//! - [`plan`]: what every cgroup must hold, and in which order to get there. Pure.
//! - [`cgroup`]: the kernel's files, where they are, and systemd's record of them.
//! - [`runtime`]: the container runtime over CRI, and its events.
//! - [`actuate`]: one pass over one pod: observe, plan, execute, verify, undo. Memory limits come down in a way of their own.
//! - [`oom`]: what the kernel killed, from its log and its counters.
//! - [`pace`]: how long to wait, so that a cluster's agents do not act in step.
//! - [`guard`]: sees limits that will be reached, and grows them before the kernel kills.
//! - [`report`]: kept on disk until every receiver has it: the way of a kill to recommenders and the API.
//! - `reconcile`: the state of every pod, how it changes, and the controller that owns it.
//! - [`agent`]: the tasks, wired together.
//! - [`control`]: the unix socket, both ends.
//! - [`rate_limiter`]: how often something may happen. Pure.
//! - [`observe`]: metrics, health, logs, the audit log.
//! - [`files`]: the one way to replace a file atomically.
//! - [`failpoint`]: where tests end a debug build as by a crash.
//! - [`doctor`]: what the agent needs of the machine, and what is missing.
//! - [`config`]: flags, environment and file → one checked configuration.
//! - [`cli`]: the local command line, `vscalectl`.
//!
//! Dependencies point one way: `model` ← `decide`, `plan` ← `cgroup`, `runtime` ← `actuate` ← `guard`, `agent` ← `cli`; the list in
//! `tests/it/architecture.rs` has every module in its place.

pub mod actuate;
pub mod agent;
pub mod cgroup;
pub mod cli;
pub mod config;
pub mod control;
pub mod decide;
pub mod doctor;
pub mod failpoint;
pub mod files;
#[cfg(any(test, fuzzing))]
#[path = "../fuzz/targets.rs"]
pub mod fuzz;
pub mod guard;
pub mod kubernetes;
pub mod lint;
pub mod model;
pub mod observe;
pub mod oom;
pub mod pace;
pub mod plan;
pub mod proto;
pub mod rate_limiter;
mod reconcile;
pub mod report;
pub mod runtime;
pub mod sources;
