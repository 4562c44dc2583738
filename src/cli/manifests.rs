//! Manifests given on the command line, and what is decided for the pods in them.

use clap::Args;
use jiff::Timestamp;

use super::output::Output;
use super::{Failure, io};
use crate::decide::{Index, Options, PodDecision, decide};
use crate::sources::{NodeView, parse_manifests};

/// The file of manifests, and how to decide and to answer.
#[derive(Debug, Args)]
pub(super) struct Manifests {
    /// Pods, their owners, VerticalPodAutoscalers, LimitRanges and HorizontalPodAutoscalers in YAML or JSON; - is
    /// standard input
    #[arg(short, long, value_name = "FILE")]
    file: String,
    #[command(flatten)]
    pub(super) output: Output,
    /// Decide as if it were this time, such as 2026-01-31T12:00:00Z
    #[arg(long, value_name = "RFC3339")]
    now: Option<Timestamp>,
}

impl Manifests {
    /// Reads the manifests, and warns of what is passed over.
    pub(super) fn read(&self) -> Result<NodeView, Failure> {
        let text = io::read_text(&self.file)?;
        let manifests = parse_manifests(&self.file, &text).map_err(Failure::usage)?;
        manifests.warnings.iter().for_each(|warning| io::warn(warning));
        Ok(manifests.view)
    }

    /// One decision for each pod, in their order.
    pub(super) fn decide(&self, view: &NodeView, index: &Index<'_>) -> Vec<PodDecision> {
        let now = self.now.unwrap_or_else(Timestamp::now);
        decide(&view.pods, index, now, &Options::default())
    }
}
