//! The name of a test module says which kernel its tests need.

use std::fs;
use std::path::Path;

use super::{root, rust_files};

/// Helpers that create cgroups of a real kernel, which needs root.
const MAKE_CGROUPS: &[&str] = &["support::bare", "support::containerd", "support::tree"];

/// The kinds of test modules that run as root.
const ROOTED: &[&str] = &["kernel_", "host_", "cluster_", "systemd_real"];

fn in_module(file: &Path, prefixes: &[&str]) -> bool {
    file.iter()
        .filter_map(|part| part.to_str())
        .any(|part| prefixes.iter().any(|prefix| part.starts_with(prefix)))
}

fn offenders(concerned: impl Fn(&Path) -> bool, words: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    for file in rust_files("tests/it").into_iter().filter(|file| concerned(file)) {
        let text = fs::read_to_string(root().join(&file)).unwrap();
        let words = words.iter().filter(|word| text.contains(**word));
        found.extend(words.map(|word| format!("{}: {word}", file.display())));
    }
    found
}

/// `scripts/test` runs modules named `kernel_*` under cgroup v1 and v2, and modules named `host_*` under one of them.
#[test]
fn a_module_that_runs_under_one_cgroup_version_does_not_ask_which() {
    let found = offenders(|file| in_module(file, &["host_"]), &["CgroupVersion"]);
    assert!(
        found.is_empty(),
        "what a test asserts differs between v1 and v2: its module must be named kernel_*: {found:?}"
    );
}

#[test]
fn tests_that_make_cgroups_are_in_modules_that_run_as_root() {
    let others = |file: &Path| !in_module(file, ROOTED) && !in_module(file, &["support", "architecture"]);
    let found = offenders(others, MAKE_CGROUPS);
    assert!(found.is_empty(), "name the modules kernel_* or host_*: {found:?}");
}
