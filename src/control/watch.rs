//! One watcher's stream of changes.
//!
//! Changes wait in a bounded channel. A watcher that reads too slowly loses the oldest ones and hears how many; the agent
//! never waits for a watcher and never remembers more for one.

use std::future::ready;
use std::pin::Pin;
use std::sync::Arc;

use futures::stream::once;
use futures::{Stream, StreamExt};
use tokio::sync::broadcast::Receiver;
use tokio_stream::wrappers::BroadcastStream;
use tokio_stream::wrappers::errors::BroadcastStreamRecvError;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::proto::Change;

/// What a watcher gets.
pub type Changes = Pin<Box<dyn Stream<Item = Result<Change, Status>> + Send>>;

/// The changes from now on. Ends with `UNAVAILABLE` when the agent stops; `guard` is dropped with the last change.
pub(super) fn changes<G: Send + 'static>(changes: Receiver<Arc<Change>>, stop: CancellationToken, guard: G) -> Changes {
    let mut missed = 0;
    let number_missed = move |received: Result<Arc<Change>, BroadcastStreamRecvError>| {
        let _held = &guard;
        ready(match received {
            Ok(change) => Some(Ok(Change {
                missed: std::mem::take(&mut missed),
                ..Change::clone(&change)
            })),
            Err(BroadcastStreamRecvError::Lagged(lost)) => {
                missed += lost;
                None
            }
        })
    };
    let end = once(ready(Err(Status::unavailable("vscaled is stopping"))));
    let changes = BroadcastStream::new(changes).filter_map(number_missed);
    Box::pin(changes.take_until(stop.cancelled_owned()).chain(end))
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
        let mut stream = changes(receiver, CancellationToken::new(), ());
        let first = stream.next().await.unwrap().unwrap();
        assert_eq!((first.sequence, first.missed), (6, 6));
        let second = stream.next().await.unwrap().unwrap();
        assert_eq!((second.sequence, second.missed), (7, 0));
    }

    #[tokio::test]
    async fn stopping_ends_the_stream_with_a_reason_and_drops_its_guard() {
        let (_sender, receiver) = broadcast::channel(4);
        let (stop, guard) = (CancellationToken::new(), Arc::new(()));
        let mut stream = changes(receiver, stop.clone(), Arc::clone(&guard));
        stop.cancel();
        let last = stream.next().await.unwrap().unwrap_err();
        assert_eq!(last.code(), tonic::Code::Unavailable);
        assert!(stream.next().await.is_none());
        assert_eq!(Arc::strong_count(&guard), 1);
    }
}
