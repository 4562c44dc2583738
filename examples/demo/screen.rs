//! The demo's output: chapters with the time, and lines of at most [`WIDTH`] characters. Colours on a terminal only.

use std::io::{IsTerminal, Write, stdout};
use std::time::{Duration, Instant};

use anyhow::Result;

const WIDTH: usize = 100;
/// The indentation below a chapter's time.
const INDENT: usize = 9;

#[derive(Debug)]
pub(crate) struct Screen {
    colour: bool,
    began: Instant,
}

impl Screen {
    pub(crate) fn new() -> Self {
        let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self {
            colour: stdout().is_terminal() && !unwanted,
            began: Instant::now(),
        }
    }

    pub(crate) fn chapter(&mut self, title: &str) -> Result<()> {
        let seconds = self.began.elapsed().as_secs_f64();
        self.put("0", 0, " ")?;
        self.put("1", 0, &format!("{seconds:6.2} s {title}"))
    }

    /// Prints facts, one a line.
    pub(crate) fn facts(&mut self, text: &str) -> Result<()> {
        self.put("0", INDENT, text)
    }

    /// Prints the result of a check.
    pub(crate) fn confirm(&mut self, text: &str) -> Result<()> {
        self.put("32", INDENT, text)
    }

    /// Prints the output of a command.
    pub(crate) fn output(&mut self, text: &str) -> Result<()> {
        self.put("0", 0, text)
    }

    fn put(&mut self, style: &str, indent: usize, text: &str) -> Result<()> {
        let mut out = stdout().lock();
        for line in text.lines().flat_map(|line| wrap(line, WIDTH - indent)) {
            if self.colour {
                writeln!(out, "{:indent$}\u{1b}[{style}m{line}\u{1b}[0m", "")?;
            } else {
                writeln!(out, "{}", format!("{:indent$}{line}", "").trim_end())?;
            }
        }
        Ok(out.flush()?)
    }
}

/// Breaks a longer line at its spaces, no-break ones excepted.
fn wrap(line: &str, width: usize) -> Vec<String> {
    if line.chars().count() <= width {
        return vec![line.to_owned()];
    }
    let mut lines: Vec<String> = Vec::new();
    for word in line.split_ascii_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => *line += &format!(" {word}"),
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// A duration in milliseconds, in one piece for [`wrap`].
pub(crate) fn took(duration: Duration) -> String {
    format!("{:.1}\u{a0}ms", duration.as_secs_f64() * 1e3)
}
