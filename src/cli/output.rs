//! Prints an answer as a table, as JSON or as YAML.
//!
//! JSON and YAML carry every field under stable camelCase names, and amounts as quantities. Tables are for people and may
//! change. [`io`] cleans all three of dangerous characters, and colours a table.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::ControlFlow;

use anyhow::Context;
use clap::{Args, ValueEnum};
use serde::Serialize;

use super::{Failure, io};
use crate::printable;

const UNPRINTABLE: &str = "cannot print the result";

/// The notation of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    Table,
    Json,
    Yaml,
}

/// The option that chooses the notation.
#[derive(Debug, Clone, Args)]
pub(super) struct Output {
    /// How to print the answer
    #[arg(short = 'o', long = "output", value_name = "FORMAT", value_enum, default_value_t = Format::Table)]
    pub(super) format: Format,
}

impl Output {
    /// Prints a value. `table` draws it for people.
    pub(super) fn print<T: Serialize>(&self, value: &T, table: impl FnOnce() -> String) -> Result<(), Failure> {
        io::print(&match self.format {
            Format::Table => table(),
            Format::Json => json(serde_json::to_string_pretty(value))?,
            Format::Yaml => yaml(value)?,
        })
    }

    /// Prints a list of values under its name.
    pub(super) fn print_list<T: Serialize>(
        &self,
        name: &str,
        values: &[T],
        table: impl FnOnce() -> String,
    ) -> Result<(), Failure> {
        self.print(&BTreeMap::from([(name, values)]), table)
    }

    /// Prints one value of an endless list: a line, or a YAML document. Breaks when the reader has closed the pipe.
    pub(super) fn print_next<T: Serialize>(
        &self,
        value: &T,
        line: impl FnOnce() -> String,
    ) -> Result<ControlFlow<()>, Failure> {
        io::print_more(&match self.format {
            Format::Table => line() + "\n",
            Format::Json => json(serde_json::to_string(value))?,
            Format::Yaml => format!("---\n{}", yaml(value)?),
        })
    }
}

fn json(document: serde_json::Result<String>) -> Result<String, Failure> {
    Ok(printable::json(&document.context(UNPRINTABLE)?).into_owned() + "\n")
}

/// A document of YAML: with dangerous characters in it as JSON, which is YAML too, because only quoted texts have escapes.
pub(super) fn yaml<T: Serialize>(value: &T) -> Result<String, Failure> {
    let text = serde_saphyr::to_string(value).context(UNPRINTABLE)?;
    let is_dangerous = |character| character != '\n' && printable::is_dangerous(character);
    let text = if text.contains(is_dangerous) {
        let json = serde_json::to_string_pretty(value).context(UNPRINTABLE)?;
        printable::yaml(&json).into_owned()
    } else {
        text
    };
    // serde_saphyr leaves out the line break after a plain text.
    Ok(text.trim_end_matches('\n').to_owned() + "\n")
}

/// The meaning of a text, which decides its colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tone {
    Good,
    Waiting,
    Bad,
    Title,
    Plain,
}

impl Tone {
    /// The tone of a pod's state, or of the outcome of a change.
    pub(super) fn of(word: &str) -> Self {
        match word {
            "Applied" | "InSync" => Self::Good,
            "Working" | "Owed" | "RuntimeOwed" | "Planned" => Self::Waiting,
            "Refused" | "RolledBack" | "Incomplete" | "Foreign" => Self::Bad,
            _ => Self::Plain,
        }
    }
}

/// The noncharacters of Unicode that stand for the end of a colour and for each colour, and the terminal's sequence for each. Only
/// [`io`] prints such a sequence, so that no other text can bring one.
pub(super) const COLOURS: [(char, &str); 5] = [
    ('\u{fdd0}', "\u{1b}[0m"),
    ('\u{fdd1}', "\u{1b}[32m"),
    ('\u{fdd2}', "\u{1b}[33m"),
    ('\u{fdd3}', "\u{1b}[31m"),
    ('\u{fdd4}', "\u{1b}[1m"),
];
const COLOUR_MARKS: [char; 5] = ['\u{fdd0}', '\u{fdd1}', '\u{fdd2}', '\u{fdd3}', '\u{fdd4}'];

/// The text without its colours.
pub(super) fn plain(text: &str) -> String {
    text.replace(COLOUR_MARKS, "")
}

/// The text, safe to show and in the colour of its tone.
pub(super) fn coloured(tone: Tone, text: &str) -> String {
    let [end, good, waiting, bad, title] = COLOUR_MARKS;
    let mark = match tone {
        Tone::Good => good,
        Tone::Waiting => waiting,
        Tone::Bad => bad,
        Tone::Title => title,
        Tone::Plain => return clean(text),
    };
    format!("{mark}{}{end}", clean(text))
}

/// A word in its own tone.
pub(super) fn word(word: &str) -> String {
    coloured(Tone::of(word), word)
}

/// The text with its dangerous characters escaped.
pub(super) fn clean(text: &str) -> String {
    printable::printable(text, &[]).into_owned()
}

/// The same, with colours.
pub(super) fn clean_cell(text: &str) -> String {
    printable::printable(text, &COLOUR_MARKS).into_owned()
}

/// The text, or a dash for an empty one.
pub(super) fn or_dash(text: &str) -> String {
    if text.is_empty() { "-".to_owned() } else { clean(text) }
}

/// The text, or a dash for none.
pub(super) fn optional(text: Option<impl Display>) -> String {
    or_dash(&text.map(|text| text.to_string()).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_only_added_where_they_are_wanted() {
        assert_eq!(plain(&word("Refused")), "Refused");
        assert_eq!(io::shown(&word("Refused"), true), "\u{1b}[31mRefused\u{1b}[0m");
        assert_eq!(word("NotManaged"), "NotManaged");
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        assert_eq!(clean("a\u{1b}[2Jb\nc"), "a\\u{1b}[2Jb\\nc");
        assert_eq!(clean("web\u{202e}bd"), "web\\u{202e}bd");
        assert_eq!(or_dash(""), "-");
    }
}
