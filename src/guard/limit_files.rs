//! Marks the pods that an agent has written to, and the temporary limits that it may not have saved yet.
//!
//! Each pod has a file, named after its UID. The agent makes the file before a pass first writes to the pod, and adds a line
//! before each growth. The file outlives the process, not the machine, like the cgroup's values, so the agent does not sync it.
//! A thread of its own writes the files, so that no growth waits for a slow disk. The next agent treats a limit that still equals
//! a line as a temporary limit, and lets a pass compare the pod with its state. Where the state file is lost, it resets
//! every marked pod. The agent removes a mark when the pod is gone.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::model::objects::PodUid;
use crate::model::{Bytes, ContainerName};

const DIRECTORY: &str = "lent";
const UNMARKED: &str = "if the agent is killed now, its successor may not know that a pod was written to";
/// The agent truncates a longer mark: only the latest lines count.
const LONGEST: u64 = 4096;
/// The last word of a line about a limit that was given for the pod.
const FOR_POD: &str = "pod";
/// The longest time that a pass waits for a mark.
const PATIENCE: Duration = Duration::from_secs(1);

/// The marks of pods.
#[derive(Debug)]
pub struct LimitFiles {
    marks: Arc<Marks>,
    lines: Sender<Line>,
}

/// The pods that have or get a mark, by UID, and whether the mark is on the disk: one that could not be written is tried again.
/// A caller sends its line under the lock, so that the file agrees in the end.
type Marks = Mutex<HashMap<PodUid, bool>>;

/// The UID of a pod, and the line to write or `None` to remove the mark; an empty line only makes the file. The thread drops
/// the sender after it has done so, or failed to.
type Line = (PodUid, Option<String>, oneshot::Sender<()>);

/// The temporary memory limits in a pod's mark, with the containers' names, oldest first. The latest may not have come into force.
pub type MarkedLimits = Vec<(ContainerName, LatestLimit)>;

/// The temporary memory limits of a pod's containers, by name.
pub type LatestLimits = BTreeMap<ContainerName, LatestLimit>;

/// A temporary memory limit in a mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LatestLimit {
    pub to: Bytes,
    /// As of [`Terms::for_pod`](super::Terms::for_pod).
    pub for_pod: bool,
}

impl LimitFiles {
    /// The marks below a state directory, and the temporary limits that an earlier agent left there, by pod UID. Makes the
    /// directory of the marks if it is missing.
    ///
    /// Errors: the directory cannot be made or read, or the kernel refuses the thread.
    pub fn below(state_directory: &Path) -> io::Result<(Arc<Self>, BTreeMap<PodUid, MarkedLimits>)> {
        let directory = state_directory.join(DIRECTORY);
        fs::create_dir_all(&directory)?;
        let mut left = BTreeMap::new();
        for entry in fs::read_dir(&directory)? {
            let entry = entry?;
            let path = entry.path();
            // The agent makes only files, with names that are UTF-8.
            let text = match entry.file_type() {
                Ok(kind) if !kind.is_file() => Err(io::Error::other("it is no file")),
                Ok(_) => fs::read(&path),
                Err(error) => Err(error),
            };
            match (entry.file_name().into_string(), text) {
                (Ok(uid), Ok(text)) => drop(left.insert(PodUid::from(uid), parse(&String::from_utf8_lossy(&text)))),
                (Ok(_), Err(error)) => tracing::warn!(mark = %path.display(), %error, "skipped: no mark of an agent"),
                (Err(_), _) => tracing::warn!(mark = %path.display(), "skipped: no mark of an agent"),
            }
        }
        let (lines, sent) = mpsc::channel::<Line>();
        let marks: Arc<Marks> = Arc::new(Mutex::new(left.keys().map(|uid| (uid.clone(), true)).collect()));
        let files = Arc::new(Self {
            marks: Arc::clone(&marks),
            lines,
        });
        thread::Builder::new().name("marks".to_owned()).spawn(move || {
            for (uid, line, done) in sent {
                let is_there = write(&directory, &uid, line);
                if let Some(mark) = marks.lock().get_mut(&uid) {
                    *mark |= is_there;
                }
                drop(done);
            }
        })?;
        Ok((files, left))
    }

