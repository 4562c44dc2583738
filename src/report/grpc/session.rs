//! One stream to a receiver, from the hello to its end.
//! A [`Window`] holds what is on the way on it.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::pin;
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use futures::{StreamExt, TryFutureExt};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use tonic::transport::Channel;

use super::{bounded, in_words};
use crate::pace::Backoff;
use crate::report::destination::Destination;
use crate::report::log::task::until;
use crate::report::proto::agent_message::Message;
use crate::report::proto::report_receiver_client::ReportReceiverClient;
use crate::report::proto::{Ack, AgentMessage, Hello, Report};
use crate::report::reporter::ReportQueue;

/// An acknowledgement of a whole window by long ids is far from this.
const LONGEST_ACK: usize = 256 << 10;
/// A receiver may be confused this often, and once more for each report that it acknowledges.
const TOLERATED: usize = 1000;

/// A stream, and what is on the way on it.
#[derive(Debug)]
pub(super) struct Session<'a> {
    queue: &'a mut ReportQueue,
    endpoint: String,
    patience: Duration,
    /// Begins anew with an acknowledgement: the receiver works, in principle.
    backoff: &'a mut Backoff,
    window: Window,
    acknowledged: usize,
    strange: usize,
}

impl<'a> Session<'a> {
    /// Takes a receiver that acknowledges nothing for as long as `patience` for stuck.
    pub(super) fn new(
        queue: &'a mut ReportQueue,
        endpoint: String,
        patience: Duration,
        backoff: &'a mut Backoff,
    ) -> Self {
        queue.start_over();
        Self {
            queue,
            endpoint,
            patience,
            backoff,
            window: Window::new(Destination::Grpc.window(), Instant::now()),
            acknowledged: 0,
            strange: 0,
        }
    }

    /// Talks to the receiver until one end has had enough.
    ///
    /// Errors: what is wrong with the receiver, or [`crate::report::Ended`].
    pub(super) async fn run(mut self, channel: Channel, hello: Hello) -> Result<Infallible> {
        // A whole window and the hello: sending never waits.
        let (out, outgoing) = mpsc::channel(Destination::Grpc.window() + 1);
        let mut client = ReportReceiverClient::new(channel).max_decoding_message_size(LONGEST_ACK);
        // Many a server answers the call only with its first acknowledgement: reports must not wait for that.
        let acks = client
            .deliver(ReceiverStream::new(outgoing))
            .map_ok(tonic::Response::into_inner)
            .try_flatten_stream();
        let mut acks = pin!(acks);
        self.put(&out, Message::Hello(hello))?;
        loop {
            self.send_more(&out).await?;
            let deadline = self.window.deadline(self.patience);
            // Cancel-safe, all of them: what was not taken is still there.
            tokio::select! {
                ack = acks.next() => match ack {
                    Some(Ok(ack)) => self.acknowledged(&ack).await?,
                    Some(Err(status)) => return Err(self.failed(&status)),
                    None => return Err(self.ended()),
                },
                more = self.queue.more() => more?,
                () = until(deadline.map(Instant::into_std)) => bail!(
                    "{} has not acknowledged any of {} reports for {:?}",
                    self.endpoint, self.window.len(), self.patience
                ),
            }
        }
    }

    /// Sends what there is, as far as the window allows.
    async fn send_more(&mut self, out: &mpsc::Sender<AgentMessage>) -> Result<()> {
        for pending in self.queue.next(self.window.room()).await? {
            let mut report = Report::from(&pending.report);
            report.sequence = self.window.send(pending.number, report.id.clone(), Instant::now());
            self.put(out, Message::Report(report))?;
            self.queue.sent(pending.number);
        }
        Ok(())
    }

    fn put(&self, out: &mpsc::Sender<AgentMessage>, message: Message) -> Result<()> {
        let message = AgentMessage { message: Some(message) };
        out.try_send(message).map_err(|_| self.ended())
    }

    async fn acknowledged(&mut self, ack: &Ack) -> Result<()> {
        let acknowledged = self.window.acknowledge(ack, Instant::now());
        self.strange += acknowledged.strange;
        self.acknowledged += acknowledged.numbers.len();
        if self.strange > TOLERATED + self.acknowledged {
            bail!(
                "{} acknowledged {} times what was not sent to it",
                self.endpoint,
                self.strange
            );
        }
        if !acknowledged.numbers.is_empty() {
            self.backoff.reset();
            self.queue.acknowledge(acknowledged.numbers).await?;
        }
        Ok(())
    }

    fn ended(&self) -> anyhow::Error {
        anyhow!("{} ended the stream", self.endpoint)
    }

    fn failed(&self, status: &Status) -> anyhow::Error {
        let message = match std::error::Error::source(status).map(in_words) {
            Some(cause) if !status.message().contains(&cause) => format!("{}: {cause}", status.message()),
            Some(_) | None => status.message().to_owned(),
        };
        anyhow!(
            "{} ended the stream: {}: {}",
            self.endpoint,
            status.code(),
            bounded(&message)
        )
    }
}

/// The reports that were sent on a stream and not acknowledged, oldest first.
#[derive(Debug)]
struct Window {
    limit: usize,
    last_sequence: u64,
    sent: VecDeque<Sent>,
    /// When there was last something to be glad of: an acknowledgement, or nothing to wait for.
    good: Instant,
}

