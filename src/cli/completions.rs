//! `vscalectl completions`, which follow from the definitions of the commands.

use clap::Args;
use clap_complete::{Shell, generate};

use super::{Failure, command, io};

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
    generate(arguments.shell, &mut command(), "vscalectl", &mut script);
    io::print_document(&String::from_utf8_lossy(&script)).map(drop)
}
