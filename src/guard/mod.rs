//! Grows limits before the kernel kills.
pub mod judge;
pub mod ledger;
pub mod lease;
pub mod rate;
