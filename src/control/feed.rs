//! The changes on their way to the watchers at the socket.

use prost::Message as _;

use super::proto::Change;
use crate::feed::{Feed, FeedListener};

/// So many bytes of memory a change takes for each byte of its encoding, at most.
const DECODED: usize = 4;

/// Sends changes to all watchers. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct ChangeFeed(Feed<Change>);

impl ChangeFeed {
    /// The changes from now on, for one watcher.
    pub fn watch(&self) -> FeedListener<Change> {
        self.0.listen()
    }

    /// The number of watchers.
    pub fn watchers(&self) -> usize {
        self.0.listeners()
    }

    /// Sends a change to the watchers, if there are any.
    pub fn send(&self, change: impl FnOnce() -> Change) {
        if self.watchers() == 0 {
            return;
        }
        let change = change();
        let bytes = size_of::<Change>() + DECODED * change.encoded_len();
        self.0.send(change, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::feed::MOST_BYTES;

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
            let (read, missed) = quick.next().await.unwrap();
            assert_eq!((read.sequence, missed), (sequence, 0), "another loses nothing");
        }
        for expected in [(92, 91), (93, 0)] {
            let (read, missed) = slow.next().await.unwrap();
            assert_eq!((read.sequence, missed), expected);
        }
    }
}
