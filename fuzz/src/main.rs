//! The fuzzer: gives arbitrary bytes to the target in VSCALED_FUZZ_TARGET, guided by coverage. `scripts/fuzz` builds
//! and runs it.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use vscaled::fuzz::{TARGETS, Target};

static TARGET: LazyLock<Target> = LazyLock::new(|| {
    let wanted = std::env::var("VSCALED_FUZZ_TARGET").expect("VSCALED_FUZZ_TARGET names a target");
    let found = TARGETS.iter().find(|(name, _)| *name == wanted);
    found.unwrap_or_else(|| panic!("no target {wanted}")).1
});

fuzz_target!(|bytes: &[u8]| TARGET(bytes));