    /// Notes that the guard is about to grow a container's memory limit to this one.
    pub(super) fn note_lent(&self, uid: &PodUid, container: &str, LatestLimit { to, for_pod }: LatestLimit) {
        let for_pod = if for_pod { format!(" {FOR_POD}") } else { String::new() };
        let mut marks = self.marks.lock();
        marks.entry(uid.clone()).or_insert(false);
        // A line that a full disk cut off before ends here.
        drop(self.send(uid, Some(format!("\n{container} {}{for_pod}\n", to.get()))));
    }

    /// Marks a pod that a pass is about to write to. The future completes when the mark is on the disk, or after a short while
    /// where the disk is slow. Completes at once for a pod that has a mark.
    pub fn note_written(&self, uid: &PodUid) -> impl Future<Output = ()> + use<> {
        let uid = uid.clone();
        let mut marks = self.marks.lock();
        let is_there = *marks.entry(uid.clone()).or_insert(false);
        let written = (!is_there).then(|| self.send(&uid, Some(String::new())));
        drop(marks);
        async move {
            if let Some(written) = written
                && tokio::time::timeout(PATIENCE, written).await.is_err()
            {
                tracing::warn!(%uid, waited = ?PATIENCE, "{UNMARKED}");
            }
        }
    }

    /// Has the thread write a line, or remove the mark. The receiver completes when the thread has done so, or has ended.
    fn send(&self, uid: &PodUid, line: Option<String>) -> oneshot::Receiver<()> {
        let (done, written) = oneshot::channel();
        if self.lines.send((uid.clone(), line, done)).is_err() {
            tracing::warn!(%uid, "{UNMARKED}");
        }
        written
    }

    /// Has the thread remove the marks of pods that are gone, also those of earlier agents. The receiver, if there is a mark
    /// to remove, completes when the thread has removed the last one.
    pub fn forget_all_but(&self, is_there: impl Fn(&str) -> bool) -> Option<oneshot::Receiver<()>> {
        let mut marks = self.marks.lock();
        let gone = marks.extract_if(|uid, _| !is_there(uid));
        gone.map(|(uid, _)| self.send(&uid, None)).last()
    }
}

/// Writes a line, or removes the mark. Returns whether the mark is on the disk then.
fn write(directory: &Path, uid: &PodUid, line: Option<String>) -> bool {
    let mark = directory.join(&**uid);
    let Some(text) = line else {
        if let Err(error) = fs::remove_file(&mark)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(mark = %mark.display(), %error, "the mark of a pod that is gone could not be removed");
        }
        return false;
    };
    let opened = OpenOptions::new().create(true).append(true).open(&mark);
    let written = opened.and_then(|mut file| {
        if file.metadata()?.len() > LONGEST {
            file.set_len(0)?;
        }
        file.write_all(text.as_bytes())
    });
    // The guard grows a limit also without a mark.
    if let Err(error) = &written {
        tracing::warn!(mark = %mark.display(), %error, "{UNMARKED}");
    }
    written.is_ok()
}

/// Every whole line. Skips an incomplete one: the growth after it did not happen.
fn parse(text: &str) -> MarkedLimits {
    let whole = text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
    let limit = |line: &str| {
        let mut words = line.split(' ');
        let (container, to) = (
            ContainerName::from(words.next()?),
            Bytes::new(words.next()?.parse().ok()?),
        );
        let for_pod = words.next() == Some(FOR_POD);
        Some((container, LatestLimit { to, for_pod }))
    };
    whole.filter_map(limit).collect()
}

#[cfg(test)]
mod tests {
    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;

    const fn mib(mebibytes: u64) -> LatestLimit {
        LatestLimit {
            to: Bytes::new(mebibytes << 20),
            for_pod: false,
        }
    }

    fn wait_for(happens: impl Fn() -> bool) {
        while !happens() {
            thread::yield_now();
        }
    }

