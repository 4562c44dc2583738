//! The agent's wall clock, and nobody else's: libfaketime stands between the agent and the C library. The clock by which
//! the kernel and the agent measure time that passes is not touched, as where somebody sets a machine's time.

use std::ffi::OsString;
use std::fs;
use std::path::Path;

use tempfile::NamedTempFile;

/// Where Debian installs it.
const LIBRARY: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1";

/// How far the agent's clock is off.
pub(super) struct Clock {
    offset: NamedTempFile,
    pub(super) is_right: bool,
}

impl Clock {
    pub(super) fn right() -> Self {
        let mut clock = Self {
            offset: NamedTempFile::new().unwrap(),
            is_right: true,
        };
        clock.jump(0);
        clock
    }

    /// What the agent is started with; nothing where its clock cannot be moved.
    pub(super) fn variables(&self) -> Vec<(&'static str, OsString)> {
        if !Path::new(LIBRARY).exists() {
            eprintln!("the clock is not moved: {LIBRARY} is missing; scripts/setup test installs it");
            return Vec::new();
        }
        vec![
            ("LD_PRELOAD", LIBRARY.into()),
            ("FAKETIME_TIMESTAMP_FILE", self.offset.path().into()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".into()),
            ("FAKETIME_NO_CACHE", "1".into()),
            ("NO_FAKE_STAT", "1".into()),
        ]
    }

    /// The clock jumps to so many seconds from the right time.
    pub(super) fn jump(&mut self, seconds: i64) {
        fs::write(self.offset.path(), format!("{seconds:+}")).unwrap();
        self.is_right = seconds == 0;
    }
}
