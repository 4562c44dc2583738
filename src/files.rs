//! Replaces a whole file: a crash at any moment leaves the old content or the new one, never a mixture.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use crate::failpoint::failpoint;

/// Replaces the content of `path`, or creates the file. `write` fills `<path>.new` (mode 0600), which is synced and renamed
/// to `path`; the directory is synced last. Returns the file, open for reading and writing at its end. Blocks.
///
/// Errors: the kernel's error, or the one `write` returned. The earlier content is then still in place, unless only the
/// sync of the directory failed.
pub fn replace_atomically(path: &Path, write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) -> io::Result<File> {
    let new = new_path(path);
    remove_if_present(&new)?;
    // `create_new` also refuses a symbolic link.
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&new)?;
    let replaced = fill(file, write).and_then(|file| {
        failpoint("file.filled");
        fs::rename(&new, path)?;
        failpoint("file.renamed");
        sync_directory_of(path)?;
        Ok(file)
    });
    if replaced.is_err()
        && let Err(error) = remove_if_present(&new)
    {
        // The next replacement removes the file.
        tracing::warn!(path = %new.display(), %error, "an unfinished file could not be removed");
    }
    replaced
}

/// Makes the names in the directory of `path` durable after a file was created, renamed or removed there. Blocks.
///
/// Errors: the error that the kernel returned.
pub fn sync_directory_of(path: &Path) -> io::Result<()> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
}

fn new_path(path: &Path) -> PathBuf {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    new.into()
}

/// Writes and syncs the file. `sync_all` also syncs the file's length.
fn fill(file: File, write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) -> io::Result<File> {
    let mut writer = BufWriter::new(file);
    write(&mut writer)?;
    let file = writer.into_inner()?;
    file.sync_all()?;
    Ok(file)
}

/// Removes the file at `path`, if there is one.
pub(crate) fn remove_if_present(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::fs::{MetadataExt as _, symlink};

    use super::*;

    fn names_in(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).unwrap();
        let mut names: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn new_content_replaces_the_old_and_can_grow() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        fs::write(&path, "much longer than what follows").unwrap();
        let mut file = replace_atomically(&path, |file| file.write_all(b"first\n")).unwrap();
        file.write_all(b"second\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "first\nsecond\n");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(names_in(directory.path()), ["log"]);
    }

    #[test]
    fn a_failed_write_keeps_the_earlier_content() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state.json");
        fs::write(&path, "earlier").unwrap();
        let error = replace_atomically(&path, |file| {
            file.write_all(b"half")?;
            Err(io::Error::from(io::ErrorKind::StorageFull))
        })
        .unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert_eq!(fs::read_to_string(&path).unwrap(), "earlier");
        assert_eq!(names_in(directory.path()), ["state.json"]);
    }

    #[test]
    fn what_a_crash_left_is_replaced_and_a_link_is_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state.json");
        let elsewhere = directory.path().join("elsewhere");
        fs::write(&elsewhere, "untouched").unwrap();
        symlink(&elsewhere, new_path(&path)).unwrap();
        replace_atomically(&path, |file| file.write_all(b"whole")).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "whole");
        assert_eq!(fs::read_to_string(&elsewhere).unwrap(), "untouched");
        assert_eq!(names_in(directory.path()), ["elsewhere", "state.json"]);
    }

    #[test]
    fn a_directory_that_is_missing_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("missing/state.json");
        let error = replace_atomically(&path, |_| Ok(())).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
