//! Rules for the crate: which modules each module may use, what the pure modules must not use, and how long a file
//! may be.
//!
//! Property tests of `decide` and `plan` need pure functions: no I/O, no clock, no async. One import would break that
//! unnoticed, so these tests fail on it.

mod documentation;
mod overview;
pub(crate) mod pages;
mod reference;
mod source;
mod stages;

use std::fs;
use std::path::{Path, PathBuf};

use source::{Mention, mentions, words};

/// A module directly below `src/`, and the modules that its code outside of tests may use.
struct Module {
    name: &'static str,
    /// The other modules of the crate that this module may name.
    knows: &'static [&'static str],
    /// Whether the module is pure: plain data in, plain data out.
    pure: bool,
}

const fn pure(name: &'static str, knows: &'static [&'static str]) -> Module {
    Module {
        name,
        knows,
        pure: true,
    }
}

const fn effects(name: &'static str, knows: &'static [&'static str]) -> Module {
    Module {
        name,
        knows,
        pure: false,
    }
}

/// All modules in order of dependency: a module uses only modules before it. Add a new module here first.
const MODULES: &[Module] = &[
    pure("model", &[]),
    effects("proto", &[]),
    pure("printable", &[]),
    pure("share", &[]),
    pure("rate_limiter", &["share"]),
    effects("slots", &["share"]),
    effects("feed", &[]),
    effects("pace", &[]),
    effects("failpoint", &[]),
    effects("files", &["failpoint"]),
    effects("descriptors", &[]),
    pure("lint", &["model"]),
    pure("decide", &["lint", "model"]),
    pure("plan", &["model"]),
    pure("resize", &["model", "plan"]),
    effects("cgroup", &["descriptors", "model"]),
    effects("oom", &["cgroup", "descriptors", "feed", "model", "proto"]),
    effects("control", &["feed", "model", "oom", "proto", "rate_limiter", "slots"]),
    effects("doctor", &["cgroup", "control", "model", "oom"]),
    effects("observe", &["files", "model", "oom", "printable", "rate_limiter"]),
    effects("runtime", &["cgroup", "model", "observe", "pace", "proto"]),
    effects(
        "actuate",
        &[
            "cgroup",
            "decide",
            "failpoint",
            "model",
            "plan",
            "resize",
            "runtime",
            "slots",
        ],
    ),
    effects(
        "kubernetes",
        &[
            "actuate",
            "failpoint",
            "model",
            "observe",
            "pace",
            "printable",
            "proto",
            "rate_limiter",
            "resize",
            "share",
            "slots",
        ],
    ),
    effects(
        "report",
        &[
            "failpoint",
            "feed",
            "files",
            "kubernetes",
            "model",
            "observe",
            "oom",
            "pace",
            "printable",
            "rate_limiter",
            "share",
        ],
    ),
    effects("config", &["decide", "model", "observe", "report", "runtime"]),
    effects("guard", &["actuate", "cgroup", "model", "share"]),
    effects("sources", &["descriptors", "kubernetes", "model", "pace", "slots"]),
    effects(
        "reconcile",
        &[
            "actuate",
            "cgroup",
            "config",
            "decide",
            "feed",
            "files",
            "guard",
            "kubernetes",
            "lint",
            "model",
            "observe",
            "oom",
            "pace",
            "plan",
            "rate_limiter",
            "resize",
            "runtime",
            "share",
            "sources",
        ],
    ),
    effects(
        "agent",
        &[
            "actuate",
            "cgroup",
            "config",
            "control",
            "decide",
            "doctor",
            "feed",
            "files",
            "guard",
            "kubernetes",
            "model",
            "observe",
            "oom",
            "pace",
            "plan",
            "reconcile",
            "report",
            "resize",
            "runtime",
            "share",
            "sources",
        ],
    ),
    effects(
        "cli",
        &[
            "agent",
            "cgroup",
            "config",
            "control",
            "decide",
            "doctor",
            "lint",
            "model",
            "oom",
            "plan",
            "printable",
            "report",
            "runtime",
            "sources",
        ],
    ),
    effects("bin", &["cli"]),
];

/// The dependencies without effects. Every other crate in Cargo.toml counts as having effects.
const PURE_CRATES: &[&str] = &[
    "crc32fast",
    "derive_more",
    "indexmap",
    "jiff",
    "libm",
    "parking_lot",
    "serde",
    "serde_json",
    "serde_path_to_error",
    "serde_saphyr",
    "strum",
    "thiserror",
];

/// The modules of the standard library with effects.
const EFFECTS_IN_STD: &[&str] = &["env", "fs", "io", "net", "os", "process", "thread"];

/// The pure files of `reconcile`, and the directories of the same names: the state of a pod, and how it changes.
const PURE_STATE: &[&str] = &[
    "capacity",
    "desired",
    "drift",
    "growth",
    "hooks",
    "no_room",
    "overrides",
    "pod",
    "resize",
    "shrink",
    "work",
];

/// The file of `src/reconcile/pod` that has only tests, and its directory.
const TESTS_OF_POD: &str = "simulation";

/// Words that no pure code needs, in any position.
const EFFECT_WORDS: &[&str] = &["async", "await", "print", "println", "eprint", "eprintln"];

/// The maximum number of lines of a file.
const LONGEST_FILE: usize = 600;

#[test]
fn modules_know_only_those_below_them() {
    let mut broken = Vec::new();
    for file in rust_files("src") {
        let Some(module) = module_of(&file) else { continue };
        for mention in mentions(&code_of(&file), &module_path(&file)) {
            let [first, second, ..] = mention.path.as_slice() else {
                continue;
            };
            let other = second.as_str();
            if first == "crate" && other != module.name && is_module(other) && !module.knows.contains(&other) {
                broken.push(complaint(&file, &mention, "is above this module"));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// The files that write to standard output and standard error, each clean of dangerous characters; the screen draws cells, and
/// the failpoints of debug builds print their own names.
const SINKS: &[&str] = &[
    "src/cli/io.rs",
    "src/cli/top/screen.rs",
    "src/failpoint.rs",
    "src/observe/log.rs",
];

#[test]
fn only_the_sinks_write_to_standard_output_and_standard_error() {
    const WRITERS: [&str; 7] = ["print", "println", "eprint", "eprintln", "dbg", "stdout", "stderr"];
    let mut broken = Vec::new();
    for file in rust_files("src") {
        if SINKS.iter().any(|sink| file == Path::new(sink)) {
            continue;
        }
        let code = code_of(&file);
        let lines: Vec<&str> = code.lines().collect();
        for (line, word) in words(&code).filter(|(_, word)| WRITERS.contains(word)) {
            // A method or a function of the same name is none: `io::print(`, `output.print(`.
            let text = lines[line - 1];
            if ["!", "()"].iter().any(|then| text.contains(&format!("{word}{then}"))) {
                broken.push(format!("{}:{line}: `{word}` outside of a sink", file.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn modules_stand_in_one_order() {
    let mut below: Vec<&str> = Vec::new();
    for module in MODULES {
        let above: Vec<_> = module.knows.iter().filter(|known| !below.contains(known)).collect();
        assert!(
            above.is_empty(),
            "{} knows modules that do not stand before it: {above:?}",
            module.name
        );
        below.push(module.name);
    }
}

#[test]
fn pure_modules_reach_for_nothing_outside() {
    let crates = impure_crates();
    let mut broken = Vec::new();
    for file in rust_files("src") {
        if !is_pure(&file) {
            continue;
        }
        let code = code_of(&file);
        for mention in mentions(&code, &module_path(&file)) {
            if let Some(why) = effect(&mention.path, &crates).or_else(|| foreign_effect(&file, &mention.path)) {
                broken.push(complaint(&file, &mention, why));
            }
        }
        for (line, word) in words(&code).filter(|(_, word)| EFFECT_WORDS.contains(word)) {
            broken.push(format!("{}:{line}: `{word}` in pure code", file.display()));
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn every_module_has_its_place() {
    let mut unknown: Vec<_> = rust_files("src")
        .into_iter()
        .filter(|file| file.components().count() > 2 && module_of(file).is_none())
        .collect();
    unknown.dedup();
    assert!(
        unknown.is_empty(),
        "MODULES in tests/it/architecture.rs does not say what these may know: {unknown:?}"
    );
}

#[test]
fn every_file_opens_with_what_it_is_for() {
    let silent: Vec<_> = rust_files("src")
        .into_iter()
        .filter(|file| !is_test(file) && !fs::read_to_string(root().join(file)).unwrap().starts_with("//!"))
        .collect();
    assert!(
        silent.is_empty(),
        "these files have no module documentation: {silent:?}"
    );
}

#[test]
fn every_file_can_be_read_in_one_sitting() {
    let mut long = Vec::new();
    for file in rust_files("src").into_iter().chain(rust_files("tests")) {
        let lines = fs::read_to_string(root().join(&file)).unwrap().lines().count();
        if lines > LONGEST_FILE {
            long.push(format!("{}: {lines} lines", file.display()));
        }
    }
    assert!(long.is_empty(), "more than {LONGEST_FILE} lines: {}", long.join(", "));
}

#[test]
fn only_one_crate_may_contain_unsafe_code() {
    for (manifest, forbids) in [
        ("Cargo.toml", true),
        ("notify/Cargo.toml", true),
        ("sys/Cargo.toml", false),
    ] {
        let text = fs::read_to_string(root().join(manifest)).unwrap();
        assert_eq!(text.contains("unsafe_code = \"forbid\""), forbids, "{manifest}");
    }
    let text = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    assert!(
        text.contains("members = [\"notify\", \"sys\"]"),
        "another crate has no row above"
    );
    let calls = fs::read_to_string(root().join("sys/src/lib.rs")).unwrap();
    let (blocks, proofs) = (calls.matches("unsafe {").count(), calls.matches("// SAFETY: ").count());
    assert_eq!((blocks, proofs), (2, 2));
}

#[test]
fn effects_are_recognised() {
    let crates = impure_crates();
    let found = |code: &str| {
        mentions(code, &["decide".to_owned()])
            .iter()
            .any(|m| effect(&m.path, &crates).is_some())
    };
    for impure in [
        "use std::fs;",
        "use std::{collections::BTreeMap, net::{TcpStream}};",
        "let text = std::fs::read_to_string(path)?;",
        "let now = jiff::Timestamp::now();",
        "use tokio::sync::watch;",
        "use nix as unix;",
        "extern crate procfs;",
        "use cgroups_rs::fs::Cgroup;",
        "tracing::info!(pod, \"decided\");",
        "let effects = state.apply(input, Now::read());",
    ] {
        assert!(found(impure), "not noticed: {impure}");
    }
    for harmless in [
        "use std::collections::BTreeMap;",
        "use serde::Deserialize;",
        "let fs = policy.fs; fs::<u8>();",
    ] {
        assert!(!found(harmless), "taken for an effect: {harmless}");
    }
}

/// The reason why pure code must not name a path, if there is one.
fn effect(path: &[String], impure_crates: &[String]) -> Option<&'static str> {
    let first = path.first()?;
    match path.get(1) {
        Some(second) if first == "std" && EFFECTS_IN_STD.contains(&second.as_str()) => Some("reaches the outside"),
        _ if impure_crates.contains(first) => Some("is a dependency with effects"),
        _ if path.last().is_some_and(|last| last == "now") => Some("reads a clock; time is an argument"),
        _ if path.ends_with(&["Now".to_owned(), "read".to_owned()]) => Some("reads a clock; time is an argument"),
        _ => None,
    }
}

/// The reason why a pure file must not name this path of the crate, if there is one: of another module with effects, pure
/// code uses only types.
fn foreign_effect(file: &Path, path: &[String]) -> Option<&'static str> {
    let [first, module, .., last] = path else { return None };
    let other = MODULES.iter().find(|other| other.name == module)?;
    let is_foreign = first == "crate" && !other.pure && module_of(file).is_some_and(|own| own.name != other.name);
    (is_foreign && last.starts_with(char::is_lowercase)).then_some("is a function of a module with effects")
}

/// Whether a file has only pure code: plain data in, plain data out.
fn is_pure(file: &Path) -> bool {
    let path = module_path(file);
    let names: Vec<&str> = path.iter().map(String::as_str).collect();
    match names.as_slice() {
        ["reconcile", "pod", TESTS_OF_POD, ..] => false,
        ["reconcile", name, ..] => PURE_STATE.contains(name),
        _ => module_of(file).is_some_and(|module| module.pure),
    }
}

/// The dependencies in Cargo.toml that pure code must not name, spelled as in code.
fn impure_crates() -> Vec<String> {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let section = manifest
        .split("\n[dependencies]\n")
        .nth(1)
        .unwrap()
        .split("\n[")
        .next()
        .unwrap();
    let names = section
        .lines()
        .filter_map(|line| line.split_once(" = "))
        .map(|(name, _)| name.replace('-', "_"));
    let crates: Vec<_> = names.filter(|name| !PURE_CRATES.contains(&name.as_str())).collect();
    assert!(
        crates.iter().any(|name| name == "tokio"),
        "read no dependencies from Cargo.toml: {crates:?}"
    );
    crates
}

fn complaint(file: &Path, mention: &Mention, why: &str) -> String {
    format!(
        "{}:{}: `{}` {why}",
        file.display(),
        mention.line,
        mention.path.join("::")
    )
}

fn is_module(name: &str) -> bool {
    MODULES.iter().any(|module| module.name == name)
}

/// The module below `src/` of a file.
fn module_of(file: &Path) -> Option<&'static Module> {
    let name = file.iter().nth(1)?.to_str()?.trim_end_matches(".rs");
    MODULES.iter().find(|module| module.name == name)
}

/// The module path of a file: `["plan", "steps"]` for `src/plan/steps.rs`.
fn module_path(file: &Path) -> Vec<String> {
    let mut path: Vec<_> = file
        .iter()
        .skip(1)
        .map(|part| part.to_str().unwrap().to_owned())
        .collect();
    let last = path.pop().unwrap();
    let stem = last.trim_end_matches(".rs");
    if stem != "mod" {
        path.push(stem.to_owned());
    }
    path
}

/// The code of a file without its tests.
fn code_of(file: &Path) -> String {
    if is_test(file) {
        return String::new();
    }
    let text = fs::read_to_string(root().join(file)).unwrap();
    match text.find("#[cfg(test)]\nmod tests {") {
        Some(end) => text[..end].to_owned(),
        None => text,
    }
}

/// Whether the file is `tests.rs`, `some_tests.rs` or below a directory `tests`.
fn is_test(file: &Path) -> bool {
    file.iter().any(|part| {
        part.to_str()
            .is_some_and(|part| part.trim_end_matches(".rs").ends_with("tests"))
    })
}

/// All Rust files below a directory of the project, sorted, relative to the root.
fn rust_files(directory: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut directories = vec![PathBuf::from(directory)];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(root().join(&directory)).unwrap() {
            let entry = entry.unwrap();
            let path = directory.join(entry.file_name());
            if entry.file_type().unwrap().is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
    }
    assert!(!files.is_empty(), "no Rust files below {directory}");
    files.sort();
    files
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}
