use super::*;
use std::path::Path;

fn file(directory: &Path, bytes: u64, files: usize) -> RotatedFile {
    RotatedFile::new(AuditOptions {
        path: directory.join("new/audit.jsonl"),
        bytes,
        files,
        sync_within: std::time::Duration::ZERO,
    })
}

fn append(file: &mut RotatedFile, text: &str) {
    file.append(&format!("{text}\n")).unwrap();
}

fn read(file: &RotatedFile, number: usize) -> Option<String> {
    fs::read_to_string(file.numbered(number)).ok()
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
fn a_lower_number_removes_files_beyond_it() {
    let temp = tempfile::tempdir().unwrap();
    for files in [5, 2] {
        let mut file = file(temp.path(), 10, files);
        (0..9).for_each(|number| append(&mut file, &format!("line{number}")));
        let left: Vec<bool> = (0..6).map(|number| read(&file, number).is_some()).collect();
        assert_eq!(left, [0, 1, 2, 3, 4, 5].map(|number| number < files));
    }
}

#[test]
fn a_line_longer_than_a_file_is_written() {
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

/// A named pipe cannot be synced: leaving it fails.
#[test]
fn a_file_behind_a_link_stays_open() {
    let temp = tempfile::tempdir().unwrap();
    let mut file = file(temp.path(), 100, 2);
    fs::create_dir(temp.path().join("new")).unwrap();
    let elsewhere = temp.path().join("elsewhere");
    nix::unistd::mkfifo(&elsewhere, nix::sys::stat::Mode::S_IRWXU).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &file.options.path).unwrap();
    append(&mut file, "first");
    append(&mut file, "second");
}

fn is_synced(file: &RotatedFile) -> bool {
    file.open.as_ref().is_some_and(|open| !open.unsynced)
}

#[test]
fn appended_lines_are_synced_on_request() {
    let temp = tempfile::tempdir().unwrap();
    let mut file = file(temp.path(), 100, 2);
    file.sync().unwrap();
    append(&mut file, "first");
    assert!(!is_synced(&file));
    file.sync().unwrap();
    assert!(is_synced(&file));
    append(&mut file, "second");
    assert!(!is_synced(&file));
}

/// A named pipe takes lines and cannot be synced: leaving it unsynced fails.
#[test]
fn a_file_is_not_left_before_it_is_synced() {
    let temp = tempfile::tempdir().unwrap();
    let pipe = |bytes| {
        let file = file(temp.path(), bytes, 2);
        fs::create_dir_all(temp.path().join("new")).unwrap();
        nix::unistd::mkfifo(&file.options.path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        file
    };
    let cannot_sync = |file: &mut RotatedFile| {
        let error = file.append("next\n").unwrap_err().to_string();
        assert!(error.starts_with("cannot sync"), "{error}");
    };
    let mut full = pipe(8);
    append(&mut full, "first");
    cannot_sync(&mut full);
    fs::remove_file(&full.options.path).unwrap();

    let mut moved = pipe(100);
    append(&mut moved, "first");
    fs::rename(&moved.options.path, temp.path().join("elsewhere")).unwrap();
    cannot_sync(&mut moved);
    append(&mut moved, "next");
    assert_eq!(read(&moved, 0).as_deref(), Some("next\n"));
}
