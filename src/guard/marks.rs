//! Which pods an agent has written to, and what it may have lent them without having had the time to note it.
//!
//! A file for each pod, named after the pod's UID, made before a pass first writes to the pod, with a line for each growth, sent
//! off before the growth. Like what is written it outlives the process and not the machine, so nothing is synced; and a thread
//! of its own writes it, so that no growth waits for a disk that is slow. The next agent takes a limit that is still the one in
//! its latest line for what it is, a loan, and has the pod compared with what stands for it. Where the state file is lost, it
//! brings every marked pod back. A mark stays until its pod is gone, and goes with it.

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::model::Bytes;

const DIRECTORY: &str = "lent";
const UNMARKED: &str = "if the agent is killed now, its successor may not know that a pod was written to";
/// A mark that has grown longer than this begins anew: only the latest lines count.
const LONGEST: u64 = 4096;
/// How long a pass waits for a mark.
const PATIENCE: Duration = Duration::from_secs(1);

/// Which pods have a mark, by UID.
type Made = Arc<Mutex<HashSet<String>>>;

/// Writes the file that records a pod's temporary limits.
#[derive(Debug)]
pub struct Marks {
    made: Made,
    lines: Sender<Line>,
}

/// A line to be written; an empty one only makes the file.
#[derive(Debug)]
struct Line {
    uid: String,
    text: String,
    /// Dropped once the line is written, or cannot be.
    _done: Option<oneshot::Sender<()>>,
}

/// The memory limits that a pod's containers were lent last, by name.
pub type LentLast = BTreeMap<String, Bytes>;

/// Knows the marks that an earlier agent left, and removes all that are not needed any more.
#[derive(Debug, Default)]
pub struct Marked {
    directory: PathBuf,
    made: Made,
    lines: Option<Sender<Line>>,
    /// What those say that were left, until it is taken.
    left: BTreeMap<String, LentLast>,
}

impl Marks {
    /// The marks below a state directory, whose place for them is made if it is missing, and those that are there.
    ///
    /// Errors: when it cannot be made or read, or there can be no thread.
    pub fn below(state_directory: &Path) -> io::Result<(Self, Marked)> {
        let directory = state_directory.join(DIRECTORY);
        fs::create_dir_all(&directory)?;
        let mut left = BTreeMap::new();
        for entry in fs::read_dir(&directory)? {
            let entry = entry?;
            // What is no text was not made here.
            if let Ok(uid) = entry.file_name().into_string() {
                let text = fs::read(entry.path())?;
                left.insert(uid, parse(&String::from_utf8_lossy(&text)));
            }
        }
        let made: Made = Arc::new(Mutex::new(left.keys().cloned().collect()));
        let (lines, sent) = mpsc::channel();
        let marked = Marked {
            directory: directory.clone(),
            made: Arc::clone(&made),
            lines: Some(lines.clone()),
            left,
        };
        thread::Builder::new()
            .name("marks".to_owned())
            .spawn(move || sent.iter().for_each(|line| write(&directory, &line)))?;
        Ok((Self { made, lines }, marked))
    }

    /// This container is about to be lent a memory limit.
    pub(super) fn place(&self, uid: &str, container: &str, to: Bytes) {
        lock(&self.made).insert(uid.to_owned());
        let line = Line {
            uid: uid.to_owned(),
            text: format!("{container} {}\n", to.get()),
            _done: None,
        };
        if self.lines.send(line).is_err() {
            tracing::warn!(uid, container, "{UNMARKED}");
        }
    }
}

fn write(directory: &Path, line: &Line) {
    let mark = directory.join(&line.uid);
    // A growth that saves a process is not given up for want of a mark.
    if let Err(error) = append(&mark, &line.text) {
        tracing::warn!(mark = %mark.display(), %error, "{UNMARKED}");
    }
}

fn append(mark: &Path, line: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().create(true).append(true).open(mark)?;
    if file.metadata()?.len() > LONGEST {
        file.set_len(0)?;
    }
    file.write_all(line.as_bytes())
}

/// The latest line of each container. One that is not whole says nothing: the growth after it was not made.
fn parse(text: &str) -> LentLast {
    let whole = text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
    whole
        .filter_map(|line| {
            let (container, to) = line.split_once(' ')?;
            Some((container.to_owned(), Bytes::new(to.parse().ok()?)))
        })
        .collect()
}

impl Marked {
    /// This pod is about to be written to, not before the mark is made: a slow disk holds that up for a while only. Does
    /// not hold up what is written later.
    pub fn note_written(&self, uid: &str) -> impl Future<Output = ()> + use<> {
        let news = lock(&self.made).insert(uid.to_owned());
        let (done, made) = oneshot::channel();
        let line = Line {
            uid: uid.to_owned(),
            text: String::new(),
            _done: Some(done),
        };
        let sent = match &self.lines {
            Some(lines) if news => lines.send(line).is_ok(),
            _ => false,
        };
        if news && !sent {
            tracing::warn!(uid, "{UNMARKED}");
        }
        let uid = uid.to_owned();
        async move {
            // The sender is dropped, and says no more than that.
            if sent && tokio::time::timeout(PATIENCE, made).await.is_err() {
                tracing::warn!(uid, waited = ?PATIENCE, "{UNMARKED}");
            }
        }
    }

