//! Lists the kills in a whole log, which comes from a file or the clipboard.
//!
//! In come the bytes of a log, in any of the forms in which people have one: records of `/dev/kmsg`, lines of text
//! ([`text`]), and the fields of a journal or of JSON ([`entry`], [`json`]), mixed as they may be. Out goes each kill once, about in the
//! order of the lines, and what the reader did not understand.
//!
//! Beside the kills, the memory has a bound, and the time grows with the log's size alone: a line counts up to
//! [`LONGEST_LINE`] bytes. Each machine has a parser of its own.

mod entry;
mod json;

use std::collections::HashMap;
use std::io::{self, BufRead};

use super::assemble::{Assembler, LONGEST_LINE};
use super::kill::Kill;
use super::parse::{Event, Parsed, Parser, begins_message, may_matter, speaks_of_kill};
use super::record::Line;
use super::{DAY_US, TOGETHER_US, text};
use entry::{Entry, Message};
use json::Objects;

/// So many of the latest kills are searched for the one that a later line about its group is about.
const MOST_SEARCHED: usize = 1024;
/// The machines whose lines are kept apart at one time.
const MOST_MACHINES: usize = 64;
/// Characters of a line that is shown.
const SHOWN: usize = 300;

/// The lines that speak of a kill and that the reader did not understand.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NotUnderstood {
    pub lines: u64,
    /// The number of the first of them, counted from 1, and its beginning.
    pub first: Option<(u64, String)>,
}

/// Reads a log to its end. Returns the kills in the order of their lines, each process once, and what the reader did not
/// understand.
///
/// Errors: the log cannot be read.
pub fn read_log(mut log: impl BufRead) -> io::Result<(Vec<Kill>, NotUnderstood)> {
    let mut reader = LogReader::default();
    loop {
        let bytes = log.fill_buf()?;
        if bytes.is_empty() {
            break;
        }
        let length = reader.push(bytes);
        log.consume(length);
    }
    reader.end();
    let kills = reader.found.kills.into_iter().map(|(_, kill)| kill);
    Ok((kills.collect(), reader.found.not_understood))
}

/// Lists the kills in a log in the order of their lines, each process once. Accepts any bytes.
pub fn parse_log(log: &[u8]) -> Vec<Kill> {
    // Memory is always readable.
    read_log(log).map(|(kills, _)| kills).unwrap_or_default()
}

#[derive(Debug, Default)]
struct LogReader {
    /// The line that is being read, up to [`LONGEST_LINE`].
    line: Vec<u8>,
    /// Whether the line is a document of which a part was read already.
    continues: bool,
    /// The number of that line, less one.
    lines: u64,
    /// Whether the log has had a record of `/dev/kmsg`: among records, a line without a header is not the kernel's.
    has_records: bool,
    /// The latest line of text with its number, less one, until the next line shows whether its message goes on there.
    text: Option<(u64, String)>,
    objects: Objects,
    entry: Entry,
    machines: HashMap<String, Machine>,
    found: Found,
}

#[derive(Debug, Default)]
struct Found {
    /// The kills so far, each with the number of its machine.
    kills: Vec<(u64, Kill)>,
    not_understood: NotUnderstood,
}

/// The state of one machine's log.
#[derive(Debug)]
struct Machine {
    number: u64,
    assembler: Assembler,
    parser: Parser,
    clock_us: Option<u64>,
}

impl NotUnderstood {
    fn add(&mut self, number: u64, text: &str) {
        if speaks_of_kill(text) {
            self.lines += 1;
            self.first
                .get_or_insert_with(|| (number, text.chars().take(SHOWN).collect()));
        }
    }
}