    fn forget(files: &LimitFiles, is_there: impl Fn(&str) -> bool) {
        if let Some(removed) = files.forget_all_but(is_there) {
            drop(removed.blocking_recv());
        }
    }

    /// What a later agent finds, once these marks are written.
    fn found(state: &Path, files: Arc<LimitFiles>) -> (Arc<LimitFiles>, BTreeMap<PodUid, MarkedLimits>) {
        let last = state.join(DIRECTORY).join("last");
        files.note_lent(&"last".into(), "app", mib(1));
        drop(files);
        wait_for(|| last.exists());
        fs::remove_file(last).unwrap();
        LimitFiles::below(state).unwrap()
    }

    #[test]
    fn later_agents_find_a_mark_until_its_pod_ends() {
        let state = tempfile::tempdir().unwrap();
        let (files, none) = LimitFiles::below(state.path()).unwrap();
        assert!(none.is_empty());
        files.note_lent(&"uid-a".into(), "app", mib(128));
        files.note_lent(&"uid-b".into(), "app", mib(64));
        let for_pod = LatestLimit {
            for_pod: true,
            ..mib(32)
        };
        files.note_lent(&"uid-a".into(), "side", for_pod);
        files.note_lent(&"uid-a".into(), "app", mib(256));
        let (files, mut left) = found(state.path(), files);
        let all = [("app", mib(128)), ("side", for_pod), ("app", mib(256))];
        let all: MarkedLimits = all.into_iter().map(|(name, limit)| (name.into(), limit)).collect();
        assert_eq!(left.remove("uid-a"), Some(all));
        forget(&files, |uid| uid == "uid-a");
        let (_, left) = found(state.path(), files);
        assert!(left.contains_key("uid-a") && !left.contains_key("uid-b"));
    }

    #[tokio::test]
    async fn what_a_pass_waits_for_is_there_then() {
        let state = tempfile::tempdir().unwrap();
        let (files, _) = LimitFiles::below(state.path()).unwrap();
        files.note_written(&"uid-a".into()).await;
        assert!(state.path().join(DIRECTORY).join("uid-a").exists());
        // No second time, and not for a disk that takes none.
        files.note_written(&"uid-a".into()).await;
        fs::remove_dir_all(state.path().join(DIRECTORY)).unwrap();
        files.note_written(&"uid-b".into()).await;
    }

    #[tokio::test]
    async fn the_next_pass_writes_a_missing_mark() {
        let state = tempfile::tempdir().unwrap();
        let (files, _) = LimitFiles::below(state.path()).unwrap();
        let directory = state.path().join(DIRECTORY);
        fs::remove_dir(&directory).unwrap();
        files.note_written(&"uid-a".into()).await;
        fs::create_dir(&directory).unwrap();
        files.note_written(&"uid-a".into()).await;
        assert!(directory.join("uid-a").exists());
        fs::remove_dir_all(&directory).unwrap();
        files.note_lent(&"uid-b".into(), "app", mib(1));
        files.note_written(&"uid-b".into()).await;
        fs::create_dir(&directory).unwrap();
        files.note_written(&"uid-b".into()).await;
        assert!(directory.join("uid-b").exists());
    }

    #[test]
    fn what_is_no_mark_is_skipped_and_stays() {
        let state = tempfile::tempdir().unwrap();
        let directory = state.path().join(DIRECTORY);
        fs::create_dir_all(directory.join("a-directory")).unwrap();
        mkfifo(&directory.join("a-pipe"), Mode::S_IRWXU).unwrap();
        fs::write(directory.join("uid-a"), "app 1024\n").unwrap();
        let (files, left) = LimitFiles::below(state.path()).unwrap();
        assert_eq!(left.into_keys().collect::<Vec<_>>(), [PodUid::from("uid-a")]);
        forget(&files, |_| false);
        assert!(directory.join("a-directory").exists() && directory.join("a-pipe").exists());
        assert!(!directory.join("uid-a").exists());
    }

