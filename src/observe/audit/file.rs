//! A file of lines that never grows beyond its bounds.
//!
//! In come lines; out they go behind what is there, each whole and on a line of its own. A file that would become too
//! long is renamed (`audit.jsonl` → `audit.jsonl.1` → `audit.jsonl.2` …) and the last one removed. Blocks.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::PathBuf;

use super::AuditOptions;

/// The file that is written, and those that were.
#[derive(Debug)]
pub(super) struct RotatedFile {
    options: AuditOptions,
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    file: File,
    bytes: u64,
    /// Which file it is: somebody else may rotate it, too.
    inode: (u64, u64),
}

/// What failed, and on which file.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {}: {source}; check that it is writable and has free space (auditLog)", path.display())]
pub(super) struct FileError {
    action: &'static str,
    path: PathBuf,
    source: io::Error,
}

impl RotatedFile {
    pub(super) const fn new(options: AuditOptions) -> Self {
        Self { options, open: None }
    }

    /// Appends lines, each of which ends in a newline; returns how many were written, and why not all.
    pub(super) fn append(&mut self, lines: &[String]) -> (usize, Option<FileError>) {
        for (index, line) in lines.iter().enumerate() {
            if let Err(error) = self.append_one(line) {
                // Part of the line may be there: opening anew finds that out.
                self.open = None;
                return (index, Some(error));
            }
        }
        (lines.len(), None)
    }

    fn append_one(&mut self, line: &str) -> Result<(), FileError> {
        let length = u64::try_from(line.len()).unwrap_or(u64::MAX);
        let mut open = self.current()?;
        if open.bytes > 0 && open.bytes.saturating_add(length) > self.options.bytes {
            drop(open);
            self.rotate()?;
            open = self.current()?;
        }
        open.file
            .write_all(line.as_bytes())
            .map_err(|source| self.failed("write", source))?;
        open.bytes += length;
        self.open = Some(open);
        Ok(())
    }

    /// The file at the path, opened anew unless it is still the one that is open.
    fn current(&mut self) -> Result<Open, FileError> {
        let there = fs::symlink_metadata(&self.options.path).map(|there| (there.dev(), there.ino()));
        match (self.open.take(), there) {
            (Some(open), Ok(inode)) if open.inode == inode => Ok(open),
            _ => self.open_file().map_err(|source| self.failed("open", source)),
        }
    }

    fn open_file(&self) -> io::Result<Open> {
        let path = &self.options.path;
        if let Some(parent) = path.parent() {
            DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
        }
        let mut file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .mode(0o600)
            .open(path)?;
        let metadata = file.metadata()?;
        let mut bytes = metadata.len();
        if bytes > 0 {
            let mut last = [0];
            file.seek(SeekFrom::End(-1))?;
            file.read_exact(&mut last)?;
            if last != *b"\n" {
                file.write_all(b"\n")?;
                bytes += 1;
            }
        }
        Ok(Open {
            file,
            bytes,
            inode: (metadata.dev(), metadata.ino()),
        })
    }

    /// Renames the files, so that there is none at the path. The oldest is overwritten by the one before it.
    fn rotate(&self) -> Result<(), FileError> {
        let moved = |from: PathBuf, to: PathBuf| match fs::rename(&from, &to) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(self.failed("rotate", error)),
            Ok(()) | Err(_) => Ok(()),
        };
        let oldest = self.options.files.saturating_sub(1);
        if oldest == 0 {
            return fs::remove_file(&self.options.path).map_err(|source| self.failed("rotate", source));
        }
        for number in (1..oldest).rev() {
            moved(self.numbered(number), self.numbered(number + 1))?;
        }
        moved(self.options.path.clone(), self.numbered(1))
    }

    fn numbered(&self, number: usize) -> PathBuf {
        let mut name = self.options.path.clone().into_os_string();
        name.push(format!(".{number}"));
        name.into()
    }

    fn failed(&self, action: &'static str, source: io::Error) -> FileError {
        FileError {
            action,
            path: self.options.path.clone(),
            source,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn file(directory: &Path, bytes: u64, files: usize) -> RotatedFile {
        RotatedFile::new(AuditOptions {
            path: directory.join("new/audit.jsonl"),
            bytes,
            files,
        })
    }

    fn append(file: &mut RotatedFile, text: &str) {
        let (written, error) = file.append(&[format!("{text}\n")]);
        assert!(written == 1 && error.is_none(), "{error:?}");
    }

    fn read(file: &RotatedFile, number: usize) -> Option<String> {
        let path = if number == 0 {
            file.options.path.clone()
        } else {
            file.numbered(number)
        };
        fs::read_to_string(path).ok()
    }

    #[test]
    fn files_are_bounded_in_size_and_number() {
        let temp = tempfile::tempdir().unwrap();
        let mut file = file(temp.path(), 10, 3);
        for number in 0..9 {
            append(&mut file, &format!("line{number}"));
        }
        assert_eq!(read(&file, 0).as_deref(), Some("line8\n"));
        assert_eq!(read(&file, 1).as_deref(), Some("line7\n"));
        assert_eq!(read(&file, 2).as_deref(), Some("line6\n"));
        assert_eq!(read(&file, 3), None);
        assert_eq!(fs::metadata(&file.options.path).unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_line_longer_than_a_file_is_written_all_the_same() {
        let temp = tempfile::tempdir().unwrap();
        let mut file = file(temp.path(), 4, 1);
        append(&mut file, "much too long");
        append(&mut file, "next");
        assert_eq!(read(&file, 0).as_deref(), Some("next\n"));
        assert_eq!(read(&file, 1), None);
    }

    #[test]
    fn a_torn_line_does_not_spoil_the_next() {
        let temp = tempfile::tempdir().unwrap();
        let mut file = file(temp.path(), 100, 2);
        fs::create_dir(temp.path().join("new")).unwrap();
        fs::write(&file.options.path, "{\"torn").unwrap();
        append(&mut file, "whole");
        assert_eq!(read(&file, 0).as_deref(), Some("{\"torn\nwhole\n"));
    }

    #[test]
    fn a_file_that_somebody_else_moved_is_made_anew() {
        let temp = tempfile::tempdir().unwrap();
        let mut file = file(temp.path(), 100, 2);
        append(&mut file, "first");
        fs::rename(&file.options.path, temp.path().join("elsewhere")).unwrap();
        append(&mut file, "second");
        assert_eq!(read(&file, 0).as_deref(), Some("second\n"));
    }
}
