use super::super::published::tests::report;
use super::*;

fn reports<const N: usize>(ids: [&str; N]) -> [Arc<OomReport>; N] {
    ids.map(|id| Arc::new(report(id)))
}

async fn ledger_of(directory: &Path, ids: &[&str]) -> FileLedger {
    let (mut ledger, _) = FileLedger::open(directory);
    for id in ids {
        ledger.commit(&reports([id]), id.as_bytes()).await.unwrap();
    }
    ledger
}

#[tokio::test]
async fn what_was_committed_is_there_again_and_nothing_twice() {
    let directory = tempfile::tempdir().unwrap();
    let (mut ledger, restored) = FileLedger::open(directory.path());
    assert!(restored.checkpoint.is_none() && restored.reports.is_empty() && restored.problem.is_none());
    ledger.commit(&reports(["a", "b"]), b"{\"at\":1}").await.unwrap();
    ledger.commit(&reports(["b", "c"]), b"{\"at\":2}").await.unwrap();
    drop(ledger);
    let (mut ledger, restored) = FileLedger::open(directory.path());
    assert_eq!(restored.checkpoint.as_deref(), Some(&b"{\"at\":2}"[..]));
    assert_eq!(restored.reports, reports(["a", "b", "c"]));
    let many: Vec<_> = (0..KEPT).map(|number| Arc::new(report(&number.to_string()))).collect();
    ledger.commit(&many, b"{}").await.unwrap();
    assert_eq!(FileLedger::open(directory.path()).1.reports, many);
}

#[tokio::test]
async fn whenever_an_agent_ends_the_file_is_of_one_commit() {
    let directory = tempfile::tempdir().unwrap();
    drop(ledger_of(directory.path(), &["a", "b", "c"]).await);
    let file = directory.path().join(KIND.file);
    let bytes = fs::read(&file).unwrap();
    for length in 0..=bytes.len() {
        fs::write(&file, &bytes[..length]).unwrap();
        let (_, restored) = FileLedger::open(directory.path());
        assert_eq!(restored.problem, None, "{length} bytes");
        let ids: Vec<&str> = restored.reports.iter().map(|report| &*report.id).collect();
        assert!(["a", "b", "c"].starts_with(&ids), "{length} bytes");
        // The first is written before its checkpoint, into a file that nobody reads before all of it is there.
        let checkpoint = restored.checkpoint.unwrap_or_default();
        let last = ids.last().map(|id| id.as_bytes()).unwrap_or_default();
        assert!(checkpoint == last || ids == ["a"], "{length} bytes");
    }
}

#[tokio::test]
async fn the_file_does_not_grow_for_ever() {
    let directory = tempfile::tempdir().unwrap();
    let mut ledger = ledger_of(directory.path(), &["a"]).await;
    let file = directory.path().join(KIND.file);
    for number in 0..100_u32 {
        let checkpoint = [number.to_string().into_bytes(), vec![b' '; 100_000]].concat();
        ledger.commit(&[], &checkpoint).await.unwrap();
        // Nobody waits for what makes it shorter, but what comes after does.
        assert!(fs::metadata(&file).unwrap().len() < 4 * ROOM);
    }
    drop(ledger);
    let (_, restored) = FileLedger::open(directory.path());
    assert_eq!(restored.reports, reports(["a"]));
    assert!(restored.checkpoint.unwrap().starts_with(b"99 "));
}

#[tokio::test]
async fn a_disk_that_takes_nothing_is_an_error_that_names_the_file_and_is_tried_again() {
    let directory = tempfile::tempdir().unwrap();
    drop(ledger_of(directory.path(), &["a"]).await);
    let in_the_way = directory.path().join(KIND.new_file);
    fs::create_dir(&in_the_way).unwrap();
    let (mut ledger, _) = FileLedger::open(directory.path());
    let error = ledger.commit(&reports(["b"]), b"{}").await.unwrap_err().to_string();
    assert!(error.contains(KIND.file), "{error}");
    assert_eq!(FileLedger::open(directory.path()).1.reports, reports(["a"]));
    fs::remove_dir(&in_the_way).unwrap();
    ledger.commit(&reports(["b"]), b"{}").await.unwrap();
    assert_eq!(FileLedger::open(directory.path()).1.reports, reports(["a", "b"]));
}

#[tokio::test]
async fn nothing_is_written_into_a_file_that_is_not_in_its_place_any_more() {
    let replaced = |book: &Book| {
        // As when the directory could not be synced after that.
        drop(written(book.home.as_ref().unwrap(), &book.checkpoint, &book.kept).unwrap());
    };
    let removed = |book: &Book| fs::remove_file(book.directory.join(KIND.file)).unwrap();
    for happened in [&replaced as &dyn Fn(&Book), &removed] {
        let directory = tempfile::tempdir().unwrap();
        let mut ledger = ledger_of(directory.path(), &["a"]).await;
        happened(&ledger.book.lock().unwrap());
        ledger.commit(&reports(["b"]), b"{}").await.unwrap();
        ledger.commit(&reports(["c"]), b"{}").await.unwrap();
        let (_, restored) = FileLedger::open(directory.path());
        assert_eq!(restored.reports, reports(["a", "b", "c"]));
    }
}

#[tokio::test]
async fn of_two_agents_one_writes() {
    let directory = tempfile::tempdir().unwrap();
    let first = ledger_of(directory.path(), &["a"]).await;
    let (mut second, restored) = FileLedger::open(directory.path());
    assert_eq!(restored.reports, reports(["a"]));
    let error = second.commit(&reports(["b"]), b"{}").await.unwrap_err().to_string();
    assert!(error.contains("another vscaled"), "{error}");
    drop(first);
    second.commit(&reports(["b"]), b"{}").await.unwrap();
}

#[tokio::test]
async fn what_is_not_understood_is_set_aside_and_what_came_before_is_kept() {
    let directory = tempfile::tempdir().unwrap();
    drop(ledger_of(directory.path(), &["a", "b", "c"]).await);
    let file = directory.path().join(KIND.file);
    let whole = fs::read(&file).unwrap();
    let mut flipped = whole.clone();
    let at = whole.windows(8).position(|text| text == b"\"id\":\"b\"").unwrap();
    flipped[at] ^= 1;
    for (broken, kept) in [(flipped, 1), (b"{}\n{}".to_vec(), 0)] {
        fs::write(&file, broken).unwrap();
        let (_, restored) = FileLedger::open(directory.path());
        assert!(restored.problem.unwrap().contains("set-aside"));
        assert_eq!(restored.reports.len(), kept);
        assert!(!file.exists());
    }
}
