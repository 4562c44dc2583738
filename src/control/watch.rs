//! One watcher's stream of changes.
//!
//! Changes wait in a bounded channel. A watcher that reads too slowly loses the oldest ones and is told how many; it
//! never makes the agent wait or remember more.

use std::sync::Arc;

use futures::Stream;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::proto::Change;

struct Watcher<G> {
    changes: Receiver<Arc<Change>>,
    stop: CancellationToken,
    missed: u64,
    /// Held while anybody listens.
    _guard: G,
}

/// The changes from now on. Ends with `UNAVAILABLE` when the agent stops; `guard` is dropped with the stream.
pub(super) fn changes<G>(
    changes: Receiver<Arc<Change>>,
    stop: CancellationToken,
    guard: G,
) -> impl Stream<Item = Result<Change, Status>> {
    let watcher = Watcher {
        changes,
        stop,
        missed: 0,
        _guard: guard,
    };
    futures::stream::unfold(Some(watcher), async |watcher| {
        let mut watcher = watcher?;
        loop {
            let received = tokio::select! {
                // Cancel-safe: waiting for a token holds nothing.
                () = watcher.stop.cancelled() => Err(RecvError::Closed),
                // Cancel-safe: a change leaves the channel only when it is returned.
                received = watcher.changes.recv() => received,
            };
            match received {
                Ok(change) => {
                    let change = Change {
                        missed: std::mem::take(&mut watcher.missed),
                        ..Change::clone(&change)
                    };
                    return Some((Ok(change), Some(watcher)));
                }
                Err(RecvError::Lagged(missed)) => watcher.missed += missed,
                Err(RecvError::Closed) => return Some((Err(Status::unavailable("vscaled is stopping")), None)),
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::StreamExt;
    use tokio::sync::broadcast;

    fn change(sequence: u64) -> Arc<Change> {
        Arc::new(Change {
            sequence,
            ..Change::default()
        })
    }

    #[tokio::test]
    async fn a_slow_watcher_is_told_how_much_it_missed() {
        let (sender, receiver) = broadcast::channel(4);
        for sequence in 0..10 {
            sender.send(change(sequence)).unwrap();
        }
        let mut stream = std::pin::pin!(changes(receiver, CancellationToken::new(), ()));
        let first = stream.next().await.unwrap().unwrap();
        assert_eq!((first.sequence, first.missed), (6, 6));
        let second = stream.next().await.unwrap().unwrap();
        assert_eq!((second.sequence, second.missed), (7, 0));
    }

    #[tokio::test]
    async fn stopping_ends_the_stream_with_a_reason_and_drops_its_guard() {
        let (_sender, receiver) = broadcast::channel(4);
        let (stop, guard) = (CancellationToken::new(), Arc::new(()));
        let mut stream = std::pin::pin!(changes(receiver, stop.clone(), Arc::clone(&guard)));
        stop.cancel();
        let last = stream.next().await.unwrap().unwrap_err();
        assert_eq!(last.code(), tonic::Code::Unavailable);
        assert!(stream.next().await.is_none());
        assert_eq!(Arc::strong_count(&guard), 1);
    }
}
