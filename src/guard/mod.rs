//! Grows limits before the kernel kills.
pub mod judge;
pub mod lease;
pub mod ledger;
pub mod rate;
