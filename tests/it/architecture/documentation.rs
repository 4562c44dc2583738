//! Public types and functions have documentation. The compiler's `missing_docs` would also require a line for every
//! field, variant and getter, whose name and type are enough.

use std::path::PathBuf;

use super::{code_of, is_test, root, rust_files};

/// The keywords of the documented items, after `pub` and `const` or `async`.
const DOCUMENTED: [&str; 5] = ["fn", "struct", "enum", "trait", "type"];

#[test]
fn public_types_and_functions_are_documented() {
    let mut silent = Vec::new();
    for file in rust_files("src").into_iter().filter(|file| !is_test(file)) {
        let code = code_of(&file);
        let lines: Vec<&str> = code.lines().map(str::trim).collect();
        for index in undocumented(&lines) {
            silent.push(format!("{}:{}: {}", file.display(), index + 1, lines[index]));
        }
    }
    assert!(silent.is_empty(), "no documentation:\n{}", silent.join("\n"));
}

#[test]
fn what_lacks_documentation_is_found() {
    let lines = |code: &'static str| code.lines().map(str::trim).collect::<Vec<_>>();
    let silent =
        "/// Documented.\n#[derive(\n    Debug,\n)]\npub struct A;\npub struct B;\n\npub const fn c(d: u8) {}\n";
    assert_eq!(undocumented(&lines(silent)), [5, 7]);
    let getters =
        "pub const fn name(&self) -> &str {}\npub(super) fn private(a: u8) {}\npub mod module;\npub field: u8,";
    assert_eq!(undocumented(&lines(getters)), [0_usize; 0]);
}

/// The lines of public items without documentation.
fn undocumented(lines: &[&str]) -> Vec<usize> {
    let is_silent = |index: &usize| is_public_item(lines[*index]) && !is_documented(&lines[..*index]);
    (0..lines.len()).filter(is_silent).collect()
}

fn is_public_item(line: &str) -> bool {
    let Some(item) = line.strip_prefix("pub ") else {
        return false;
    };
    let mut words = item
        .split_whitespace()
        .filter(|word| !matches!(*word, "async" | "const"));
    let first = words.next().unwrap_or_default();
    let is_item = DOCUMENTED.contains(&first);
    is_item && !is_getter(item)
}

/// Whether a function takes nothing but `self`.
fn is_getter(item: &str) -> bool {
    item.contains("fn ") && (item.contains("(&self) ->") || item.contains("(self) ->"))
}

/// Whether the lines end in documentation, attributes aside.
fn is_documented(mut before: &[&str]) -> bool {
    while let Some((last, earlier)) = before.split_last() {
        if last.starts_with("///") {
            return true;
        }
        if !last.ends_with(']') {
            return false;
        }
        before = earlier;
        // An attribute may take several lines.
        if !last.starts_with("#[") {
            let start = before.iter().rposition(|line| line.starts_with("#["));
            before = &before[..start.unwrap_or(0)];
        }
    }
    false
}

/// Backquoted names of functions in the text, such as `module::test`.
fn named(text: &str) -> impl Iterator<Item = &str> {
    let quoted = text.split('`').skip(1).step_by(2);
    quoted.filter(|name| name.contains("::") && !name.contains(['/', ' ', '(']))
}

/// Whether a test of that name stands in a file of its modules.
fn names_test(name: &str, files: &[PathBuf]) -> bool {
    let (modules, test) = name.rsplit_once("::").unwrap();
    let modules: Vec<&str> = modules.split("::").filter(|module| *module != "tests").collect();
    files.iter().any(|file| {
        let path = file.with_extension("").display().to_string();
        let in_modules = modules.iter().all(|module| path.split('/').any(|part| part == *module));
        let start = format!("fn {test}(");
        in_modules && std::fs::read_to_string(file).unwrap().contains(&start)
    })
}

/// A row of a table of `docs/support.md` is a combination. The row names the test that ran it, or says that none did.
#[test]
fn every_combination_names_its_test_or_was_never_run() {
    let text = std::fs::read_to_string(root().join("docs/support.md")).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let rows = (2..lines.len()).filter(|number| {
        let below_header = lines[number - 1].starts_with('|') && !lines[*number].starts_with("|---");
        lines[*number].starts_with('|') && below_header
    });
    let rows: Vec<&str> = rows.map(|number| lines[number]).collect();
    assert!(rows.len() > 40, "{rows:?}");
    let last_cell = |row: &str| {
        row.trim_end_matches('|')
            .rsplit('|')
            .next()
            .unwrap_or_default()
            .to_owned()
    };
    let is_known = |cell: &str| cell.contains("::") || cell.contains("the same") || cell.contains("never run");
    let silent: Vec<&&str> = rows.iter().filter(|row| !is_known(&last_cell(row))).collect();
    assert!(silent.is_empty(), "neither a test nor \"never run\": {silent:#?}");
}

/// A paragraph or a row of a page that says what a tenant cannot do is a promise, and names its test.
#[test]
fn what_a_tenant_cannot_do_names_its_test() {
    const WHO: [&str; 7] = [
        "tenant",
        "neighbour",
        "nobody",
        "other namespace",
        "another namespace",
        "no namespace",
        "whoever",
    ];
    const CANNOT: [&str; 6] = [
        " cannot ",
        " can never ",
        " may not ",
        "nobody ",
        "no other namespace ",
        "no namespace ",
    ];
    let files: Vec<_> = ["src", "tests/it"].into_iter().flat_map(rust_files).collect();
    let directory = std::fs::read_dir(root().join("docs")).unwrap();
    let pages = directory.map(|entry| entry.unwrap().path());
    let pages = pages.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    let (mut promises, mut silent) = (0, Vec::new());
    for page in pages {
        let text = std::fs::read_to_string(&page).unwrap();
        let rows_apart = text.replace("\n|", "\n\n|").replace("\n- ", "\n\n- ");
        for paragraph in rows_apart.split("\n\n").map(|paragraph| paragraph.replace('\n', " ")) {
            let is_promise = paragraph.split(". ").any(|sentence| {
                let sentence = format!("{} ", sentence.to_lowercase()).replace("nobody else", "");
                WHO.iter().any(|who| sentence.contains(who)) && CANNOT.iter().any(|cannot| sentence.contains(cannot))
            });
            promises += usize::from(is_promise);
            if is_promise && !named(&paragraph).any(|name| names_test(name, &files)) {
                silent.push(format!("{}: {paragraph}", page.display()));
            }
        }
    }
    assert!(promises > 3, "{promises}");
    assert!(silent.is_empty(), "promises without a test: {silent:#?}");
}

#[test]
fn every_test_that_a_page_names_is_there() {
    let files: Vec<_> = ["src", "tests/it"].into_iter().flat_map(rust_files).collect();
    for page in ["docs/threat-model.md", "docs/support.md"] {
        let text = std::fs::read_to_string(root().join(page)).unwrap();
        assert!(named(&text).count() > 20, "{page} names no tests");
        let missing: Vec<&str> = named(&text).filter(|name| !names_test(name, &files)).collect();
        assert!(missing.is_empty(), "{page}: no such tests: {missing:?}");
    }
}
