//! Sees every kill on the node, and tells of each one once: [`start()`] runs the thread that does.
//!
//! ```text
//! memory.events (v2), an eventfd (v1) ─► hint ─┐
//! the clock ─────────────────────► schedule ───┤ look at the counters ─► accounts ─┐
//! /dev/kmsg (a thread of its own) ─► log_side ─┤ /proc, limits ─► node ────────────┤
//! who lives here ─► roster ────────────────────┤                                   ├─► desk ─► outlet
//! what the agent lowered ─► own_writes ────────┘                         join ─────┘
//! ```
//!
//! In come the node's files, the agent's inventory and its own changes; out come [`Batch`]es: reports, and the checkpoint
//! from which a later agent goes on, so that what happens while none runs is told once, and what was told is not told
//! again. The thread waits for nobody: not for the rest of the agent, nor for a disk, nor for whoever takes the reports.
//! All decisions are the desk's, which is pure but for the few files it asks `surroundings`
//! for at the moment of a kill.

mod accounts;
mod checkpoint;
mod clock;
mod desk;
mod hint;
mod log_side;
mod node;
mod open;
mod outlet;
mod own_writes;
mod records;
mod roster;
mod schedule;
mod start;
mod surroundings;
#[cfg(test)]
mod testing;
mod watcher;

pub use checkpoint::CheckpointError;
pub use outlet::Batch;
pub use own_writes::BLAMED_FOR;
pub use roster::Residents;
pub use start::{Links, StartError, WatchOptions, start};
