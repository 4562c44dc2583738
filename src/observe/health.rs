//! Liveness and readiness: the age of a heartbeat, and latches that components hold.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

/// A heartbeat. The controller beats, and `/healthz` asks for the age of the last beat.
#[derive(Debug, Clone)]
pub struct Heartbeat {
    last: watch::Sender<Instant>,
    limit: Duration,
}

impl Heartbeat {
    /// A heartbeat that begins now and must repeat within `limit`, also while its owner is idle.
    pub fn new(limit: Duration) -> Self {
        let last = watch::Sender::new(Instant::now());
        Self { last, limit }
    }

    /// Gives a sign of life.
    pub fn beat(&self) {
        self.last.send_replace(Instant::now());
    }

    /// Checks that the last beat is recent.
    ///
    /// Errors: the age of the last beat, as a message.
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

/// Ready when every latch is dropped. All latches exist before the first request.
#[derive(Debug, Default)]
pub struct Readiness(Vec<(&'static str, Weak<()>)>);

/// Holds readiness back while it or a clone of it exists.
#[derive(Debug, Clone)]
#[must_use = "readiness is held back only while the latch exists"]
pub struct Latch(#[expect(dead_code, reason = "counted, never read")] Arc<()>);

impl Readiness {
    /// A latch; `name` is the component or object that the agent waits for.
    pub fn latch(&mut self, name: &'static str) -> Latch {
        let held = Arc::new(());
        self.0.push((name, Arc::downgrade(&held)));
        Latch(held)
    }

    /// The names of the held latches; empty when ready.
    pub fn waiting_for(&self) -> Vec<&'static str> {
        let held = self.0.iter().filter(|(_, latch)| latch.strong_count() > 0);
        held.map(|(name, _)| *name).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readiness_waits_for_every_latch() {
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
