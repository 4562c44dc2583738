//! A target of the fuzzer: the log of kills.

use super::super::frame;
use super::State;

/// A log of kills.
pub(crate) fn log(bytes: &[u8]) {
    let header = bytes.first_chunk().copied().unwrap_or_default();
    let mut state = State::default();
    frame::read(&header, bytes, |payload| state.replay_entry(payload));
}
