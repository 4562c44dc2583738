//! Whether the API server answers: in come the ends of all calls, out goes since when it is away, for those who would wait for it.
//!
//! A call without an answer says that it is away, any answer says that it is back. While it is away, and when a stream of it
//! breaks, one probe after another asks whether it is ready, so that nobody else has to find out by waiting.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::{Notify, watch};

use super::error::Problem;

/// Nothing waits longer for an API server that is known to be away.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);

/// An API server that does not answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Away {
    /// None before the first answer.
    since: Option<Timestamp>,
    why: String,
}

impl std::fmt::Display for Away {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.since {
            Some(since) => write!(f, "the API server is away since {since:.0} ({})", self.why),
            None => f.write_str("the API server has not answered since the agent started"),
        }
    }
}

/// What is known of it, shared by all who call.
#[derive(Debug, Clone, Default)]
pub struct ApiHealth(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    away: watch::Sender<Option<Away>>,
    doubted: Notify,
}

impl ApiHealth {
    /// Why nobody should wait for it now.
    #[must_use]
    pub fn away(&self) -> Option<Away> {
        self.0.away.borrow().clone()
    }

    /// Waits until it answers again after having been away.
    pub async fn returned(&self) {
        let mut away = self.0.away.subscribe();
        // The sender lives as long as this.
        drop(away.wait_for(Option::is_some).await);
        drop(away.wait_for(Option::is_none).await);
    }

    /// Takes in how a call ended.
    pub fn observe<T>(&self, outcome: &Result<T, Problem>) {
        let why = outcome
            .as_ref()
            .err()
            .filter(|problem| problem.is_silence())
            .map(ToString::to_string);
        self.0.away.send_if_modified(|away| match why {
            // It has been away since the first of them.
            Some(_) if away.as_ref().is_some_and(|away| away.since.is_some()) => false,
            Some(why) => {
                let since = Some(Timestamp::now());
                *away = Some(Away { since, why });
                true
            }
            None => away.take().is_some(),
        });
    }

    /// It has not been heard of yet.
    pub(super) fn begin(&self) {
        let away = Away {
            since: None,
            why: String::new(),
        };
        self.0.away.send_replace(Some(away));
    }

    /// A stream of it broke: perhaps it is away.
    pub(super) fn doubt(&self) {
        self.0.doubted.notify_one();
    }

    /// Waits until it is away, or may be.
    pub(super) async fn doubtful(&self) {
        let mut away = self.0.away.subscribe();
        // Cancel-safe: a doubt is kept until it is waited for.
        tokio::select! {
            _ = away.wait_for(Option::is_some) => {}
            () = self.0.doubted.notified() => {}
        }
    }

    /// Waits until it has been away for so long that nobody should wait any longer.
    pub(super) async fn stays_away(&self) {
        let mut away = self.0.away.subscribe();
        loop {
            drop(away.wait_for(Option::is_some).await);
            let back = away.wait_for(Option::is_none);
            if tokio::time::timeout(PATIENCE, back).await.is_err() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubernetes::error::Status;

    fn unreachable() -> Result<(), Problem> {
        Err(Problem::Unreachable("refused".to_owned()))
    }

    #[tokio::test]
    async fn silence_is_away_since_it_began_and_any_answer_is_a_return() {
        let health = ApiHealth::default();
        let mut returns = Box::pin(health.returned());
        assert_eq!(health.away(), None);
        assert!(futures::poll!(&mut returns).is_pending());
        health.observe(&unreachable());
        let away = health.away().unwrap();
        health.observe::<()>(&Err(Problem::Timeout(PATIENCE)));
        assert_eq!(health.away(), Some(away), "it has been away all the time");
        assert!(futures::poll!(&mut returns).is_pending());
        health.observe::<()>(&Err(Problem::Refused(Status {
            code: 401,
            ..Status::default()
        })));
        assert_eq!(health.away(), None, "a refusal is an answer");
        returns.await;
    }

    #[tokio::test]
    async fn who_waits_is_sent_away_once_the_absence_lasts() {
        let health = ApiHealth::default();
        let mut ends = Box::pin(health.stays_away());
        health.observe(&unreachable());
        assert!(futures::poll!(&mut ends).is_pending());
        health.observe(&Ok(()));
        assert!(futures::poll!(&mut ends).is_pending());
        health.observe(&unreachable());
        ends.await;
        assert!(health.away().is_some());
    }

    #[test]
    fn an_api_server_that_was_never_heard_of_is_away() {
        let health = ApiHealth::default();
        health.begin();
        assert!(health.away().unwrap().to_string().contains("has not answered since"));
        health.observe(&unreachable());
        assert!(health.away().unwrap().to_string().contains("refused"));
    }
}