    /// Whether an earlier agent has written to this pod.
    #[must_use]
    pub fn has(&self, uid: &str) -> bool {
        self.left.contains_key(uid)
    }

    /// What the marks that were left say, by pod UID. From then on they are with whoever took them.
    pub fn take_left(&mut self) -> BTreeMap<String, LentLast> {
        std::mem::take(&mut self.left)
    }

    /// Removes the marks of pods that are not there any more, whoever made them.
    pub fn forget_all_but(&mut self, is_there: impl Fn(&str) -> bool) {
        self.left.retain(|uid, _| is_there(uid));
        // The guard must not wait for the disk.
        let mut made = lock(&self.made);
        let gone: Vec<String> = made.extract_if(|uid| !is_there(uid)).collect();
        drop(made);
        for uid in gone {
            let mark = self.directory.join(uid);
            match fs::remove_file(&mark) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    tracing::warn!(mark = %mark.display(), %error, "the mark of a pod that is gone could not be removed");
                }
                _ => {}
            }
        }
    }
}

fn lock(made: &Made) -> MutexGuard<'_, HashSet<String>> {
    made.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn mib(mebibytes: u64) -> Bytes {
        Bytes::new(mebibytes << 20)
    }

    fn wait_for(happens: impl Fn() -> bool) {
        while !happens() {
            thread::yield_now();
        }
    }

    /// What a later agent finds, once these marks are written.
    fn found(state: &Path, marks: Marks) -> (Marks, Marked) {
        let last = state.join(DIRECTORY).join("last");
        marks.place("last", "app", mib(1));
        drop(marks);
        wait_for(|| last.exists());
        fs::remove_file(last).unwrap();
        Marks::below(state).unwrap()
    }

    #[test]
    fn a_mark_is_found_by_every_later_agent_until_its_pod_is_gone() {
        let state = tempfile::tempdir().unwrap();
        let (marks, none) = Marks::below(state.path()).unwrap();
        assert!(none.left.is_empty());
        marks.place("uid-a", "app", mib(128));
        marks.place("uid-b", "app", mib(64));
        marks.place("uid-a", "side", mib(32));
        marks.place("uid-a", "app", mib(256));
        let (marks, mut marked) = found(state.path(), marks);
        let latest = [("app".to_owned(), mib(256)), ("side".to_owned(), mib(32))];
        assert_eq!(marked.take_left().remove("uid-a"), Some(latest.into()));
        assert!(marked.take_left().is_empty());
        marked.forget_all_but(|uid| uid == "uid-a");
        let (_, marked) = found(state.path(), marks);
        assert!(marked.has("uid-a") && !marked.has("uid-b"));
    }

    #[tokio::test]
    async fn what_a_pass_waits_for_is_there_then() {
        let state = tempfile::tempdir().unwrap();
        let (_, marked) = Marks::below(state.path()).unwrap();
        marked.note_written("uid-a").await;
        assert!(state.path().join(DIRECTORY).join("uid-a").exists());
        // No second time, and not for a disk that takes none.
        marked.note_written("uid-a").await;
        fs::remove_dir_all(state.path().join(DIRECTORY)).unwrap();
        marked.note_written("uid-b").await;
    }

    #[test]
    fn a_mark_goes_with_its_pod_whoever_made_it() {
        let state = tempfile::tempdir().unwrap();
        let (marks, _) = Marks::below(state.path()).unwrap();
        marks.place("earlier", "app", mib(128));
        let (marks, mut marked) = found(state.path(), marks);
        assert!(marked.has("earlier"));
        marks.place("now", "app", mib(128));
        let left = || fs::read_dir(state.path().join(DIRECTORY)).unwrap().count();
        wait_for(|| left() == 2);
        marked.forget_all_but(|uid| uid == "now");
        assert_eq!(left(), 1);
        marked.forget_all_but(|_| false);
        assert_eq!(left(), 0);
        // It was there after all.
        marks.place("now", "app", mib(128));
        wait_for(|| left() == 1);
    }

    #[test]
    fn a_line_that_is_not_whole_says_nothing() {
        assert_eq!(parse("app 1024\napp 20"), [("app".to_owned(), Bytes::new(1024))].into());
        assert_eq!(parse("app\n\napp x\n"), LentLast::new());
    }

    #[test]
    fn a_mark_does_not_grow_for_ever() {
        let state = tempfile::tempdir().unwrap();
        let (marks, _) = Marks::below(state.path()).unwrap();
        for mebibytes in 1..=2000 {
            marks.place("uid-a", "app", mib(mebibytes));
        }
        let (_, mut marked) = found(state.path(), marks);
        assert_eq!(marked.take_left()["uid-a"]["app"], mib(2000));
        let length = fs::metadata(state.path().join(DIRECTORY).join("uid-a")).unwrap().len();
        assert!(length < 2 * LONGEST, "{length}");
    }

    #[test]
    fn a_directory_that_cannot_be_written_to_hinders_nothing() {
        let state = tempfile::tempdir().unwrap();
        let (marks, _) = Marks::below(state.path()).unwrap();
        fs::remove_dir(state.path().join(DIRECTORY)).unwrap();
        marks.place("uid-a", "app", mib(128));
        fs::create_dir(state.path().join(DIRECTORY)).unwrap();
        marks.place("uid-b", "app", mib(128));
        let (_, marked) = found(state.path(), marks);
        assert!(marked.has("uid-b"));
    }
}
