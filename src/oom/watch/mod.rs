//! Watches the node for kills.

mod accounts;
mod own_writes;
mod records;
mod roster;
