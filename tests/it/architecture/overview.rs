//! ARCHITECTURE.md names files, types and functions. Each of them must exist, so the page stays current.
//!
//! The test reads the words in backticks: a path below a directory of the project, a type, `Type::item`,
//! `module::item`.

use std::fs;
use std::path::Path;

use super::source::words;
use super::{code_of, root, rust_files};

const DIRECTORIES: [&str; 8] = [
    "benches", "deploy", "docs", "examples", "proto", "scripts", "src", "tests",
];

/// The keywords of blocks with a type's items.
const BLOCKS: [&str; 4] = ["enum", "impl", "struct", "trait"];

#[test]
fn every_name_in_the_overview_exists() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let code: Vec<(String, String)> = rust_files("src")
        .iter()
        .map(|file| (file.display().to_string(), code_of(file)))
        .collect();
    let names: Vec<&str> = text.split('`').skip(1).step_by(2).collect();
    assert!(names.len() > 100, "read only {} names", names.len());
    let unknown: Vec<_> = names.into_iter().filter(|name| !exists(name, &code)).collect();
    assert!(
        unknown.is_empty(),
        "ARCHITECTURE.md names what does not exist: {unknown:?}"
    );
}

#[test]
fn what_does_not_exist_is_noticed() {
    let code = [(
        "src/plan/mod.rs".to_owned(),
        "pub fn plan() {}\nstruct Plan;\nimpl Plan { fn between() {} }\nenum Via { Cri }\nfn other() {}\n".to_owned(),
    )];
    for known in [
        "Plan",
        "Plan::between",
        "Via::Cri",
        "plan::plan",
        "plan::Via",
        "cgroup.procs",
        "src/plan/mod.rs",
    ] {
        assert!(exists(known, &code), "{known}");
    }
    for unknown in [
        "Plans",
        "Plan::other",
        "Via::Resize",
        "plan::between_all",
        "decide::plan",
        "src/plan/none.rs",
    ] {
        assert!(!exists(unknown, &code), "{unknown}");
    }
}

/// Whether a name exists; true for names outside the project, such as a kernel's file.
fn exists(name: &str, code: &[(String, String)]) -> bool {
    if DIRECTORIES.contains(&name.split('/').next().unwrap_or_default()) && name.contains('/') {
        return root().join(name).exists();
    }
    let is_type = |name: &str| name.starts_with(char::is_uppercase) && name.contains(char::is_lowercase);
    let is_identifier = |name: &str| name.chars().all(|c| c.is_alphanumeric() || c == '_');
    match name.split_once("::") {
        Some((owner, item)) if is_type(owner) => code.iter().any(|(_, code)| has_item(code, owner, item)),
        Some((module, item)) => code
            .iter()
            .any(|(file, code)| is_below(file, module) && declares(code, item)),
        None if is_type(name) && is_identifier(name) => code.iter().any(|(_, code)| declares(code, name)),
        None => true,
    }
}

fn is_below(file: &str, module: &str) -> bool {
    Path::new(file)
        .iter()
        .nth(1)
        .is_some_and(|part| part.to_string_lossy().trim_end_matches(".rs") == module)
}

/// Whether the code declares a type or a function of that name.
fn declares(code: &str, name: &str) -> bool {
    if !code.contains(name) {
        return false;
    }
    let words: Vec<&str> = words(code).map(|(_, word)| word).collect();
    words
        .windows(2)
        .any(|pair| matches!(pair[0], "fn" | "struct" | "enum" | "trait" | "type") && pair[1] == name)
}

/// Whether a block of the type has a function or a variant of that name.
fn has_item(code: &str, owner: &str, item: &str) -> bool {
    if !code.contains(item) {
        return false;
    }
    let lines: Vec<&str> = code.lines().collect();
    (0..lines.len()).any(|start| {
        let Some(header) = header(&lines[start..], owner) else {
            return false;
        };
        let indent = lines[start].len() - lines[start].trim_start().len();
        let closing = format!("{}}}", " ".repeat(indent));
        let is_one_line = lines[start].ends_with('}');
        let end = lines[start..]
            .iter()
            .position(|line| is_one_line || line.starts_with(&closing));
        let block = &lines[start..=start + end.unwrap_or(0)];
        let words: Vec<&str> = words_of(block);
        words.windows(2).any(|pair| pair == ["fn", item]) || (header == "enum" && words.contains(&item))
    })
}

/// The keyword of the block that these lines open, if it belongs to the type.
fn header(lines: &[&str], owner: &str) -> Option<&'static str> {
    let first = lines.first()?;
    let keyword = BLOCKS
        .into_iter()
        .find(|keyword| words(first).take(4).any(|(_, word)| word == *keyword))?;
    // A long header takes several lines.
    let end = lines.iter().take(6).position(|line| line.contains('{')).unwrap_or(0);
    words_of(&lines[..=end]).contains(&owner).then_some(keyword)
}

fn words_of<'a>(lines: &[&'a str]) -> Vec<&'a str> {
    lines
        .iter()
        .flat_map(|line| words(line))
        .map(|(_, word)| word)
        .collect()
}
