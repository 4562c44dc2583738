//! Which pods a killed agent may have lent memory, without having had the time to note it.
//!
//! An empty file for each, named after the pod's UID, made before its first growth. Like the growth it outlives the process
//! and not the machine, so nothing waits for the disk. The next agent has every marked pod compared with what stands for
//! it; a mark stays until its pod is gone, and goes with it.

use std::collections::{BTreeSet, HashSet};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Below the state directory.
const DIRECTORY: &str = "lent";

/// Which pods have a mark, by UID.
type Made = Arc<Mutex<HashSet<String>>>;

/// Makes marks.
#[derive(Debug)]
pub struct Marks {
    directory: PathBuf,
    made: Made,
}

/// Knows the marks that an earlier agent left, and removes all that are not needed any more.
#[derive(Debug, Default)]
pub struct Marked {
    directory: PathBuf,
    /// Those left and not taken up yet.
    uids: BTreeSet<String>,
    made: Made,
}

impl Marks {
    /// The marks below a state directory, whose place for them is made if it is missing, and those that are there.
    ///
    /// # Errors
    /// When it cannot be made or read.
    pub fn below(state_directory: &Path) -> io::Result<(Self, Marked)> {
        let directory = state_directory.join(DIRECTORY);
        fs::create_dir_all(&directory)?;
        let mut marked = Marked {
            directory: directory.clone(),
            uids: BTreeSet::new(),
            made: Made::default(),
        };
        for entry in fs::read_dir(&directory)? {
            // What is no text was not made here.
            marked.uids.extend(entry?.file_name().into_string().ok());
        }
        let made: HashSet<String> = marked.uids.iter().cloned().collect();
        marked.made = Arc::new(Mutex::new(made));
        let made = Arc::clone(&marked.made);
        Ok((Self { directory, made }, marked))
    }

    /// This pod is about to be lent memory.
    pub(super) fn place(&self, uid: &str) {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if made.contains(uid) {
            return;
        }
        let mark = self.directory.join(uid);
        // A growth that saves a process is not given up for want of a mark.
        match File::create(&mark) {
            Ok(_) => {
                made.insert(uid.to_owned());
            }
            Err(error) => tracing::warn!(
                mark = %mark.display(), %error,
                "if the agent is killed now, its successor may not know that a limit was grown"
            ),
        }
    }
}

impl Marked {
    /// Whether this pod was marked. Says so once.
    pub fn take(&mut self, uid: &str) -> bool {
        self.uids.remove(uid)
    }

    /// Removes the marks of pods that are not there any more, whoever made them.
    pub fn forget_all_but(&mut self, is_there: impl Fn(&str) -> bool) {
        self.uids.retain(|uid| is_there(uid));
        // The guard must not wait for the disk.
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let gone: Vec<String> = made.extract_if(|uid| !is_there(uid)).collect();
        drop(made);
        for uid in gone {
            let mark = self.directory.join(uid);
            if let Err(error) = fs::remove_file(&mark) {
                tracing::warn!(mark = %mark.display(), %error, "the mark of a pod that is gone could not be removed");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_found_by_every_later_agent_until_its_pod_is_gone() {
        let state = tempfile::tempdir().unwrap();
        let (marks, none) = Marks::below(state.path()).unwrap();
        assert_eq!(none.uids.len(), 0);
        marks.place("uid-a");
        marks.place("uid-a");
        marks.place("uid-b");
        let (_, mut marked) = Marks::below(state.path()).unwrap();
        assert!(marked.take("uid-a") && !marked.take("uid-a") && !marked.take("uid-c"));
        marked.forget_all_but(|uid| uid == "uid-a");
        let (_, mut marked) = Marks::below(state.path()).unwrap();
        assert!(marked.take("uid-a") && !marked.take("uid-b"));
    }

    #[test]
    fn a_mark_goes_with_its_pod_whoever_made_it() {
        let state = tempfile::tempdir().unwrap();
        let (marks, _) = Marks::below(state.path()).unwrap();
        marks.place("earlier");
        let (marks, mut marked) = Marks::below(state.path()).unwrap();
        assert!(marked.take("earlier"));
        marks.place("now");
        let left = || fs::read_dir(state.path().join(DIRECTORY)).unwrap().count();
        assert_eq!(left(), 2);
        marked.forget_all_but(|uid| uid == "now");
        assert_eq!(left(), 1);
        marked.forget_all_but(|_| false);
        assert_eq!(left(), 0);
        marks.place("now");
        assert_eq!(left(), 1, "it was there after all");
    }

    #[test]
    fn a_directory_that_cannot_be_written_to_hinders_nothing() {
        let state = tempfile::tempdir().unwrap();
        let (marks, _) = Marks::below(state.path()).unwrap();
        fs::remove_dir(state.path().join(DIRECTORY)).unwrap();
        marks.place("uid-a");
        assert!(marks.made.lock().unwrap().is_empty());
    }
}
