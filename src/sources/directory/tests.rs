//! Real directories, and states awaited rather than timed.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::read::MAX_FILE;
use super::*;

/// Far beyond what anything here takes; a test that runs into it has failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// A directory `manifests` in one of its own, and a source that follows it until the end of the test.
struct Followed {
    root: TempDir,
    states: watch::Receiver<Arc<SourceState>>,
    latest: Arc<SourceState>,
    /// How many views have been seen.
    views: usize,
    _stop: DropGuard,
}

impl Followed {
    fn new(prepare: impl FnOnce(&Path)) -> Self {
        Self::with(prepare, |source| source)
    }

    fn with(prepare: impl FnOnce(&Path), change: impl FnOnce(DirectorySource) -> DirectorySource) -> Self {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("manifests");
        fs::create_dir(&directory).unwrap();
        prepare(&directory);
        let (source, states) = DirectorySource::new(directory, "");
        let stop = CancellationToken::new();
        tokio::spawn(change(source).run(stop.clone()));
        Self {
            root,
            states,
            latest: Arc::default(),
            views: 0,
            _stop: stop.drop_guard(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join("manifests").join(name)
    }

    /// What a problem says about a file.
    fn message<'p>(&self, problem: &'p str, name: &str) -> &'p str {
        let prefix = format!("{}: ", self.path(name).display());
        problem.strip_prefix(&prefix).unwrap_or_else(|| panic!("{problem}"))
    }

    /// Waits for a state.
    async fn until(&mut self, wanted: impl Fn(&SourceState) -> bool) -> Arc<SourceState> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let state = Arc::clone(&self.states.borrow_and_update());
            self.views += usize::from(state.view != self.latest.view);
            self.latest = Arc::clone(&state);
            if wanted(&state) {
                return state;
            }
            let Ok(changed) = timeout_at(deadline, self.states.changed()).await else {
                panic!("the awaited state never came; the last one: {state:#?}");
            };
            changed.unwrap();
        }
    }

    /// Waits until exactly these pods are there, with these problems.
    async fn until_pods(&mut self, pods: &[&str], problems: usize) -> Arc<SourceState> {
        self.until(|state| names(state) == pods && state.problems.len() == problems)
            .await
    }

    /// Replaces a file as a careful writer does.
    fn rename_into(&self, name: &str, text: &str) {
        let hidden = self.path(&format!(".{name}.new"));
        fs::write(&hidden, text).unwrap();
        fs::rename(hidden, self.path(name)).unwrap();
    }
}

fn names(state: &SourceState) -> Vec<&str> {
    let pods = state.view.iter().flat_map(NodeView::pods);
    let mut names: Vec<_> = pods.map(|pod| pod.metadata.name.as_str()).collect();
    names.sort_unstable();
    names
}

/// The source, leaving files that are being written alone for so long.
fn patient(mut source: DirectorySource, patience: Duration) -> DirectorySource {
    source.notifier.as_mut().unwrap().patience = patience;
    source
}

fn pod(name: &str) -> String {
    format!("kind: Pod\nmetadata: {{name: {name}}}\nspec: {{containers: [{{name: app}}]}}\n")
}

#[tokio::test]
async fn the_first_state_holds_all_manifests() {
    let mut followed = Followed::new(|dir| {
        for (name, text) in [
            ("a.yaml", pod("a")),
            ("b.yml", pod("b")),
            (
                "c.json",
                r#"{"kind":"Pod","metadata":{"name":"c"},"spec":{"containers":[{"name":"x"}]}}"#.into(),
            ),
            (".hidden.yaml", pod("hidden")),
            ("d.yaml~", pod("backup")),
            ("#e.yaml", pod("lock")),
            ("README.md", "not a manifest".into()),
        ] {
            fs::write(dir.join(name), text).unwrap();
        }
        fs::create_dir(dir.join("sub.yaml")).unwrap();
    });
    let state = followed.until_pods(&["a", "b", "c"], 0).await;
    assert_eq!((state.view.is_some(), followed.views), (true, 1));
}

#[tokio::test]
async fn an_empty_directory_is_a_state_too() {
    let mut followed = Followed::new(|_| {});
    let state = followed.until(|state| state.view.is_some()).await;
    assert_eq!((&state.view, &state.problems), (&Some(NodeView::default()), &vec![]));
}

#[tokio::test]
async fn a_renamed_file_replaces_the_old_one() {
    let mut followed = Followed::new(|dir| fs::write(dir.join("a.yaml"), pod("old")).unwrap());
    followed.until_pods(&["old"], 0).await;
    followed.rename_into("a.yaml", &pod("new"));
    followed.until_pods(&["new"], 0).await;
}

