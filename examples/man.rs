//! Writes the manual pages of both programs and of their commands, each below the directory of its section (man1, man8).
//!
//! `cargo run --example man -- /usr/local/share/man`. `scripts/package` writes them for packages.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::{Command, CommandFactory as _, Parser};
use clap_mangen::Man;
use vscaled::cli::{self, daemon::CommandLine};

#[derive(Debug, Parser)]
struct Arguments {
    /// Where man looks for pages, such as /usr/local/share/man
    directory: PathBuf,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    for (program, section) in [(cli::command(), "1"), (CommandLine::command(), "8")] {
        let directory = arguments.directory.join(format!("man{section}"));
        write_pages(program, section, &directory)
            .with_context(|| format!("cannot write manual pages to {}", directory.display()))?;
    }
    Ok(())
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
        Man::new(command)
            .section(section)
            // clap_mangen leaves out an empty date, and the next field would take its place.
            .date(" ")
            .source(concat!("vscaled ", env!("CARGO_PKG_VERSION")))
            .manual("vscaled")
            .generate_to(directory)?;
    }
    Ok(())
}
