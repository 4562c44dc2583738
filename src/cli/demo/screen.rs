//! How the demo talks: chapters with the time, short lines, tables. Plain text, in colour on a terminal only.

use std::io::{self, ErrorKind, Write};
use std::time::{Duration, Instant};

use super::error::DemoError;
use crate::cli::output::{Paint, Tone};
use crate::cli::{table, time};

/// Longer lines are broken.
const WIDTH: usize = 100;
/// Room for the time before a chapter's title.
const INDENT: usize = 9;

/// Standard output.
#[derive(Debug)]
pub(super) struct Screen {
    paint: Paint,
    began: Instant,
}

impl Screen {
    pub(super) fn new() -> Self {
        Self {
            paint: Paint::for_stdout(),
            began: Instant::now(),
        }
    }

    /// Begins a chapter, with the seconds since the demo began.
    pub(super) fn chapter(&mut self, title: &str) -> Result<(), DemoError> {
        let time = self.began.elapsed().as_secs_f64();
        let title = self.paint.text(Tone::Title, title);
        put(&format!("\n{time:6.2} s {title}\n"))
    }

    /// A fact.
    pub(super) fn say(&mut self, text: &str) -> Result<(), DemoError> {
        self.lines(Tone::Plain, &table::wrap(text, INDENT, WIDTH))
    }

    /// Something that was checked and found true.
    pub(super) fn confirm(&mut self, text: &str) -> Result<(), DemoError> {
        self.lines(Tone::Good, &table::wrap(text, INDENT, WIDTH))
    }

    /// Something for those who want to know more.
    pub(super) fn aside(&mut self, text: &str) -> Result<(), DemoError> {
        self.lines(Tone::Quiet, &table::wrap(text, INDENT, WIDTH))
    }

    /// Cells below each other, the first row being the columns' names.
    pub(super) fn table<const N: usize>(&mut self, rows: &[[String; N]]) -> Result<(), DemoError> {
        let rows: Vec<Vec<String>> = rows.iter().map(|row| row.to_vec()).collect();
        let text = table::align(&rows);
        for (index, line) in text.lines().enumerate() {
            let tone = if index == 0 { Tone::Quiet } else { Tone::Plain };
            self.lines(tone, &format!("{:INDENT$}{line}", ""))?;
        }
        Ok(())
    }

    /// A line as it is, for people to copy.
    pub(super) fn verbatim(&mut self, line: &str) -> Result<(), DemoError> {
        self.lines(Tone::Plain, &format!("{:INDENT$}{line}", ""))
    }

    fn lines(&mut self, tone: Tone, text: &str) -> Result<(), DemoError> {
        text.lines()
            .try_for_each(|line| put(&format!("{}\n", self.paint.text(tone, line))))
    }
}

fn put(text: &str) -> Result<(), DemoError> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Err(DemoError::Closed),
        result => result.map_err(DemoError::file("write to", "standard output")),
    }
}

/// A duration in the unit that suits it, from which a line's end does not part it.
pub(super) fn took(duration: Duration) -> String {
    time::took(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)).replace(' ', "\u{a0}")
}
