use serde_json::{Value, json};

use super::*;
use crate::model::{ContainerId, MemoryLimit, Resource, Target};
use crate::observe::log::LogFormat;
use crate::observe::log::tests::logged;
use crate::plan::WriteScope;
use crate::reconcile::desired::{BurstStart, Denied, InForce, Recommended, TemporaryLimit};
use crate::reconcile::overrides::Override;

fn web() -> SavedPod {
    let pod = PodId {
        uid: "u1".into(),
        namespace: "default".to_owned(),
        name: "web".to_owned(),
    };
    let desired = DesiredState {
        returning: true,
        ..DesiredState::default()
    };
    SavedPod {
        pod,
        described: Some(Arc::default()),
        state: SavedTargets {
            desired,
            resize: Resize::default(),
        },
        failed_shrinks: FailedShrinks::default(),
        pauses: BTreeMap::new(),
        waits: None,
        evidence_at: BTreeMap::new(),
    }
}

fn saved() -> SavedPods {
    BTreeMap::from([("u1".into(), Arc::new(web()))])
}

#[test]
fn what_is_saved_is_loaded() {
    let directory = tempfile::tempdir().unwrap();
    let file = StateFile::in_directory(&directory.path().join("new")).unwrap();
    assert_eq!(file.load().unwrap(), Restored::default());
    file.save(saved()).unwrap();
    assert_eq!(
        file.load().unwrap(),
        Restored {
            pods: saved(),
            problem: None
        }
    );
}

#[test]
fn each_part_of_a_pod_is_saved() {
    let (at, amounts) = (Timestamp::UNIX_EPOCH, || {
        let list = json!([{"name": "app", "requests": {"cpu": "100m"}, "limits": {"memory": "64Mi"}}]);
        serde_json::from_value::<PodAmounts>(list).unwrap()
    });
    let mut full = web();
    full.failed_shrinks.note(&Target::Pod, MemoryLimit::Max, "it hurt", at);
    let pause = json!({"until": at, "times": 2, "limits": {"memory": "64Mi"}, "denied": 5, "why": "a quota"});
    full.pauses.insert("app".into(), serde_json::from_value(pause).unwrap());
    full.evidence_at.insert("app".into(), at);
    full.waits = Some(CanaryWait {
        since: at,
        targets: amounts(),
    });
    let desired = &mut full.state.desired;
    desired.return_to(amounts());
    desired.recommended = Some(Recommended {
        vpa: Some("web".to_owned()),
        at,
        targets: amounts(),
        in_force: InForce::Recommended,
    });
    desired.overridden = Some(Override {
        uid: 7,
        pid: 8,
        reason: "a test".to_owned(),
        since: at,
        until: Some(at),
        values: amounts(),
    });
    let limit = TemporaryLimit::given("app".to_owned(), Resource::Memory, (1, 2), "full".to_owned(), at);
    desired.temporary = vec![TemporaryLimit {
        denied: Some(Denied {
            ends: at,
            why: "a quota".to_owned(),
        }),
        exceeded: true,
        ..limit
    }];
    desired.before = Some(amounts().containers[0].resources.requests);
    desired.burst = Some("20%".parse().unwrap());
    let start = BurstStart {
        id: ContainerId::of_test("a1"),
        at,
        throttled_us: 3,
        before: Some(4),
    };
    desired.burst_starts.insert("app".into(), start);
    desired.resized = true;
    desired.scope = WriteScope {
        resources: [Resource::Memory].into(),
        ..WriteScope::default()
    };
    let directory = tempfile::tempdir().unwrap();
    let file = StateFile::in_directory(directory.path()).unwrap();
    let pods = BTreeMap::from([("u1".into(), Arc::new(full))]);
    file.save(pods.clone()).unwrap();
    assert_eq!(file.load().unwrap().pods, pods);
}

/// A store with what an earlier agent has saved in this directory.
fn store(directory: &Path) -> Store {
    let restored = Restored {
        pods: saved(),
        problem: None,
    };
    let file = StateFile::in_directory(directory).unwrap();
    Store::start(file, restored, LimitFiles::below(directory).unwrap().0)
}

/// The UIDs in the file, once all content is saved.
async fn written(store: &Store, directory: &Path) -> Vec<String> {
    drop(store.saved().await);
    let pods = StateFile::in_directory(directory).unwrap().load().unwrap().pods;
    pods.into_keys().map(|uid| uid.to_string()).collect()
}

fn another() -> SavedPod {
    let mut another = web();
    another.pod.uid = "u2".into();
    another
}

fn save(store: &mut Store, pod: Option<SavedPod>) {
    store.replace([(another().pod, pod)].into(), true);
    store.save();
}

