//! Events on their way to the API server.

use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::http::{Method, StatusCode, Uri};
use jiff::SignedDuration;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use tokio::sync::{Barrier, Notify, mpsc};
use tokio_util::sync::CancellationToken;

use super::retries::{FIRST_RETRY, LONGEST_RETRY};
use super::*;
use crate::feed::Feed;
use crate::kubernetes::Status;
use crate::kubernetes::events::{OF_A_POD, Severity, Topic};
use crate::model::objects::PodId;
use crate::observe::log::LogFormat;
use crate::observe::log::tests::logged;
use crate::oom::{Confidence, Role};
use crate::report::Reporter;
use crate::report::events::{PodEvents, VpaEvents, pod_id};
use crate::report::log::{Bounds, KillLog};
use crate::report::metrics::ReportMetrics;
use crate::report::testing::{NoPods, kill_of};

/// Events about the kills of a log in this directory.
fn kill_events(directory: &Path) -> (Reporter, KillEvents) {
    let plan = PodEvents::new(usize::MAX);
    planned_by(Box::new(plan), Destination::PodEvents, directory)
}

fn planned_by(plan: Box<dyn EventPlan>, destination: Destination, directory: &Path) -> (Reporter, KillEvents) {
    let (log, _) = KillLog::open(directory, Bounds::default(), destination.into());
    let metrics = ReportMetrics::register(&mut Registry::default(), log.totals());
    let reporter = Reporter::start(log, &metrics, &CancellationToken::new());
    let kills = KillEvents::new(reporter.queue(destination), plan);
    (reporter, kills)
}

#[tokio::test]
async fn a_namespace_leaves_others_room_in_the_window() {
    let directory = tempfile::tempdir().unwrap();
    let (reporter, mut kills) = kill_events(directory.path());
    let mut flood: Vec<Report> = (1..=600).map(|number| kill_of("web", number).into()).collect();
    let mut other = kill_of("db", 601);
    other.facts.pod.as_mut().unwrap().namespace = "bank".to_owned();
    flood.push(other.into());
    reporter.commit(flood, None).await;
    kills.take_in(&NoPods::Known).await;
    assert_eq!(kills.window.lock().held.len(), 448 + 1);
    kills.acknowledge((1..=448).collect()).await;
    kills.take_in(&NoPods::Known).await;
    assert_eq!(kills.window.lock().held.len(), 153, "what was left out has room now");
}

#[tokio::test]
async fn only_reports_an_earlier_event_lacks_come_again() {
    let directory = tempfile::tempdir().unwrap();
    let (reporter, mut kills) = kill_events(directory.path());
    let mut reports: Vec<Report> = (1..=3).map(|number| kill_of("web", number).into()).collect();
    reports.push(kill_of("db", 4).into());
    reporter.commit(reports, None).await;
    kills.take_in(&NoPods::Known).await;
    let now = Instant::now();
    let mut rates = EventRates::new(now);
    let web = kills.next("shop", &mut rates, &NoPods::Known, now).await.unwrap();
    let db = kills.next("shop", &mut rates, &NoPods::Known, now).await.unwrap();
    assert_eq!((web.numbers(), db.numbers()), (vec![1, 2, 3], vec![4]));
    let instead = kills.end(web, Ok(Posted::Existed { count: 2 })).await;
    assert!(instead.is_none());
    kills.take_in(&NoPods::Known).await;
    let again = kills.next("shop", &mut rates, &NoPods::Known, now).await.unwrap();
    assert_eq!(again.numbers(), [3]);
    assert!(kills.plan.due(now).is_empty(), "the other Event is under way");
}

