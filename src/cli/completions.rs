//! `vscalectl completions`: what a shell needs to complete command lines, made from the definitions of the commands.

use clap::{Args, CommandFactory};
use clap_complete::{Shell, generate};

use super::{Cli, Failure, io};

/// Prints a script that completes command lines of vscalectl in a shell
///
/// bash: source <(vscalectl completions bash), or save it as /usr/share/bash-completion/completions/vscalectl.
/// zsh: save it as _vscalectl in a directory of $fpath. fish: save it as ~/.config/fish/completions/vscalectl.fish.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Arguments {
    /// For which shell
    shell: Shell,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let mut script = Vec::new();
    generate(arguments.shell, &mut Cli::command(), "vscalectl", &mut script);
    io::print(&String::from_utf8_lossy(&script))
}
