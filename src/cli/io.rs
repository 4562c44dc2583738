//! Reads the files of commands, and prints their results.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::ops::ControlFlow;

use anyhow::Context;

use super::Failure;

/// The largest input. No file of manifests and no kernel log is near this; `/dev/zero` is.
const MAX_INPUT_BYTES: u64 = 256 << 20;

/// Reads a file of any content. `-` is standard input.
pub(super) fn read_bytes(file: &str) -> Result<Vec<u8>, Failure> {
    let read = || {
        let input: Box<dyn Read> = match file {
            "-" => Box::new(io::stdin()),
            file => Box::new(File::open(file)?),
        };
        let mut bytes = Vec::new();
        let read = input.take(MAX_INPUT_BYTES + 1).read_to_end(&mut bytes)?;
        if u64::try_from(read).is_ok_and(|read| read <= MAX_INPUT_BYTES) {
            return Ok(bytes);
        }
        let message = format!("more than {MAX_INPUT_BYTES} bytes: split it");
        Err(io::Error::new(ErrorKind::FileTooLarge, message))
    };
    read()
        .with_context(|| format!("cannot read {file}"))
        .map_err(Failure::usage)
}

/// Reads a file of UTF-8 text.
pub(super) fn read_text(file: &str) -> Result<String, Failure> {
    String::from_utf8(read_bytes(file)?)
        .with_context(|| format!("cannot read {file}"))
        .map_err(Failure::usage)
}

/// Prints a warning on standard error.
pub(super) fn warn(message: &str) {
    eprintln!("vscalectl: warning: {message}");
}

/// Prints the result. A reader that closes the pipe early is no failure.
///
/// Errors: standard output cannot be written.
pub fn print(text: &str) -> Result<(), Failure> {
    print_more(text).map(|_flow| ())
}

/// Prints one part of an endless result. Breaks when the reader has closed the pipe.
pub(super) fn print_more(text: &str) -> Result<ControlFlow<()>, Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(ControlFlow::Continue(())),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(ControlFlow::Break(())),
        Err(error) => Err(anyhow::Error::new(error).context("cannot write the result").into()),
    }
}