#[tokio::test]
async fn earlier_events_are_known_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("vpa-events.json");
    let mut plan = VpaEvents::new(SignedDuration::from_mins(10), read_memory(&path), path.clone());
    let pending = |pod: &str, number| Pending {
        number,
        report: kill_of(pod, number).into(),
    };
    let facts = ContainerFacts {
        regular: true,
        vpa: true,
        pinned: false,
        survived: Some(true),
    };
    for (pod, number) in [("web", 1), ("db", 2)] {
        plan.decide(&pending(pod, number), facts, Timestamp::now()).unwrap();
    }
    let (_, told) = plan.ended(&[1]).unwrap();
    assert_eq!(told.len(), 1, "an Event under way would be lost with the agent");
    keep(path.clone(), told.clone()).await;
    assert_eq!(read_memory(&path), told);
    let other = pending("db", 2).report;
    let next = VpaEvents::new(SignedDuration::from_mins(10), read_memory(&path), path.clone());
    assert_eq!(next.screen(&other, Timestamp::now()), Ok(()), "the next agent sends it");
    fs::write(&path, "[{").unwrap();
    assert_eq!(read_memory(&path), []);
}

fn message(namespace: &str, pod: usize) -> NamedEvent {
    NamedEvent {
        subject: Subject::Pod(PodReference {
            pod: PodId {
                uid: format!("{namespace}{pod}").as_str().into(),
                namespace: namespace.to_owned(),
                name: "web".to_owned(),
            },
            container: None,
            init: false,
        }),
        severity: Severity::Normal,
        reason: "ResourcesResized",
        ..NamedEvent::default()
    }
}

/// An Event about a change of a pod of this namespace.
pub(super) fn outgoing(namespace: &str, count: u64) -> PlannedEvent {
    let event = NamedEvent {
        name: "web".to_owned(),
        count,
        ..message(namespace, 0)
    };
    PlannedEvent::new(event, Vec::new())
}

/// An outbox with one message of each of these namespaces.
fn outbox(router: &Router, namespaces: &[&str]) -> Outbox {
    let mut changes = ChangeEvents::new(EventMetrics::register(&mut Registry::default()));
    for (pod, namespace) in namespaces.iter().enumerate() {
        changes.keep(message(namespace, pod));
    }
    Outbox {
        client: ApiClient::to(router),
        node: "node-1".to_owned(),
        metadata: Arc::new(NoPods::Known),
        changes,
        kills: Vec::new(),
    }
}

fn turns() -> Turns {
    Turns {
        rates: EventRates::new(Instant::now()),
        retries: Retries::default(),
        is_away: false,
        new_first: false,
    }
}

/// The namespace of the next Event, whose attempt is under way then.
async fn begun(outbox: &mut Outbox, turns: &mut Turns) -> Option<String> {
    let next = outbox.begin(turns, Instant::now()).await;
    next.map(|next| next.namespace().to_owned())
}

/// The namespace in the path of a call.
fn namespace_in(uri: &Uri) -> String {
    uri.path().split('/').nth(4).unwrap().to_owned()
}

#[tokio::test]
async fn one_event_waits_in_an_outage() {
    let calls = Arc::<AtomicUsize>::default();
    let counted = Arc::clone(&calls);
    let router = Router::new().fallback(async move |_: Uri| {
        counted.fetch_add(1, Ordering::Relaxed);
        StatusCode::SERVICE_UNAVAILABLE
    });
    let outbox = outbox(&router, &["a", "b", "c", "d", "e", "f"]);
    outbox.client.health.observe::<()>(&Err(Problem::Timeout(PATIENCE)));
    let taken = Feed::default().listen();
    assert!(tokio::time::timeout(FIRST_RETRY / 4, outbox.run(taken)).await.is_err());
    assert_eq!(calls.load(Ordering::Relaxed), 1, "and not one of each namespace");
}

#[tokio::test]
async fn new_events_take_turns_with_those_that_are_sent_again() {
    let (mut outbox, mut turns) = (outbox(&Router::new(), &["shop", "bank"]), turns());
    let outcome = ReportOutcome::SentAgain;
    for count in 1..=2 {
        let refused = outgoing("shop", count);
        turns.retries.push(PlannedEvent { outcome, ..refused });
    }
    let mut sent = Vec::new();
    while let Some(next) = outbox.begin(&mut turns, Instant::now()).await {
        sent.push((next.namespace().to_owned(), next.outcome == outcome));
        outbox.end(next, Ok(Posted::Created), &mut turns).await;
    }
    let sent: Vec<_> = sent
        .iter()
        .map(|(namespace, again)| (namespace.as_str(), *again))
        .collect();
    assert_eq!(sent, [("shop", true), ("bank", false), ("shop", true), ("shop", false)]);
}

