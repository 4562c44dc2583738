//! Liveness: the age of a heartbeat.

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

#[cfg(test)]
mod tests {
    use super::*;

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
