//! `vscalectl`: parses arguments, calls pure functions or the agent's socket, and prints the results.
//!
//! Each command is one file with its arguments and a `run`. Exit codes: 0 done and verified, 1 refused or failed,
//! 2 usage (unreadable input included), 3 no agent, 4 of many nodes some did not answer.

mod agent;
mod amount;
mod change;
mod completions;
pub mod daemon;
mod decide;
mod doctor;
mod explain;
mod export;
mod fleet;
mod get;
pub mod io;
mod lint;
mod oom;
mod output;
mod page;
mod plan;
mod report;
mod resize;
mod results;
mod table;
mod time;
mod top;
mod workload;

use std::process::ExitCode;

use clap::builder::NonEmptyStringValueParser;
use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand};

use crate::config::EXIT_BAD_CONFIGURATION;
use output::Output;
use workload::WorkloadName;

/// Shows, explains and changes what vscaled does on this node.
#[derive(Debug, Parser)]
#[command(
    name = "vscalectl",
    version,
    arg_required_else_help = true,
    after_help = "Ends with 0: done and verified; 1: refused or failed; 2: wrong usage or unreadable input; 3: no agent answers; 4: some of many nodes did not answer."
)]
struct Cli {
    #[command(flatten)]
    agent: agent::Agent,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Completions(completions::Arguments),
    /// Says what would be decided for the pods in a file of manifests.
    Decide(decide::ManifestArguments),
    /// Examines the agent and the node, and says how to fix what does not work
    ///
    /// Without an agent, examines the machine with the caller's rights, and the exit code is 3;
    /// it is 1 where anything else fails.
    Doctor(Output),
    Explain(explain::Arguments),
    Export(export::Arguments),
    Fleet(fleet::Arguments),
    Get(get::Arguments),
    /// Lists the latest changes since the agent's start, newest last
    History(PodArguments),
    Lint(lint::Arguments),
    /// Shows the kernel's OOM kills.
    #[command(subcommand)]
    Oom(oom::Command),
    Plan(plan::Arguments),
    Release(resize::ReleaseArguments),
    Report(report::Arguments),
    Resize(resize::Arguments),
    Top(top::Arguments),
    /// Shows changes as they are made, and kills as they happen, until interrupted; JSON is one line for each, YAML one document
    Watch(Output),
}

/// The pod of a list, or none for the list of all pods.
#[derive(Debug, Args)]
struct PodArguments {
    /// Only this pod: namespace/name, a UID, or the beginning of a container's id; or only the pods of a workload on this node,
    /// such as deployment/web or shop/rollout/web
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pod: Option<String>,
    #[command(flatten)]
    output: Output,
}

impl PodArguments {
    fn workload(&self) -> Option<WorkloadName> {
        WorkloadName::read(self.pod.as_deref()?)
    }

    /// The pod as the protocol has it: empty for all pods, and for those of a workload.
    fn pod(&self) -> String {
        let pod = self.pod.clone().filter(|_| self.workload().is_none());
        pod.unwrap_or_default()
    }

    /// Keeps the items about pods of the workload, where the arguments name one. `uid` is that of an item's pod.
    fn retain<T>(&self, items: &mut Vec<T>, uid: fn(&T) -> Option<&str>, agent: &agent::Agent) -> Result<(), Failure> {
        if let Some(workload) = self.workload() {
            let pods = agent.call(async |client| workload.pods(client).await)?;
            items.retain(|item| pods.iter().any(|pod| uid(item) == Some(&pod.uid)));
        }
        Ok(())
    }
}

/// The exit code of a refusal or a failure.
const REFUSED: u8 = 1;
/// The exit code of unusable arguments or input.
const USAGE: u8 = 2;
/// The exit code where no agent answers at the socket.
const NO_AGENT: u8 = 3;

/// The error of a command, and the exit code.
#[derive(Debug)]
pub struct Failure {
    pub code: u8,
    pub error: anyhow::Error,
}

impl Failure {
    /// An error of unusable arguments or input.
    fn usage(error: impl Into<anyhow::Error>) -> Self {
        let error = error.into();
        Self { code: USAGE, error }
    }

    /// Prints the error of `program`; returns the exit code.
    pub fn report(self, program: &str) -> ExitCode {
        let error = format!("{:#}", self.error);
        match self.code {
            // A line for each refused key. No tenant writes a configuration.
            EXIT_BAD_CONFIGURATION => error.lines().for_each(|line| io::complain(program, line)),
            _ => io::complain(program, &error),
        }
        ExitCode::from(self.code)
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self { code: REFUSED, error }
    }
}

/// The definition of the command line, from which manual pages and completions are made.
pub fn command() -> clap::Command {
    Cli::command()
}

/// Runs `vscalectl` with this process's arguments.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        // clap counts a socket in the environment as an argument, and would not show the help then.
        Err(error) if error.kind() == ErrorKind::MissingSubcommand => {
            io::print_help(&command().render_help().to_string());
            return ExitCode::from(USAGE);
        }
        Err(error) => error.exit(),
    };
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report("vscalectl"),
    }
}

fn run(Cli { agent, command }: Cli) -> Result<(), Failure> {
    match command {
        Command::Completions(arguments) => completions::run(&arguments),
        Command::Decide(arguments) => decide::run(&arguments),
        Command::Doctor(output) => doctor::run(&output, &agent),
        Command::Explain(arguments) => explain::run(&arguments, &agent),
        Command::Export(arguments) => export::run(&arguments, &agent),
        Command::Fleet(arguments) => fleet::run(&arguments),
        Command::Get(arguments) => get::run(&arguments, &agent),
        Command::History(arguments) => change::history(&arguments, &agent),
        Command::Lint(arguments) => lint::run(&arguments),
        Command::Oom(command) => oom::run(&command, &agent),
        Command::Plan(arguments) => plan::run(&arguments),
        Command::Release(arguments) => resize::release(&arguments, &agent),
        Command::Report(arguments) => report::run(&arguments, &agent),
        Command::Resize(arguments) => resize::run(&arguments, &agent),
        Command::Top(arguments) => top::run(&arguments, &agent),
        Command::Watch(output) => change::watch(&output, &agent),
    }
}
