//! Whether the kernel may be holding reports back right now.

use std::collections::VecDeque;

use crate::oom::within;

/// `DEFINE_RATELIMIT_STATE(oom_rs, 5 * HZ, 10)` in `oom_kill_process`: ten reports in five seconds, for the whole node.
const BURST: usize = 10;

/// The times of the latest reports. While fewer than ten lie within the last five seconds, each kill comes with a report.
#[derive(Debug, Default)]
pub(super) struct ReportWindow {
    printed: VecDeque<Option<u64>>,
    lost: bool,
}

impl ReportWindow {
    /// Records that a report was printed.
    pub(super) fn printed(&mut self, at: Option<u64>) {
        self.printed.push_back(at);
        if self.printed.len() > BURST {
            self.printed.pop_front();
        }
    }

    /// Records that any number of reports may have been lost before the next line.
    pub(super) const fn lost(&mut self) {
        self.lost = true;
    }

    /// Records the time of a line.
    pub(super) fn line_at(&mut self, at: Option<u64>) {
        if std::mem::take(&mut self.lost) {
            self.printed = VecDeque::from([at; BURST]);
        }
    }

    /// Whether a kill after this time may come without a report.
    pub(super) fn may_suppress(&self, at: Option<u64>) -> bool {
        self.printed.len() == BURST && self.printed.front().is_some_and(|oldest| within(*oldest, at))
    }
}
