//! The actor that finds every kill on the node and reports each one once: [`start()`] runs its thread.
//!
//! ```text
//! memory.events (v2), an eventfd (v1) ─► wake_up ─┐
//! the clock ──────────────────────► schedule ─────┤ sweep ─► kill_counters ─┐
//! /dev/kmsg ─────────────────────► kmsg ──────────┤ probe ─► node ──────────┤
//! the agent's pods ──────────────► pod_names ─────┤                         ├─► attribution ─► batch
//! the agent's own writes ────────► own_writes ────┘                join ────┘
//! ```
//!
//! In come the node's files, the agent's inventory and its own changes. Out come [`Batch`]es: reports, and the
//! checkpoint from which a later agent continues. So a kill that happens while no agent runs is reported once, and no
//! kill is reported twice. The thread waits for no other part of the agent, no disk and no receiver. `attribution`
//! decides; it is pure except for the few files that it reads through `NodeIo` at the moment of a kill.

mod attribution;
mod checkpoint;
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
