//! `vscalectl oom`: the kills of the kernel's OOM killer.

mod list;
mod parse;
mod sink;

use clap::{Args, Subcommand};

use super::agent::Agent;
use super::{Failure, PodArguments};

pub(super) use list::line;

/// Shows what the kernel killed for want of memory.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Lists what the kernel killed lately for want of memory, newest last: where, whose limit was hit, who was killed
    List(PodArguments),
    Parse(parse::Arguments),
    Sink(sink::Arguments),
}

pub(super) fn run(arguments: &Arguments, agent: &Agent) -> Result<(), Failure> {
    match &arguments.command {
        Command::List(arguments) => list::run(arguments, agent),
        Command::Parse(arguments) => parse::run(arguments),
        Command::Sink(arguments) => sink::run(arguments),
    }
}
