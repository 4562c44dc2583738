//! A target of the fuzzer: the state file.

use super::*;

/// A state file that can be parsed reads the same after it is written.
pub(crate) fn state(bytes: &[u8]) {
    if let Ok(saved) = serde_json::from_slice::<Saved>(bytes) {
        let again = serde_json::to_vec(&saved).and_then(|text| serde_json::from_slice::<Saved>(&text));
        assert_eq!(again.ok().map(|again| again.pods), Some(saved.pods));
    }
}
