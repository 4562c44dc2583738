//! The pages are consistent: every link leads to an existing file and heading, and every page is listed once in
//! docs/SUMMARY.md, the table of contents from which `scripts/docs` builds the site.
//!
//! Pages are the Markdown files at the root of the project and below docs/.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

use super::root;

/// The files and directories that `scripts/docs` copies into the site besides pages.
const COPIED: [&str; 4] = ["docs", "deploy", "proto", "LICENSE"];

#[test]
fn every_link_in_a_page_leads_somewhere() {
    let (mut broken, mut count) = (Vec::new(), 0);
    for page in pages() {
        for link in links(&read(&page)) {
            count += 1;
            if let Some(why) = fault(&page, &link) {
                broken.push(format!("{}: {link} {why}", page.display()));
            }
        }
    }
    assert!(count > 100, "read only {count} links");
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn every_page_stands_in_the_table_of_contents_once() {
    let summary = PathBuf::from("docs/SUMMARY.md");
    let listed: Vec<PathBuf> = links(&read(&summary))
        .iter()
        .map(|link| resolved(&summary, link))
        .collect();
    let mut unlisted = pages();
    unlisted.remove(&summary);
    for page in &listed {
        assert!(
            unlisted.remove(page),
            "{} is no page, or stands there twice",
            page.display()
        );
    }
    assert!(unlisted.is_empty(), "docs/SUMMARY.md lacks {unlisted:?}");
}

#[test]
fn every_page_named_elsewhere_exists() {
    let mut missing = Vec::new();
    for file in ["src", "deploy", "scripts", "tests/it", "benches", "examples", ".github"]
        .into_iter()
        .flat_map(files_below)
    {
        let Ok(text) = fs::read_to_string(root().join(&file)) else {
            continue;
        };
        for name in named(&text) {
            if let Some(why) = fault(Path::new("README.md"), name) {
                missing.push(format!("{}: {name} {why}", file.display()));
            }
        }
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

#[test]
fn links_are_read_and_followed_as_sites_do() {
    let page = "# A `b`: c_d, e-f?\n[x](y.md#z), ![i](k.svg) `[no](no.md)`\n```sh\n# no\n[no](no.md)\n```\n## Twice\n## Twice\n";
    assert_eq!(links(page), ["y.md#z", "k.svg"]);
    assert_eq!(anchors(page), ["a-b-c_d-e-f", "twice", "twice-1"]);
    let fault = |link: &str| fault(Path::new("docs/oom.md"), link);
    for good in [
        "#how-it-knows",
        "memory.md",
        "../README.md",
        "../LICENSE",
        "https://example.com/",
    ] {
        assert_eq!(fault(good), None, "{good}");
    }
    for bad in [
        "#none",
        "none.md",
        "memory.md#none",
        "../deploy",
        "../Cargo.toml",
        "http://example.com/",
    ] {
        assert!(fault(bad).is_some(), "{bad}");
    }
    assert_eq!(
        named("see docs/oom.md#what-it-needs (docs/oom.md).").collect::<Vec<_>>(),
        ["docs/oom.md#what-it-needs", "docs/oom.md"]
    );
}

/// The fault of a page's link, if there is one. Links to other sites are not checked.
fn fault(page: &Path, link: &str) -> Option<&'static str> {
    if link.starts_with("https://") {
        return None;
    }
    if link.contains("://") {
        return Some("is not encrypted");
    }
    let file = resolved(page, link);
    if !root().join(&file).is_file() {
        return Some("is no file");
    }
    let first = file.iter().next().unwrap_or_default().to_string_lossy();
    let is_page = file.extension().is_some_and(|extension| extension == "md");
    if !is_page && !COPIED.contains(&first.as_ref()) {
        return Some("is not copied into the site");
    }
    match link.split_once('#') {
        Some((_, anchor)) if !anchors(&read(&file)).iter().any(|known| known == anchor) => Some("is no heading"),
        _ => None,
    }
}

/// The file of a page's link, relative to the root.
fn resolved(page: &Path, link: &str) -> PathBuf {
    let target = link.split('#').next().unwrap_or_default();
    if target.is_empty() {
        return page.to_owned();
    }
    let mut path = page.parent().unwrap().to_owned();
    for component in Path::new(target).components() {
        match component {
            Component::ParentDir => assert!(path.pop(), "{}: {link} leaves the project", page.display()),
            Component::CurDir => {}
            other => path.push(other),
        }
    }
    path
}

/// The targets of a page's links and pictures, in order.
fn links(text: &str) -> Vec<String> {
    let prose: String = without_blocks(text).split('`').step_by(2).collect();
    let targets = prose.split("](").skip(1).map(|rest| rest.split(')').next().unwrap());
    targets.map(str::to_owned).collect()
}

/// The anchors of a page's headings, as GitHub and mdBook generate them.
pub(crate) fn anchors(text: &str) -> Vec<String> {
    let mut anchors: Vec<String> = Vec::new();
    for heading in without_blocks(text).lines().filter(|line| line.starts_with('#')) {
        let kept = heading.trim_start_matches('#').trim().chars().filter_map(|c| match c {
            ' ' => Some('-'),
            '-' | '_' => Some(c),
            c if c.is_alphanumeric() => Some(c.to_ascii_lowercase()),
            _ => None,
        });
        let anchor: String = kept.collect();
        let numbered = (1..).map(|number| format!("{anchor}-{number}"));
        let mut names = std::iter::once(anchor.clone()).chain(numbered);
        anchors.push(names.find(|name| !anchors.contains(name)).unwrap());
    }
    anchors
}

/// The lines outside of fenced blocks.
fn without_blocks(text: &str) -> String {
    let mut is_block = false;
    let mut lines = Vec::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            is_block = !is_block;
        } else if !is_block {
            lines.push(line);
        }
    }
    lines.join("\n")
}

/// The pages that a text names from the root, such as docs/oom.md.
fn named(text: &str) -> impl Iterator<Item = &str> {
    text.match_indices("docs/").filter_map(|(start, _)| {
        let is_name = |c: char| c.is_ascii_alphanumeric() || "/.-_#".contains(c);
        let rest = &text[start..];
        let name = rest[..rest.find(|c| !is_name(c)).unwrap_or(rest.len())].trim_end_matches(['.', '-', '#']);
        let file = name.split('#').next()?;
        (file.matches('/').count() == 1 && file.ends_with(".md")).then_some(name)
    })
}

fn pages() -> BTreeSet<PathBuf> {
    let at_root = fs::read_dir(root()).unwrap();
    let at_root = at_root.map(|entry| PathBuf::from(entry.unwrap().file_name()));
    let pages = at_root.chain(files_below("docs"));
    pages
        .filter(|file| file.extension().is_some_and(|extension| extension == "md"))
        .collect()
}

fn files_below(directory: &str) -> Vec<PathBuf> {
    let (mut files, mut directories) = (Vec::new(), vec![PathBuf::from(directory)]);
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(root().join(&directory)).unwrap() {
            let entry = entry.unwrap();
            let found = if entry.file_type().unwrap().is_dir() {
                &mut directories
            } else {
                &mut files
            };
            found.push(directory.join(entry.file_name()));
        }
    }
    files
}

fn read(page: &Path) -> String {
    fs::read_to_string(root().join(page)).unwrap()
}
