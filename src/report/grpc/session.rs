//! One stream to a receiver, from the hello to its end.

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

use super::window::Window;
use super::words::{bounded, in_words};
use crate::pace::Backoff;
use crate::report::destination::Destination;
use crate::report::log::task::until;
use crate::report::proto::agent_message::Message;
use crate::report::proto::report_receiver_client::ReportReceiverClient;
use crate::report::proto::{Ack, AgentMessage, Hello, Report};
use crate::report::queue::ReportQueue;

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
    /// The number of the last report that was sent.
    after: u64,
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
        Self {
            queue,
            endpoint,
            patience,
            backoff,
            window: Window::new(Destination::Grpc.window(), Instant::now()),
            after: 0,
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
        let mut drained = false;
        loop {
            if self.window.room() > 0 && !drained {
                drained = self.send_more(&out).await?;
            }
            let deadline = self.window.deadline(self.patience);
            // Cancel-safe, all of them: what was not taken is still there.
            tokio::select! {
                ack = acks.next() => match ack {
                    Some(Ok(ack)) => self.acknowledged(&ack).await?,
                    Some(Err(status)) => return Err(self.failed(&status)),
                    None => return Err(self.ended()),
                },
                more = self.queue.more(), if drained => {
                    more?;
                    drained = false;
                }
                () = until(deadline.map(Instant::into_std)) => bail!(
                    "{} has not acknowledged any of {} reports for {:?}",
                    self.endpoint, self.window.len(), self.patience
                ),
            }
        }
    }

    /// Sends what there is, as far as the window allows. Whether that was all.
    async fn send_more(&mut self, out: &mpsc::Sender<AgentMessage>) -> Result<bool> {
        let room = self.window.room();
        let pending = self.queue.next(self.after, room).await?;
        let all = pending.len() < room;
        for pending in pending {
            let mut report = Report::from(&pending.report);
            report.sequence = self.window.send(pending.number, report.id.clone(), Instant::now());
            self.after = pending.number;
            self.put(out, Message::Report(report))?;
            self.queue.sent(pending.number);
        }
        Ok(all)
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
