//! vscaled at work on this machine, with nothing needed but root: `scripts/demo` builds and starts this program.
//!
//! Makes the cgroups of one pod as a kubelet would ([`pod`]), with a working process in each container ([`worker`]), runs
//! the real `vscaled` beside them, and shows with the real `vscalectl` how vscaled handles recommendations, foreign
//! writes and impossible requests ([`story`]). Every chapter checks what it claims. [`stage`] owns everything that the
//! demo makes and removes it, whatever ends the demo.

mod pod;
mod screen;
mod stage;
mod story;
mod worker;

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail, ensure};
use clap::{Parser, Subcommand};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::{Pid, geteuid, getppid};
use tokio::signal::unix::{SignalKind, signal};

use screen::Screen;
use stage::Stage;

/// Shows vscaled at work on a small pod of the demo's own; needs root, and neither a cluster nor a container runtime.
///
/// Makes cgroups, processes and a directory named `vscaled-demo-PID`, and removes them again, also after Ctrl-C.
#[derive(Debug, Parser)]
struct Arguments {
    /// Let the pod and vscaled run on until Ctrl-C, and say how to try vscalectl on them
    #[arg(long)]
    keep: bool,
    #[command(subcommand)]
    child: Option<Child>,
}

/// The demo's own processes; each ends when the demo does.
#[derive(Debug, Subcommand)]
enum Child {
    /// Becomes another program.
    #[command(hide = true)]
    Exec {
        parent: i32,
        #[arg(trailing_var_arg = true)]
        command: Vec<OsString>,
    },
    /// Computes in a container.
    #[command(hide = true)]
    Work(worker::Arguments),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let result = match arguments.child {
        Some(Child::Exec { parent, command }) => exec(parent, &command),
        Some(Child::Work(work)) => end_with_parent(work.parent).and_then(|()| worker::run(&work)),
        None => show(arguments.keep),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // The reader has seen enough.
        Err(error) if is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("demo: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Has the kernel kill this process when the demo's main thread ends, also after `kill -9` of the demo.
fn end_with_parent(parent: i32) -> Result<()> {
    set_pdeathsig(Signal::SIGKILL)?;
    ensure!(
        getppid() == Pid::from_raw(parent),
        "the demo (process {parent}) has ended"
    );
    Ok(())
}

fn exec(parent: i32, command: &[OsString]) -> Result<()> {
    end_with_parent(parent)?;
    let (program, rest) = command.split_first().context("no program to become")?;
    // execve(2) keeps the signal that was asked for.
    Err(Command::new(program).args(rest).exec()).with_context(|| format!("cannot start {}", program.display()))
}

fn show(keep: bool) -> Result<()> {
    ensure!(geteuid().is_root(), "making and limiting cgroups takes root: try sudo");
    // One thread: children end when the thread that started them does.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // The signals stay caught while everything is removed.
    let mut signals = runtime.block_on(async { catch_signals() })?;
    let mut screen = Screen::new();
    let mut stage = Stage::new(&mut screen)?;
    let shown = runtime.block_on(async {
        // Cancel-safe: the stage owns and removes what a chapter leaves half done.
        let pod = tokio::select! {
            biased;
            Some(name) = signals.recv() => bail!("ended by {name}"),
            pod = story::show(&mut stage, &mut screen) => pod?,
        };
        if keep {
            tokio::select! {
                _ = signals.recv() => {}
                ended = story::invite(&mut stage, &mut screen) => ended?,
            }
        }
        Ok(pod)
    });
    // Closes the connections, for which vscaled would wait before it ends.
    drop(runtime);
    let shown = shown.and_then(|pod| story::stop(&pod, &mut stage, &mut screen));
    let gone = stage.clear()?;
    if shown.is_ok() {
        screen.chapter("Everything is removed")?;
        screen.confirm(&format!("checked, and gone: {gone}"))?;
    }
    shown
}

/// Delivers the names of the signals that end the demo.
fn catch_signals() -> Result<tokio::sync::mpsc::Receiver<&'static str>> {
    let (sender, receiver) = tokio::sync::mpsc::channel(1);
    for (kind, name) in [
        (SignalKind::interrupt(), "SIGINT"),
        (SignalKind::terminate(), "SIGTERM"),
        (SignalKind::hangup(), "SIGHUP"),
        (SignalKind::quit(), "SIGQUIT"),
    ] {
        let (mut signals, sender) = (signal(kind).context("cannot catch signals")?, sender.clone());
        tokio::spawn(async move { while signals.recv().await.is_some() && sender.send(name).await.is_ok() {} });
    }
    Ok(receiver)
}

fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let io_error = error.downcast_ref::<io::Error>();
    io_error.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
