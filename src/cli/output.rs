//! Prints an answer as a table, as JSON or as YAML.
//!
//! JSON and YAML carry every field under stable camelCase names, and amounts as quantities. Tables are for people and may
//! change. Only a terminal gets colours, and not where `NO_COLOR` is set.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt::Display;
use std::io::IsTerminal;
use std::ops::ControlFlow;

use anstream::adapter::strip_str;
use anyhow::Context;
use clap::{Args, ValueEnum};
use serde::Serialize;

use super::{Failure, io};

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
            Format::Table => for_stdout(table()),
            Format::Json => serde_json::to_string_pretty(value).context(UNPRINTABLE)? + "\n",
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
            Format::Table => for_stdout(line()) + "\n",
            Format::Json => serde_json::to_string(value).context(UNPRINTABLE)? + "\n",
            Format::Yaml => format!("---\n{}", yaml(value)?),
        })
    }
}

pub(super) fn yaml<T: Serialize>(value: &T) -> Result<String, Failure> {
    let text = serde_saphyr::to_string(value).context(UNPRINTABLE)?;
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

/// The least width to which the commands fit lines.
const NARROWEST: usize = 40;

/// The characters in a line of the terminal. Output to anything else is not shortened.
pub(super) fn width() -> Option<usize> {
    let (width, _) = terminal_size::terminal_size_of(std::io::stdout())?;
    Some(usize::from(width.0).max(NARROWEST))
}

/// The text as standard output shows it: with colours only on a terminal whose user wants them (<https://no-color.org>).
fn for_stdout(text: String) -> String {
    let has = |variable, value: fn(&OsStr) -> bool| std::env::var_os(variable).is_some_and(|text| value(&text));
    let unwanted = has("NO_COLOR", |text| !text.is_empty()) || has("TERM", |text| text == "dumb");
    if unwanted || !std::io::stdout().is_terminal() {
        plain(&text)
    } else {
        text
    }
}

/// The text without its colours.
pub(super) fn plain(text: &str) -> String {
    strip_str(text).to_string()
}

/// The text, safe to show and in the colour of its tone.
pub(super) fn coloured(tone: Tone, text: &str) -> String {
    let text = clean(text);
    let code = match tone {
        Tone::Good => 32,
        Tone::Waiting => 33,
        Tone::Bad => 31,
        Tone::Title => 1,
        Tone::Plain => return text,
    };
    format!("\u{1b}[{code}m{text}\u{1b}[0m")
}

/// A word in its own tone.
pub(super) fn word(word: &str) -> String {
    coloured(Tone::of(word), word)
}

/// The text with its dangerous characters escaped: control characters, which could move the terminal's cursor, and
/// characters that are invisible or reverse the order of others.
pub(super) fn clean(text: &str) -> String {
    let hidden = |character: char| matches!(character, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}');
    let mut clean = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_control() || hidden(character) {
            clean.extend(character.escape_default());
        } else {
            clean.push(character);
        }
    }
    clean
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
        assert_eq!(word("Refused"), "\u{1b}[31mRefused\u{1b}[0m");
        assert_eq!(word("NotManaged"), "NotManaged");
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        assert_eq!(clean("a\u{1b}[2Jb\nc"), "a\\u{1b}[2Jb\\nc");
        assert_eq!(clean("web\u{202e}bd"), "web\\u{202e}bd");
        assert_eq!(or_dash(""), "-");
    }
}
