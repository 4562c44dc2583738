//! `vscalectl man`: the manual pages of both programs, made from the definitions of their commands.

use std::fs;
use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, Command, CommandFactory};
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
    let programs = [(Cli::command(), "1"), (CommandLine::command(), "8")];
    let Some(directory) = &arguments.dir else {
        let [(vscalectl, section), _] = programs;
        return io::print(&String::from_utf8_lossy(&Page::of(vscalectl, section).text));
    };
    for (program, section) in programs {
        let directory = directory.join(format!("man{section}"));
        let written = fs::create_dir_all(&directory).and_then(|()| {
            pages(program, section)
                .into_iter()
                .try_for_each(|page| fs::write(directory.join(page.file), page.text))
        });
        written
            .with_context(|| format!("cannot write manual pages to {}", directory.display()))
            .map_err(Failure::Refused)?;
    }
    Ok(())
}

struct Page {
    file: String,
    text: Vec<u8>,
}

impl Page {
    fn of(command: Command, section: &str) -> Self {
        let man = Man::new(command)
            .section(section)
            // An empty date is left out, and the next field takes its place.
            .date(" ")
            .source(concat!("vscaled ", env!("CARGO_PKG_VERSION")))
            .manual("vscaled");
        let mut text = Vec::new();
        // Writing to memory does not fail.
        if let Err(error) = man.render(&mut text) {
            io::warn(&error.to_string());
        }
        Self {
            file: man.get_filename(),
            text,
        }
    }
}

/// A program's page and those of its commands, hidden ones aside.
fn pages(program: Command, section: &str) -> Vec<Page> {
    let mut program = program.disable_help_subcommand(true);
    // Gives subcommands their full names, and the options of the program.
    program.build();
    let mut pages = Vec::new();
    let mut waiting = vec![program];
    while let Some(command) = waiting.pop() {
        let shown = command.get_subcommands().filter(|command| !command.is_hide_set());
        waiting.extend(shown.cloned());
        pages.push(Page::of(command, section));
    }
    pages
}
