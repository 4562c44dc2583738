//! Events about kills that are refused or have to wait.

use super::*;

#[tokio::test]
async fn a_refused_kill_goes_to_the_node() {
    let directory = tempfile::tempdir().unwrap();
    let (reporter, mut kills) = kill_events(directory.path());
    let reports = ["web", "db"].iter().zip(1..);
    reporter
        .commit(reports.map(|(pod, number)| kill_of(pod, number).into()).collect(), None)
        .await;
    kills.take_in(&NoPods::Known).await;
    let now = Instant::now();
    let mut rates = EventRates::new(now);
    let refused = || ApiError {
        call: "create events".to_owned(),
        problem: refusal(404),
    };
    let of_pod = kills.next("shop", &mut rates, &NoPods::Known, now).await.unwrap();
    let text = format!("Pod shop/web, container app: {}", of_pod.event.message);
    let of_node = kills.end(of_pod, Err(refused())).await.unwrap();
    let event = &of_node.event;
    assert_eq!(
        (&event.subject, &event.message, of_node.outcome),
        (&Subject::Node, &text, ReportOutcome::SentAgain)
    );
    assert!(kills.end(of_node, Err(refused())).await.is_none(), "and no further");

    let for_recommender = kills.next("shop", &mut rates, &NoPods::Known, now).await.unwrap();
    kills.queue.destination = Destination::VpaEvents;
    assert!(kills.end(for_recommender, Err(refused())).await.is_none());
}

#[tokio::test]
async fn a_kill_waits_for_a_missing_right() {
    let directory = tempfile::tempdir().unwrap();
    let (reporter, mut kills) = kill_events(directory.path());
    reporter.commit(vec![kill_of("web", 1).into()], None).await;
    kills.take_in(&NoPods::Known).await;
    let (mut outbox, mut turns) = (outbox(&Router::new(), &[]), turns());
    outbox.kills.push(kills);
    let kill = outbox.begin(&mut turns, Instant::now()).await.unwrap();
    let (call, problem) = ("create events".to_owned(), Problem::Forbidden("a rule".to_owned()));
    outbox.end(kill, Err(ApiError { call, problem }), &mut turns).await;
    let problems = || reporter.status().borrow().problems().join("; ");
    assert!(problems().contains("a rule; 1 reports wait"), "{}", problems());
    let later = Instant::now() + LONGEST_RETRY;
    let again = outbox.begin(&mut turns, later).await.unwrap();
    outbox.end(again, Ok(Posted::Created), &mut turns).await;
    assert_eq!((problems().as_str(), reporter.status().borrow().reports), ("", 0));
}

#[tokio::test]
async fn kills_wait_for_the_names_of_pods() {
    let directory = tempfile::tempdir().unwrap();
    let (reporter, kills) = kill_events(directory.path());
    reporter.commit(vec![kill_of("web", 1).into()], None).await;
    let (bodies, mut posted) = mpsc::channel(9);
    let router = Router::new().fallback(async move |body: String| {
        bodies.send(body).await.unwrap();
        (StatusCode::CREATED, "{}")
    });
    let mut outbox = outbox(&router, &["shop"]);
    outbox.metadata = Arc::new(NoPods::Unknown);
    outbox.kills.push(kills);
    let taken = Feed::default().listen();
    tokio::select! {
        never = outbox.run(taken) => match never {},
        first = posted.recv() => assert!(first.unwrap().contains("ResourcesResized")),
    }
}

#[tokio::test]
async fn a_withheld_report_is_acknowledged() {
    let directory = tempfile::tempdir().unwrap();
    let plan = VpaEvents::new(SignedDuration::from_mins(10), Vec::new(), PathBuf::new());
    let (reporter, mut kills) = planned_by(Box::new(plan), Destination::VpaEvents, directory.path());
    let mut of_main = kill_of("web", 2);
    of_main.victim.as_mut().unwrap().set_role(Role::Main);
    reporter
        .commit(vec![kill_of("web", 1).into(), of_main.into()], None)
        .await;
    let before = Instant::now();
    kills.take_in(&NoPods::Known).await;
    let mut rates = EventRates::new(before);
    let pending = || reporter.status().borrow().pending_for(Destination::VpaEvents);
    let next = kills.next("shop", &mut rates, &NoPods::Known, Instant::now()).await;
    assert!(
        next.is_none() && pending() == 1,
        "the pod's status tells of the main process"
    );
    let due = kills.plan.due(before)[0].1;
    assert!(
        due >= before + Duration::from_secs(10),
        "the kubelet writes the status first"
    );
    let next = kills.next("shop", &mut rates, &NoPods::Known, due).await;
    assert!(next.is_none() && pending() == 0, "the container is unknown");
}
