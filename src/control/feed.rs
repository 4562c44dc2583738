//! The changes on their way to the watchers at the socket.
//!
//! A change waits in memory until every watcher has read it. The changes that wait are bounded in number and in bytes: a watcher
//! that reads too slowly loses the oldest ones and gets their number.

use std::collections::VecDeque;
use std::mem::take;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use prost::Message as _;
use tokio::sync::broadcast::{self, error::RecvError};

use super::proto::Change;

/// The most changes by which a watcher may lag.
pub(super) const MOST_CHANGES: usize = 1024;
/// The most bytes of changes that wait for slow watchers, and one change more.
const MOST_BYTES: usize = 4 << 20;
/// So many bytes of memory a change takes for each byte of its encoding, at most.
const DECODED: usize = 4;

/// Sends changes to all watchers. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ChangeFeed {
    sender: broadcast::Sender<Arc<UnreadChange>>,
    /// The changes that some watcher has not read, oldest first, and changes that all have read.
    waiting: Arc<Mutex<VecDeque<Weak<UnreadChange>>>>,
}

/// A change that some watcher has not read.
#[derive(Debug)]
struct UnreadChange {
    /// None after the feed dropped it.
    change: Mutex<Option<Change>>,
    bytes: usize,
}

impl Default for ChangeFeed {
    fn default() -> Self {
        Self {
            sender: broadcast::channel(MOST_CHANGES).0,
            waiting: Arc::default(),
        }
    }
}

impl ChangeFeed {
    /// The changes from now on.
    pub fn watch(&self) -> ChangeWatcher {
        let receiver = self.sender.subscribe();
        ChangeWatcher { receiver, missed: 0 }
    }

    /// The number of watchers.
    pub fn watchers(&self) -> usize {
        self.sender.receiver_count()
    }

    /// Sends a change to the watchers, if there are any.
    pub fn send(&self, change: impl FnOnce() -> Change) {
        if self.watchers() == 0 {
            return;
        }
        let change = change();
        let bytes = size_of::<Change>() + DECODED * change.encoded_len();
        let mut waiting = self.waiting.lock();
        waiting.retain(|earlier| earlier.strong_count() > 0);
        let unread = waiting.iter().filter_map(Weak::upgrade);
        let mut sum = unread.fold(bytes, |sum, one| sum + one.bytes);
        while sum > MOST_BYTES
            && let Some(oldest) = waiting.pop_front()
        {
            // Without an upgrade, all watchers have read it meanwhile.
            if let Some(oldest) = oldest.upgrade() {
                sum = sum.saturating_sub(oldest.bytes);
                *oldest.change.lock() = None;
            }
        }
        let change = Arc::new(UnreadChange {
            change: Mutex::new(Some(change)),
            bytes,
        });
        waiting.push_back(Arc::downgrade(&change));
        // An error: the last watcher has just left.
        drop(self.sender.send(change));
    }
}

/// The changes for one watcher.
#[derive(Debug)]
pub struct ChangeWatcher {
    receiver: broadcast::Receiver<Arc<UnreadChange>>,
    /// The changes lost since the latest one that was read.
    missed: u64,
}

impl ChangeWatcher {
    /// The next change, with the number of those lost before it; none after the last feed is dropped. Cancel-safe.
    pub async fn next(&mut self) -> Option<Change> {
        loop {
            match self.receiver.recv().await {
                Ok(waiting) => {
                    let change = waiting.change.lock().clone();
                    if let Some(change) = change {
                        let missed = take(&mut self.missed);
                        return Some(Change { missed, ..change });
                    }
                    self.missed += 1;
                }
                Err(RecvError::Lagged(more)) => self.missed += more,
                Err(RecvError::Closed) => return None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_slow_watcher_loses_the_oldest_bytes() {
        let feed = ChangeFeed::default();
        let (mut slow, mut quick) = (feed.watch(), feed.watch());
        for sequence in 1..=100 {
            // Nine of them are as much as may wait.
            let reason = "x".repeat(MOST_BYTES / DECODED / 10);
            feed.send(|| Change {
                sequence,
                reason,
                ..Change::default()
            });
            let read = quick.next().await.unwrap();
            assert_eq!((read.sequence, read.missed), (sequence, 0), "another loses nothing");
        }
        for (sequence, missed) in [(92, 91), (93, 0)] {
            let read = slow.next().await.unwrap();
            assert_eq!((read.sequence, read.missed), (sequence, missed));
        }
        drop(slow);
        let is_read = |one: &Weak<UnreadChange>| one.strong_count() == 0;
        assert!(feed.waiting.lock().iter().all(is_read), "nothing waits for nobody");
    }
}