#[tokio::test]
async fn namespaces_take_turns() {
    let (mut outbox, mut turns) = (outbox(&Router::new(), &[]), turns());
    for count in 0..3 {
        turns.retries.push(outgoing("bank", count));
        turns.retries.push(outgoing("shop", count));
    }
    let mut sent = Vec::new();
    while let Some(next) = outbox.begin(&mut turns, Instant::now()).await {
        sent.push((next.namespace().to_owned(), next.event.count));
        outbox.end(next, Ok(Posted::Created), &mut turns).await;
    }
    let expected = (0..3).flat_map(|count| ["bank", "shop"].map(|namespace| (namespace.to_owned(), count)));
    assert_eq!(sent, expected.collect::<Vec<_>>());
}

#[tokio::test]
async fn refused_namespaces_leave_every_second_turn() {
    let (mut outbox, mut turns) = (outbox(&Router::new(), &["shop"; 3]), turns());
    for namespace in ["a", "b", "c"] {
        let (outcome, refused) = (ReportOutcome::SentAgain, outgoing(namespace, 1));
        turns.retries.push(PlannedEvent { outcome, ..refused });
    }
    let mut sent = Vec::new();
    while let Some(next) = outbox.begin(&mut turns, Instant::now()).await {
        sent.push(next.namespace().to_owned());
        outbox.end(next, Ok(Posted::Created), &mut turns).await;
    }
    assert_eq!(sent, ["a", "shop", "b", "shop", "c", "shop"]);
}

#[tokio::test]
async fn a_refused_kind_delays_no_other_kind() {
    let (mut outbox, mut turns) = (outbox(&Router::new(), &["shop"]), turns());
    let destination = Some(Destination::VpaEvents);
    turns.retries.push(PlannedEvent {
        destination,
        ..outgoing("shop", 1)
    });
    for expected in [None, destination] {
        let next = outbox.begin(&mut turns, Instant::now()).await.unwrap();
        assert_eq!(next.destination, expected);
        turns.rates.end("shop", Instant::now(), Instant::now());
    }
}

#[tokio::test]
async fn each_kind_waits_with_one_event() {
    let (mut outbox, mut turns) = (outbox(&Router::new(), &["shop"]), turns());
    let destination = Some(Destination::VpaEvents);
    turns.retries.push(outgoing("bank", 1));
    turns.retries.push(PlannedEvent {
        destination,
        ..outgoing("shop", 1)
    });
    turns.is_away = true;
    for expected in [None, destination] {
        let next = outbox.begin(&mut turns, Instant::now()).await.unwrap();
        assert_eq!(next.destination, expected, "in an outage");
    }
}

#[tokio::test]
async fn what_exceeds_a_rate_is_tried_again() {
    let directory = tempfile::tempdir().unwrap();
    let (reporter, mut kills) = kill_events(directory.path());
    let (mut outbox, mut turns, now) = (outbox(&Router::new(), &[]), turns(), Instant::now());
    let subject = Subject::Pod(PodReference {
        pod: pod_id(kill_of("web", 1).facts.pod.as_ref().unwrap()),
        container: None,
        init: false,
    });
    while turns.rates.try_use(&subject, Topic::Kill, false, now) {}
    reporter.commit(vec![kill_of("web", 1).into()], None).await;
    kills.take_in(&NoPods::Known).await;
    outbox.kills.push(kills);
    assert!(outbox.begin(&mut turns, now).await.is_none());
    assert_eq!(outbox.ready_at(&turns, now), Some(now + TRY_AGAIN));
    assert!(outbox.begin(&mut turns, now + OF_A_POD.every).await.is_some());
    assert_eq!(outbox.ready_at(&turns, now), None);
}

