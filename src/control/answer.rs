//! The answer of a call in pieces. HTTP/2 buffers a whole piece, of which the caller may not have read a byte; so pieces are small,
//! and the call counts as in progress until the last one is buffered. Callers who do not read have no more answers than calls, and
//! not for long.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::body::{Body, Bytes, Frame};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

/// The largest piece in bytes.
const PIECE: usize = 16 << 10;

/// A body in pieces, with a guard that is dropped with it.
#[derive(Debug)]
pub(super) struct Pieces<B, G> {
    body: B,
    rest: Bytes,
    _guard: G,
}

impl<B, G> Pieces<B, G> {
    pub(super) const fn new(body: B, guard: G) -> Self {
        Self {
            body,
            rest: Bytes::new(),
            _guard: guard,
        }
    }
}

impl<B: Body<Data = Bytes> + Unpin, G: Unpin> Body for Pieces<B, G> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let this = self.get_mut();
        if this.rest.is_empty() {
            match ready!(Pin::new(&mut this.body).poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => this.rest = data,
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                end => return Poll::Ready(end),
            }
        }
        let piece = this.rest.split_to(this.rest.len().min(PIECE));
        // A copy, because a part of the whole keeps the whole.
        Poll::Ready(Some(Ok(Frame::data(Bytes::copy_from_slice(&piece)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }
}

/// Cancels `late` unless the result is dropped in time.
pub(super) fn time_limit(time: Duration, late: CancellationToken) -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(tokio::spawn(async move {
        tokio::time::sleep(time).await;
        late.cancel();
    }))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http_body_util::{BodyExt as _, Full};

    use super::*;

    #[tokio::test]
    async fn a_large_answer_goes_in_pieces() {
        let guard = Arc::new(());
        let whole = Full::new(Bytes::from(vec![7; 100 << 10]));
        let mut pieces = Pieces::new(whole, Arc::clone(&guard));
        let mut sizes = Vec::new();
        while let Some(frame) = pieces.frame().await {
            sizes.push(frame.unwrap().into_data().unwrap().len());
        }
        assert_eq!((sizes.len(), sizes.iter().sum::<usize>()), (7, 100 << 10));
        assert!(pieces.is_end_stream() && sizes.iter().all(|size| *size <= PIECE));
        assert_eq!(Arc::strong_count(&guard), 2);
        drop(pieces);
        assert_eq!(Arc::strong_count(&guard), 1);
    }

    #[tokio::test]
    async fn only_what_is_not_read_is_late() {
        let (read, unread) = (CancellationToken::new(), CancellationToken::new());
        drop(time_limit(Duration::from_secs(3600), read.clone()));
        let _unsent = time_limit(Duration::ZERO, unread.clone());
        unread.cancelled().await;
        assert!(!read.is_cancelled());
    }
}
