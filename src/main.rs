//! `vscaled`, the per-node agent.

fn main() {}
