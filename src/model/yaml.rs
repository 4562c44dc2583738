//! What is wrong with a YAML text, for its author.

use serde_saphyr::Error;

/// Says why a text is not readable, in the words of its author. A key that stands twice is named with both lines.
pub fn unreadable(error: &Error, text: &str) -> String {
    let Error::DuplicateMappingKey { key, location } = error.without_snippet() else {
        return error.to_string();
    };
    let key = key.as_deref().unwrap_or("of another kind than text");
    let second = location.line();
    match first_line(text, key, second, location.column()) {
        Some(first) => format!("lines {first} and {second} have the same key {key}: remove one of them"),
        None => format!("line {second} has a key {key} for the second time: remove one of them"),
    }
}

/// The line of an earlier key of the same block mapping: at the same column, with no line between that lies further left.
fn first_line(text: &str, key: &str, second: u64, column: u64) -> Option<usize> {
    let before = text.lines().take(usize::try_from(second).ok()?.checked_sub(1)?);
    let lines: Vec<_> = (1..).zip(before).collect();
    let indent = usize::try_from(column).ok()?.checked_sub(1)?;
    for (number, line) in lines.into_iter().rev() {
        // The dash of a list counts as indentation of the mapping's first key.
        let from = line.find(|c: char| c != ' ' && c != '-').unwrap_or(line.len());
        let is_text = from < line.len() && !line[from..].starts_with('#');
        if is_text && from == indent {
            let found = line[from..].split(':').next()?.trim().trim_matches(['"', '\'']);
            if found == key {
                return Some(number);
            }
        }
        if is_text && (from < indent || line[..from].contains('-')) {
            return None;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn said(text: &str) -> String {
        let error = serde_saphyr::from_multiple::<Value>(text).unwrap_err();
        unreadable(&error, text)
    }

    #[test]
    fn a_duplicate_key_is_named_with_both_lines() {
        for (text, expected) in [
            (
                "a: 1\nb:\n  c: 1\na: 2\n",
                "lines 1 and 4 have the same key a: remove one of them",
            ),
            (
                "x:\n- name: n\n  # name: c\n  env:\n    name: e\n\n  name: m\n",
                "lines 2 and 7 have the same key name: remove one of them",
            ),
            (
                "y: {a: 1}\n---\nz:\n  \"k\": 1\n  k: 2\n",
                "lines 4 and 5 have the same key k: remove one of them",
            ),
            (
                "a: {b: 1, b: 2}\n",
                "line 1 has a key b for the second time: remove one of them",
            ),
            (
                "x:\n- name: n\n- name: m\n  name: o\n",
                "lines 3 and 4 have the same key name: remove one of them",
            ),
        ] {
            assert_eq!(said(text), expected, "{text}");
        }
    }

    #[test]
    fn other_errors_name_their_line() {
        assert!(said("a: [1\nb: 2\n").contains("line "), "{}", said("a: [1\nb: 2\n"));
    }
}
