//! Tells receivers what the kernel killed.

mod content;
mod destination;
mod fold;
pub mod spool;
#[cfg(test)]
mod testing;

pub use content::{Folded, Report};
pub use destination::{Destination, Destinations};
