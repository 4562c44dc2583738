//! Values on their way to listeners that may read slowly.
//!
//! A value waits in memory until every listener has read it. The values that wait are bounded in number and in bytes: a listener
//! that reads too slowly loses the oldest ones and gets their number. A listener that reads quickly loses nothing.

use std::collections::VecDeque;
use std::mem::take;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::broadcast::{self, error::RecvError};

/// The most values by which a listener may lag.
pub const MOST_VALUES: usize = 1024;
/// The most bytes of values that wait for slow listeners, and one value more.
pub const MOST_BYTES: usize = 4 << 20;

/// Sends values to all listeners. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Feed<T> {
    sender: broadcast::Sender<Arc<UnreadValue<T>>>,
    /// The values that some listener has not read, oldest first, and values that all have read.
    waiting: Arc<Mutex<VecDeque<Weak<UnreadValue<T>>>>>,
}

/// A value that some listener has not read.
#[derive(Debug)]
struct UnreadValue<T> {
    /// None after the feed dropped it.
    value: Mutex<Option<T>>,
    bytes: usize,
}

impl<T> Default for Feed<T> {
    fn default() -> Self {
        Self {
            sender: broadcast::channel(MOST_VALUES).0,
            waiting: Arc::default(),
        }
    }
}

impl<T> Feed<T> {
    /// The values from now on.
    pub fn listen(&self) -> FeedListener<T> {
        let receiver = self.sender.subscribe();
        FeedListener { receiver, missed: 0 }
    }

    /// The number of listeners.
    pub fn listeners(&self) -> usize {
        self.sender.receiver_count()
    }

    /// Sends a value of so many bytes to the listeners, if there are any.
    pub fn send(&self, value: T, bytes: usize) {
        let mut waiting = self.waiting.lock();
        waiting.retain(|earlier| earlier.strong_count() > 0);
        let unread = waiting.iter().filter_map(Weak::upgrade);
        let mut sum = unread.fold(bytes, |sum, one| sum.saturating_add(one.bytes));
        while sum > MOST_BYTES
            && let Some(oldest) = waiting.pop_front()
        {
            // Without an upgrade, all listeners have read it meanwhile.
            if let Some(oldest) = oldest.upgrade() {
                sum = sum.saturating_sub(oldest.bytes);
                *oldest.value.lock() = None;
            }
        }
        let value = Arc::new(UnreadValue {
            value: Mutex::new(Some(value)),
            bytes,
        });
        waiting.push_back(Arc::downgrade(&value));
        // An error: there is no listener.
        drop(self.sender.send(value));
    }
}

/// The values for one listener.
#[derive(Debug)]
pub struct FeedListener<T> {
    receiver: broadcast::Receiver<Arc<UnreadValue<T>>>,
    /// The values lost since the latest one that was read.
    missed: u64,
}

impl<T: Clone> FeedListener<T> {
    /// The next value, with the number of those lost before it; none after the last feed is dropped. Cancel-safe.
    pub async fn next(&mut self) -> Option<(T, u64)> {
        loop {
            match self.receiver.recv().await {
                Ok(unread) => {
                    let value = unread.value.lock().clone();
                    if let Some(value) = value {
                        return Some((value, take(&mut self.missed)));
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
    use futures::FutureExt as _;

    use super::*;

    /// What the listener can read now.
    fn read(listener: &mut FeedListener<usize>) -> Vec<(usize, u64)> {
        std::iter::from_fn(|| listener.next().now_or_never().flatten()).collect()
    }

    #[test]
    fn a_slow_listener_loses_the_oldest_bytes() {
        let feed = Feed::default();
        let (mut slow, mut quick) = (feed.listen(), feed.listen());
        for value in 1..=100 {
            feed.send(value, MOST_BYTES / 9);
            assert_eq!(read(&mut quick), [(value, 0)], "another loses nothing");
        }
        let kept = read(&mut slow);
        assert_eq!((kept.len(), &kept[..2]), (9, &[(92, 91), (93, 0)][..]));
        let is_read = |one: &Weak<UnreadValue<usize>>| one.strong_count() == 0;
        assert!(feed.waiting.lock().iter().all(is_read), "nothing waits for nobody");
    }

    #[test]
    fn the_latest_value_waits_whatever_its_size() {
        let feed = Feed::default();
        let mut slow = feed.listen();
        for value in 1..=3 {
            feed.send(value, usize::MAX);
        }
        assert_eq!(read(&mut slow), [(3, 2)]);
    }
}