#[tokio::test]
async fn a_file_counts_once_its_writer_closes_it() {
    let old = |dir: &Path| fs::write(dir.join("a.yaml"), pod("old")).unwrap();
    let mut followed = Followed::with(old, |source| patient(source, PATIENCE));
    followed.until_pods(&["old"], 0).await;
    let mut file = OpenOptions::new()
        .write(true)
        .truncate(true)
        .open(followed.path("a.yaml"))
        .unwrap();
    file.write_all(pod("new").as_bytes()).unwrap();
    // Both files are read for this; the one still open is not.
    followed.rename_into("b.yaml", &pod("other"));
    followed.until_pods(&["old", "other"], 0).await;
    file.write_all(format!("---\n{}", pod("newer")).as_bytes()).unwrap();
    drop(file);
    followed.until_pods(&["new", "newer", "other"], 0).await;
}

#[tokio::test]
async fn a_file_that_stays_open_is_read_in_the_end() {
    let mut followed = Followed::with(|_| {}, |source| patient(source, Duration::from_millis(20)));
    followed.until(|state| state.view.is_some()).await;
    let mut file = fs::File::create(followed.path("a.yaml")).unwrap();
    file.write_all(pod("a").as_bytes()).unwrap();
    followed.until_pods(&["a"], 0).await;
    drop(file);
}

