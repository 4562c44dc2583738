//! vscaled: resizes running containers in place on one Kubernetes node.
//!
//! The agent gets the amounts that each local container *should* have from a VerticalPodAutoscaler's
//! recommendation, or from an operator at a socket. It gives the running container these amounts without a restart,
//! restores them when another process changes them, and reports what it did and why. It also reports which
//! processes the kernel's OOM killer has ended.
//!
//! # Data flow
//! ```text
//!  sources             decide               plan              actuate                     report
//!  API server ─┐                                            ┌ pods/resize                 history, explain,
//!  directory ──┼─► NodeView ─► PodDecision ─► ordered Steps ┤ cgroup v1 / v2 files        metrics, audit log,
//!  operator ───┘   (data)      (pure)         (pure)        │ systemd's properties        Events
//!                                               ▲           └ CRI UpdateContainerResources
//!                                               └ observe: what the files and the runtime hold ◄── verify
//! ```
//! [`decide`] and [`plan`] are pure functions over plain data. The unit of work is one pass over one pod
//! ([`actuate::reconcile`]), for every cause. Every pass starts from the values of the cgroup files, so a lost event delays a
//! change and never makes it wrong. `ARCHITECTURE.md` lists the tasks, and follows a recommendation and a kill through the
//! files.
//!
//! # Modules
//! - [`model`]: the types that several modules use: quantities, Kubernetes objects, pods of the node, steps and records. Pure.
//! - [`proto`]: the code that is generated from the protocol files.
//! - [`printable`]: text of tenants, made fit for screens and logs. Pure.
//! - [`share`]: fair shares of what all users of a node have in common. Pure.
//! - [`rate_limiter`]: limits how often something happens.
//! - [`slots`]: work at the same time, shared fairly among users.
//! - [`feed`]: values on their way to listeners; those that read slowly lose the oldest ones.
//! - [`pace`]: random delays, so that the agents of a cluster do not act at the same moment.
//! - [`failpoint`]: the places where tests end a debug build as a crash would.
//! - [`files`]: replaces a file atomically.
//! - [`descriptors`]: lets tokio wait for inotify and other descriptors.
//! - [`lint`]: finds memory settings inside containers that no resize reaches. Pure.
//! - [`decide`]: what a pod's containers should have, by the VPA's rules. Pure.
//! - [`plan`]: what every cgroup must hold, and the order of the steps that lead there. Pure.
//! - [`cgroup`]: finds, reads and writes the kernel's cgroup files, and sets systemd's properties.
//! - [`oom`]: finds what the kernel killed, from its log and its counters.
//! - [`control`]: both ends of the unix socket.
//! - [`doctor`]: checks what the agent needs of the machine.
//! - [`observe`]: metrics, health, logs, the audit log.
//! - [`runtime`]: the container runtime over CRI, and its events.
//! - [`actuate`]: runs one pass over one pod: observe, make room, patch, write, sync the runtime, verify, undo.
//! - [`kubernetes`]: the client of the API server.
//! - [`report`]: keeps kills on disk and delivers them to every receiver.
//! - [`config`]: flags, environment and file become one checked configuration.
//! - [`guard`]: watches limits that will soon be reached and requests temporary limits.
//! - [`sources`]: merges the API server's objects and a directory's manifests into one [`sources::NodeView`].
//! - `reconcile`: the state of every pod, its transitions, and the controller that owns it.
//! - [`agent`]: starts the tasks and connects them.
//! - [`cli`]: the command lines of `vscaled` and `vscalectl`.
//!
//! Each module imports only modules above it in this list. `tests/it/architecture.rs` checks that.

pub mod actuate;
pub mod agent;
pub mod cgroup;
pub mod cli;
pub mod config;
pub mod control;
pub mod decide;
pub mod descriptors;
pub mod doctor;
pub mod failpoint;
pub mod feed;
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
pub mod printable;
pub mod proto;
pub mod rate_limiter;
mod reconcile;
pub mod report;
pub mod resize;
pub mod runtime;
pub mod share;
pub mod slots;
pub mod sources;
