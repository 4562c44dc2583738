//! Events on their way to the API server.

use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::http::{StatusCode, Uri};
use jiff::SignedDuration;
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::kubernetes::events::Severity;
use crate::model::objects::PodId;
use crate::report::Reporter;
use crate::report::events::{PodEvents, VpaEvents};
use crate::report::log::{Bounds, KillLog};
use crate::report::metrics::ReportMetrics;
use crate::report::testing::{NoPods, kill_of};

#[tokio::test]
async fn a_namespace_leaves_others_room_in_the_window() {
    let directory = tempfile::tempdir().unwrap();
    let (log, _) = KillLog::open(directory.path(), Bounds::default(), Destination::PodEvents.into());
    let metrics = ReportMetrics::register(&mut Registry::default(), log.totals());
    let reporter = Reporter::start(log, &metrics, &CancellationToken::new());
    let plan = Box::new(PodEvents::new(usize::MAX, Instant::now()));
    let mut kills = KillEvents::new(reporter.queue(Destination::PodEvents), plan);
    let mut flood: Vec<Report> = (1..=600).map(|number| kill_of("web", number).into()).collect();
    let mut other = kill_of("db", 601);
    other.facts.pod.as_mut().unwrap().namespace = "bank".to_owned();
    flood.push(other.into());
    reporter.commit(flood, None).await;
    kills.take_in(&NoPods).await;
    assert_eq!(kills.plan.waiting(), 448 + 1);
    kills.acknowledge((1..=448).collect()).await;
    kills.take_in(&NoPods).await;
    assert_eq!(kills.plan.waiting(), 601, "what was left out has room now");
}

#[tokio::test]
async fn earlier_events_are_known_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("vpa-events.json");
    let mut plan = VpaEvents::new(SignedDuration::from_mins(10), read_memory(&path), path.clone());
    let (number, report) = (1, kill_of("web", 1).into());
    let pending = Pending { number, report };
    let facts = ContainerFacts {
        regular: true,
        vpa: true,
        pinned: false,
        survived: Some(true),
    };
    plan.decide(&pending, facts, Timestamp::now()).unwrap();
    keep(&plan).await;
    assert_eq!(read_memory(&path).as_slice(), plan.memory().unwrap().1);
    assert_eq!(read_memory(&path).len(), 1);
    fs::write(&path, "[{").unwrap();
    assert_eq!(read_memory(&path), []);
}

fn message(namespace: &str, pod: usize) -> EventMessage {
    EventMessage {
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
        message: String::new(),
        continues: None,
    }
}

#[tokio::test]
async fn one_event_waits_in_an_outage() {
    let calls = Arc::<AtomicUsize>::default();
    let counted = Arc::clone(&calls);
    let router = Router::new().fallback(async move |_: Uri| {
        counted.fetch_add(1, Ordering::Relaxed);
        StatusCode::SERVICE_UNAVAILABLE
    });
    let mut changes = ChangeEvents::new(EventMetrics::register(&mut Registry::default()));
    (0..9).for_each(|namespace| changes.keep(message(&namespace.to_string(), 0)));
    let outbox = Outbox {
        client: ApiClient::to(&router),
        node: "node-1".to_owned(),
        metadata: Arc::new(NoPods),
        changes,
        kills: Vec::new(),
    };
    let (_records, taken) = broadcast::channel(1);
    assert!(tokio::time::timeout(FIRST_RETRY / 4, outbox.run(taken)).await.is_err());
    assert_eq!(calls.load(Ordering::Relaxed), 1, "and not one of each namespace");
}

#[tokio::test]
async fn new_events_take_turns_with_those_that_are_sent_again() {
    let namespaces = Arc::<Mutex<Vec<String>>>::default();
    let asked = Arc::clone(&namespaces);
    let router = Router::new().fallback(async move |uri: Uri| {
        asked.lock().extend(uri.path().split('/').nth(4).map(str::to_owned));
        (StatusCode::CREATED, "{}")
    });
    let mut changes = ChangeEvents::new(EventMetrics::register(&mut Registry::default()));
    let now = Instant::now();
    let mut rates = EventRates::new(now);
    changes.keep(message("shop", 0));
    let (refused, _) = changes.next(&mut rates, now, false).unwrap();
    changes.retries.again("shop", refused.clone(), now);
    changes.retries.again("shop", refused, now);
    changes.keep(message("shop", 1));
    assert!(changes.next(&mut rates, now, true).is_none(), "behind the first");
    assert_eq!(changes.retries.len(), 3);
    changes.keep(message("bank", 0));
    let mut outbox = Outbox {
        client: ApiClient::to(&router),
        node: "node-1".to_owned(),
        metadata: Arc::new(NoPods),
        changes,
        kills: Vec::new(),
    };
    let mut sent_again = false;
    for expected in [true, false, true, true] {
        sent_again = outbox.send_next(&mut rates, sent_again).await;
        assert_eq!(sent_again, expected);
    }
    assert_eq!(*namespaces.lock(), ["shop", "bank", "shop", "shop"]);
}

#[tokio::test]
async fn a_slow_refusal_pauses_like_a_slow_answer() {
    let router = Router::new().fallback(async move |_: Uri| {
        tokio::time::sleep(Duration::from_millis(2100)).await;
        StatusCode::INTERNAL_SERVER_ERROR
    });
    let mut changes = ChangeEvents::new(EventMetrics::register(&mut Registry::default()));
    let mut rates = EventRates::new(Instant::now());
    changes.keep(message("shop", 0));
    let client = ApiClient::to(&router);
    let again = changes.send_next(&client, "node-1", &mut rates, false).await;
    assert_eq!(again, Some(false));
    let waits = changes.retries.ready_at().unwrap().duration_since(Instant::now());
    assert!(waits > Duration::from_secs(18), "{waits:?}");
}

#[test]
fn what_waits_in_a_pause_goes_out_after_it() {
    let mut changes = ChangeEvents::new(EventMetrics::register(&mut Registry::default()));
    let now = Instant::now();
    let mut rates = EventRates::new(now);
    for pod in 0..QUEUE {
        changes.keep(message("shop", pod));
    }
    changes.keep(message("bank", 0));
    let of = |changes: &ChangeEvents, namespace: &str| {
        let messages = changes.messages.iter();
        messages
            .filter(|message| message.subject.namespace() == namespace)
            .count()
    };
    assert_eq!([of(&changes, "shop"), of(&changes, "bank")], [QUEUE - 1, 1]);

    let until = now + Duration::from_secs(40);
    rates.pause("shop", until, now);
    let (bank, _) = changes.next(&mut rates, now, false).unwrap();
    assert_eq!(bank.subject.namespace(), "bank");
    assert!(changes.next(&mut rates, now, false).is_none());
    assert_eq!(changes.ready_at(&rates), Some(until));
    assert_eq!(of(&changes, "shop"), QUEUE - 1, "nothing is lost");
    assert!(changes.next(&mut rates, until, false).is_some());
}
