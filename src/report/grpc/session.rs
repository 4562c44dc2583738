//! One stream to a receiver, from the hello to its end. A [`Window`] holds the reports on the way.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::pin;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use futures::{StreamExt, TryFutureExt};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use tonic::transport::Channel;

use super::{bounded, in_words};
use crate::pace::Backoff;
use crate::report::destination::Destination;
use crate::report::proto::agent_message::Message;
use crate::report::proto::report_receiver_client::ReportReceiverClient;
use crate::report::proto::{Ack, AgentMessage, Hello, Report};
use crate::report::reporter::{ReportQueue, until};

/// An acknowledgement of a whole window by long ids is far from this.
const LONGEST_ACK: usize = 256 << 10;
/// A receiver may send so many acknowledgements for reports that it was not sent, and one more for
/// each report that it acknowledges.
const TOLERATED: usize = 1000;

/// Delivers over a connection until the stream ends. An acknowledgement starts the pauses over. A receiver that acknowledges nothing
/// for the time of `patience` is stuck.
///
/// Errors: always: why the stream ended, to be read after the receiver's address.
pub(super) async fn deliver(
    queue: &mut ReportQueue,
    channel: Channel,
    hello: Hello,
    patience: Duration,
    pauses: &mut Backoff,
) -> Result<Infallible> {
    let mut window = Window::new(Destination::Grpc.window(), Instant::now());
    let (mut acknowledged, mut strange) = (0, 0);
    // A whole window and the hello: sending never waits.
    let (out, outgoing) = mpsc::channel(window.limit + 1);
    let mut client = ReportReceiverClient::new(channel).max_decoding_message_size(LONGEST_ACK);
    // Many servers answer the call only with their first acknowledgement: reports must not wait for that.
    let acks = client
        .deliver(ReceiverStream::new(outgoing))
        .map_ok(tonic::Response::into_inner)
        .try_flatten_stream();
    let mut acks = pin!(acks);
    send(&out, Message::Hello(hello))?;
    loop {
        let from = Instant::now();
        let due = queue.next(window.room(), |_, _| true).await;
        // Before the reports are sent: the patience of the first in an empty window begins after the wait.
        window.excuse(from.elapsed());
        for pending in due {
            let mut report = Report::from(&pending.report);
            report.sequence = window.send(pending.number, report.id.clone(), Instant::now());
            send(&out, Message::Report(report))?;
            queue.sent(pending.number);
        }
        // Cancel-safe, all of them: an acknowledgement or report that was not taken is still there.
        let ack = tokio::select! {
            ack = acks.next() => match ack {
                Some(Ok(ack)) => ack,
                Some(Err(status)) => bail!("ended the stream: {}", cause(&status)),
                None => bail!("ended the stream"),
            },
            () = queue.more(), if window.room() > 0 => continue,
            () = until(window.deadline(patience)) => {
                bail!("has not acknowledged any of {} reports for {patience:?}", window.len());
            }
        };
        let now = Instant::now();
        let (numbers, others) = window.acknowledge(&ack, now);
        strange += others;
        acknowledged += numbers.len();
        if strange > TOLERATED + acknowledged {
            bail!("acknowledged {strange} times a report that was not sent to it");
        }
        if !numbers.is_empty() {
            pauses.reset();
            queue.acknowledge(numbers).await;
            window.excuse(now.elapsed());
        }
    }
}

fn send(out: &mpsc::Sender<AgentMessage>, message: Message) -> Result<()> {
    let message = AgentMessage { message: Some(message) };
    out.try_send(message).map_err(|_| anyhow!("ended the stream"))
}

/// The code and the text of a status, with the cause that the text lacks.
fn cause(status: &Status) -> String {
    let message = match std::error::Error::source(status).map(in_words) {
        Some(cause) if !status.message().contains(&cause) => format!("{}: {cause}", status.message()),
        Some(_) | None => status.message().to_owned(),
    };
    format!("{}: {}", status.code(), bounded(&message))
}

