//! The API server: calls, watches, and the meaning of the answers.
//!
//! [`Call`]s come in, answers or [`ApiError`]s go out. An error names the missing RBAC rule, or the wait before the next attempt.
//! [`ApiClient::connect`] reads configuration and credentials through kube. [`follow()`] replaces kube's watcher, which begins each watch again
//! after five minutes at the latest, and whose list fails as a whole when one object cannot be read (docs/api-server.md).
//! [`events`] bounds the number of Events about pods.
//!
//! This module decides nothing, and repeats nothing without a pause.

mod call;
mod client;
mod connect;
mod error;
pub mod events;
mod follow;
#[cfg(any(test, fuzzing))]
#[path = "../../fuzz/inputs/kubernetes.rs"]
pub(crate) mod fuzz;
mod health;
mod kept;
pub mod metrics;
mod object;
mod patch;
mod rights;
mod splitter;

pub use call::{Call, Kind, Verb};
pub use client::ApiClient;
pub use error::{ApiError, Problem, Status};
pub use follow::{Followed, Follower, Latest, ListChanges, LocalWorkloads, Timing, follow, follow_kubelet};
pub use health::ApiHealth;
pub use kept::{KeptObject, ObjectMemory, reduce};
pub use object::{Object, strip_nulls};
pub use patch::{Annotations, ApiResizer};
