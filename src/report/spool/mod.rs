//! Keeps reports on disk until every destination has them, together with what the watcher of kills must find again.
//!
//! In come kills with a checkpoint, and acknowledgements; out go the next reports for a destination, in order, and after a
//! restart everything that was still owed. The file is a journal of checksummed frames (`report::journal`), each
//! one step (`step`); what it means is worked out by `replay` and kept in the `index`, all of them pure.
//!
//! - Kills and their checkpoint are one frame: after a crash at any byte both are there or neither.
//! - A step is written before [`Spool::commit`] returns, so it survives the agent. [`Spool::sync`] makes it survive the
//!   machine; whoever owns the spool calls it soon, once for many steps. Acknowledgements never wait for the disk: one that
//!   is lost costs a second delivery of the same id.
//! - A torn end is cut off. A file with damage before its end is set aside; what was before the damage is kept.
//! - Full ([`Bounds`]): the oldest detail that nobody can have got yet becomes counts, first for each container, then for the node.
//! - A disk that refuses: everything is kept in memory within the same bounds, and written once the disk takes it.
//!
//! It must never drop a report silently, give back one that was not stored, or grow beyond its bounds.

mod commit;
mod index;
mod replay;
mod room;
mod step;
#[cfg(test)]
mod tests;

use std::path::Path;

use index::Index;

pub use commit::{Commit, Committed, Owed};

use super::destination::{Destination, Destinations};
use super::journal::{Home, Journal, JournalError, Kind, wide};
use super::seen::Seen;

/// The spool's files.
const KIND: Kind = Kind {
    header: *b"vscspl\x00\x01",
    file: "reports.journal",
    new_file: "reports.journal.new",
    set_aside: "reports.journal.set-aside",
    lock: "reports.lock",
};

/// How much a spool may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// The journal's length in bytes; while it is rewritten there are two. One commit may exceed it for a moment. What is
    /// pending may take half of it.
    pub max_bytes: u64,
    /// Pending reports.
    pub max_reports: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            max_bytes: 16 << 20,
            max_reports: 10_000,
        }
    }
}

/// Pending reports, on disk if the disk lets us.
#[derive(Debug)]
pub struct Spool {
    bounds: Bounds,
    selected: Destinations,
    directory: Box<Path>,
    home: Option<Home>,
    journal: Option<Journal>,
    index: Index,
    seen: Seen,
    checkpoint: Vec<u8>,
    troubles: Troubles,
    totals: Totals,
}

/// What is wrong.
#[derive(Debug, Default)]
struct Troubles {
    /// Why nothing is written at present, if nothing is.
    fault: Option<String>,
    /// What happened to the file when it was opened.
    opening: Option<String>,
    /// The checkpoint that is too long to keep, in bytes.
    long_checkpoint: Option<usize>,
}

/// Counts since the spool was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Kills that lost their detail for want of room.
    pub folded: u64,
    /// Reports that could not be read back from the disk.
    pub lost: u64,
    /// Times the disk was waited for.
    pub syncs: u64,
}

/// What was there when a spool was opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recovered {
    /// The last checkpoint; none on a new or unreadable spool.
    pub checkpoint: Option<Vec<u8>>,
    /// How many reports each selected destination is still owed.
    pub pending: Vec<(Destination, usize)>,
    /// How many reports were given up, because nobody who was owed them is selected any more.
    pub forgotten: usize,
    /// What is wrong, for people.
    pub problem: Option<String>,
}

impl Spool {
    /// Opens the spool in that directory for these destinations; others are not owed anything any more. Never fails:
    /// without a usable disk it works in memory, and says so. Blocks.
    #[must_use]
    pub fn open(directory: &Path, bounds: Bounds, selected: Destinations) -> (Self, Recovered) {
        let mut spool = Self {
            bounds,
            selected,
            directory: directory.into(),
            home: None,
            journal: None,
            index: Index::default(),
            seen: Seen::new(bounds.max_reports),
            checkpoint: Vec::new(),
            troubles: Troubles::default(),
            totals: Totals::default(),
        };
        let (checkpoint, forgotten) = spool.recover().unwrap_or_else(|error| {
            spool.troubles.fault = Some(error.to_string());
            (None, 0)
        });
        spool.make_room();
        let recovered = Recovered {
            checkpoint,
            pending: selected.iter().map(|one| (one, spool.index.owed(one))).collect(),
            forgotten,
            problem: spool.problem(),
        };
        (spool, recovered)
    }

