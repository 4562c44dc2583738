//! `vscalectl man` and `completions`, which follow from the definitions of the commands of both programs.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Args, Command, CommandFactory};
use clap_complete::{Shell, generate};
use clap_mangen::Man;

use super::daemon::CommandLine;
use super::{Cli, Failure, io};

/// Prints the manual page of vscalectl, or writes those of all commands and of vscaled
///
/// To install them: vscalectl man --dir /usr/local/share/man
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Write all pages there, each below the directory of its section (man1, man8)
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let Some(directory) = &arguments.dir else {
        let mut text = Vec::new();
        let rendered = page(Cli::command(), "1").render(&mut text);
        rendered.context("cannot make the manual page")?;
        return io::print_document(&String::from_utf8_lossy(&text)).map(drop);
    };
    for (program, section) in [(Cli::command(), "1"), (CommandLine::command(), "8")] {
        let directory = directory.join(format!("man{section}"));
        write_pages(program, section, &directory)
            .with_context(|| format!("cannot write manual pages to {}", directory.display()))?;
    }
    Ok(())
}

fn page(command: Command, section: &str) -> Man {
    Man::new(command)
        .section(section)
        // clap_mangen leaves out an empty date, and the next field would take its place.
        .date(" ")
        .source(concat!("vscaled ", env!("CARGO_PKG_VERSION")))
        .manual("vscaled")
}

/// Writes the page of a program and the pages of its commands, except hidden ones.
fn write_pages(program: Command, section: &str, directory: &Path) -> std::io::Result<()> {
    fs::create_dir_all(directory)?;
    let mut program = program.disable_help_subcommand(true);
    // This gives subcommands their full names, and the options of the program.
    program.build();
    let mut waiting = vec![program];
    while let Some(command) = waiting.pop() {
        let shown = command.get_subcommands().filter(|command| !command.is_hide_set());
        waiting.extend(shown.cloned());
        page(command, section).generate_to(directory)?;
    }
    Ok(())
}

/// Prints a script that completes command lines of vscalectl in a shell
///
/// bash: source <(vscalectl completions bash), or save it as /usr/share/bash-completion/completions/vscalectl.
/// zsh: save it as _vscalectl in a directory of $fpath. fish: save it as ~/.config/fish/completions/vscalectl.fish.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(super) struct CompletionsArguments {
    /// For which shell
    shell: Shell,
}

pub(super) fn completions(arguments: &CompletionsArguments) -> Result<(), Failure> {
    let mut script = Vec::new();
    generate(arguments.shell, &mut Cli::command(), "vscalectl", &mut script);
    io::print_document(&String::from_utf8_lossy(&script)).map(drop)
}