/// The reports that were sent on a stream and not acknowledged, oldest first.
#[derive(Debug)]
struct Window {
    limit: usize,
    last_sequence: u64,
    sent: VecDeque<Sent>,
    /// When the receiver last acknowledged something, or had nothing to acknowledge.
    progress: Instant,
}

#[derive(Debug)]
struct Sent {
    sequence: u64,
    number: u64,
    id: String,
}

impl Window {
    const fn new(limit: usize, now: Instant) -> Self {
        Self {
            limit,
            last_sequence: 0,
            sent: VecDeque::new(),
            progress: now,
        }
    }

    /// Adds a report that is being sent. Returns its sequence.
    fn send(&mut self, number: u64, id: String, now: Instant) -> u64 {
        if self.sent.is_empty() {
            self.progress = now;
        }
        self.last_sequence += 1;
        let sequence = self.last_sequence;
        self.sent.push_back(Sent { sequence, number, id });
        sequence
    }

    /// Takes the reports out that the receiver has acknowledged. Returns their numbers in the log, and how many acknowledgements
    /// are for reports that are not on the way.
    fn acknowledge(&mut self, ack: &Ack, now: Instant) -> (Vec<u64>, usize) {
        let (mut numbers, mut strange) = (Vec::new(), 0);
        if ack.up_to > self.last_sequence {
            strange += 1;
        } else {
            let count = self.sent.partition_point(|sent| sent.sequence <= ack.up_to);
            numbers.extend(self.sent.drain(..count).map(|sent| sent.number));
        }
        for id in &ack.ids {
            let at = self.sent.iter().position(|sent| sent.id == *id);
            match at.and_then(|at| self.sent.remove(at)) {
                Some(sent) => numbers.push(sent.number),
                None => strange += 1,
            }
        }
        if !numbers.is_empty() {
            self.progress = now;
        }
        (numbers, strange)
    }

    /// The agent itself waited for so long, for its disk: the receiver has that much more time.
    fn excuse(&mut self, waited: Duration) {
        self.progress += waited;
    }

    /// How many more may be sent now. None until half the window is free, so that the log gives many at a time.
    fn room(&self) -> usize {
        let free = self.limit - self.sent.len();
        if self.sent.len() <= self.limit / 2 { free } else { 0 }
    }

    fn len(&self) -> usize {
        self.sent.len()
    }

    /// When a receiver that acknowledges nothing is stuck; never with nothing on the way.
    fn deadline(&self, patience: Duration) -> Option<Instant> {
        (!self.sent.is_empty()).then(|| self.progress + patience)
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
    fn reports_are_acknowledged_once() {
        let now = Instant::now();
        let mut window = Window::new(8, now);
        for (number, id) in [(10, "a"), (20, "b"), (30, "c"), (40, "d")] {
            window.send(number, id.to_owned(), now);
        }
        assert_eq!(window.acknowledge(&ack(2, &["d"]), now).0, [10, 20, 40]);
        assert_eq!(window.acknowledge(&ack(2, &["d"]), now), (vec![], 1));
        assert_eq!(window.acknowledge(&ack(99, &["x"]), now), (vec![], 2), "never sent");
        assert_eq!(window.len(), 1);
    }

    #[test]
    fn patience_restarts_with_each_acknowledgement() {
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

    #[test]
    fn the_agents_own_waits_cost_no_patience() {
        let start = Instant::now();
        let mut window = Window::new(8, start);
        window.send(1, "a".to_owned(), start);
        window.excuse(Duration::from_secs(40));
        let deadline = window.deadline(Duration::from_secs(30));
        assert_eq!(deadline, Some(start + Duration::from_secs(70)));
    }

    proptest! {
        #[test]
        fn only_sent_reports_are_acknowledged(
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
                for number in window.acknowledge(&Ack { up_to, ids }, now).0 {
                    prop_assert!((1001..=next + 1000).contains(&number));
                    prop_assert!(settled.insert(number), "{} twice", number);
                }
            }
            prop_assert_eq!(settled.len() + window.len(), usize::try_from(next).unwrap());
        }
    }
}
