//! The time of each kill: the kernel's timestamps, converted to the clock of the other measurements.
//!
//! The kernel's timestamps come from a clock that drifts away from CLOCK_MONOTONIC by milliseconds in a minute.
//! Therefore the benchmark writes its own line into the log at a known time, beside the kernel's lines.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::Context as _;
use vscaled::oom::kmsg::monotonic;

use crate::log::{Content, Log};

/// Times of kills by process, on CLOCK_MONOTONIC.
#[derive(Debug)]
pub(crate) struct Stamps {
    log: Log,
    marks: u32,
    killed: HashMap<u32, Duration>,
    /// The number of kills that the kernel logged with a report.
    pub(crate) explained: usize,
}

impl Stamps {
    /// Starts with kills from now on.
    pub(crate) fn new() -> anyhow::Result<Self> {
        Ok(Self {
            log: Log::from_now_on()?,
            marks: 0,
            killed: HashMap::new(),
            explained: 0,
        })
    }

    /// Reads the new records of the log.
    pub(crate) fn update(&mut self) -> anyhow::Result<()> {
        self.marks += 1;
        let mark = format!("vscaled-bench {}: mark {}", std::process::id(), self.marks);
        let before = monotonic();
        // The kernel shows readers a record only when it is complete.
        Log::write(&format!("<7>{mark}\n"))?;
        let moment = (before + monotonic()) / 2;
        let records = self.log.read()?;
        let ours = |record: &&crate::log::Record| matches!(&record.content, Content::Written(line) if *line == mark);
        let stamp = records.iter().find(ours).context("the mark is not in the log")?.stamp;
        for record in records {
            match record.content {
                Content::Killed(pid) => {
                    self.killed.insert(pid, (moment + record.stamp).saturating_sub(stamp));
                }
                Content::Explained(_) => self.explained += 1,
                Content::Written(_) => {}
            }
        }
        Ok(())
    }

    /// The time from the kill of a process until a moment; `None` if the kernel did not log the kill.
    pub(crate) fn since(&self, pid: u32, moment: Duration) -> Option<Duration> {
        Some(moment.saturating_sub(*self.killed.get(&pid)?))
    }
}
