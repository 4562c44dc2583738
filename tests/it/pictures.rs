//! The charts of measurements are drawn from results alone, and those in docs/performance match the results there.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

#[path = "../../benches/pictures/draw.rs"]
mod draw;

const DIRECTORY: &str = "docs/performance";

fn directory() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(DIRECTORY)
}

fn results() -> Value {
    let text = fs::read_to_string(directory().join("results.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

#[test]
fn the_pictures_in_the_docs_are_those_of_the_results_beside_them() {
    let pictures = draw::pictures(&results());
    let page = fs::read_to_string(directory().with_extension("md")).unwrap();
    let mut files: Vec<String> = fs::read_dir(directory())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".svg"))
        .collect();
    files.sort();
    let mut names: Vec<&str> = pictures.iter().map(|(name, _)| *name).collect();
    names.sort_unstable();
    assert_eq!(files, names, "one picture for each part of the results, and no other");
    for (name, picture) in pictures {
        assert_eq!(fs::read_to_string(directory().join(name)).unwrap(), picture, "{name}");
        assert!(page.contains(&format!("(performance/{name})")), "{name} is not shown");
    }
}

#[test]
fn a_picture_is_well_formed_and_says_what_was_measured() {
    let rows = json!([
        {"name": "the watcher <& all>", "samples": 3, "p50_us": 3000.0},
        {"name": "reading the log again each second", "samples": 3, "p50_us": 992_000.0}]);
    let results = json!({
        "at": "2026-11-23T10:00:00Z", "machine": {"cores": 2, "processor": "Some", "kernel": "6.18"},
        "tables": [{"part": "oom", "title": "kills", "load": 0.5, "rows": rows}]});
    let pictures = draw::pictures(&results);
    let [(name, picture)] = pictures.as_slice() else {
        panic!("{pictures:?}")
    };
    assert_eq!(*name, "kill.svg");
    for said in [
        "the watcher &lt;&amp; all>",
        "3.0 ms",
        "992 ms",
        "load 0.5",
        "2026-11-23",
    ] {
        assert!(picture.contains(said), "{said}: {picture}");
    }
    assert_eq!(picture.matches("<text").count(), picture.matches("</text>").count());
    assert!(picture.starts_with("<svg") && picture.ends_with("</svg>\n"));
}

#[test]
fn results_without_a_part_have_no_picture_of_it() {
    assert!(draw::pictures(&json!({"tables": []})).is_empty());
}

#[test]
fn the_exponent_is_that_of_the_power_law() {
    let law = |exponent: f64| [250.0_f64, 500.0, 1000.0].map(|count| (count, 0.003 * count.powf(exponent)));
    for exponent in [0.5, 1.0, 1.3] {
        assert!((draw::exponent(&law(exponent)) - exponent).abs() < 1e-9);
    }
}
