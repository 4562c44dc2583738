//! When the kernel killed: its own stamps, brought to the clock that everything else here is measured by.
//!
//! The stamps are of a clock that drifts away from CLOCK_MONOTONIC by milliseconds in a minute. So a line of ours is written
//! into the log beside them each time, at a known moment.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::Context as _;
use vscaled::oom::kmsg::monotonic;

use crate::log::{Log, Said};

/// Moments of kills by process, on CLOCK_MONOTONIC.
#[derive(Debug)]
pub(crate) struct Stamps {
    log: Log,
    marks: u32,
    killed: HashMap<u32, Duration>,
    /// How many of the kills the kernel explained.
    pub(crate) explained: usize,
}

impl Stamps {
    /// Of kills from now on.
    pub(crate) fn new() -> anyhow::Result<Self> {
        Ok(Self {
            log: Log::from_now_on()?,
            marks: 0,
            killed: HashMap::new(),
            explained: 0,
        })
    }

    /// Takes in what was logged since the last time.
    pub(crate) fn update(&mut self) -> anyhow::Result<()> {
        self.marks += 1;
        let mark = format!("vscaled-bench {}: mark {}", std::process::id(), self.marks);
        let before = monotonic();
        // Readers are not shown a record before it is ended.
        Log::write(&format!("<7>{mark}\n"))?;
        let moment = (before + monotonic()) / 2;
        let records = self.log.read()?;
        let ours = |record: &&crate::log::Record| matches!(&record.said, Said::Written(line) if *line == mark);
        let stamp = records.iter().find(ours).context("the mark is not in the log")?.stamp;
        for record in records {
            match record.said {
                Said::Killed(pid) => {
                    self.killed.insert(pid, (moment + record.stamp).saturating_sub(stamp));
                }
                Said::Explained(_) => self.explained += 1,
                Said::Written(_) => {}
            }
        }
        Ok(())
    }

    /// How long after the kill of a process that moment was; `None` if the kernel did not log it.
    pub(crate) fn since(&self, pid: u32, moment: Duration) -> Option<Duration> {
        Some(moment.saturating_sub(*self.killed.get(&pid)?))
    }
}
