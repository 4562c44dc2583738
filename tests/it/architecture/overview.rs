//! ARCHITECTURE.md names files, types and functions. Each of them must exist, so the page stays current.
//!
//! The test reads the words in backticks: a path below a directory of the project, a type, `Type::item`,
//! `module::item`. The files of a station declare every item that its row names. So does the file in
//! "`item` in `file`" elsewhere.

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
    let code = code_by_file();
    let names: Vec<&str> = text.split('`').skip(1).step_by(2).collect();
    assert!(names.len() > 100, "read only {} names", names.len());
    let unknown: Vec<_> = names.into_iter().filter(|name| !exists(name, &code)).collect();
    assert!(
        unknown.is_empty(),
        "ARCHITECTURE.md names what does not exist: {unknown:?}"
    );
}

#[test]
fn every_station_names_the_file_that_declares_its_items() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let code = code_by_file();
    let stations = text.lines().filter(|line| is_station(line)).count();
    assert!(stations > 30, "read only {stations} stations");
    let misplaced: Vec<_> = text.lines().flat_map(|line| misplaced(line, &code)).collect();
    assert!(misplaced.is_empty(), "declared in another file: {misplaced:?}");
}

#[test]
fn a_name_in_the_wrong_row_is_noticed() {
    let file = |path: &str, code: &str| (path.to_owned(), code.to_owned());
    let code = [
        file(
            "src/kubernetes/events/post.rs",
            "pub async fn post() {}\nenum Posted { Created }\n",
        ),
        file(
            "src/kubernetes/events/writer.rs",
            "struct Writer;\nimpl Writer { fn run() {} }\n",
        ),
    ];
    let wrong = |line: &str| misplaced(line, &code);
    let [post, writer] = [0, 1].map(|index: usize| &code[index].0);
    assert!(
        wrong(&format!(
            "| 14 | `{post}` | `post` of a `memory.max`: `Posted::Created` |"
        ))
        .is_empty()
    );
    assert_eq!(wrong(&format!("| 14 | `{writer}` | `post` |")), ["post"]);
    assert_eq!(
        wrong(&format!("| 14 | `{post}` | `Writer::run`, `Posted` |")),
        ["Writer::run"]
    );
    assert!(wrong(&format!("| 14 | `{post}`, `{writer}` | `Writer::run`, `Posted` |")).is_empty());
    assert_eq!(
        wrong(&format!("| Events | `Writer` beside `Posted` in `{writer}` |")),
        ["Posted"]
    );
    assert!(
        wrong(&format!(
            "| Events | `Posted` in `{post}`, `run` and `Writer` in `{writer}` |"
        ))
        .is_empty()
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

/// The path and the code of every source file.
fn code_by_file() -> Vec<(String, String)> {
    let files = rust_files("src");
    let files = files.iter();
    files.map(|file| (file.display().to_string(), code_of(file))).collect()
}

/// Whether a line is the row of a station in a journey.
fn is_station(line: &str) -> bool {
    line.starts_with("| ") && line.chars().nth(2).is_some_and(|digit| digit.is_ascii_digit())
}

/// The names in a line that the files beside them do not declare. In the row of a station these are its files. Elsewhere
/// it is the file in "`item` in `file`", also for the items in "`item` and `item` in `file`".
fn misplaced(line: &str, code: &[(String, String)]) -> Vec<String> {
    let parts: Vec<&str> = line.split('`').collect();
    let quoted: Vec<usize> = (1..parts.len()).step_by(2).collect();
    let is_source = |name: &str| name.starts_with("src/") && name.ends_with(".rs");
    let in_row = || {
        quoted
            .iter()
            .map(|at| parts[*at])
            .filter(|name| is_source(name))
            .collect()
    };
    let mut misplaced = Vec::new();
    for at in &quoted {
        let name = parts[*at];
        let files: Vec<&str> = if is_station(line) {
            in_row()
        } else {
            let mut next = *at;
            while matches!(parts.get(next + 1), Some(&(", " | " and "))) {
                next += 2;
            }
            match parts.get(next + 1..next + 3) {
                Some([" in ", file]) if is_source(file) => vec![*file],
                _ => continue,
            }
        };
        let beside: Vec<_> = code
            .iter()
            .filter(|(file, _)| files.contains(&file.as_str()))
            .cloned()
            .collect();
        if is_item(name, code) && !is_declared(name, &beside) {
            misplaced.push(name.to_owned());
        }
    }
    misplaced
}

/// Whether a name is a type, `Type::item`, `module::item`, or a function of the project.
fn is_item(name: &str, code: &[(String, String)]) -> bool {
    let is_identifier = name.chars().all(|c| c.is_alphanumeric() || c == '_');
    name.contains("::") || (is_identifier && code.iter().any(|(_, code)| declares(code, name)))
}

fn is_declared(name: &str, code: &[(String, String)]) -> bool {
    match name.contains("::") {
        true => exists(name, code),
        false => code.iter().any(|(_, code)| declares(code, name)),
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