#[tokio::test]
async fn pods_not_found_yet_stay_saved() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = store(directory.path());
    store.due = Some(Instant::now());
    save(&mut store, Some(another()));
    assert_eq!(written(&store, directory.path()).await, ["u1", "u2"]);
    let SavedPod { pod: id, .. } = web();
    let namesake = PodId {
        name: "db".to_owned(),
        ..id.clone()
    };
    assert_eq!(store.take_saved(&namesake), None, "it claims another pod's UID");
    store.retain(|_| true);
    assert_eq!(store.due, None);
    assert_eq!(store.take_saved(&id), Some(web()));
    assert_eq!(store.take_saved(&id), None);
    assert!(store.due.is_some(), "the next save has the pod or not");
    save(&mut store, Some(another()));
    assert_eq!(written(&store, directory.path()).await, ["u2"]);
    store.finish(LONGEST_SAVE_WAIT).await;
}

#[tokio::test]
async fn pods_that_are_gone_leave_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = store(directory.path());
    store.retain(|_| false);
    save(&mut store, Some(another()));
    assert_eq!(written(&store, directory.path()).await, ["u2"]);
    // Nothing has changed, or only what can wait.
    save(&mut store, None);
    let due = store.due.unwrap();
    save(&mut store, None);
    assert_eq!(store.due, Some(due));
    assert_eq!(written(&store, directory.path()).await, ["u2"]);
    store.due = Some(Instant::now());
    save(&mut store, None);
    assert_eq!(store.due, None);
    assert_eq!(written(&store, directory.path()).await, [""; 0]);
    store.finish(LONGEST_SAVE_WAIT).await;
}

#[tokio::test]
async fn a_renamed_pod_outlasts_its_earlier_name() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = store(directory.path());
    // The manifest of a static pod may have a UID, and get another name.
    let mut renamed = web();
    renamed.pod.name = "web-2".to_owned();
    store.replace([(renamed.pod.clone(), Some(renamed))].into(), false);
    store.retain(|_| false);
    store.save();
    assert_eq!(written(&store, directory.path()).await, ["u1"]);
    store.finish(LONGEST_SAVE_WAIT).await;
}

#[tokio::test]
async fn a_hanging_disk_does_not_hold_the_agent() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = store(directory.path());
    store.task = tokio::spawn(std::future::pending());
    store.finish(Duration::from_millis(10)).await;
}

#[tokio::test]
async fn a_failed_save_is_reported_and_repeated() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = store(directory.path());
    let beside = directory.path().join("state.json.new");
    fs::create_dir(&beside).unwrap();
    store.due = Some(Instant::now());
    save(&mut store, Some(another()));
    assert_eq!(written(&store, directory.path()).await, [""; 0]);
    let problems: Vec<_> = store.problems().collect();
    assert!(
        matches!(&problems[..], [problem] if problem.contains("stateDir")),
        "{problems:?}"
    );
    assert_eq!(store.saved().await, Err(problems[0].clone()));
    fs::remove_dir(&beside).unwrap();
    store.retry_failed();
    save(&mut store, Some(another()));
    assert_eq!(written(&store, directory.path()).await, ["u1", "u2"]);
    assert_eq!((store.problems().count(), store.saved().await), (0, Ok(())));
    store.retry_failed();
    assert_eq!(store.due, None);
    store.finish(LONGEST_SAVE_WAIT).await;
}

#[test]
fn a_problem_that_stays_is_logged_once() {
    let lines = logged(LogFormat::Text, "info", |_| {
        let progress = watch::Sender::new(SaveProgress::default());
        let note = |number, has_ended, problem: Option<&str>| {
            note_saved(&progress, number, has_ended, problem.map(str::to_owned));
            let progress = progress.borrow();
            (progress.done, progress.problem.clone())
        };
        let full = || Some("full".to_owned());
        assert_eq!(note(1, true, Some("full")), (1, full()));
        assert_eq!(note(2, false, Some("full")), (1, full()), "the disk hangs");
        assert_eq!(note(2, true, Some("full")), (2, full()));
        assert_eq!(note(3, true, None), (3, None));
        assert_eq!(note(3, false, Some("full")), (3, None), "too late");
        assert_eq!(note(4, false, Some("slow")), (3, Some("slow".to_owned())));
        assert_eq!(note(4, true, Some("full")), (4, full()));
        assert_eq!(note(5, false, Some("slow")), (4, full()), "it will fail again");
        assert_eq!(note(5, true, Some("full")), (5, full()));
    });
    assert_eq!(lines.lines().count(), 3, "{lines}");
}

