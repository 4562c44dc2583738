//! One stream to a receiver, from the hello to its end.

use std::pin::pin;
use std::time::Duration;

use futures::{StreamExt, TryFutureExt};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic::transport::Channel;

use super::error::{GrpcError, bounded};
use super::window::Window;
use crate::report::destination::Destination;
use crate::report::proto::agent_message::Message;
use crate::report::proto::report_receiver_client::ReportReceiverClient;
use crate::report::proto::{Ack, AgentMessage, Hello, Report};
use crate::report::queue::{Ended, ReportQueue};

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
    window: Window,
    out: mpsc::Sender<AgentMessage>,
    /// The number of the last report that was sent.
    after: u64,
    acknowledged: usize,
    strange: usize,
}

/// Why a session ended, and whether anything was acknowledged in it.
#[derive(Debug)]
pub(super) struct End {
    /// Whether the receiver works, in principle.
    pub(super) progress: bool,
    /// `None` when the agent is ending.
    pub(super) error: Option<GrpcError>,
}

/// Talks to a receiver until one end has had enough.
pub(super) async fn talk(
    channel: Channel,
    hello: Hello,
    queue: &mut ReportQueue,
    endpoint: String,
    patience: Duration,
    stop: &CancellationToken,
) -> End {
    let limit = Destination::Grpc.window();
    // A whole window and the hello: sending never waits.
    let (out, outgoing) = mpsc::channel(limit + 1);
    let mut client = ReportReceiverClient::new(channel).max_decoding_message_size(LONGEST_ACK);
    // Many a server answers the call only with its first acknowledgement: reports must not wait for that.
    let acks = client
        .deliver(ReceiverStream::new(outgoing))
        .map_ok(tonic::Response::into_inner)
        .try_flatten_stream();
    let mut session = Session {
        queue,
        endpoint,
        patience,
        window: Window::new(limit, Instant::now()),
        out,
        after: 0,
        acknowledged: 0,
        strange: 0,
    };
    let ended = session.run(hello, acks, stop).await;
    End {
        progress: session.acknowledged > 0,
        error: ended.err().flatten(),
    }
}

/// `None` is the end of the agent.
type Outcome<T = ()> = Result<T, Option<GrpcError>>;

impl From<Ended> for Option<GrpcError> {
    fn from(_: Ended) -> Self {
        None
    }
}

impl Session<'_> {
    async fn run(
        &mut self,
        hello: Hello,
        acks: impl futures::Stream<Item = Result<Ack, Status>>,
        stop: &CancellationToken,
    ) -> Outcome {
        let mut acks = pin!(acks);
        self.put(Message::Hello(hello))?;
        let mut drained = false;
        loop {
            if self.window.room() > 0 && !drained {
                drained = self.send_more().await?;
            }
            let deadline = self.window.deadline(self.patience);
            // Cancel-safe, all of them: what was not taken is still there.
            tokio::select! {
                () = stop.cancelled() => return Err(None),
                ack = acks.next() => self.acknowledged(ack).await?,
                more = self.queue.more(), if drained => {
                    more?;
                    drained = false;
                }
                () = expired(deadline) => return Err(Some(self.silent())),
            }
        }
    }

    /// Sends what there is, as far as the window allows. Whether that was all.
    async fn send_more(&mut self) -> Outcome<bool> {
        let room = self.window.room();
        let pending = self.queue.next(self.after, room).await?;
        let all = pending.len() < room;
        for pending in pending {
            let mut report = Report::from(&pending.report);
            report.sequence = self.window.send(pending.number, report.id.clone(), Instant::now());
            self.after = pending.number;
            self.put(Message::Report(report))?;
            self.queue.sent(pending.number);
        }
        self.queue.set_in_flight(self.window.len());
        Ok(all)
    }

    fn put(&self, message: Message) -> Outcome {
        let message = AgentMessage { message: Some(message) };
        self.out.try_send(message).map_err(|_| Some(self.ended()))
    }

    async fn acknowledged(&mut self, ack: Option<Result<Ack, Status>>) -> Outcome {
        let ack = match ack {
            Some(Ok(ack)) => ack,
            Some(Err(status)) => return Err(Some(self.failed(&status))),
            None => return Err(Some(self.ended())),
        };
        let acknowledged = self.window.acknowledge(&ack, Instant::now());
        self.strange += acknowledged.strange;
        self.acknowledged += acknowledged.numbers.len();
        if self.strange > TOLERATED + self.acknowledged {
            return Err(Some(GrpcError::Nonsense {
                endpoint: self.endpoint.clone(),
                count: self.strange,
            }));
        }
        if !acknowledged.numbers.is_empty() {
            self.queue.acknowledge(acknowledged.numbers).await?;
        }
        self.queue.set_in_flight(self.window.len());
        Ok(())
    }

    fn ended(&self) -> GrpcError {
        GrpcError::Ended {
            endpoint: self.endpoint.clone(),
        }
    }

    fn silent(&self) -> GrpcError {
        GrpcError::Silent {
            endpoint: self.endpoint.clone(),
            waiting: self.window.len(),
            limit: self.patience,
        }
    }

    fn failed(&self, status: &Status) -> GrpcError {
        let cause = std::error::Error::source(status).map(super::error::in_words);
        let message = match cause {
            Some(cause) if !status.message().contains(&cause) => format!("{}: {cause}", status.message()),
            Some(_) | None => status.message().to_owned(),
        };
        GrpcError::Failed {
            endpoint: self.endpoint.clone(),
            code: status.code(),
            message: bounded(&message),
        }
    }
}

async fn expired(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
