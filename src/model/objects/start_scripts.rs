//! The variables that start scripts of images read: a table in a file, to which a user can add.
//!
//! A line of the table is the variable's name, then `flags` or the option for which the script uses the value, and perhaps the unit of
//! a number without one. `#` begins a comment.

use std::collections::HashMap;
use std::sync::{LazyLock, OnceLock};

use super::memory_settings::MemoryOption;

/// What a start script reads from a variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reads<'a> {
    Flags,
    /// The value of an option, and the unit of a number without one.
    Size(MemoryOption, &'a str),
}

static ADDED: OnceLock<String> = OnceLock::new();

/// Adds a table to that of this crate, once in a process, before any container is decoded. Its lines take precedence.
///
/// Errors: the line that is none of a table, and what is allowed.
pub fn add_start_script_variables(table: String) -> Result<(), String> {
    for (index, line) in table.lines().enumerate() {
        if !is_empty(line) && entry(line).is_none() {
            return Err(format!(
                "line {}: {line:?} is no entry: allowed are a variable's name, then flags or an option (such as -Xmx, \
                 -XX:MaxRAMPercentage or --max-old-space-size), and for an option the unit of a number without one (k, m or g)",
                index + 1
            ));
        }
    }
    ADDED
        .set(table)
        .map_err(|_table| "a table was added already".to_owned())
}

/// What start scripts read, by variable. Of several lines for one variable, the first counts.
static VARIABLES: LazyLock<HashMap<&str, Reads<'static>>> = LazyLock::new(|| {
    let tables = [
        ADDED.get().map_or("", String::as_str),
        include_str!("start_scripts.txt"),
    ];
    let lines = tables.into_iter().flat_map(str::lines);
    lines.rev().filter_map(entry).collect()
});

/// What start scripts read from the variable of this name. A tenant's pod may have tens of thousands of variables.
pub(super) fn of_variable(name: &str) -> Option<Reads<'static>> {
    VARIABLES.get(name).copied()
}

fn is_empty(line: &str) -> bool {
    line.split('#').next().is_none_or(|line| line.trim().is_empty())
}

fn entry(line: &str) -> Option<(&str, Reads<'_>)> {
    let mut words = line.split('#').next()?.split_whitespace();
    match [(); 4].map(|()| words.next()) {
        [Some(name), Some("flags"), None, None] => Some((name, Reads::Flags)),
        [Some(name), Some(option), unit @ (None | Some("k" | "m" | "g")), None] => {
            Some((name, Reads::Size(MemoryOption::named(option)?, unit.unwrap_or(""))))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_the_table_is_an_entry() {
        let table = include_str!("start_scripts.txt");
        for line in table.lines().filter(|line| !is_empty(line)) {
            assert!(entry(line).is_some(), "{line}");
        }
        assert_eq!(
            of_variable("SOLR_HEAP"),
            Some(Reads::Size(MemoryOption::JavaMaxHeap, ""))
        );
        assert_eq!(of_variable("JAVA_OPTS"), Some(Reads::Flags));
        assert_eq!(of_variable("HOME"), None);
    }

    #[test]
    fn a_bad_line_is_refused_with_its_number() {
        for bad in ["X", "X -Xmy", "X -Xmx q", "X flags m", "X -Xmx m g"] {
            let error = add_start_script_variables(format!("# mine\n\n{bad}\n")).unwrap_err();
            assert!(error.starts_with(&format!("line 3: {bad:?} is no entry")), "{error}");
        }
    }
}
