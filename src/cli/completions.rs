//! `vscalectl completions`: what a shell needs to complete command lines, made from the definitions of the commands.

use clap::{Args, Command, CommandFactory};
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

/// Prints the script.
///
/// # Errors
/// [`Failure`] when it cannot be written.
pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let mut script = Vec::new();
    generate(
        arguments.shell,
        &mut without_hidden(&Cli::command()),
        "vscalectl",
        &mut script,
    );
    io::print(&String::from_utf8_lossy(&script))
}

/// The command without those of its subcommands that nobody is to type.
fn without_hidden(command: &Command) -> Command {
    let shown = command.get_subcommands().filter(|command| !command.is_hide_set());
    Command::new("vscalectl")
        .version(env!("CARGO_PKG_VERSION"))
        .args(command.get_arguments().cloned())
        .subcommands(shown.cloned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_commands_are_not_offered() {
        let names = |command: &Command| -> Vec<String> {
            let names = command.get_subcommands().map(Command::get_name);
            names.map(str::to_owned).collect()
        };
        let all = Cli::command();
        assert!(names(&all).contains(&"demo-worker".to_owned()));
        let offered = names(&without_hidden(&all));
        assert!(offered.contains(&"demo".to_owned()) && !offered.contains(&"demo-worker".to_owned()));
    }
}
