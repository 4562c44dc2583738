//! An API server that answers when it is told to.

use std::sync::Mutex;

use axum::Router;
use axum::http::Uri;
use futures::future::join_all;
use prometheus_client::registry::Registry;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::kubernetes::Kind;

const PODS: Kind = Kind::new("", "v1", "pods");

/// Calls that the API server has not answered yet.
#[derive(Debug, Default)]
struct UnderWay {
    now: usize,
    most: usize,
}

impl UnderWay {
    fn begin(&mut self) {
        self.now += 1;
        self.most = self.most.max(self.now);
    }
}

/// A client of an API server that begins watches at once and answers calls once `answering` is cancelled.
struct Scene {
    client: ApiClient,
    answering: CancellationToken,
    under_way: Arc<Mutex<UnderWay>>,
}

impl Scene {
    fn new() -> Self {
        let (answering, under_way) = (CancellationToken::new(), Arc::<Mutex<UnderWay>>::default());
        let (answers, counted) = (answering.clone(), Arc::clone(&under_way));
        let router = Router::new().fallback(async move |uri: Uri| {
            if uri.query().is_none_or(|query| !query.contains("watch=true")) {
                counted.lock().unwrap().begin();
                answers.cancelled().await;
                counted.lock().unwrap().now -= 1;
            }
            "{}"
        });
        let to_it = || Connection::to(&router);
        let counted = ApiMetrics::register(&mut Registry::default());
        Self {
            client: ApiClient::new(to_it(), [to_it()], counted),
            answering,
            under_way,
        }
    }

