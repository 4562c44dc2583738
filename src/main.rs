//! `vscaled`, the per-node agent.

use std::process::ExitCode;
use std::time::Duration;

/// One heap that gives every page back at once (`.cargo/config.toml`). The C library has one heap for each thread and gives
/// back little: an agent that has just changed 250 pods would keep half as much memory again.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

use anyhow::Result;
use clap::Parser as _;
use tokio::runtime::Builder;
use vscaled::cli::daemon::{Command, CommandLine, RestoreArguments};
use vscaled::cli::{Failure, io};
use vscaled::config::{Config, EXIT_BAD_CONFIGURATION, RunArguments};
use vscaled::observe::log;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report("vscaled"),
    }
}

fn run() -> Result<(), Failure> {
    let command = CommandLine::parse().command;
    let (Command::Run(arguments) | Command::Restore(RestoreArguments { agent: arguments, .. })) = &command;
    let config = Config::load(arguments).map_err(|error| Failure {
        code: EXIT_BAD_CONFIGURATION,
        error,
    })?;
    if arguments.print_config {
        return io::print_document(&config.to_json()?).map(drop);
    }
    match command {
        Command::Restore(restoring) => restore(&config, &restoring),
        Command::Run(arguments) => Ok(start(config, arguments)?),
    }
}

fn start(config: Config, arguments: RunArguments) -> Result<()> {
    let filter = log::init(config.log_format, &config.log_level)?;
    let runtime = Builder::new_current_thread()
        // The work waits for the kernel, on threads of its own, and for the runtime.
        .max_blocking_threads(config.workers + 10)
        .enable_all()
        .build()?;
    let ended = runtime.block_on(vscaled::agent::run(config, arguments, filter));
    // A runtime, a disk or a systemd that hangs must not hold the process.
    runtime.shutdown_timeout(Duration::from_secs(1));
    ended
}

fn restore(config: &Config, arguments: &RestoreArguments) -> Result<(), Failure> {
    arguments.announce();
    let restored = || {
        let _filter = log::init(config.log_format, "warn")?;
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let restoration = runtime.block_on(vscaled::agent::restore(config, arguments.how()));
        // A disk that hangs must not hold the process.
        runtime.shutdown_timeout(Duration::from_secs(1));
        restoration
    };
    arguments.show(&restored()?)
}
