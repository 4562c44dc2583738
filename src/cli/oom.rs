//! `vscalectl oom`: what the kernel killed for want of memory.

mod parse;
mod sink;

use clap::{Args, Subcommand};

use super::Failure;

/// Shows what the kernel killed for want of memory.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Parse(parse::Arguments),
    Sink(sink::Arguments),
}

/// Does as told.
///
/// # Errors
/// Those of the subcommand.
pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    match &arguments.command {
        Command::Parse(arguments) => parse::run(arguments),
        Command::Sink(arguments) => sink::run(arguments),
    }
}
