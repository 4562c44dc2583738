//! The command line of the agent itself, `vscaled`: what it is told, not what it does.

use clap::{Parser, Subcommand};

use super::restore;
use crate::config::RunArguments;

/// Resizes running containers in place on one Kubernetes node.
#[derive(Debug, Parser)]
#[command(name = "vscaled", version, arg_required_else_help = true)]
pub struct CommandLine {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands of `vscaled`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Runs the agent until SIGTERM; SIGHUP reads the configuration again.
    Run(RunArguments),
    /// Puts every value back to what the pods' specs say, with the agent stopped: shows the steps, or does them with --yes.
    Restore(restore::Arguments),
}
