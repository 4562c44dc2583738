//! The latest reports and the watcher's checkpoint, in one file of the state directory.
//!
//! The first line is the checkpoint, each further one a report, oldest first. The file is replaced whole (written beside,
//! renamed), so whenever the agent ends, what is there is of one commit. A file that cannot be understood is set aside.

use std::collections::VecDeque;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;

use crate::oom::OomReport;
use crate::oom::ledger::{Ledger, LedgerError};

const FILE_NAME: &str = "oom.jsonl";
/// So many reports are kept.
pub(super) const KEPT: usize = 256;

/// The file.
#[derive(Debug)]
pub(super) struct FileLedger {
    path: PathBuf,
    /// The reports in it, by their ids, as they are written.
    kept: VecDeque<(String, Arc<str>)>,
}

/// What an earlier agent left.
#[derive(Debug, Default)]
pub(super) struct Restored {
    pub(super) checkpoint: Option<Vec<u8>>,
    pub(super) reports: Vec<OomReport>,
    /// Why that is not all.
    pub(super) problem: Option<String>,
}

impl FileLedger {
    /// Opens the file in that directory, which exists.
    pub(super) fn open(directory: &Path) -> (Self, Restored) {
        let path = directory.join(FILE_NAME);
        let restored = match fs::read_to_string(&path) {
            Ok(text) => parse(&text).unwrap_or_else(|error| set_aside(&path, &error)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Restored::default(),
            Err(error) => set_aside(&path, &error),
        };
        let written = |report: &OomReport| Some((report.id.clone(), written(report).ok()?));
        let kept = restored.reports.iter().filter_map(written).collect();
        (Self { path, kept }, restored)
    }
}

impl Ledger for FileLedger {
    async fn commit(&mut self, reports: &[OomReport], checkpoint: &[u8]) -> Result<(), LedgerError> {
        let failed = |error: &dyn std::fmt::Display| LedgerError(format!("write {}: {error}", self.path.display()));
        let mut kept = self.kept.clone();
        for report in reports {
            if kept.iter().all(|(id, _)| *id != report.id) {
                kept.push_back((report.id.clone(), written(report).map_err(|error| failed(&error))?));
            }
        }
        kept.drain(..kept.len().saturating_sub(KEPT));
        let lines: Vec<Arc<str>> = kept.iter().map(|(_, line)| Arc::clone(line)).collect();
        let (path, checkpoint) = (self.path.clone(), checkpoint.to_owned());
        let replaced = tokio::task::spawn_blocking(move || replace(&path, &checkpoint, &lines)).await;
        replaced
            .map_err(|error| failed(&error))?
            .map_err(|error| failed(&error))?;
        self.kept = kept;
        Ok(())
    }
}

fn written(report: &OomReport) -> Result<Arc<str>, serde_json::Error> {
    serde_json::to_string(report).map(Arc::from)
}

fn replace(path: &Path, checkpoint: &[u8], lines: &[Arc<str>]) -> io::Result<()> {
    let beside = path.with_extension("new");
    let mut file = io::BufWriter::new(fs::File::create(&beside)?);
    file.write_all(checkpoint)?;
    file.write_all(b"\n")?;
    for line in lines {
        file.write_all(line.as_bytes())?;
        file.write_all(b"\n")?;
    }
    file.flush()?;
    fs::rename(&beside, path)
}

fn parse(text: &str) -> Result<Restored, serde_json::Error> {
    let mut lines = text.lines();
    let checkpoint = lines.next().unwrap_or_default();
    // Whether it is a checkpoint is for the watcher to say; whether it is whole shows here.
    serde::de::IgnoredAny::deserialize(&mut serde_json::Deserializer::from_str(checkpoint))?;
    Ok(Restored {
        checkpoint: Some(checkpoint.as_bytes().to_owned()),
        reports: lines.map(serde_json::from_str).collect::<Result<_, _>>()?,
        problem: None,
    })
}

fn set_aside(path: &Path, error: &dyn std::fmt::Display) -> Restored {
    let aside = path.with_extension("jsonl.set-aside");
    let whereto = match fs::rename(path, &aside) {
        Ok(()) => format!("is now {}", aside.display()),
        Err(error) => format!("stays where it is: {error}"),
    };
    let problem = format!(
        "{} was not understood at the start ({error}) and {whereto}; kills from before are not told",
        path.display()
    );
    tracing::error!("{problem}");
    Restored {
        problem: Some(problem),
        ..Restored::default()
    }
}

#[cfg(test)]
mod tests {
    use super::super::published::tests::report;
    use super::*;

    #[tokio::test]
    async fn what_was_committed_is_there_again_and_nothing_twice() {
        let directory = tempfile::tempdir().unwrap();
        let (mut ledger, restored) = FileLedger::open(directory.path());
        assert!(restored.checkpoint.is_none() && restored.reports.is_empty());
        ledger.commit(&[report("a"), report("b")], b"{\"at\":1}").await.unwrap();
        ledger.commit(&[report("b"), report("c")], b"{\"at\":2}").await.unwrap();
        let (mut ledger, restored) = FileLedger::open(directory.path());
        assert_eq!(restored.checkpoint.as_deref(), Some(&b"{\"at\":2}"[..]));
        assert_eq!(restored.reports, ["a", "b", "c"].map(report));
        let many: Vec<_> = (0..KEPT).map(|number| report(&number.to_string())).collect();
        ledger.commit(&many, b"{}").await.unwrap();
        assert_eq!(FileLedger::open(directory.path()).1.reports, many);
    }

    #[tokio::test]
    async fn a_disk_that_takes_nothing_is_an_error_that_names_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let (mut ledger, _) = FileLedger::open(directory.path());
        ledger.commit(&[report("a")], b"{}").await.unwrap();
        fs::create_dir(directory.path().join("oom.new")).unwrap();
        let error = ledger.commit(&[report("b")], b"{}").await.unwrap_err().to_string();
        assert!(error.contains(FILE_NAME), "{error}");
        assert_eq!(FileLedger::open(directory.path()).1.reports, [report("a")]);
    }

    #[test]
    fn what_is_not_understood_is_set_aside() {
        for broken in ["{", "{}\n{}", ""] {
            let directory = tempfile::tempdir().unwrap();
            fs::write(directory.path().join(FILE_NAME), broken).unwrap();
            let (_, restored) = FileLedger::open(directory.path());
            assert!(restored.checkpoint.is_none());
            assert!(restored.problem.unwrap().contains("set-aside"));
        }
    }
}