/// Memory limits in MiB of what the spec has, before which the agent requested 256.
#[test]
fn only_recommendations_outlast_the_last_agent() {
    let limited = |mib: u64| json!({"requests": {"memory": "64Mi"}, "limits": {"memory": format!("{mib}Mi")}});
    let named = |mib: u64| {
        let mut named = limited(mib);
        named["name"] = "app".into();
        json!([named])
    };
    let left = |desired: Value, spec: u64| {
        let mut state = desired;
        state["asked"] = json!({"targets": named(256), "generation": 2, "held": named(256), "before": named(256)});
        let saved = SavedPod {
            state: serde_json::from_value(state).unwrap(),
            ..web()
        };
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "web", "uid": "u1", "generation": 2},
            "spec": {"containers": [{"name": "app", "resources": limited(spec)}]},
            "status": {"observedGeneration": 2, "containerStatuses": [{"name": "app", "resources": limited(spec)}]},
        }))
        .unwrap();
        let own = saved.without_own_requests(&pod, Timestamp::UNIX_EPOCH)?;
        own.limit("app", Resource::Memory).map(|limit| limit >> 20)
    };
    let since = Timestamp::UNIX_EPOCH;
    let by_hand = json!({"uid": 0, "pid": 1, "reason": "", "since": since, "until": null, "values": named(256)});
    let temporary = json!([{
        "container": "app", "resource": "memory", "from": 128 << 20, "to": 256 << 20, "since": since,
        "renewed": since, "why": "",
    }]);
    let recommended = |mib| json!({"vpa": "web", "at": since, "targets": named(mib), "inForce": "recommended"});
    let origin = named(128);
    assert_eq!(left(json!({"overridden": by_hand, "origin": origin}), 256), Some(128));
    assert_eq!(left(json!({"leases": temporary, "origin": origin}), 256), Some(128));
    assert_eq!(left(json!({"returning": true, "origin": origin}), 256), Some(128));
    let both = json!({"overridden": by_hand, "origin": origin, "recommended": recommended(200)});
    assert_eq!(left(both, 256), Some(200));
    assert_eq!(left(json!({"recommended": recommended(256)}), 256), None);
    assert_eq!(
        left(json!({"overridden": by_hand, "origin": origin}), 300),
        None,
        "another client's"
    );
}

#[test]
fn what_is_not_understood_is_set_aside_and_kept() {
    let directory = tempfile::tempdir().unwrap();
    let file = StateFile::in_directory(directory.path()).unwrap();
    for broken in ["{\"version\":1,\"pods\":{", "{\"version\":0,\"pods\":{}}"] {
        fs::write(&file.path, broken).unwrap();
        let problem = file.load().unwrap().problem.unwrap();
        let aside = directory.path().join("state.json.set-aside");
        assert_eq!(fs::read_to_string(&aside).unwrap(), broken);
        assert!(problem.contains(&aside.display().to_string()), "{problem}");
        assert_eq!(file.load().unwrap(), Restored::default());
    }
}

#[test]
fn what_a_newer_agent_wrote_is_an_error_and_stays() {
    let directory = tempfile::tempdir().unwrap();
    let file = StateFile::in_directory(directory.path()).unwrap();
    let newer = "{\"version\":2,\"pods\":[\"another shape\"]}";
    fs::write(&file.path, newer).unwrap();
    let error = file.load().unwrap_err().to_string();
    assert!(error.contains("version 2, this one knows up to 1"), "{error}");
    assert_eq!(fs::read_to_string(&file.path).unwrap(), newer);
}

/// Files that agents of version 0.1 left (tests/data/state): read, kept whole, and written so that 0.1 reads them.
#[test]
fn what_the_version_before_left_is_carried_over() {
    let recorded = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/state/0.1");
    let mut names = Vec::new();
    for entry in fs::read_dir(recorded).unwrap() {
        let entry = entry.unwrap();
        let directory = tempfile::tempdir().unwrap();
        let file = StateFile::in_directory(directory.path()).unwrap();
        fs::copy(entry.path(), &file.path).unwrap();
        let restored = file.load().unwrap();
        assert_eq!(restored.problem, None, "{}", entry.path().display());
        file.save(restored.pods).unwrap();
        let value = |path: &Path| serde_json::from_slice::<Value>(&fs::read(path).unwrap()).unwrap();
        assert_eq!(value(&file.path), value(&entry.path()), "{}", entry.path().display());
        names.push(entry.file_name());
    }
    assert_eq!(names.len(), 5, "{names:?}");
}

#[tokio::test]
async fn what_somebody_waits_for_is_urgent() {
    let directory = tempfile::tempdir().unwrap();
    let (limit_files, _) = LimitFiles::below(directory.path()).unwrap();
    let file = StateFile::in_directory(directory.path()).unwrap();
    let mut store = Store::start(file, Restored::default(), limit_files);
    let is_urgent = |store: &Store| store.progress.borrow().is_urgent();
    store.due = Some(Instant::now());
    save(&mut store, Some(another()));
    assert!(!is_urgent(&store));
    let settled = store.saved();
    assert!(is_urgent(&store));
    assert_eq!(settled.await, Ok(()));
    assert!(!is_urgent(&store) && directory.path().join(FILE_NAME).exists());
}

#[test]
fn a_failed_write_keeps_the_earlier_content() {
    let directory = tempfile::tempdir().unwrap();
    let file = StateFile::in_directory(directory.path()).unwrap();
    file.save(saved()).unwrap();
    // A directory in the place of the file beside makes the write fail, also for root.
    fs::create_dir(directory.path().join("state.json.new")).unwrap();
    let error = file.save(BTreeMap::new()).unwrap_err().to_string();
    assert!(error.starts_with("write ") && error.contains("stateDir"), "{error}");
    assert_eq!(file.load().unwrap().pods, saved());
}
