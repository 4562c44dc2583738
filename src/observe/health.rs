//! Is the agent alive, is it ready: a heartbeat that grows old, and latches that somebody still holds.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

/// A sign of life. Whoever must not stall beats; whoever watches asks for the age of the last beat.
#[derive(Debug, Clone)]
pub struct Heartbeat {
    last: watch::Sender<Instant>,
    limit: Duration,
}

impl Heartbeat {
    /// A heart that beats now, and must beat again before `limit` has passed. Also an idle owner must beat.
    pub fn new(limit: Duration) -> Self {
        let last = watch::Sender::new(Instant::now());
        Self { last, limit }
    }

    /// Gives a sign of life.
    pub fn beat(&self) {
        self.last.send_replace(Instant::now());
    }

    /// Whether the last beat is young enough.
    ///
    /// Errors: How old it is, for people.
    pub fn check(&self) -> Result<(), String> {
        let age = self.last.borrow().elapsed();
        if age <= self.limit {
            return Ok(());
        }
        let (age, limit) = (age.as_millis(), self.limit.as_millis());
        Err(format!(
            "stalled: the last sign of life is {age} ms old, more than {limit} ms"
        ))
    }
}

/// Ready when every latch is gone. All latches are made before anybody asks.
#[derive(Debug, Default)]
pub struct Readiness(Vec<(&'static str, Weak<()>)>);

/// Holds readiness back while it, or a clone of it, exists.
#[derive(Debug, Clone)]
#[must_use = "readiness is held back only while the latch exists"]
pub struct Latch(#[expect(dead_code, reason = "counted, never read")] Arc<()>);

impl Readiness {
    /// A latch; `name` says what is waited for.
    pub fn latch(&mut self, name: &'static str) -> Latch {
        let held = Arc::new(());
        self.0.push((name, Arc::downgrade(&held)));
        Latch(held)
    }

    /// What is still waited for; nothing when ready.
    pub fn waiting_for(&self) -> Vec<&'static str> {
        let held = |latch: &Weak<()>| latch.strong_count() > 0;
        self.0
            .iter()
            .filter(|(_, latch)| held(latch))
            .map(|(name, _)| *name)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readiness_waits_for_every_latch_and_every_clone_of_it() {
        let mut readiness = Readiness::default();
        let (manifests, runtime) = (readiness.latch("manifests"), readiness.latch("runtime"));
        let clone = runtime.clone();
        drop(runtime);
        assert_eq!(readiness.waiting_for(), ["manifests", "runtime"]);
        drop((manifests, clone));
        assert_eq!(readiness.waiting_for(), Vec::<&str>::new());
    }

    #[test]
    fn a_heart_stalls_until_it_beats_again() {
        let heartbeat = Heartbeat::new(Duration::ZERO);
        while heartbeat.check().is_ok() {
            std::thread::yield_now();
        }
        let patient = Heartbeat {
            limit: Duration::MAX,
            ..heartbeat
        };
        patient.beat();
        assert_eq!(patient.check(), Ok(()));
    }
}