#[tokio::test]
async fn a_broken_file_keeps_its_last_good_content() {
    let mut followed = Followed::new(|dir| fs::write(dir.join("a.yaml"), pod("a")).unwrap());
    followed.until_pods(&["a"], 0).await;
    followed.rename_into(
        "a.yaml",
        "kind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: x, resources: {limits: {cpu: 1Q}}}]}",
    );
    let state = followed.until_pods(&["a"], 1).await;
    let message = followed.message(&state.problems[0], "a.yaml");
    assert!(
        message.starts_with(r#"document 1 (Pod a): spec.containers[0].resources.limits.cpu: "1Q" is"#),
        "{message}"
    );
    followed.rename_into("a.yaml", &pod("mended"));
    followed.until_pods(&["mended"], 0).await;
}

#[tokio::test]
async fn an_emptied_file_keeps_its_last_content() {
    let mut followed = Followed::new(|dir| fs::write(dir.join("a.yaml"), pod("a")).unwrap());
    followed.until_pods(&["a"], 0).await;
    followed.rename_into("a.yaml", "");
    let state = followed.until_pods(&["a"], 1).await;
    let message = followed.message(&state.problems[0], "a.yaml");
    assert!(message.starts_with("the file is empty"), "{message}");
    followed.rename_into("a.yaml", &pod("b"));
    followed.until_pods(&["b"], 0).await;
}

#[tokio::test]
async fn unreadable_files_are_named() {
    let mut followed = Followed::new(|dir| {
        fs::write(dir.join("good.yaml"), pod("good")).unwrap();
        symlink("nowhere", dir.join("dangling.yaml")).unwrap();
        fs::write(dir.join("latin.yaml"), b"kind: P\xf6d").unwrap();
        fs::File::create(dir.join("huge.yaml"))
            .unwrap()
            .set_len(MAX_FILE + 1)
            .unwrap();
        nix::unistd::mkfifo(&dir.join("pipe.yaml"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    });
    let state = followed.until_pods(&["good"], 4).await;
    let names = ["dangling.yaml", "huge.yaml", "latin.yaml", "pipe.yaml"];
    let problems = state.problems.iter().zip(names);
    let messages: Vec<_> = problems
        .map(|(problem, name)| followed.message(problem, name))
        .collect();
    assert_eq!(
        messages,
        [
            "cannot be read: No such file or directory (os error 2)",
            "larger than 8 MiB",
            "not UTF-8 text from byte 7 on",
            "not a regular file"
        ]
    );
}

#[tokio::test]
async fn a_removed_file_takes_its_objects_along() {
    let mut followed = Followed::new(|dir| {
        fs::write(dir.join("a.yaml"), pod("a")).unwrap();
        fs::write(dir.join("b.yaml"), pod("b")).unwrap();
    });
    followed.until_pods(&["a", "b"], 0).await;
    fs::remove_file(followed.path("a.yaml")).unwrap();
    followed.until_pods(&["b"], 0).await;
}

#[tokio::test]
async fn a_mounted_config_map_changes_all_at_once() {
    let mut followed = Followed::new(|dir| {
        fs::create_dir(dir.join("..v1")).unwrap();
        fs::write(dir.join("..v1/a.yaml"), pod("one")).unwrap();
        symlink("..v1", dir.join("..data")).unwrap();
        symlink("..data/a.yaml", dir.join("a.yaml")).unwrap();
    });
    followed.until_pods(&["one"], 0).await;
    fs::create_dir(followed.path("..v2")).unwrap();
    fs::write(followed.path("..v2/a.yaml"), pod("two")).unwrap();
    symlink("..v2", followed.path("..data_tmp")).unwrap();
    fs::rename(followed.path("..data_tmp"), followed.path("..data")).unwrap();
    followed.until_pods(&["two"], 0).await;
    assert_eq!(followed.views, 2);
}

#[tokio::test]
async fn the_first_of_two_files_counts() {
    let with_uid = |uid: &str| pod("a").replace("name: a", &format!("name: a, uid: {uid}"));
    let mut followed = Followed::new(|dir| {
        fs::write(dir.join("1.yaml"), format!("{}---\n{}", with_uid("u1"), with_uid("u2"))).unwrap();
        fs::write(dir.join("2.yaml"), with_uid("u2")).unwrap();
        fs::write(dir.join("3.yaml"), "kind: Node\nmetadata: {name: n1}").unwrap();
        fs::write(dir.join("4.yaml"), "kind: Node\nmetadata: {name: n2}").unwrap();
    });
    let state = followed.until_pods(&["a", "a"], 2).await;
    assert_eq!(
        state.problems[0],
        format!(
            "{}: Pod default/a is described by 1.yaml already, which applies",
            followed.path("2.yaml").display()
        )
    );
    assert_eq!(
        followed.message(&state.problems[1], "4.yaml"),
        "the Node is described by 3.yaml already, which applies"
    );
    assert_eq!(state.view.as_ref().unwrap().node.as_ref().unwrap().metadata.name, "n1");
    fs::remove_file(followed.path("1.yaml")).unwrap();
    followed.until_pods(&["a"], 1).await;
}

#[tokio::test]
async fn a_vanished_directory_keeps_its_last_state() {
    let mut followed = Followed::new(|dir| fs::write(dir.join("a.yaml"), pod("a")).unwrap());
    followed.until_pods(&["a"], 0).await;
    let (directory, away) = (
        followed.root.path().join("manifests"),
        followed.root.path().join("away"),
    );
    fs::rename(&directory, &away).unwrap();
    let state = followed.until_pods(&["a"], 1).await;
    assert!(state.problems[0].starts_with(&format!("{}: ", directory.display())));
    fs::remove_dir_all(&away).unwrap();

    fs::create_dir(&directory).unwrap();
    followed.rename_into("b.yaml", &pod("b"));
    followed.until_pods(&["b"], 0).await;
    // The new directory is watched like the old one.
    followed.rename_into("b.yaml", &pod("c"));
    followed.until_pods(&["c"], 0).await;
}

#[tokio::test]
async fn a_burst_of_files_arrives_in_few_states() {
    let mut followed = Followed::new(|_| {});
    followed.until(|state| state.view.is_some()).await;
    for index in 0..300 {
        followed.rename_into(&format!("{index:03}.yaml"), &pod(&format!("p{index:03}")));
    }
    followed.until(|state| names(state).len() == 300).await;
    assert!(followed.views < 300, "{}", followed.views);
}

#[tokio::test]
async fn what_changes_nothing_wakes_nobody() {
    let mut followed = Followed::new(|dir| fs::write(dir.join("a.yaml"), pod("a")).unwrap());
    followed.until_pods(&["a"], 0).await;
    followed.rename_into("a.yaml", &format!("# a comment\n{}", pod("a")));
    followed.rename_into("notes.txt", "nothing");
    followed.rename_into("b.yaml", &pod("b"));
    followed.until_pods(&["a", "b"], 0).await;
    assert_eq!(followed.views, 2);
}

#[tokio::test]
async fn without_inotify_the_directory_is_polled() {
    let deaf = |mut source: DirectorySource| {
        source.notifier = None;
        source.poll = Duration::from_millis(1);
        source
    };
    let mut followed = Followed::with(|_| {}, deaf);
    followed.until(|state| state.view.is_some()).await;
    followed.rename_into("a.yaml", &pod("a"));
    followed.until_pods(&["a"], 0).await;
    // The same length within one tick of the file system's clock.
    fs::write(followed.path("a.yaml"), pod("b")).unwrap();
    followed.until_pods(&["b"], 0).await;
}
