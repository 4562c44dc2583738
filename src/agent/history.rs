//! What was done lately, and who wants to hear of it at once.

use std::collections::VecDeque;
use std::sync::Arc;

use jiff::Timestamp;
use tokio::sync::broadcast;

use crate::actuate::JobDone;
use crate::model::objects::PodId;
use crate::model::{Cause, ChangeRecord, Outcome, Withheld};
use crate::observe::audit::Audit;

/// How many changes are kept: one or two kilobytes each.
const KEPT: usize = 256;

/// The latest changes, oldest first.
#[derive(Debug)]
pub(super) struct History {
    records: VecDeque<Arc<ChangeRecord>>,
    next: u64,
    listeners: broadcast::Sender<Arc<ChangeRecord>>,
    audit: Audit,
}

impl History {
    pub(super) fn new(listeners: broadcast::Sender<Arc<ChangeRecord>>, audit: Audit) -> Self {
        Self {
            records: VecDeque::new(),
            next: 1,
            listeners,
            audit,
        }
    }

    /// Takes the steps out of what a pass did, and keeps them. A pass that found everything in order is not news, nor is
    /// one that only found what the kubelet had `said` before.
    pub(super) fn add(
        &mut self,
        at: Timestamp,
        pod: PodId,
        cause: Cause,
        done: &mut JobDone,
        said: Option<&Withheld>,
    ) -> Arc<ChangeRecord> {
        let known = matches!(&done.outcome, Outcome::Withheld(says) if Some(says) == said);
        let news = !done.steps.is_empty() || done.outcome.reason().is_some() && !known;
        let record = Arc::new(ChangeRecord {
            sequence: if news { self.next } else { 0 },
            at,
            pod,
            cause,
            outcome: done.outcome.clone(),
            steps: std::mem::take(&mut done.steps),
            stages: done.stages,
        });
        if news {
            self.next += 1;
            if self.records.len() == KEPT {
                self.records.pop_front();
            }
            self.records.push_back(Arc::clone(&record));
            // Nobody listening is fine.
            drop(self.listeners.send(Arc::clone(&record)));
            self.audit.change(&record);
            log(&record);
        }
        record
    }

    /// Why not everything is written down for good, if so.
    pub(super) fn problem(&self) -> Option<String> {
        self.audit.problem()
    }

    /// All changes, or one pod's, oldest first.
    pub(super) fn iter<'a>(&'a self, pod: Option<&'a PodId>) -> impl DoubleEndedIterator<Item = &'a Arc<ChangeRecord>> {
        self.records
            .iter()
            .filter(move |record| pod.is_none_or(|pod| record.pod == *pod))
    }
}

/// One line for each step, in the span of its pass.
fn log(record: &ChangeRecord) {
    if let Outcome::Withheld(withheld) = &record.outcome {
        let (word, reason) = (withheld.word(), withheld.reason());
        tracing::warn!(pod = %record.pod, outcome = word, reason, "the pod does not have what is wanted yet");
    }
    for step in &record.steps {
        let took_us = u64::try_from(step.took.as_micros()).unwrap_or(u64::MAX);
        tracing::info!(
            via = %step.via, cgroup = %step.target, file = step.file.unwrap_or_default(), from = step.from, to = step.to,
            took_us, error = step.error.as_deref().unwrap_or_default(), rollback = step.rollback,
            "step"
        );
    }
}
