//! Whether the kernel may be keeping reports back right now.

use std::collections::VecDeque;

use crate::oom::within;

/// `DEFINE_RATELIMIT_STATE(oom_rs, 5 * HZ, 10)` in `oom_kill_process`: ten reports in five seconds, for the whole node.
const BURST: usize = 10;

/// The times of the latest reports. As long as fewer than ten lie within the last five seconds, the next kill of its own
/// comes with a report.
#[derive(Debug, Default)]
pub(super) struct ReportWindow {
    printed: VecDeque<Option<u64>>,
    lost: bool,
}

impl ReportWindow {
    /// A report was printed.
    pub(super) fn printed(&mut self, at: Option<u64>) {
        self.printed.push_back(at);
        if self.printed.len() > BURST {
            self.printed.pop_front();
        }
    }

    /// Any number of reports may have been lost before the next line.
    pub(super) const fn lost(&mut self) {
        self.lost = true;
    }

    /// Takes note of the time of a line.
    pub(super) fn look(&mut self, at: Option<u64>) {
        if std::mem::take(&mut self.lost) {
            self.printed = VecDeque::from([at; BURST]);
        }
    }

    /// Whether a kill after this time may come without a report.
    pub(super) fn may_suppress(&self, at: Option<u64>) -> bool {
        self.printed.len() == BURST && self.printed.front().is_some_and(|oldest| within(*oldest, at))
    }
}
