//! Reports ⇄ messages of the protocol. Pure.
//!
//! Out go messages as `report.proto` describes them; back come reports, or a word on what cannot be understood. A message
//! of a newer agent may have fields that are not known here: they are left out, as in any receiver.

mod inward;
mod outward;
#[cfg(test)]
mod tests;
mod words;

pub use inward::BadMessage;
