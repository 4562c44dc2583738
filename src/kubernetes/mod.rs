//! The API server: how to reach it, what may be asked of it, what its answers mean.
//!
//! In come [`Call`]s, out go answers or [`ApiError`]s that say what to do: which RBAC rule is missing, how long to wait.
//! [`ApiClient`] reads the configuration and credentials through kube; lists and watches are followed here
//! ([`follow()`]) and not by kube's watcher, because a watch begun again every five minutes would be most of what a node at
//! rest asks for, and because one object that cannot be read must not hide the others.
//!
//! What is to be said about pods goes through [`events`]: few Events, however much happens.
//!
//! Nothing here decides anything, and nothing is retried without a pause.

mod annotate;
mod call;
mod client;
mod connect;
mod error;
pub mod events;
mod follow;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod health;
pub mod metrics;
mod object;
mod pieces;
mod resize;

pub use annotate::{Annotated, Annotations};
pub use call::{Call, Kind, Verb};
pub use client::{ApiClient, Turn};
pub use connect::Access;
pub use error::{ApiError, Problem, Status};
pub use follow::{Followed, Follower, Place, Timing, follow, follow_kubelet, kubelet_proto};
pub use health::{ApiHealth, Away};
pub use object::{Key, Object, Share, strip_nulls};
pub use resize::ApiResizer;
