//! A whole log, from a file or pasted → the kills in it.

use std::collections::HashMap;

use super::assemble::Assembler;
use super::kill::Kill;
use super::parse::{Event, Parser};
use super::record::{Line, Record};
use super::text;

/// What a log was copied from. The first line with a header decides for all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    /// Records of `/dev/kmsg`. Lines without a header are not the kernel's.
    Records,
    /// The output of `dmesg` or `journalctl -k`, or a file of syslog's. Lines without a header are.
    Text,
}

impl Format {
    fn of(log: &[u8]) -> Self {
        log.split(|byte| *byte == b'\n')
            .find_map(|line| {
                if Record::parse(line).is_some() {
                    return Some(Self::Records);
                }
                text::has_header(&String::from_utf8_lossy(line)).then_some(Self::Text)
            })
            .unwrap_or(Self::Text)
    }

    fn kernel_line(self, line: &[u8]) -> Option<Line> {
        match self {
            Self::Records => Line::of_record(&Record::parse(line)?),
            Self::Text => text::kernel_line(&String::from_utf8_lossy(line)),
        }
    }
}

/// Lists the kills in a log, in the order in which they were logged, each process once. Takes any bytes at all.
#[must_use]
pub fn parse_log(log: &[u8]) -> Vec<Kill> {
    let format = Format::of(log);
    let (mut assembler, mut parser) = (Assembler::default(), Parser::default());
    let mut kills: Vec<Kill> = Vec::new();
    let mut latest: HashMap<u32, usize> = HashMap::new();
    let events = log
        .split(|byte| *byte == b'\n')
        .filter_map(|line| format.kernel_line(line.strip_suffix(b"\r").unwrap_or(line)))
        .filter_map(|line| assembler.push(line))
        .filter_map(|line| parser.push(&line));
    for event in events {
        match event {
            Event::Kill(kill) => {
                latest.insert(kill.pid, kills.len());
                kills.push(*kill);
            }
            Event::Again { pid, group } => {
                if let Some(kill) = latest.get(&pid).and_then(|at| kills.get_mut(*at)) {
                    kill.task_cgroup.get_or_insert_with(|| group.clone());
                    kill.group = Some(group);
                }
            }
        }
    }
    kills
}

#[cfg(test)]
mod tests;
