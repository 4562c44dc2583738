//! The command line of the agent, `vscaled`, and the output of `vscaled restore`: every step of every pod, and its outcome.

use anyhow::anyhow;
use clap::{Args, Parser, Subcommand};

use super::output::Output;
use super::page::{Page, TextLine, Tone, toned};
use super::results::{name, named, outcome};
use super::{Failure, change, io};
use crate::agent::{Restoration, Restore};
use crate::config::RunArguments;
use crate::control::proto::PodResult;

/// Resizes running containers in place on one Kubernetes node.
#[derive(Debug, Parser)]
#[command(name = "vscaled", version, arg_required_else_help = true)]
pub struct CommandLine {
    #[command(subcommand)]
    pub command: Command,
}

/// The commands of `vscaled`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Runs the agent until SIGTERM; SIGHUP reads the configuration again.
    Run(RunArguments),
    /// Puts every value back to what the pods' specs say, with the agent stopped: shows the steps, or does them with --yes.
    Restore(RestoreArguments),
}

/// The arguments of `vscaled restore`.
#[derive(Debug, Clone, Args)]
pub struct RestoreArguments {
    /// Do it; without this, only the steps are shown
    #[arg(long)]
    pub yes: bool,
    /// With --yes: end at once, without watching lower memory limits for a minute
    #[arg(long, requires = "yes")]
    pub no_watch: bool,
    #[command(flatten)]
    output: Output,
    /// The agent's configuration.
    #[command(flatten)]
    pub agent: RunArguments,
}

impl RestoreArguments {
    /// How far to go.
    pub const fn how(&self) -> Restore {
        match (self.yes, self.no_watch) {
            (false, _) => Restore::Rehearse,
            (true, false) => Restore::ApplyAndWatch,
            (true, true) => Restore::Apply,
        }
    }

    /// Announces the watch for harm, which takes a minute.
    pub fn announce(&self) {
        if self.how() == Restore::ApplyAndWatch {
            let watched = "lower memory limits are watched for a minute afterwards; --no-watch leaves at once";
            io::complain("vscaled", watched);
        }
    }

    /// Prints the steps that were done, or that a run with `--yes` would do.
    ///
    /// Errors: if a pod is not as its spec says, or would not be.
    pub fn show(&self, restoration: &Restoration) -> Result<(), Failure> {
        self.output.print(restoration, || self.render(restoration))?;
        match named(&restoration.results, |result| !restored(result)) {
            Some(pods) => Err(anyhow!("cannot be restored now: {pods}; fix the cause and run it again").into()),
            None => Ok(()),
        }
    }

    fn render(&self, restoration: &Restoration) -> Page {
        let remarks = restoration.remarks.iter();
        let mut page: Page = remarks
            .map(|remark| toned(Tone::Waiting, "note:").then(format!(" {remark}")))
            .collect();
        for result in &restoration.results {
            let (name, refused) = (name(result), toned(Tone::Bad, "Refused:"));
            page = page.then(match &result.change {
                Some(planned) if planned.steps.is_empty() && planned.reason.is_empty() => {
                    Page::from(format!("{name}: as its spec says"))
                }
                Some(done) => change::render(done),
                None => TextLine::from(format!("{name}: "))
                    .then(refused)
                    .then(format!(" {}", result.error))
                    .into(),
            });
        }
        if restoration.results.is_empty() {
            page.push("no source describes a pod that runs on this node");
        }
        if !self.yes {
            page.push("nothing was written: add --yes to do it");
        }
        page
    }
}

/// Whether a pod is as its spec says. `RuntimeOwed` does not count: no agent updates the runtime later.
fn restored(result: &PodResult) -> bool {
    outcome(result) == Some(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::proto::Change;

    fn arguments(line: &str) -> RestoreArguments {
        let words = ["vscaled", "restore"].into_iter().chain(line.split_whitespace());
        match CommandLine::try_parse_from(words).unwrap().command {
            Command::Restore(arguments) => arguments,
            Command::Run(_) => panic!("restore was given"),
        }
    }

    fn result(name: &str, outcome: Option<&str>, error: &str) -> PodResult {
        PodResult {
            namespace: "shop".to_owned(),
            name: name.to_owned(),
            change: outcome.map(|outcome| Change {
                namespace: "shop".to_owned(),
                name: name.to_owned(),
                outcome: outcome.to_owned(),
                ..Change::default()
            }),
            error: error.to_owned(),
            ..PodResult::default()
        }
    }

    #[test]
    fn only_yes_writes_and_only_then_watches() {
        assert_eq!(arguments("").how(), Restore::Rehearse);
        assert_eq!(arguments("--yes").how(), Restore::ApplyAndWatch);
        assert_eq!(arguments("--yes --no-watch").how(), Restore::Apply);
    }

    #[test]
    fn a_pod_is_restored_when_all_agrees() {
        for (outcome, is_restored) in [
            (Some("Applied"), true),
            (Some("Unchanged"), true),
            (Some("Planned"), true),
            (Some("RuntimeOwed"), false),
            (Some("SpecLater"), false),
            (Some("Refused"), false),
            (None, false),
        ] {
            assert_eq!(restored(&result("web", outcome, "")), is_restored, "{outcome:?}");
        }
    }

    #[test]
    fn each_pod_has_its_result() {
        let mut refused = result("db", Some("Refused"), "");
        if let Some(change) = &mut refused.change {
            change.reason = "it uses more".to_owned();
        }
        let restoration = Restoration {
            remarks: vec!["the runtime does not answer".to_owned()],
            results: vec![
                result("web", Some("Unchanged"), ""),
                refused,
                result("job", None, "two pods have this name"),
            ],
        };
        let shown = |line: &str| arguments(line).render(&restoration).shown(false);
        assert_eq!(
            shown("--yes"),
            "note: the runtime does not answer\nshop/web: as its spec says\nshop/db: Refused: it uses more\n\
             shop/job: Refused: two pods have this name\n"
        );
        assert!(shown("").ends_with("nothing was written: add --yes to do it\n"));
        let nothing = Restoration {
            remarks: Vec::new(),
            results: Vec::new(),
        };
        assert_eq!(
            arguments("--yes").render(&nothing).shown(false),
            "no source describes a pod that runs on this node\n"
        );
    }
}
