//! The agent's wall clock alone: libfaketime sits between the agent and the C library. Monotonic clocks stay right,
//! as when an administrator sets a machine's time.

use std::ffi::OsString;
use std::fs;
use std::path::Path;

use tempfile::NamedTempFile;

/// The path in Debian's package.
const LIBRARY: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1";

/// The offset of the agent's clock.
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

    /// The environment variables of the agent; empty where libfaketime is missing.
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

    /// Moves the clock to this many seconds off the right time.
    pub(super) fn jump(&mut self, seconds: i64) {
        fs::write(self.offset.path(), format!("{seconds:+}")).unwrap();
        self.is_right = seconds == 0;
    }
}
