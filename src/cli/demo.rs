//! `vscalectl demo`: vscaled at work on this machine, with nothing needed but root.
//!
//! It makes a pod's cgroups as a kubelet would have (`tree`), with a working process in each container (`crew`,
//! `worker`), runs the real daemon beside them (`daemon`), and shows what that does about recommendations, foreign writes
//! and impossible wishes (`story` with `opening`, `scenes` and `ending`; `show`, `screen`). Whatever ends it, it removes
//! what it made (`cleanup`, `removal`, `abandoned`, `leash`). Everything has a name of its own, and nothing else is
//! touched.

mod abandoned;
mod cleanup;
mod crew;
mod daemon;
mod ending;
mod error;
pub(super) mod leash;
mod opening;
mod removal;
mod scenes;
mod screen;
mod show;
mod story;
mod tree;
pub(super) mod worker;

use std::path::Path;

use clap::Args;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::Failure;
use crate::cgroup::Hierarchy;
use cleanup::Stage;
use error::DemoError;
use screen::Screen;
use tree::Tree;

/// Shows vscaled at work on a small pod of the demo's own; needs root, and neither a cluster nor a container runtime.
///
/// Makes cgroups, processes and a directory named `vscaled-demo-PID`, and removes them again, also after Ctrl-C.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Let the pod and vscaled run on until Ctrl-C, and say how to try vscalectl on them
    #[arg(long)]
    keep: bool,
}

/// Shows everything, in some seconds.
///
/// # Errors
/// [`Failure::Refused`] when something is missing, did not go as it should, or a signal ended it; or when something could
/// not be removed.
pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    if !nix::unistd::geteuid().is_root() {
        let message = "the demo makes cgroups and limits them, which takes root: try `sudo vscalectl demo`";
        return Err(Failure::Refused(anyhow::anyhow!(message)));
    }
    match perform(arguments.keep) {
        // Who closes the output has seen enough.
        Ok(()) | Err(DemoError::Closed) => Ok(()),
        // Its text names its source already.
        Err(error) => Err(Failure::Refused(anyhow::anyhow!("{error}"))),
    }
}

fn perform(keep: bool) -> Result<(), DemoError> {
    // One thread: children end when the thread that started them does.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(DemoError::file("start with", "one thread"))?;
    let mut signals = runtime.block_on(Signals::catch())?;
    let mut screen = Screen::new();
    let hierarchy = Hierarchy::discover(None)?;
    tree::check_delegation(&hierarchy)?;
    let program = daemon::program()?;
    for removed in abandoned::remove_all(&hierarchy) {
        screen.say(&removed)?;
    }
    let mut stage = Stage::new(hierarchy)?;
    let told = runtime.block_on(show_until_signal(&program, &mut stage, &mut screen, &mut signals, keep));
    // Closes the connections, which the daemon would give some seconds to end in order.
    drop(runtime);
    let told = told.and_then(|tree| ending::stop(&tree, &mut stage, &mut screen));
    let struck = strike(&mut stage, &mut screen, told.as_ref().err());
    match (told, struck) {
        (Ok(()) | Err(DemoError::Closed), struck) => struck,
        (Err(error), struck) => {
            struck.unwrap_or_else(|left| super::io::warn(&left.to_string()));
            Err(error)
        }
    }
}

async fn show_until_signal(
    program: &Path,
    stage: &mut Stage,
    screen: &mut Screen,
    signals: &mut Signals,
    keep: bool,
) -> Result<Tree, DemoError> {
    // Cancel-safe: what a chapter leaves half done is the stage's, which removes it.
    let told = tokio::select! {
        biased;
        signal = signals.any() => Err(DemoError::Interrupted(signal)),
        told = story::tell(program, stage, screen) => told,
    };
    let told = match told {
        Ok(tree) if keep => {
            tokio::select! {
                _ = signals.any() => Ok(tree),
                error = ending::go_on(stage, screen) => Err(error),
            }
        }
        told => told,
    };
    match told {
        Err(DemoError::Call(error)) => Err(stage.explain(error).await),
        told => told,
    }
}

/// Removes everything, and says what is gone.
fn strike(stage: &mut Stage, screen: &mut Screen, because: Option<&DemoError>) -> Result<(), DemoError> {
    let title = match because {
        Some(DemoError::Interrupted(signal)) => format!("{signal}: everything is removed"),
        Some(_) => "This did not go well; everything is removed".to_owned(),
        None => "Everything is removed".to_owned(),
    };
    let struck = stage.strike();
    if !struck.left.is_empty() {
        return Err(DemoError::LeftBehind(struck.left.join("; ")));
    }
    screen.chapter(&title)?;
    let daemon = if stage.ran_daemon { "vscaled, " } else { "" };
    screen.confirm(&format!(
        "checked, and gone: {daemon}{} processes, {} cgroups, {}",
        struck.workers,
        struck.cgroups,
        stage.directory.display()
    ))
}

/// The signals that end the demo. They stay caught while it cleans up.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
    quit: Signal,
}

impl Signals {
    async fn catch() -> Result<Self, DemoError> {
        let catch = |kind| signal(kind).map_err(DemoError::file("catch", "signals"));
        Ok(Self {
            interrupt: catch(SignalKind::interrupt())?,
            terminate: catch(SignalKind::terminate())?,
            hangup: catch(SignalKind::hangup())?,
            quit: catch(SignalKind::quit())?,
        })
    }

    /// The next one's name.
    async fn any(&mut self) -> &'static str {
        // Cancel-safe: a signal that came is still there.
        tokio::select! {
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.hangup.recv() => "SIGHUP",
            _ = self.quit.recv() => "SIGQUIT",
        }
    }
}
