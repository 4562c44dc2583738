//! The actor that sees every kill on the node and reports each one once: [`start()`] runs its thread.
//!
//! ```text
//! memory.events (v2), an eventfd (v1) ─► wake_up ─┐
//! the clock ──────────────────────► schedule ─────┤ sweep ─► kill_counters ─┐
//! /dev/kmsg ─────────────────────► kernel_log ────┤ probe ─► node ──────────┤
//! the agent's pods ──────────────► pod_names ─────┤                         ├─► attribution ─► batch
//! what the agent lowered ────────► own_writes ────┘                join ────┘
//! ```
//!
//! In come the node's files, the agent's inventory and its own changes; out come [`Batch`]es: reports, and the checkpoint
//! from which a later agent goes on, so that what happens while none runs is told once, and what was told is not told
//! again. The thread waits for nobody: not for the rest of the agent, nor for a disk, nor for the receiver of batches.
//! All decisions are those of `attribution`, which is pure but for the few files it reads through `NodeIo` at the moment of
//! a kill.

mod attribution;
mod checkpoint;
mod container_limit;
mod kernel_log;
mod kill_counters;
mod node;
mod own_writes;
mod pod_names;
mod schedule;
#[cfg(test)]
mod testing;
mod wake_up;
mod watcher;

pub use own_writes::BLAME_WINDOW;
pub use pod_names::NodePods;
pub use watcher::{Batch, Links, start};