#[tokio::test]
async fn reports_without_an_event_leave_room_for_all() {
    let directory = tempfile::tempdir().unwrap();
    let (log, _) = KillLog::open(directory.path(), Bounds::default(), Destination::VpaEvents.into());
    let metrics = ReportMetrics::register(&mut Registry::default(), log.totals());
    let reporter = Reporter::start(log, &metrics, &CancellationToken::new());
    let reports = (1..=600).map(|number| {
        let mut kill = kill_of("web", number);
        kill.confidence = Confidence::Ambiguous;
        kill.into()
    });
    reporter.commit(reports.collect(), None).await;
    let plan = VpaEvents::new(
        SignedDuration::ZERO,
        Vec::new(),
        directory.path().join("vpa-events.json"),
    );
    let mut outbox = outbox(&Router::new(), &[]);
    outbox.kills = vec![KillEvents::new(reporter.queue(Destination::VpaEvents), Box::new(plan))];
    let mut status = reporter.status();
    tokio::select! {
        never = outbox.run(Feed::default().listen()) => match never {},
        withheld = status.wait_for(|status| status.reports == 0) => drop(withheld.unwrap()),
    }
}

#[tokio::test]
async fn a_flood_of_kills_delays_no_other_namespaces_changes() {
    let directory = tempfile::tempdir().unwrap();
    let (reporter, mut kills) = kill_events(directory.path());
    let flood = ["web", "db", "api"].iter().zip(1..);
    let flood = flood.map(|(pod, number)| kill_of(pod, number).into());
    reporter.commit(flood.collect(), None).await;
    kills.take_in(&NoPods::Known).await;
    let (mut outbox, mut turns) = (outbox(&Router::new(), &["shop", "bank", "bank"]), turns());
    outbox.kills.push(kills);
    let mut sent = Vec::new();
    while let Some(next) = outbox.begin(&mut turns, Instant::now()).await {
        sent.push((next.namespace().to_owned(), next.destination.is_some()));
        outbox.end(next, Ok(Posted::Created), &mut turns).await;
    }
    let sent: Vec<_> = sent
        .iter()
        .map(|(namespace, is_kill)| (namespace.as_str(), *is_kill))
        .collect();
    let (kill, bank) = (("shop", true), ("bank", false));
    assert_eq!(sent, [kill, bank, kill, bank, kill, ("shop", false)]);
}

#[tokio::test]
async fn what_waited_for_its_turn_delays_nothing_new() {
    let (mut outbox, mut turns) = (outbox(&Router::new(), &["bank"]), turns());
    for count in 1..=2 {
        turns.retries.push(outgoing("shop", count));
    }
    let shop = outbox.begin(&mut turns, Instant::now()).await.unwrap();
    outbox.end(shop, Ok(Posted::Created), &mut turns).await;
    assert_eq!(begun(&mut outbox, &mut turns).await.as_deref(), Some("bank"));
}

#[tokio::test]
async fn a_slow_namespace_delays_no_other() {
    // The API server answers about the slow one once it has been asked about all Events of the other.
    let (calls, others) = (AtomicUsize::new(0), Notify::new());
    let (answers, mut answered) = mpsc::channel(9);
    let shared = Arc::new((calls, others, answers));
    let router = Router::new().fallback(async move |uri: Uri| {
        let (calls, others, answers) = &*shared;
        let number = calls.fetch_add(1, Ordering::Relaxed) + 1;
        if namespace_in(&uri) == "slow" {
            others.notified().await;
            answers.send(number).await.unwrap();
        } else if number == 4 {
            others.notify_one();
        }
        (StatusCode::CREATED, "{}")
    });
    let outbox = outbox(&router, &["slow", "slow", "bank", "bank", "bank"]);
    let taken = Feed::default().listen();
    tokio::select! {
        never = outbox.run(taken) => match never {},
        number = answered.recv() => assert!(number.unwrap() < 4, "the slow one was given up"),
    }
}