    /// Waits until so many calls wait for their answer.
    async fn asked(&self, calls: usize) {
        while self.under_way.lock().unwrap().now < calls {
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test]
async fn calls_at_once_are_bounded_and_all_are_made() {
    let scene = Scene::new();
    let ordinary = CALLS_AT_ONCE - usize::try_from(OF_OPERATORS).unwrap();
    let patches = join_all((0..4 * CALLS_AT_ONCE).map(async |pod| {
        let namespace = ["shop", "bank"][pod % 2];
        let call = Call::new(Verb::Patch, PODS)
            .within(Some(namespace))
            .named(&pod.to_string());
        scene.client.send::<Value>(&call, &json!({})).await
    }));
    let end = async {
        // A part is kept for a namespace that has not come yet.
        scene.asked(ordinary - 2).await;
        scene.answering.cancel();
    };
    let (answers, ()) = tokio::join!(patches, end);
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    let most = scene.under_way.lock().unwrap().most;
    assert!((ordinary - 2..=ordinary).contains(&most), "{most}");
}

#[tokio::test]
async fn a_slow_namespace_leaves_calls_to_others() {
    let scene = Scene::new();
    let patches = |namespace: &'static str, count: usize| {
        let client = &scene.client;
        join_all((0..count).map(async move |pod| {
            let call = Call::new(Verb::Patch, PODS)
                .within(Some(namespace))
                .named(&pod.to_string());
            client.send::<Value>(&call, &json!({})).await
        }))
    };
    // Those that one namespace gets alone are the others' to share.
    let alone = CALLS_AT_ONCE - usize::try_from(OF_OPERATORS).unwrap() - 2;
    let slow = patches("slow", 3 * CALLS_AT_ONCE);
    let other = async {
        scene.asked(alone).await;
        let other = patches("other", 1);
        let seen = async {
            scene.asked(alone + 1).await;
            scene.answering.cancel();
        };
        tokio::join!(other, seen).0
    };
    let (slow, other) = tokio::join!(slow, other);
    assert!(slow.iter().chain(&other).all(Result::is_ok), "{slow:?} {other:?}");
}

#[tokio::test]
async fn a_watch_begins_beside_waiting_calls() {
    let scene = Scene::new();
    let list = Call::new(Verb::List, PODS);
    let calls = join_all((0..2 * CALLS_AT_ONCE).map(|_| scene.client.read::<Value>(&list)));
    let watch = async {
        scene.asked(CALLS_AT_ONCE / 2).await;
        let watch = scene.client.watch(&Call::new(Verb::Watch, PODS)).await;
        scene.answering.cancel();
        watch.map(drop)
    };
    let (_, watch) = tokio::join!(calls, watch);
    watch.unwrap();
}

#[tokio::test]
async fn nobody_waits_for_ever_for_a_turn() {
    let scene = Scene::new();
    let list = Call::new(Verb::List, PODS);
    // None of these ends while the other one waits.
    let holders = join_all((0..CALLS_AT_ONCE).map(|_| scene.client.read::<Value>(&list)));
    let mut holders = std::pin::pin!(holders);
    assert!(futures::poll!(&mut holders).is_pending());
    let impatient = ApiClient {
        deadline: Duration::from_millis(20),
        ..scene.client.clone()
    };
    let problem = impatient.read::<Value>(&list).await.unwrap_err().problem;
    assert!(!problem.is_silence(), "{problem}");
    assert!(problem.to_string().contains("the agent's other calls"), "{problem}");
}

#[tokio::test]
async fn a_calls_time_begins_with_its_turn() {
    let scene = Scene::new();
    let (call, body) = (Call::new(Verb::Patch, PODS).named("a"), json!({}));
    let mut holders = Box::pin(join_all((0..CALLS_AT_ONCE).map(|_| scene.client.read::<Value>(&call))));
    assert!(futures::poll!(&mut holders).is_pending());
    let patience = Duration::from_millis(10);
    let mut patch = pin!(scene.client.exchange::<Value>(&call, Some(&body), patience));
    assert!(
        timeout(patience * 4, &mut patch).await.is_err(),
        "it waits for its turn"
    );
    drop(holders);
    let problem = patch.await.unwrap_err().problem;
    assert!(
        matches!(problem, Problem::Timeout(after) if after == patience),
        "{problem}"
    );
    assert_eq!(scene.client.health.away(), None, "a webhook may take that long");
}

#[test]
fn a_connection_is_made_when_others_are_full() {
    let full = WATCHES_PER_CONNECTION;
    assert_eq!(roomiest([0, 0, 0]), 0);
    assert_eq!(roomiest([full - 1, 0, 0]), 0);
    assert_eq!(roomiest([full, 0, 0]), 1);
    assert_eq!(roomiest([full, full, full - 1]), 2);
    assert_eq!(roomiest([full + 1, full, full + 1]), 1);
}

#[test]
fn waits_end_within_the_range_of_time() {
    let asked = |seconds: &str| retry_after(&HeaderMap::from_iter([(RETRY_AFTER, seconds.parse().unwrap())]));
    assert_eq!(asked("7"), Some(Duration::from_secs(7)));
    for seconds in [u64::MAX, u64::MAX / 2, 1 << 40] {
        let wait = asked(&seconds.to_string()).unwrap();
        assert!(wait <= LONGEST_WAIT, "{wait:?}");
    }
}

#[tokio::test]
async fn a_refusal_without_end_pauses_no_calls() {
    let router = Router::new().fallback(async || {
        let endless = "x".repeat(LARGEST_REFUSAL + 1);
        (http::StatusCode::TOO_MANY_REQUESTS, [("retry-after", "7")], endless)
    });
    let client = ApiClient::to(&router);
    for _ in 0..2 {
        let refused = client.read::<Value>(&Call::new(Verb::Get, PODS).named("a")).await;
        assert_eq!(refused.unwrap_err().problem.retry_after(), None);
    }
}

#[tokio::test]
async fn a_wait_holds_all_calls_but_operators() {
    let asked = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&asked);
    let router = Router::new().fallback(async move || {
        let mut asked = counted.lock().unwrap();
        *asked += 1;
        let (code, body) = if *asked == 1 { (429, "busy") } else { (200, "{}") };
        (http::StatusCode::from_u16(code).unwrap(), [("retry-after", "7")], body)
    });
    let to_it = || Connection::to(&router);
    let client = ApiClient::new(to_it(), [to_it()], ApiMetrics::register(&mut Registry::default()));
    let call = |verb| Call::new(verb, PODS).named("a");
    let waits = async |client: &ApiClient| {
        let error = client.read::<Value>(&call(Verb::Get)).await.unwrap_err();
        error.problem.retry_after().unwrap()
    };
    assert_eq!(waits(&client).await, Duration::from_secs(7));
    // Not sent, and a little longer than asked for.
    let left = waits(&client.clone()).await;
    assert!(
        (Duration::from_secs(6)..=Duration::from_millis(8500)).contains(&left),
        "{left:?}"
    );
    assert!(client.watch(&call(Verb::Watch)).await.is_err());
    assert!(client.send::<Value>(&call(Verb::Patch), &json!({})).await.is_err());
    assert_eq!(*asked.lock().unwrap(), 1);
    client
        .for_operators()
        .send::<Value>(&call(Verb::Patch), &json!({}))
        .await
        .unwrap();
    assert_eq!(*asked.lock().unwrap(), 2);
}

/// A client of an API server that answers nothing until it is told to, and what it was asked so far.
fn silent() -> (ApiClient, CancellationToken, Arc<Mutex<Vec<String>>>) {
    let (answering, asked) = (CancellationToken::new(), Arc::<Mutex<Vec<String>>>::default());
    let (answers, seen) = (answering.clone(), Arc::clone(&asked));
    let router = Router::new().fallback(async move |uri: Uri| {
        seen.lock().unwrap().push(uri.path().to_owned());
        answers.cancelled().await;
        "{}"
    });
    let to_it = || Connection::to(&router);
    let client = ApiClient::new(to_it(), [to_it()], ApiMetrics::register(&mut Registry::default()));
    (client, answering, asked)
}