impl LogReader {
    /// Takes the next bytes, at most up to the end of a line. Returns how many.
    fn push(&mut self, bytes: &[u8]) -> usize {
        let bytes = &bytes[..bytes.len().min(LONGEST_LINE)];
        let end = bytes.iter().position(|byte| *byte == b'\n');
        let part = &bytes[..end.unwrap_or(bytes.len())];
        if self.line.len() + part.len() > LONGEST_LINE && self.is_document() {
            self.read_document();
            self.add_broken();
            self.continues = true;
        }
        let room = LONGEST_LINE - self.line.len();
        self.line.extend_from_slice(&part[..part.len().min(room)]);
        if end.is_some() {
            self.end_line();
        }
        part.len() + usize::from(end.is_some())
    }

    fn is_document(&self) -> bool {
        self.continues || self.objects.accepts(&self.line) && self.next_of_message().is_none()
    }

    /// The text of the line, if it goes on with the message of the line before. Whoever wrote that message chose this text, so the
    /// line is nothing else, whatever it looks like.
    fn next_of_message(&self) -> Option<String> {
        let (_, before) = self.text.as_ref().filter(|_| self.line.starts_with(b" "))?;
        text::continuation(before, &line_of_text(&self.line)).map(str::to_owned)
    }

    fn read_document(&mut self) {
        self.end_text();
        for object in self.objects.push(&self.line) {
            self.end_entry(Entry::of_object(object));
        }
        self.line.clear();
    }

    fn end_line(&mut self) {
        match self.next_of_message() {
            Some(next) => {
                self.line.clear();
                // The rest of a very long message is not read.
                if let Some((_, text)) = &mut self.text
                    && text.len() + next.len() < LONGEST_LINE
                {
                    text.extend(["\n", next.as_str()]);
                }
            }
            None => self.end_own_line(),
        }
        self.lines += 1;
    }

    /// Takes a line that begins a message, a field or a part of a document.
    fn end_own_line(&mut self) {
        if self.is_document() {
            self.read_document();
            self.continues = false;
        }
        let line = std::mem::take(&mut self.line);
        let line = line.strip_suffix(b"\r").unwrap_or(&line);
        if !line.is_empty() {
            self.objects.abandon();
        }
        self.objects.end_line();
        self.add_broken();
        if !self.entry.take_line(line) {
            let entry = std::mem::take(&mut self.entry);
            self.end_entry(entry);
            match Line::of_record(line) {
                Some(record) => {
                    self.end_text();
                    self.has_records = true;
                    if record.from_kernel {
                        self.kernel_line("", None, record);
                    }
                }
                None => self.add_text(line_of_text(line)),
            }
        }
    }

    /// Takes a line of text. An empty one ends no message.
    fn add_text(&mut self, line: String) {
        if self.text.is_none() || !line.trim_ascii().is_empty() {
            self.end_text();
            self.text = Some((self.lines, line));
        }
    }

    fn end_text(&mut self) {
        let Some((number, text)) = self.text.take() else {
            return;
        };
        let lines = std::mem::replace(&mut self.lines, number);
        self.text_line(&text, &Message::default());
        self.lines = lines;
    }

    fn end_entry(&mut self, entry: Entry) {
        let Some(message) = entry.into_message() else {
            return;
        };
        if !message.texts.is_empty() {
            self.end_text();
        }
        for text in &message.texts {
            if message.is_kernels {
                let line = Line::of_text(text.clone());
                let timestamp_us = message.timestamp_us;
                self.kernel_line(&message.host, message.clock_us, Line { timestamp_us, ..line });
            } else {
                self.text_line(text, &message);
            }
        }
    }