#[tokio::test]
async fn slow_namespaces_have_all_attempts() {
    let (calls, barrier) = (Arc::<AtomicUsize>::default(), Arc::new(Barrier::new(AT_ONCE)));
    let (counted, done) = (Arc::clone(&calls), Arc::new(Notify::new()));
    let all = Arc::clone(&done);
    let router = Router::new().fallback(async move |_: Uri| {
        // Nothing is answered before all attempts are under way.
        let is_last = counted.fetch_add(1, Ordering::Relaxed) + 1 == 2 * AT_ONCE;
        barrier.wait().await;
        if is_last {
            all.notify_one();
        }
        (StatusCode::CREATED, "{}")
    });
    let outbox = outbox(&router, &["a", "b", "c", "d", "e", "f", "g", "h"]);
    let taken = Feed::default().listen();
    tokio::select! {
        never = outbox.run(taken) => match never {},
        () = tokio::time::sleep(PATIENCE) => panic!("{calls:?} attempts at once"),
        () = done.notified() => {}
    }
    assert_eq!(calls.load(Ordering::Relaxed), 2 * AT_ONCE);
}

#[tokio::test]
async fn a_namespace_has_one_attempt_at_a_time() {
    let (mut outbox, mut turns) = (outbox(&Router::new(), &["slow", "slow", "slow", "bank"]), turns());
    let slow = outbox.begin(&mut turns, Instant::now()).await.unwrap();
    assert_eq!(slow.namespace(), "slow");
    assert_eq!(begun(&mut outbox, &mut turns).await.as_deref(), Some("bank"));
    assert_eq!(begun(&mut outbox, &mut turns).await, None);
    assert_eq!(outbox.changes.limits.waiting().count(), 2);
    outbox.end(slow, Ok(Posted::Created), &mut turns).await;
    outbox.changes.keep(message("shop", 9));
    let third = begun(&mut outbox, &mut turns).await;
    assert_eq!(third.as_deref(), Some("shop"), "it waits longer than the slow one");
    assert_eq!(
        begun(&mut outbox, &mut turns).await.as_deref(),
        Some("slow"),
        "without a pause"
    );
}

#[tokio::test]
async fn a_flood_of_a_refused_namespace_stays_bounded() {
    let mut registry = Registry::default();
    let (mut outbox, mut turns) = (outbox(&Router::new(), &[]), turns());
    outbox.changes = ChangeEvents::new(EventMetrics::register(&mut registry));
    for pod in 0..QUEUE {
        outbox.changes.keep(message("shop", pod));
    }
    let now = Instant::now();
    let first = outbox.begin(&mut turns, now).await.unwrap();
    let (call, problem) = ("create events".to_owned(), Problem::Timeout(PATIENCE));
    outbox.end(first, Err(ApiError { call, problem }), &mut turns).await;
    assert!(outbox.begin(&mut turns, now).await.is_none(), "its namespace waits");
    let due = outbox.ready_at(&turns, now);
    assert!(due > Some(now) && due == turns.rates.next_at("shop"));
    outbox.changes.keep(message("shop", QUEUE));
    outbox.changes.keep(message("bank", 0));
    let of = |changes: &ChangeEvents, namespace: &str| {
        let waiting = changes.limits.waiting();
        waiting.filter(|(of, _)| *of == namespace).count()
    };
    assert_eq!(
        [of(&outbox.changes, "shop"), of(&outbox.changes, "bank")],
        [QUEUE - 1, 1]
    );
    let mut text = String::new();
    encode(&mut text, &registry).unwrap();
    assert!(text.contains("outcome=\"lost\"} 1\n"), "{text}");

    let later = Instant::now() + LONGEST_RETRY;
    let bank = outbox.begin(&mut turns, later).await.unwrap();
    assert_eq!(bank.namespace(), "bank");
    let again = outbox.begin(&mut turns, later).await.unwrap();
    assert!(
        again.namespace() == "shop" && again.outcome == ReportOutcome::SentAgain,
        "the others are behind the first"
    );
    assert!(outbox.begin(&mut turns, later).await.is_none());
    assert_eq!(of(&outbox.changes, "shop"), QUEUE - 1, "nothing else is lost");
    outbox.end(again, Ok(Posted::Created), &mut turns).await;
    assert!(outbox.begin(&mut turns, later).await.is_some());
}

