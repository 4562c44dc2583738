//! Facts that have to be of one moment. Pure: the clock is an argument.

use std::ops::Sub;
use std::time::Duration;

/// The longest time that a reading of some files takes where the thread does not have to wait for a processor, and a small part of the
/// time between two readings that give a rate.
pub const QUICK: Duration = Duration::from_millis(10);
/// How often a reading during which the thread had to wait is taken.
pub const READINGS: u32 = 3;

/// Reads several facts, or one for a time. Where that takes longer than `quick`, the first fact may be old when the last one is read, so
/// all are read again, for a few times. Returns the moment before the reading.
///
/// Errors: those of `read`.
pub fn at_once<C: Copy + Sub<Output = Duration>, T, E>(
    quick: Duration,
    clock: impl Fn() -> C,
    mut read: impl FnMut() -> Result<T, E>,
) -> Result<(C, T), E> {
    let mut others = 1..READINGS;
    loop {
        let (before, facts) = (clock(), read()?);
        if clock() - before <= quick || others.next().is_none() {
            return Ok((before, facts));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// The moment of a reading and what was read, where the thread waits so many milliseconds after each of the first readings.
    fn read(waits: &[u64]) -> Result<(Duration, usize), ()> {
        let (now, readings) = (Cell::new(Duration::ZERO), Cell::new(0));
        let read = || {
            let wait = waits.get(readings.get()).copied().unwrap_or(0);
            now.set(now.get() + Duration::from_millis(wait));
            readings.set(readings.get() + 1);
            Ok(readings.get())
        };
        at_once(QUICK, || now.get(), read)
    }

    #[test]
    fn a_reading_with_a_long_wait_is_repeated() {
        let ms = Duration::from_millis;
        for (waits, expected) in [
            (&[][..], (ms(0), 1)),
            (&[10], (ms(0), 1)),
            (&[11], (ms(11), 2)),
            (&[100, 10_000], (ms(10_100), 3)),
            (&[100, 100, 100, 100], (ms(200), 3)),
        ] {
            assert_eq!(read(waits), Ok(expected), "{waits:?}");
        }
    }

    #[test]
    fn an_unreadable_fact_ends_the_reading() {
        let (ms, mut readings) = (Duration::from_millis, 0);
        let read = at_once::<_, (), _>(
            QUICK,
            || ms(0),
            || {
                readings += 1;
                Err("gone")
            },
        );
        assert_eq!((read, readings), (Err("gone"), 1));
    }
}