#[derive(Debug)]
struct Sent {
    sequence: u64,
    number: u64,
    id: String,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Acknowledged {
    /// The numbers in the spool of what was received.
    numbers: Vec<u64>,
    /// How many of the things acknowledged are not on the way.
    strange: usize,
}

impl Window {
    /// For a stream that begins now.
    const fn new(limit: usize, now: Instant) -> Self {
        Self {
            limit,
            last_sequence: 0,
            sent: VecDeque::new(),
            good: now,
        }
    }

    /// A report is being sent; returns its sequence.
    fn send(&mut self, number: u64, id: String, now: Instant) -> u64 {
        if self.sent.is_empty() {
            self.good = now;
        }
        self.last_sequence += 1;
        let sequence = self.last_sequence;
        self.sent.push_back(Sent { sequence, number, id });
        sequence
    }

    /// The receiver has acknowledged something.
    fn acknowledge(&mut self, ack: &Ack, now: Instant) -> Acknowledged {
        let mut acknowledged = Acknowledged::default();
        if ack.up_to > self.last_sequence {
            acknowledged.strange += 1;
        } else {
            let count = self.sent.partition_point(|sent| sent.sequence <= ack.up_to);
            acknowledged
                .numbers
                .extend(self.sent.drain(..count).map(|sent| sent.number));
        }
        for id in &ack.ids {
            match self.sent.iter().position(|sent| sent.id == *id) {
                Some(at) => acknowledged
                    .numbers
                    .extend(self.sent.remove(at).map(|sent| sent.number)),
                None => acknowledged.strange += 1,
            }
        }
        if !acknowledged.numbers.is_empty() {
            self.good = now;
        }
        acknowledged
    }

    /// How many more may be sent now. Nothing until half the window is free, so that they are fetched many at a time.
    fn room(&self) -> usize {
        if self.sent.len() <= self.limit / 2 {
            self.limit - self.sent.len()
        } else {
            0
        }
    }

    /// How many are on the way.
    fn len(&self) -> usize {
        self.sent.len()
    }

    /// When a receiver that acknowledges nothing is taken for stuck; never with nothing on the way.
    fn deadline(&self, patience: Duration) -> Option<Instant> {
        (!self.sent.is_empty()).then(|| self.good + patience)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ack(up_to: u64, ids: &[&str]) -> Ack {
        Ack {
            up_to,
            ids: ids.iter().map(ToString::to_string).collect(),
        }
    }

    #[test]
    fn reports_are_acknowledged_by_sequence_and_by_id_and_once() {
        let now = Instant::now();
        let mut window = Window::new(8, now);
        for (number, id) in [(10, "a"), (20, "b"), (30, "c"), (40, "d")] {
            window.send(number, id.to_owned(), now);
        }
        assert_eq!(window.acknowledge(&ack(2, &["d"]), now).numbers, [10, 20, 40]);
        let again = window.acknowledge(&ack(2, &["d"]), now);
        assert_eq!((again.numbers, again.strange), (vec![], 1));
        let never_sent = window.acknowledge(&ack(99, &["x"]), now);
        assert_eq!((never_sent.numbers, never_sent.strange), (vec![], 2));
        assert_eq!(window.len(), 1);
    }

    #[test]
    fn patience_begins_anew_with_each_acknowledgement_and_lasts_for_ever_with_nothing_sent() {
        let start = Instant::now();
        let second = |count| start + Duration::from_secs(count);
        let patience = Duration::from_secs(30);
        let mut window = Window::new(8, start);
        assert_eq!(window.deadline(patience), None);
        window.send(1, "a".to_owned(), second(100));
        window.send(2, "b".to_owned(), second(110));
        assert_eq!(window.deadline(patience), Some(second(130)));
        window.acknowledge(&ack(0, &["x"]), second(115));
        assert_eq!(window.deadline(patience), Some(second(130)), "nonsense is no progress");
        window.acknowledge(&ack(1, &[]), second(120));
        assert_eq!(window.deadline(patience), Some(second(150)));
        window.acknowledge(&ack(2, &[]), second(121));
        assert_eq!(window.deadline(patience), None);
    }

    proptest! {
        #[test]
        fn whatever_is_acknowledged_was_sent_and_is_acknowledged_once(
            acks in prop::collection::vec((0u64..30, prop::collection::vec(0u64..30, 0..4)), 0..20),
            limit in 1usize..20,
        ) {
            let now = Instant::now();
            let mut window = Window::new(limit, now);
            let (mut next, mut settled) = (0, std::collections::BTreeSet::new());
            for (up_to, ids) in acks {
                for _ in 0..window.room() {
                    next += 1;
                    prop_assert_eq!(window.send(next + 1000, next.to_string(), now), next);
                }
                prop_assert!(window.len() <= limit);
                let ids = ids.iter().map(ToString::to_string).collect();
                for number in window.acknowledge(&Ack { up_to, ids }, now).numbers {
                    prop_assert!((1001..=next + 1000).contains(&number));
                    prop_assert!(settled.insert(number), "{} twice", number);
                }
            }
            prop_assert_eq!(settled.len() + window.len(), usize::try_from(next).unwrap());
        }
    }
}