#[tokio::test]
async fn only_the_count_of_a_change_is_raised() {
    let gone = r#"{"reason": "NotFound"}"#;
    for (destination, count, is_there, expected) in [
        (None, 1, true, "POST"),
        (None, 3, true, "PATCH"),
        (None, 3, false, "PATCH POST"),
        (Some(Destination::PodEvents), 3, true, "POST"),
    ] {
        let calls = Arc::<Mutex<Vec<String>>>::default();
        let seen = Arc::clone(&calls);
        let router = Router::new().fallback(async move |method: Method| {
            seen.lock().push(method.to_string());
            match is_there || method == Method::POST {
                true => (StatusCode::OK, "{}"),
                false => (StatusCode::NOT_FOUND, gone),
            }
        });
        let planned = PlannedEvent {
            destination,
            ..outgoing("shop", count)
        };
        let (sent, answer) = attempt(ApiClient::to(&router), "node-1".to_owned(), planned).await;
        assert!(answer.is_ok(), "{answer:?}");
        assert_eq!(calls.lock().join(" "), expected, "{destination:?} {count}");
        let is_now = sent.event.last > Timestamp::UNIX_EPOCH;
        assert_eq!(is_now, destination.is_none(), "a kill has its own time");
    }
}

fn refusal(code: u16) -> Problem {
    Problem::Refused(Status {
        code,
        ..Status::default()
    })
}

#[tokio::test]
async fn a_proxys_404_loses_no_change() {
    for (reason, waits) in [("", true), ("NotFound", false)] {
        let (mut outbox, mut turns) = (outbox(&Router::new(), &["shop"]), turns());
        let change = outbox.begin(&mut turns, Instant::now()).await.unwrap();
        let status = Status {
            code: 404,
            reason: reason.to_owned(),
            ..Status::default()
        };
        let (call, problem) = ("patch events".to_owned(), Problem::Refused(status));
        outbox.end(change, Err(ApiError { call, problem }), &mut turns).await;
        assert_eq!(turns.retries.hold(None, Some("shop")), waits, "{reason}");
    }
}

#[test]
fn a_missing_right_is_not_logged_for_each_event() {
    let changes = ChangeEvents::new(EventMetrics::register(&mut Registry::default()));
    let end = |problem| {
        let call = "create events in namespace shop".to_owned();
        changes.end(Err(ApiError { call, problem }));
    };
    let lines = logged(LogFormat::Text, "info", |_| {
        (0..3).for_each(|_| end(Problem::Forbidden("a rule".to_owned())));
        end(refusal(404));
    });
    let lines: Vec<_> = lines.lines().collect();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[0].contains("a rule") && lines[1].contains("404"), "{lines:?}");
}

#[test]
fn what_operators_can_mend_is_not_permanent() {
    for (code, expected) in [
        (302, false),
        (400, true),
        (401, false),
        (403, true),
        (404, false),
        (408, false),
        (409, false),
        (422, true),
        (429, false),
        (500, false),
        (503, false),
    ] {
        assert_eq!(is_permanent(&refusal(code)), expected, "{code}");
    }
    let gone = Status {
        code: 404,
        reason: "NotFound".to_owned(),
        ..Status::default()
    };
    assert!(is_permanent(&Problem::Refused(gone)), "its namespace");
    for problem in [
        Problem::Timeout(PATIENCE),
        Problem::Unreachable(String::new()),
        Problem::Forbidden(String::new()),
        Problem::Unreadable(String::new()),
    ] {
        assert!(!is_permanent(&problem), "{problem}");
    }
}

mod kills;
