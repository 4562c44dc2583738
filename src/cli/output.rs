//! Prints an answer as a table, as JSON or as YAML.
//!
//! JSON and YAML carry every field under stable camelCase names, and amounts as quantities. Tables are for people and may
//! change: they are a [`Page`].

use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::ControlFlow;

use anyhow::Context;
use clap::{Args, ValueEnum};
use serde::Serialize;

use super::page::{Page, TextLine};
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
    pub(super) fn print<T: Serialize>(&self, value: &T, table: impl FnOnce() -> Page) -> Result<(), Failure> {
        match self.format {
            Format::Table => io::print(&table()),
            Format::Json => io::print_document(&json(serde_json::to_string_pretty(value))?),
            Format::Yaml => io::print_document(&yaml(value)?),
        }
        .map(drop)
    }

    /// Prints a list of values under its name.
    pub(super) fn print_list<T: Serialize>(
        &self,
        name: &str,
        values: &[T],
        table: impl FnOnce() -> Page,
    ) -> Result<(), Failure> {
        self.print(&BTreeMap::from([(name, values)]), table)
    }

    /// Prints one value of an endless list: a line, or a YAML document. Breaks when the reader has closed the pipe.
    pub(super) fn print_next<T: Serialize>(
        &self,
        value: &T,
        line: impl FnOnce() -> TextLine,
    ) -> Result<ControlFlow<()>, Failure> {
        match self.format {
            Format::Table => io::print(&line().into()),
            Format::Json => io::print_document(&json(serde_json::to_string(value))?),
            Format::Yaml => io::print_document(&format!("---\n{}", yaml(value)?)),
        }
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

/// The text, or a dash for an empty one.
pub(super) fn or_dash(text: &str) -> String {
    if text.is_empty() { "-" } else { text }.to_owned()
}

/// The text, or a dash for none.
pub(super) fn optional(text: Option<impl Display>) -> String {
    or_dash(&text.map(|text| text.to_string()).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_shown_as_a_dash() {
        assert_eq!(or_dash(""), "-");
    }
}
