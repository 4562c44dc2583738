//! Errors of a connection in words short enough for a list of problems.

use std::error::Error;

/// What a receiver says is shown up to this many characters.
const LONGEST: usize = 300;

/// An error with its causes, bounded and printable: part of it may come from the other end.
pub(super) fn in_words(error: &dyn Error) -> String {
    let mut words = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if !words.contains(&text) {
            words = format!("{words}: {text}");
        }
        cause = error.source();
    }
    bounded(&words)
}

/// Text of the other end: without control characters, and not too long.
pub(super) fn bounded(text: &str) -> String {
    let mut clean: String = text
        .chars()
        .map(|character| if character.is_control() { ' ' } else { character })
        .take(LONGEST)
        .collect();
    if text.chars().nth(LONGEST).is_some() {
        clean.push('…');
    }
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_other_end_says_is_bounded_and_printable() {
        let shown = bounded(&format!("a\u{1b}[2J\n{}", "x".repeat(5000)));
        assert_eq!(shown.chars().count(), LONGEST + 1);
        assert!(shown.starts_with("a [2J x") && !shown.chars().any(char::is_control));
    }
}
