//! Whether the API server answers: the outcomes of all calls → the start of an outage, for callers that would wait; and the rights
//! that its answers found missing.
//!
//! A call without an answer begins an outage, any answer ends it. During an outage, and after a stream breaks, the client probes
//! `/readyz`, so that no call has to wait for a deadline to find out.

use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use super::call::Call;
use super::error::Problem;
use super::rights::MissingRights;
use crate::rate_limiter::{REPEATED_LINES, RateLimiter};

/// The longest wait of a call during an outage.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);

/// The outage of an API server that has never answered.
const NEVER_HEARD: &str = "the API server has not answered since the agent started";

/// The health of the API server. Clones share one state.
#[derive(Debug, Clone, Default)]
pub struct ApiHealth {
    /// The outage, with its beginning and its cause.
    away: watch::Sender<Option<String>>,
    suspected: Arc<Notify>,
    rights: Arc<Mutex<MissingRights>>,
    logged: Arc<Mutex<OutageLog>>,
}

/// The log lines about outages, instead of one for each list and call.
#[derive(Debug)]
struct OutageLog {
    rate: RateLimiter,
    /// Whether the log has the present outage.
    has_outage: bool,
}

impl Default for OutageLog {
    fn default() -> Self {
        Self {
            rate: RateLimiter::new(REPEATED_LINES, Instant::now()),
            has_outage: false,
        }
    }
}

impl OutageLog {
    /// Logs the present outage once, as soon as its turn comes: an earlier one may have used it.
    fn note(&mut self, outage: &str, now: Instant) {
        if !self.has_outage && self.rate.try_use(now) {
            self.has_outage = true;
            tracing::warn!("{outage}");
        }
    }

    fn end(&mut self) {
        if std::mem::take(&mut self.has_outage) {
            tracing::info!("the API server answers again");
        }
    }
}

impl ApiHealth {
    /// The outage, if there is one now.
    pub fn away(&self) -> Option<String> {
        self.away.borrow().clone()
    }

    /// Notes which rights the outcome of a call shows to be missing.
    pub(super) fn observe_rights<T>(&self, call: &Call, outcome: &Result<T, Problem>) {
        self.rights.lock().observe(call, outcome, Instant::now());
    }

    /// The rights that the agent's calls lack, a sentence each, as far as none of `told` has it.
    pub fn missing_rights(&self, told: &[String]) -> Vec<String> {
        self.rights.lock().problems(told, Instant::now())
    }

    /// Waits for an outage and then for its end.
    pub async fn returned(&self) {
        let mut away = self.away.subscribe();
        // The sender lives as long as `self`.
        drop(away.wait_for(Option::is_some).await);
        drop(away.wait_for(Option::is_none).await);
    }

    /// Begins or ends an outage by the outcome of a call.
    pub fn observe<T>(&self, outcome: &Result<T, Problem>) {
        let silence = outcome.as_ref().err().filter(|problem| problem.is_silence());
        let why = silence.map(ToString::to_string);
        self.away.send_if_modified(|away| {
            let Some(why) = why else {
                let is_back = away.take().is_some();
                if is_back {
                    self.logged.lock().end();
                    self.rights.lock().end_outage(Instant::now());
                }
                return is_back;
            };
            // The outage began with the first failed call.
            let is_known = away.as_ref().is_some_and(|away| away != NEVER_HEARD);
            if !is_known {
                let since = Timestamp::now();
                *away = Some(format!("the API server is away since {since:.0} ({why})"));
            }
            let outage = away.as_deref().unwrap_or_default();
            self.logged.lock().note(outage, Instant::now());
            !is_known
        });
    }

    /// Begins with an outage that the first answer ends.
    pub(super) fn begin_unknown(&self) {
        self.away.send_replace(Some(NEVER_HEARD.to_owned()));
    }

    /// Notes that a stream broke, which may be the beginning of an outage.
    pub(super) fn suspect_outage(&self) {
        self.suspected.notify_one();
    }

    /// Waits for an outage, or for a broken stream.
    pub(super) async fn outage_suspected(&self) {
        let mut away = self.away.subscribe();
        // Cancel-safe: `Notify` keeps one notification.
        tokio::select! {
            _ = away.wait_for(Option::is_some) => {}
            () = self.suspected.notified() => {}
        }
    }

    /// Waits for an outage that lasts longer than [`PATIENCE`].
    pub(super) async fn lasting_outage(&self) {
        let mut away = self.away.subscribe();
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
    use crate::observe::log::LogFormat;
    use crate::observe::log::tests::logged;

    fn unreachable() -> Result<(), Problem> {
        Err(Problem::Unreachable("refused".to_owned()))
    }

    #[tokio::test]
    async fn an_outage_begins_with_the_silence() {
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
    async fn callers_are_sent_away_in_a_long_outage() {
        let health = ApiHealth::default();
        let mut ends = Box::pin(health.lasting_outage());
        health.observe(&unreachable());
        assert!(futures::poll!(&mut ends).is_pending());
        health.observe(&Ok(()));
        assert!(futures::poll!(&mut ends).is_pending());
        health.observe(&unreachable());
        ends.await;
        assert!(health.away().is_some());
    }

    #[test]
    fn an_outage_has_one_line_in_the_log() {
        let health = ApiHealth::default();
        let lines = logged(LogFormat::Text, "info", |_| {
            health.begin_unknown();
            health.observe(&Ok(()));
            for _ in 0..3 {
                health.observe(&unreachable());
                health.observe(&unreachable());
                health.observe(&Ok(()));
            }
        });
        let lines: Vec<_> = lines.lines().collect();
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(
            lines[0].contains("away since") && lines[1].contains("answers again"),
            "{lines:?}"
        );
    }

    #[test]
    fn a_lasting_outage_is_logged_after_a_short_one() {
        let now = Instant::now();
        let mut log = OutageLog {
            rate: RateLimiter::new(REPEATED_LINES, now),
            has_outage: false,
        };
        let lines = logged(LogFormat::Text, "info", |_| {
            log.note("short", now);
            log.end();
            for second in [1, 30, 61, 62, 122] {
                log.note("lasting", now + Duration::from_secs(second));
            }
            log.end();
        });
        let lines: Vec<_> = lines.lines().collect();
        assert_eq!(lines.len(), 4, "{lines:?}");
        assert!(lines[2].contains("lasting"), "{lines:?}");
    }

    #[test]
    fn an_api_server_is_away_until_it_answers() {
        let health = ApiHealth::default();
        health.begin_unknown();
        assert!(health.away().unwrap().contains("has not answered since"));
        health.observe(&unreachable());
        assert!(health.away().unwrap().contains("refused"));
    }
}