    /// Takes a line of text, perhaps from within a message.
    fn text_line(&mut self, text: &str, around: &Message) {
        if !may_matter(text) && self.machines.values().all(|machine| machine.assembler.is_empty()) {
            return;
        }
        let Some(mut read) = text::kernel_line(text) else {
            return;
        };
        // Tables and programs that log what they read quote a line, or its parts.
        if !begins_message(&read.line.text) && speaks_of_kill(text) {
            let mut quoted = text.split('"').skip(1).step_by(2);
            if let Some(quoted) = quoted.find(|quoted| speaks_of_kill(quoted)) {
                return self.text_line(quoted, around);
            }
        }
        if self.has_records && !read.has_header {
            return self.found.not_understood.add(self.lines + 1, text);
        }
        let host = if read.host.is_empty() { &around.host } else { read.host };
        read.line.timestamp_us = read.line.timestamp_us.or(around.timestamp_us);
        self.kernel_line(host, read.clock_us.or(around.clock_us), read.line);
    }

    fn kernel_line(&mut self, host: &str, clock_us: Option<u64>, line: Line) {
        if self.machines.len() == MOST_MACHINES && !self.machines.contains_key(host) {
            self.end_machines();
        }
        let machine = self.machines.entry(host.to_owned()).or_insert_with(|| Machine {
            number: self.lines,
            assembler: Assembler::default(),
            parser: Parser::of_file(),
            clock_us: None,
        });
        if line.timestamp_us.is_none() && clock_us.is_some() {
            let before = std::mem::replace(&mut machine.clock_us, clock_us);
            let passed = before.zip(clock_us).map(|(before, now)| before.abs_diff(now));
            if passed.is_some_and(|passed| passed.min(DAY_US - passed) > TOGETHER_US) {
                let lines = machine.assembler.lost();
                self.found.read_lines(machine, lines, self.lines);
                machine.parser.end_reports();
            }
        }
        let lines = machine.assembler.push(line);
        self.found.read_lines(machine, lines, self.lines + 1);
    }

    fn end_machines(&mut self) {
        for mut machine in std::mem::take(&mut self.machines).into_values() {
            let lines = machine.assembler.lost();
            self.found.read_lines(&mut machine, lines, self.lines);
            machine.parser.end_reports();
            self.found.take_alone(&mut machine);
        }
    }

    fn add_broken(&mut self) {
        let text = self.objects.take_broken();
        let text = String::from_utf8_lossy(&text);
        self.found.not_understood.add(self.lines + 1, &text);
    }

    fn end(&mut self) {
        if !self.line.is_empty() {
            self.end_line();
        }
        self.objects.abandon();
        self.add_broken();
        self.end_text();
        let entry = std::mem::take(&mut self.entry);
        self.end_entry(entry);
        self.end_machines();
    }
}

impl Found {
    /// Passes whole lines to the machine's parser.
    fn read_lines(&mut self, machine: &mut Machine, lines: Vec<Line>, number: u64) {
        for mut line in lines {
            // What is copied from a terminal may be padded.
            line.text.truncate(line.text.trim_ascii_end().len());
            let parsed = machine.parser.push(&line);
            self.take_alone(machine);
            match parsed {
                Parsed::Kill(Some(Event::Kill(kill))) => self.kills.push((machine.number, *kill)),
                Parsed::Kill(Some(Event::Again { pid, group })) => {
                    let is_it = |(number, kill): &&mut (u64, Kill)| *number == machine.number && kill.pid == pid;
                    let latest = self.kills.len().saturating_sub(MOST_SEARCHED);
                    if let Some((_, kill)) = self.kills[latest..].iter_mut().rfind(is_it) {
                        kill.task_cgroup.get_or_insert_with(|| group.clone());
                        kill.group = Some(group);
                    }
                }
                Parsed::Kill(None) | Parsed::Known => {}
                Parsed::Other => self.not_understood.add(number, &line.text),
            }
        }
        self.take_alone(machine);
    }

    fn take_alone(&mut self, machine: &mut Machine) {
        let alone = machine.parser.take_alone().into_iter();
        self.kills.extend(alone.map(|kill| (machine.number, kill)));
    }
}

/// A line without what only its looks depend on.
fn line_of_text(line: &[u8]) -> String {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    text::without_colours(&String::from_utf8_lossy(line)).replace('\t', " ")
}

#[cfg(test)]
mod tests;