    #[test]
    fn a_mark_goes_with_its_pod_whoever_made_it() {
        let state = tempfile::tempdir().unwrap();
        let (files, _) = LimitFiles::below(state.path()).unwrap();
        files.note_lent(&"earlier".into(), "app", mib(128));
        let (files, left) = found(state.path(), files);
        assert!(left.contains_key("earlier"));
        files.note_lent(&"now".into(), "app", mib(128));
        let count = || fs::read_dir(state.path().join(DIRECTORY)).unwrap().count();
        wait_for(|| count() == 2);
        forget(&files, |uid| uid == "now");
        assert_eq!(count(), 1);
        forget(&files, |_| false);
        assert_eq!(count(), 0);
        // It was there after all.
        files.note_lent(&"now".into(), "app", mib(128));
        wait_for(|| count() == 1);
    }

    #[test]
    fn marks_are_right_without_waiting_for_the_disk() {
        let state = tempfile::tempdir().unwrap();
        let (files, _) = LimitFiles::below(state.path()).unwrap();
        let mark = |uid: &str| state.path().join(DIRECTORY).join(uid);
        // The thread waits until this one has a reader, as it waits for a disk that hangs.
        mkfifo(&mark("slow"), Mode::S_IRWXU).unwrap();
        files.note_lent(&"slow".into(), "app", mib(1));
        fs::write(mark("ended"), "").unwrap();
        files.note_lent(&"ended".into(), "app", mib(1));
        let removed = files.forget_all_but(|uid| uid != "ended").unwrap();
        assert!(mark("ended").exists(), "the caller removed it");
        files.note_lent(&"ended".into(), "app", mib(2));
        let again = files.forget_all_but(|uid| uid != "ended").unwrap();
        let reader = fs::File::open(mark("slow")).unwrap();
        drop((removed.blocking_recv(), again.blocking_recv()));
        assert!(
            !mark("ended").exists(),
            "a line that was noted before was written afterwards"
        );
        drop(reader);
    }

    #[test]
    fn a_line_that_is_not_whole_says_nothing() {
        let whole: MarkedLimits = vec![("app".into(), mib(1))];
        assert_eq!(parse("app 1048576\napp 20"), whole);
        assert_eq!(parse("app\n\napp x\n"), MarkedLimits::new());
    }

    #[test]
    fn a_cut_line_hides_no_later_one() {
        let state = tempfile::tempdir().unwrap();
        let mark = state.path().join(DIRECTORY).join("uid-a");
        let (files, _) = LimitFiles::below(state.path()).unwrap();
        fs::write(mark, "app 1048576\napp 20").unwrap();
        files.note_lent(&"uid-a".into(), "app", mib(2));
        let (_, left) = found(state.path(), files);
        assert!(left["uid-a"].contains(&("app".into(), mib(2))));
    }

    #[test]
    fn a_mark_does_not_grow_for_ever() {
        let state = tempfile::tempdir().unwrap();
        let (files, _) = LimitFiles::below(state.path()).unwrap();
        for mebibytes in 1..=2000 {
            files.note_lent(&"uid-a".into(), "app", mib(mebibytes));
        }
        let (_, left) = found(state.path(), files);
        assert!(left["uid-a"].contains(&("app".into(), mib(2000))));
        let length = fs::metadata(state.path().join(DIRECTORY).join("uid-a")).unwrap().len();
        assert!(length < 2 * LONGEST, "{length}");
    }

    #[test]
    fn an_unwritable_directory_hinders_nothing() {
        let state = tempfile::tempdir().unwrap();
        let (files, _) = LimitFiles::below(state.path()).unwrap();
        fs::remove_dir(state.path().join(DIRECTORY)).unwrap();
        files.note_lent(&"uid-a".into(), "app", mib(128));
        fs::create_dir(state.path().join(DIRECTORY)).unwrap();
        files.note_lent(&"uid-b".into(), "app", mib(128));
        let (_, left) = found(state.path(), files);
        assert!(left.contains_key("uid-b"));
    }
}
