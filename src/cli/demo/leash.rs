//! Ties a child to the demo, so that it ends when the demo does, also by `kill -9`.
//!
//! The kernel sends the signal (prctl(2), `PR_SET_PDEATHSIG`). Only a process itself can ask for it, so the daemon is
//! started through a step in between that asks and then becomes the daemon: `execve` keeps what was asked for.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::Context;
use clap::Args;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::{Pid, getppid};

use crate::cli::Failure;

/// Becomes another program, which ends when the demo does.
#[derive(Debug, Args)]
pub(in crate::cli) struct Arguments {
    /// The demo's process
    #[arg(long)]
    parent: i32,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true)]
    command: Vec<OsString>,
}

/// Does so; returns only when that failed.
///
/// # Errors
/// [`Failure::Refused`] when the program cannot be started, or the demo has ended meanwhile.
pub(in crate::cli) fn run(arguments: &Arguments) -> Result<(), Failure> {
    tie(arguments.parent).map_err(|error| Failure::Refused(error.into()))?;
    let Some((program, rest)) = arguments.command.split_first() else {
        return Ok(());
    };
    let error = Command::new(program).args(rest).exec();
    Err(error)
        .with_context(|| format!("cannot start {}", program.display()))
        .map_err(Failure::Refused)
}

/// Asks the kernel to kill this process when the thread that started it ends, which in the demo is its main thread.
///
/// # Errors
/// When the parent, given by its process id, has ended already: its end would never be told.
pub(super) fn tie(parent: i32) -> io::Result<()> {
    set_pdeathsig(Signal::SIGKILL)?;
    if getppid() == Pid::from_raw(parent) {
        Ok(())
    } else {
        Err(io::Error::other(format!("the demo (process {parent}) has ended")))
    }
}