#[tokio::test]
async fn watches_share_one_new_connection() {
    let (client, answering, asked) = silent();
    let call = Call::new(Verb::Watch, PODS);
    let watches = join_all((0..8).map(|_| client.watch(&call)));
    let first = async {
        while asked.lock().unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
        // Time enough for others to ask as well.
        sleep(Duration::from_millis(50)).await;
        assert_eq!(asked.lock().unwrap().len(), 1);
        answering.cancel();
    };
    let (watches, ()) = tokio::join!(watches, first);
    assert!(watches.iter().all(Result::is_ok), "{watches:?}");
    assert_eq!(asked.lock().unwrap().len(), 8);
    drop(watches);
    assert!(client.watch(&call).await.is_ok(), "the next makes a connection again");
}

#[tokio::test]
async fn watches_do_not_wait_for_an_absent_api_server() {
    let (client, ..) = silent();
    let call = Call::new(Verb::Watch, PODS);
    let mut first = Box::pin(client.watch(&call));
    assert!(futures::poll!(&mut first).is_pending());
    client
        .health
        .observe::<()>(&Err(Problem::Unreachable("refused".to_owned())));
    let error = client.watch(&call).await.unwrap_err();
    assert!(matches!(error.problem, Problem::Timeout(PATIENCE)), "{error}");
}

#[tokio::test]
async fn a_late_api_server_is_away_and_asked_once() {
    let (client, answering, asked) = silent();
    let stop = CancellationToken::new();
    client.keep_probing(stop.clone());
    let unheard = client.health.away().unwrap();
    while client.health.away() == Some(unheard.clone()) {
        sleep(Duration::from_millis(10)).await;
    }
    // Longer than the pause after the first probe.
    sleep(PATIENCE).await;
    assert_eq!(*asked.lock().unwrap(), ["/readyz"]);
    answering.cancel();
    while client.health.away().is_some() {
        sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(asked.lock().unwrap().len(), 1);
    stop.cancel();
}

#[tokio::test]
async fn no_answer_pauses_all_calls_for_long() {
    let router = Router::new().fallback(async || (http::StatusCode::TOO_MANY_REQUESTS, [("retry-after", "3600")], ""));
    let client = ApiClient::to(&router);
    let call = Call::new(Verb::Get, PODS).named("a");
    let waits = async || {
        let error = client.read::<Value>(&call).await.unwrap_err();
        error.problem.retry_after().unwrap()
    };
    assert_eq!(waits().await, Duration::from_secs(3600), "as long as it was asked to");
    let left = waits().await;
    assert!(left <= LONGEST_PAUSE + 2 * PAUSE_SPREAD, "{left:?}");
}

#[tokio::test]
async fn a_shorter_pause_ends_no_longer_one() {
    let seconds = Arc::new(Mutex::new(vec!["1", "60"]));
    let router = Router::new().fallback(async move || {
        let seconds = seconds.lock().unwrap().pop().unwrap();
        (http::StatusCode::TOO_MANY_REQUESTS, [("retry-after", seconds)], "")
    });
    let client = ApiClient::to(&router);
    let call = Call::new(Verb::Get, PODS).named("a");
    for client in [client.clone(), client.for_operators(), client] {
        let error = client.read::<Value>(&call).await.unwrap_err();
        let wait = error.problem.retry_after().unwrap();
        assert_eq!(
            wait > Duration::from_secs(10),
            client.class == Class::Ordinary,
            "{wait:?}"
        );
    }
}

#[tokio::test]
async fn a_probe_tells_unready_from_unauthorised() {
    for (code, is_away) in [(500, true), (503, true), (401, false), (200, false)] {
        let router = Router::new().fallback(async move || http::StatusCode::from_u16(code).unwrap());
        let client = ApiClient::to(&router);
        client.health.begin_unknown();
        client.probe().await;
        let away = client.health.away();
        assert_eq!(away.is_some(), is_away, "{away:?}");
        assert!(away.is_none_or(|away| away.contains(&format!("/readyz answers {code}"))));
    }
}

#[test]
fn each_verb_has_its_method_and_format() {
    for (verb, method, format) in [
        (Verb::Get, "GET", "application/json"),
        (Verb::List, "GET", "application/json"),
        (Verb::Watch, "GET", "application/json"),
        (Verb::Create, "POST", "application/json"),
        (Verb::Patch, "PATCH", "application/strategic-merge-patch+json"),
    ] {
        let request = request(&Call::new(verb, PODS).named("a"), Some(&json!({"b": 1}))).unwrap();
        assert_eq!(request.method().as_str(), method);
        assert_eq!(request.headers()[CONTENT_TYPE], format);
        assert_eq!(request.body(), r#"{"b":1}"#);
    }
}
