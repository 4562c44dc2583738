//! Lists the kills in a whole log, which comes from a file or the clipboard.

use super::assemble::Assembler;
use super::kill::Kill;
use super::parse::{Event, Parser};
use super::record::Line;
use super::text;

/// Whether a log holds records of `/dev/kmsg`: it may also be the output of `dmesg` or `journalctl -k`, or a
/// file of syslog's. The first line with a header decides for all lines: among records, a line without a
/// header is not the kernel's.
fn has_records(log: &[u8]) -> bool {
    let mut lines = log.split(|byte| *byte == b'\n');
    let first = lines.find_map(|line| {
        let is_record = Line::of_record(line).is_some();
        (is_record || text::has_header(&String::from_utf8_lossy(line))).then_some(is_record)
    });
    first.unwrap_or(false)
}

fn kernel_line(line: &[u8], is_record: bool) -> Option<Line> {
    if is_record {
        Line::of_record(line).filter(|line| line.from_kernel)
    } else {
        text::kernel_line(&String::from_utf8_lossy(line))
    }
}

/// Lists the kills in a log in the order of their lines, each process once. Accepts any bytes.
pub fn parse_log(log: &[u8]) -> Vec<Kill> {
    let has_records = has_records(log);
    let (mut assembler, mut parser) = (Assembler::default(), Parser::default());
    let mut kills: Vec<Kill> = Vec::new();
    let events = log
        .split(|byte| *byte == b'\n')
        .filter_map(|line| kernel_line(line.strip_suffix(b"\r").unwrap_or(line), has_records))
        .filter_map(|line| assembler.push(line))
        .filter_map(|line| parser.push(&line));
    for event in events {
        match event {
            Event::Kill(kill) => kills.push(*kill),
            Event::Again { pid, group } => {
                if let Some(kill) = kills.iter_mut().rfind(|kill| kill.pid == pid) {
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
