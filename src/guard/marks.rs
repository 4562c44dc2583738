//! What a killed agent may have lent, without having had the time to note it.
//!
//! A file for each pod, named after the pod's UID, with a line for each growth, written before the growth. Like the growth
//! it outlives the process and not the machine, so nothing waits for the disk. The next agent takes a limit that is still
//! the one in its latest line for what it is, a loan, and has every marked pod compared with what stands for it; a mark
//! stays until its pod is gone.

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::resources::Bytes;

/// Below the state directory.
const DIRECTORY: &str = "lent";
/// A mark that has grown longer than this begins anew: only the latest lines count.
const LONGEST: u64 = 4096;

/// Makes marks.
#[derive(Debug)]
pub struct Marks {
    directory: PathBuf,
}

/// The memory limits that a pod's containers were lent last, by name.
pub type LentLast = BTreeMap<String, Bytes>;

/// The marks that an earlier agent left.
#[derive(Debug, Default)]
pub struct Marked {
    directory: PathBuf,
    uids: HashSet<String>,
    untaken: BTreeMap<String, LentLast>,
}

impl Marks {
    /// The marks below a state directory, whose place for them is made if it is missing, and those that are there.
    ///
    /// # Errors
    /// When it cannot be made or read.
    pub fn below(state_directory: &Path) -> io::Result<(Self, Marked)> {
        let directory = state_directory.join(DIRECTORY);
        fs::create_dir_all(&directory)?;
        let mut untaken = BTreeMap::new();
        for entry in fs::read_dir(&directory)? {
            let entry = entry?;
            // What is no text was not made here.
            if let Ok(uid) = entry.file_name().into_string() {
                let text = fs::read(entry.path())?;
                untaken.insert(uid, parse(&String::from_utf8_lossy(&text)));
            }
        }
        let marked = Marked {
            directory: directory.clone(),
            uids: untaken.keys().cloned().collect(),
            untaken,
        };
        Ok((Self { directory }, marked))
    }

    /// This container is about to be lent a memory limit.
    pub(super) fn place(&self, uid: &str, container: &str, to: Bytes) {
        let mark = self.directory.join(uid);
        // A growth that saves a process is not given up for want of a mark.
        if let Err(error) = append(&mark, &format!("{container} {}\n", to.get())) {
            tracing::warn!(
                mark = %mark.display(), %error,
                "if the agent is killed now, its successor may not know that a limit was grown"
            );
        }
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
    /// What this pod was lent last, if it was marked. Says so once.
    pub fn take(&mut self, uid: &str) -> Option<LentLast> {
        self.untaken.remove(uid)
    }

    /// Removes the marks of pods that are not there any more.
    pub fn forget_all_but(&mut self, is_there: impl Fn(&str) -> bool) {
        self.untaken.retain(|uid, _| is_there(uid));
        self.uids.retain(|uid| {
            let stays = is_there(uid);
            let mark = self.directory.join(uid);
            if !stays && let Err(error) = fs::remove_file(&mark) {
                tracing::warn!(mark = %mark.display(), %error, "the mark of a pod that is gone could not be removed");
            }
            stays
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn mib(mebibytes: u64) -> Bytes {
        Bytes::new(mebibytes << 20)
    }

    fn found(state: &Path) -> Marked {
        Marks::below(state).unwrap().1
    }

    #[test]
    fn a_mark_is_found_by_every_later_agent_until_its_pod_is_gone() {
        let state = tempfile::tempdir().unwrap();
        let (marks, none) = Marks::below(state.path()).unwrap();
        assert_eq!(none.uids.len(), 0);
        marks.place("uid-a", "app", mib(128));
        marks.place("uid-b", "app", mib(64));
        marks.place("uid-a", "side", mib(32));
        marks.place("uid-a", "app", mib(256));
        let mut marked = found(state.path());
        let latest = [("app".to_owned(), mib(256)), ("side".to_owned(), mib(32))];
        assert_eq!(marked.take("uid-a"), Some(latest.into()));
        assert_eq!((marked.take("uid-a"), marked.take("uid-c")), (None, None));
        marked.forget_all_but(|uid| uid == "uid-a");
        let mut marked = found(state.path());
        assert!(marked.take("uid-a").is_some() && marked.take("uid-b").is_none());
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
        let length = fs::metadata(state.path().join(DIRECTORY).join("uid-a")).unwrap().len();
        assert!(length < 2 * LONGEST, "{length}");
        assert_eq!(found(state.path()).take("uid-a").unwrap()["app"], mib(2000));
    }

    #[test]
    fn a_directory_that_cannot_be_written_to_hinders_nothing() {
        let state = tempfile::tempdir().unwrap();
        let (marks, _) = Marks::below(state.path()).unwrap();
        fs::remove_dir(state.path().join(DIRECTORY)).unwrap();
        marks.place("uid-a", "app", mib(128));
        assert!(found(state.path()).take("uid-a").is_none());
    }
}
