//! `vscaled`, the per-node agent.

use std::process::ExitCode;

/// One heap that gives every page back at once (`.cargo/config.toml`). The C library's has one heap for each thread and
/// gives back little, and an agent that has just changed 250 pods would keep half as much again in them.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

use clap::Parser as _;
use vscaled::cli::daemon::{Command, CommandLine, RestoreArguments};
use vscaled::cli::{Failure, io};
use vscaled::config::{Config, EXIT_BAD_CONFIGURATION, RunArguments};
use vscaled::observe::log;

fn main() -> ExitCode {
    let (arguments, restoring) = match CommandLine::parse().command {
        Command::Run(arguments) => (arguments, None),
        Command::Restore(restoring) => (restoring.agent.clone(), Some(restoring)),
    };
    let config = match Config::load(&arguments) {
        Ok(config) => config,
        Err(error) => return fail(EXIT_BAD_CONFIGURATION, &error),
    };
    if arguments.print_config {
        return ended(
            config
                .to_json()
                .map_err(Failure::from)
                .and_then(|text| io::print(&text)),
        );
    }
    if let Some(restoring) = restoring {
        return restore(&config, &restoring);
    }
    match start(config, arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(1, &error),
    }
}

fn start(config: Config, arguments: RunArguments) -> anyhow::Result<()> {
    let filter = log::init(config.log_format, &config.log_level)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        // What takes time is waiting for the kernel, on threads of its own, and for the runtime.
        .max_blocking_threads(config.workers + 4)
        .enable_all()
        .build()?;
    runtime.block_on(vscaled::agent::run(config, arguments, filter))?;
    // Reads of a runtime that hangs must not hold the process.
    runtime.shutdown_timeout(std::time::Duration::from_secs(1));
    Ok(())
}

fn restore(config: &Config, arguments: &RestoreArguments) -> ExitCode {
    arguments.announce();
    let done = log::init(config.log_format, "warn")
        .and_then(|_filter| Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?))
        .and_then(|runtime| runtime.block_on(vscaled::agent::restore(config, arguments.how())));
    match done {
        Err(error) => fail(1, &error),
        Ok(restoration) => ended(arguments.show(&restoration)),
    }
}

fn ended(result: Result<(), Failure>) -> ExitCode {
    result.map_or_else(|failure| failure.report("vscaled"), |()| ExitCode::SUCCESS)
}

fn fail(code: u8, error: &dyn std::fmt::Display) -> ExitCode {
    eprintln!("vscaled: {error:#}");
    ExitCode::from(code)
}