    /// The checkpoint, and how many reports were given up.
    fn recover(&mut self) -> Result<(Option<Vec<u8>>, usize), JournalError> {
        let home = Home::enter(&KIND, &self.directory)?;
        let found = home.read();
        let home = self.home.insert(home);
        let (mut journal, bytes) = match found {
            Ok(Some(found)) => found,
            Ok(None) => {
                self.rewrite();
                return Ok((None, 0));
            }
            Err(error) => {
                let aside = home.set_aside()?;
                self.troubles.opening = Some(format!("{error}; it is now {}", aside.display()));
                self.rewrite();
                return Ok((None, 0));
            }
        };
        let replayed = replay::replay(&bytes, self.selected, self.bounds.max_reports);
        self.index = replayed.index;
        self.seen = replayed.seen;
        self.checkpoint = replayed.checkpoint.clone().unwrap_or_default();
        match replayed.damage {
            None if replayed.end < KIND.header.len() => self.rewrite(),
            None => {
                journal.cut(wide(replayed.end))?;
                self.journal = Some(journal);
            }
            Some(damage) => {
                let aside = home.set_aside()?;
                self.troubles.opening = Some(format!(
                    "the spool of OOM reports was damaged {damage}; what came before is kept, the file is now {}",
                    aside.display()
                ));
                // It has what is kept, under whatever name.
                self.journal = Some(journal);
                self.rewrite();
            }
        }
        Ok((replayed.checkpoint, replayed.forgotten))
    }

    /// Waits until the disk has everything that was written. Blocks.
    pub fn sync(&mut self) {
        match self.journal.as_mut().map(Journal::sync) {
            Some(Ok(true)) => self.totals.syncs += 1,
            // The kernel forgets which pages it could not write (fsync(2)): only a new file can be trusted.
            Some(Err(error)) => self.troubles.fault = Some(error.to_string()),
            Some(Ok(false)) | None => {}
        }
    }

    /// Whether a power cut could still take something that [`Self::sync`] would save.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        self.journal.as_ref().is_some_and(Journal::is_dirty)
    }

    /// Tries to write what is only in memory. Whether nothing is any more. Blocks.
    pub fn restore(&mut self) -> bool {
        if self.troubles.fault.is_some() {
            if let Err(error) = self.enter_again() {
                self.troubles.fault = Some(error.to_string());
                return false;
            }
            self.rewrite();
        }
        self.troubles.fault.is_none()
    }

    /// Gets into the directory if that was not possible before. What lies there was not seen at the start, and is not ours
    /// to overwrite.
    fn enter_again(&mut self) -> Result<(), JournalError> {
        if self.home.is_some() {
            return Ok(());
        }
        let home = Home::enter(&KIND, &self.directory)?;
        if home.read().is_ok_and(|found| found.is_some()) {
            let aside = home.set_aside()?;
            self.troubles.opening = Some(format!(
                "a spool of OOM reports turned up after the start, too late to be read; it is now {}",
                aside.display()
            ));
        }
        self.home = Some(home);
        Ok(())
    }

    /// What is wrong, for people.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        let Troubles {
            fault,
            opening,
            long_checkpoint,
        } = &self.troubles;
        let fault = fault.as_ref().map(|fault| {
            format!(
                "OOM reports are kept in memory only, {} of them: {fault}; check that stateDir is writable and has free space",
                self.index.len()
            )
        });
        let lost = (self.totals.lost > 0)
            .then(|| format!("{} OOM reports could not be read back from the disk", self.totals.lost));
        let long = long_checkpoint.map(|length| {
            format!("the position in the log of OOM kills takes {length} bytes and is not kept; raise spoolMaxBytes")
        });
        let all: Vec<_> = [fault, opening.clone(), lost, long].into_iter().flatten().collect();
        (!all.is_empty()).then(|| all.join("; "))
    }

    /// Whether nothing is written at present.
    #[must_use]
    pub const fn is_in_memory_only(&self) -> bool {
        self.troubles.fault.is_some()
    }

    /// Pending reports.
    #[must_use]
    pub fn reports(&self) -> usize {
        self.index.len()
    }

    /// The bytes that pending reports take.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.index.bytes()
    }

    /// Pending reports for one destination.
    #[must_use]
    pub const fn owed(&self, destination: Destination) -> usize {
        self.index.owed(destination)
    }

    /// Counts since it was opened.
    #[must_use]
    pub const fn totals(&self) -> Totals {
        self.totals
    }
}
