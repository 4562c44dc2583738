//! Reads the files of commands, and prints their results: the only place that writes to standard output and standard error.
//!
//! Text for people is a `Page`, everything else a document. No text reaches either with a dangerous character
//! ([`printable`](crate::printable)), whoever wrote it. Only a terminal gets colours, and not where `NO_COLOR` is set (<https://no-color.org>).

use std::borrow::Cow;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind, IsTerminal, Read, Write};
use std::ops::ControlFlow;
use std::sync::OnceLock;

use anyhow::Context;
use encoding_rs_io::DecodeReaderBytesBuilder;
use flate2::bufread::MultiGzDecoder;

use super::Failure;
use super::page::Page;
use crate::printable::printable;

/// The largest input. No file of manifests is near this; `/dev/zero` is.
const MAX_INPUT_BYTES: u64 = 256 << 20;

/// Opens a file to read a part at a time. `-` is standard input.
fn open(file: &str) -> io::Result<Box<dyn BufRead>> {
    Ok(match file {
        "-" => Box::new(io::stdin().lock()),
        file => Box::new(BufReader::new(File::open(file)?)),
    })
}

/// What a file with such a beginning is, instead of text, and the command that makes text of it.
const NO_TEXT: [(&[u8], &str, &str); 4] = [
    (b"LPKSHHRH", "a journal's own file", "journalctl -k"),
    (b"\xfd7zXZ\0", "compressed by xz", "xzcat"),
    (b"\x28\xb5\x2f\xfd", "compressed by zstd", "zstdcat"),
    (b"BZh", "compressed by bzip2", "bzcat"),
];

/// Opens a log as [`open`] does. Decompresses what logrotate has compressed by gzip, and decodes UTF-16.
///
/// Errors: also a file that begins as one of [`NO_TEXT`].
pub(super) fn open_log(file: &str) -> io::Result<Box<dyn BufRead>> {
    const GZIP: &[u8] = &[0x1f, 0x8b];
    let mut log = open(file)?;
    let start = log.fill_buf()?;
    if let Some((_, what, command)) = NO_TEXT.iter().find(|(magic, ..)| start.starts_with(magic)) {
        let why = format!("it is {what}: give the output of {command}");
        return Err(io::Error::new(ErrorKind::InvalidData, why));
    }
    let log: Box<dyn Read> = match start.starts_with(GZIP) {
        true => Box::new(MultiGzDecoder::new(log)),
        false => log,
    };
    Ok(Box::new(BufReader::new(decoded(log))))
}

/// Decodes UTF-16, as which PowerShell stores what a command prints. Leaves out a byte order mark.
fn decoded(text: Box<dyn Read>) -> impl Read {
    DecodeReaderBytesBuilder::new()
        .utf8_passthru(true)
        .strip_bom(true)
        .build(text)
}

/// Reads a file of text in UTF-8 or UTF-16. `-` is standard input.
pub(super) fn read_text(file: &str) -> Result<String, Failure> {
    let read = || {
        let mut bytes = Vec::new();
        let read = decoded(open(file)?).take(MAX_INPUT_BYTES + 1).read_to_end(&mut bytes)?;
        let is_small = u64::try_from(read).is_ok_and(|read| read <= MAX_INPUT_BYTES);
        anyhow::ensure!(is_small, "more than {MAX_INPUT_BYTES} bytes: split it");
        Ok(String::from_utf8(bytes)?)
    };
    read()
        .with_context(|| format!("cannot read {file}"))
        .map_err(Failure::usage)
}

/// Prints a warning on standard error.
pub(super) fn warn(message: &str) {
    complain("vscalectl", &format!("warning: {message}"));
}

/// Prints one line of a program on standard error.
pub(super) fn complain(program: &str, message: &str) {
    print_aside(&Page::from(format!("{program}: {message}")).shown(false));
}

/// Prints the help of a program on standard error.
pub(super) fn print_help(help: &str) {
    print_aside(&document(help));
}

/// Prints on standard error. A closed one changes no result and no exit code.
fn print_aside(text: &str) {
    io::stderr().write_all(text.as_bytes()).unwrap_or_default();
}

/// Prints text for people. Breaks when the reader has closed the pipe.
///
/// Errors: standard output cannot be written.
pub(super) fn print(page: &Page) -> Result<ControlFlow<()>, Failure> {
    write(&page.shown(has_colours()))
}

/// Prints a document of programs: JSON, YAML or a script. Breaks when the reader has closed the pipe.
///
/// Errors: standard output cannot be written.
pub fn print_document(text: &str) -> Result<ControlFlow<()>, Failure> {
    write(&document(text))
}

fn document(text: &str) -> Cow<'_, str> {
    printable(text, &['\n', '\t'])
}

fn write(text: &str) -> Result<ControlFlow<()>, Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(ControlFlow::Continue(())),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(ControlFlow::Break(())),
        Err(error) => Err(anyhow::Error::new(error).context("cannot write the result").into()),
    }
}

/// The lines and columns of the terminal to which somebody else takes what is printed.
static SCREEN: OnceLock<(usize, usize)> = OnceLock::new();

/// Prints as for a terminal with so many lines and columns, wherever standard output leads.
pub(super) fn print_for_screen(lines: usize, columns: usize) {
    SCREEN.get_or_init(|| (lines, columns));
}

/// The lines of the terminal to which somebody else takes what is printed.
pub(super) fn lines() -> Option<usize> {
    SCREEN.get().map(|(lines, _)| *lines)
}

fn has_colours() -> bool {
    let has = |variable, value: fn(&OsStr) -> bool| std::env::var_os(variable).is_some_and(|text| value(&text));
    let unwanted = has("NO_COLOR", |text| !text.is_empty()) || has("TERM", |text| text == "dumb");
    !unwanted && (writes_to_terminal() || SCREEN.get().is_some())
}

/// Whether standard output is a terminal.
pub(super) fn writes_to_terminal() -> bool {
    io::stdout().is_terminal()
}

/// The least width to which the commands fit lines.
const NARROWEST: usize = 40;

/// The characters in a line of a paragraph where standard output is no terminal.
pub(super) const WIDTH: usize = 100;

/// The characters in a line of the terminal. Output to anything else is not shortened.
pub(super) fn width() -> Option<usize> {
    let width = match SCREEN.get() {
        Some((_, columns)) => *columns,
        None => terminal_size::terminal_size_of(io::stdout())?.0.0.into(),
    };
    Some(width.max(NARROWEST))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manifests_may_be_in_utf16_and_have_a_mark() {
        const TEXT: &str = "kind: Pod # Größe\r\n";
        let marked = format!("\u{feff}{TEXT}");
        let utf16 = |bytes: fn(u16) -> [u8; 2]| marked.encode_utf16().flat_map(bytes).collect();
        let files: [Vec<u8>; 4] = [
            TEXT.into(),
            marked.clone().into_bytes(),
            utf16(u16::to_le_bytes),
            utf16(u16::to_be_bytes),
        ];
        let file = tempfile::NamedTempFile::new().unwrap();
        let read = || read_text(file.path().to_str().unwrap());
        for bytes in files {
            std::fs::write(&file, &bytes).unwrap();
            assert_eq!(read().unwrap(), TEXT, "{bytes:?}");
        }
        std::fs::write(&file, b"kind: \xff").unwrap();
        let Failure { code, error } = read().unwrap_err();
        assert!(code == 2 && format!("{error:#}").contains("invalid utf-8"), "{error:#}");
    }
}
