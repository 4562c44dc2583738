//! The loop of list and watch, with all that takes minutes in life taking milliseconds.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Uri;
use axum::response::Response;
use futures::{StreamExt, stream};
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use tokio::time::Instant;

use super::super::{Followed, Follower, Timing, follow};
use super::{Thing, bookmark, line, list, memory, thing};
use crate::kubernetes::Problem;
use crate::kubernetes::client::ApiClient;
use crate::kubernetes::connect::Connection;
use crate::kubernetes::kept::ObjectMemory;
use crate::kubernetes::metrics::ApiMetrics;
use crate::observe::log::LogFormat;
use crate::observe::log::tests::logged;
use crate::observe::metrics::registry;

const BRISK: Timing = Timing {
    watch: Duration::from_secs(600),
    silence: Duration::from_millis(40),
    long_silence: Duration::from_secs(600),
    first_pause: Duration::from_millis(8),
    longest_pause: Duration::from_millis(64),
    room: Duration::from_millis(8),
    unknown: Duration::from_millis(40),
    first_view: Duration::from_secs(30),
};

/// What the API server answers.
pub(super) enum Answer {
    Says(u16, String),
    Wait(u16, u64),
    /// A watch that says this and ends.
    Lines(Vec<String>),
    /// A watch that says this and falls silent.
    Silent(Vec<String>),
}

/// An API server that answers by a script, whatever it is asked, and then no more; and when it was asked what.
#[derive(Clone, Default)]
pub(super) struct Script {
    answers: Arc<Mutex<VecDeque<Answer>>>,
    asked: Arc<Mutex<Vec<(Instant, String)>>>,
}

impl Script {
    pub(super) fn of(answers: impl IntoIterator<Item = Answer>) -> Self {
        Self {
            answers: Arc::new(Mutex::new(answers.into_iter().collect())),
            ..Self::default()
        }
    }

    async fn answer(self, uri: Uri) -> Response {
        self.asked.lock().unwrap().push((Instant::now(), uri.to_string()));
        let answer = self.answers.lock().unwrap().pop_front();
        let response = Response::builder();
        let lines = |lines: Vec<String>| stream::iter(lines.into_iter().map(Ok::<_, std::io::Error>));
        match answer {
            Some(Answer::Says(code, body)) => response.status(code).body(Body::from(body)),
            Some(Answer::Wait(code, seconds)) => {
                response.status(code).header("Retry-After", seconds).body(Body::empty())
            }
            Some(Answer::Lines(said)) => response.body(Body::from_stream(lines(said))),
            Some(Answer::Silent(said)) => response.body(Body::from_stream(lines(said).chain(stream::pending()))),
            None => std::future::pending().await,
        }
        .unwrap()
    }

    fn follow(&self) -> Follower<Thing> {
        self.follow_and_count().0
    }

    /// With so much memory. Known to begin no watch with a list.
    fn follow_within(&self, memory: ObjectMemory) -> Follower<Thing> {
        let client = self.client().0;
        client.streams_lists.store(false, std::sync::atomic::Ordering::Relaxed);
        follow(client, None, "", BRISK, memory, <_>::default())
    }

    /// With what is counted about it. Known to begin no watch with a list.
    fn follow_and_count(&self) -> (Follower<Thing>, Registry) {
        let (client, registry) = self.client();
        client.streams_lists.store(false, std::sync::atomic::Ordering::Relaxed);
        (follow(client, None, "", BRISK, memory(), <_>::default()), registry)
    }

    /// Where nothing is known of the API server.
    pub(super) fn follow_anew(&self) -> Follower<Thing> {
        follow(self.client().0, None, "", BRISK, memory(), <_>::default())
    }

    fn client(&self) -> (ApiClient, Registry) {
        let script = self.clone();
        let router = Router::new().fallback(move |uri: Uri| script.clone().answer(uri));
        let client = || Connection::to(&router);
        let mut registry = registry();
        let client = ApiClient::new(client(), [client()], ApiMetrics::register(&mut registry));
        (client, registry)
    }

    /// What was asked, once there was as much of it.
    pub(super) async fn asked(&self, count: usize) -> Vec<(Instant, String)> {
        loop {
            let asked = self.asked.lock().unwrap().clone();
            if asked.len() >= count {
                return asked;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// Waits until what is known is so.
pub(super) async fn until<R>(follower: &Follower<Thing>, so: impl Fn(&Followed<Thing>) -> Option<R>) -> R {
    loop {
        if let Some(found) = follower.read(&so) {
            return found;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

pub(super) fn forgotten() -> String {
    line(
        "ERROR",
        r#"{"kind":"Status","code":410,"reason":"Expired","message":"too old"}"#,
    )
}

#[tokio::test]
async fn a_list_is_watched_from_where_it_ended() {
    let added = line("ADDED", &thing("y", 8, 2));
    let script = Script::of([
        Answer::Says(200, list(7, &[thing("x", 1, 1)])),
        Answer::Silent(vec![added]),
    ]);
    let follower = script.follow();
    let asked = script.asked(2).await;
    assert_eq!(asked[0].1, "/apis/test/v2/things?resourceVersion=0");
    assert!(
        asked[1]
            .1
            .contains("watch=true&allowWatchBookmarks=true&resourceVersion=7&"),
        "{asked:?}"
    );
    until(&follower, |known| {
        (known.objects().count() == 2 && known.trouble.is_none()).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_forgotten_version_is_listed_again() {
    let script = Script::of([
        Answer::Says(200, list(7, &[])),
        Answer::Lines(vec![bookmark(9), forgotten()]),
        Answer::Says(200, list(20, &[thing("x", 15, 1)])),
    ]);
    let follower = script.follow();
    let asked = script.asked(4).await;
    assert_eq!(asked[2].1, "/apis/test/v2/things?resourceVersion=9");
    assert!(asked[3].1.contains("resourceVersion=20&"), "{asked:?}");
    assert_eq!(follower.read(|known| known.objects().count()), 1);
}

#[tokio::test]
async fn an_error_in_a_watch_leads_to_a_list() {
    let error = r#"{"kind":"Status","code":500,"reason":"InternalError","message":"no decoding"}"#;
    let script = Script::of([
        Answer::Says(200, list(7, &[])),
        Answer::Lines(vec![bookmark(9), line("ERROR", error)]),
    ]);
    let _follower = script.follow();
    assert_eq!(script.asked(3).await[2].1, "/apis/test/v2/things?resourceVersion=9");
}

#[tokio::test]
async fn a_silent_watch_begins_again_where_it_stood() {
    let script = Script::of([
        Answer::Says(200, list(7, &[])),
        Answer::Silent(vec![bookmark(9)]),
        Answer::Silent(vec![]),
    ]);
    let (_follower, registry) = script.follow_and_count();
    let asked = script.asked(3).await;
    assert!(
        asked[2].1.contains("watch=true") && asked[2].1.contains("resourceVersion=9&"),
        "{asked:?}"
    );
    assert!(asked[2].0 - asked[1].0 >= BRISK.silence);
    let mut scrape = String::new();
    encode(&mut scrape, &registry).unwrap();
    for (end, times) in [("silent", 1), ("over", 0), ("forgotten", 0), ("failed", 0)] {
        let sample = format!("vscaled_api_watches_total{{resource=\"things\",end=\"{end}\"}} {times}");
        assert!(scrape.contains(&sample), "{sample} is not in\n{scrape}");
    }
}

#[tokio::test]
async fn a_watch_whose_time_is_over_goes_on_at_once() {
    let script = Script::of([Answer::Says(200, list(7, &[])), Answer::Lines(vec![bookmark(8)])]);
    let follower = script.follow();
    let asked = script.asked(3).await;
    assert!(asked[2].1.contains("resourceVersion=8&"), "{asked:?}");
    assert!(follower.read(|known| known.trouble.is_none()));
}

#[tokio::test]
async fn an_api_server_that_asks_for_patience_gets_it() {
    let script = Script::of([
        Answer::Wait(429, 1),
        Answer::Wait(503, 1),
        Answer::Says(200, list(7, &[])),
    ]);
    let follower = script.follow();
    let trouble = until(&follower, |known| known.trouble.clone()).await;
    assert!(trouble.contains("fewer calls (429)"), "{trouble}");
    let asked = script.asked(4).await;
    assert!(asked[1].0 - asked[0].0 >= Duration::from_secs(1));
    assert!(asked[2].0 - asked[1].0 >= Duration::from_secs(1));
    until(&follower, |known| {
        (known.known && known.trouble.is_none()).then_some(())
    })
    .await;
}

#[tokio::test]
async fn failures_are_spaced_ever_further() {
    let mut answers = vec![Answer::Says(200, list(7, &[thing("x", 1, 1)]))];
    answers.extend((0..8).map(|_| Answer::Says(500, "down".to_owned())));
    let script = Script::of(answers);
    let follower = script.follow();
    let asked = script.asked(9).await;
    let pauses: Vec<_> = asked[1..].windows(2).map(|two| two[1].0 - two[0].0).collect();
    assert!(pauses[0] >= BRISK.first_pause / 2, "{pauses:?}");
    assert!(pauses[6] >= BRISK.longest_pause / 2, "{pauses:?}");
    let (count, trouble) = until(&follower, |known| {
        Some((known.objects().count(), known.trouble.clone()?))
    })
    .await;
    assert_eq!(count, 1);
    assert!(trouble.contains("cannot answer now (500): down"), "{trouble}");
}

#[test]
fn a_list_that_alone_stays_unanswered_is_logged() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let lines = logged(LogFormat::Text, "info", |_| {
        runtime.block_on(async {
            let script = Script::of((0..9).map(|_| Answer::Says(503, "down".to_owned())));
            let client = script.client().0;
            client.streams_lists.store(false, std::sync::atomic::Ordering::Relaxed);
            let health = client.health.clone();
            let _follower: Follower<Thing> = follow(client, None, "", BRISK, memory(), <_>::default());
            while script.asked.lock().unwrap().len() < 9 {
                // The answer to another call.
                health.observe(&Ok::<(), Problem>(()));
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
    });
    assert_eq!(lines.matches(" list things: ").count(), 1, "{lines}");
}

#[tokio::test]
async fn an_unwatchable_list_is_read_ever_more_rarely() {
    let may_list_only = || {
        let forbidden = r#"{"message":"things is forbidden: User \"x\" cannot watch resource \"things\""}"#;
        [
            Answer::Says(200, list(7, &[thing("x", 1, 1)])),
            Answer::Says(403, forbidden.to_owned()),
        ]
    };
    let script = Script::of((0..8).flat_map(|_| may_list_only()));
    let follower = script.follow();
    let asked = script.asked(16).await;
    let lists: Vec<_> = asked.iter().step_by(2).map(|(at, _)| *at).collect();
    let pauses: Vec<_> = lists.windows(2).map(|two| two[1] - two[0]).collect();
    assert!(pauses[6] >= BRISK.longest_pause / 2, "{pauses:?}");
    let trouble = until(&follower, |known| known.trouble.clone()).await;
    assert!(trouble.contains("lacks the rule"), "{trouble}");
    assert!(!follower.read(|known| known.refused), "its objects are current");
}

#[tokio::test]
async fn lists_forgotten_at_once_come_ever_more_rarely() {
    let list_and_end = || [Answer::Says(200, list(7, &[])), Answer::Lines(vec![forgotten()])];
    let script = Script::of((0..8).flat_map(|_| list_and_end()));
    let _follower = script.follow();
    let asked = script.asked(16).await;
    let lists: Vec<_> = asked.iter().step_by(2).map(|(at, _)| *at).collect();
    let pauses: Vec<_> = lists.windows(2).map(|two| two[1] - two[0]).collect();
    assert!(pauses[6] >= BRISK.longest_pause / 2, "{pauses:?}");
}

#[tokio::test]
async fn an_older_api_version_is_used_where_needed() {
    let script = Script::of([
        Answer::Says(404, String::new()),
        Answer::Says(200, list(7, &[thing("x", 1, 1)])),
    ]);
    let follower = script.follow();
    let asked = script.asked(3).await;
    assert!(asked[1].1.starts_with("/apis/test/v1/things?") && asked[2].1.starts_with("/apis/test/v1/things?watch"));
    assert_eq!(follower.read(|known| known.objects().count()), 1);
}

#[tokio::test]
async fn objects_outlive_an_unserved_kind() {
    let script = Script::of([
        Answer::Says(200, list(7, &[thing("x", 1, 1)])),
        Answer::Says(404, "404 page not found".to_owned()),
        Answer::Says(404, "404 page not found".to_owned()),
        Answer::Says(404, "404 page not found".to_owned()),
        Answer::Says(404, "404 page not found".to_owned()),
    ]);
    let follower = script.follow();
    script.asked(6).await;
    let (count, trouble) = until(&follower, |known| {
        Some((known.objects().count(), known.trouble.clone()?))
    })
    .await;
    assert_eq!(count, 1, "{trouble}");
}

#[tokio::test]
async fn a_kind_that_stays_unserved_has_no_objects() {
    // Of each attempt, one for each version.
    let unserved = |attempts: usize| (0..2 * attempts).map(|_| Answer::Says(404, String::new()));
    let script = Script::of(unserved(3));
    let follower = script.follow();
    script.asked(7).await;
    assert!(!follower.read(|known| known.known), "an API server may be starting");
    let script = Script::of(unserved(3).chain([Answer::Says(500, String::new())]).chain(unserved(3)));
    let follower = script.follow();
    script.asked(14).await;
    assert!(!follower.read(|known| known.known), "it has failed in between");
    let script = Script::of(unserved(4).chain([Answer::Says(200, list(7, &[thing("x", 1, 1)]))]));
    let follower = script.follow();
    let trouble = until(&follower, |known| known.trouble.clone().filter(|_| known.known)).await;
    assert!(trouble.contains("knows no things"), "{trouble}");
    assert!(follower.read(|known| known.objects().next().is_none()));
    script.asked(10).await;
    until(&follower, |known| {
        (known.objects().count() == 1 && known.trouble.is_none()).then_some(())
    })
    .await;
}

#[tokio::test]
async fn one_list_finds_a_kind_unserved_for_all() {
    let unserved = |attempts: usize| (0..2 * attempts).map(|_| Answer::Says(404, String::new()));
    let script = Script::of(unserved(4));
    let (client, _registry) = script.client();
    client.streams_lists.store(false, std::sync::atomic::Ordering::Relaxed);
    let timing = Timing {
        unknown: BRISK.watch,
        ..BRISK
    };
    let of = |namespace, timing| -> Follower<Thing> {
        follow(client.clone(), Some(namespace), "", timing, memory(), <_>::default())
    };
    let is_known = |known: &Followed<Thing>| known.known.then_some(());
    let first = of("first", timing);
    until(&first, is_known).await;
    script.answers.lock().unwrap().extend(unserved(1));
    let once = Timing {
        first_pause: BRISK.watch,
        longest_pause: BRISK.watch,
        ..timing
    };
    let second = of("second", once);
    until(&second, is_known).await;
    // A list ends that, and its watch takes no answer for others.
    script.answers.lock().unwrap().extend([Answer::Says(200, list(7, &[]))]);
    let _served = of("served", timing);
    script.asked(12).await;
    script.answers.lock().unwrap().extend(unserved(1));
    let last = of("last", timing);
    script.asked(15).await;
    assert!(!last.read(|known| known.known), "an API server may be starting");
}

#[tokio::test]
async fn a_kind_that_only_others_lack_is_listed_soon() {
    let unserved = (0..2).map(|_| Answer::Says(404, "404 page not found".to_owned()));
    let script = Script::of(unserved.chain([Answer::Says(200, list(7, &[thing("x", 1, 1)]))]));
    let (client, _registry) = script.client();
    client.streams_lists.store(false, std::sync::atomic::Ordering::Relaxed);
    client.unserved.lock().insert("things");
    let timing = Timing {
        unknown: BRISK.watch,
        ..BRISK
    };
    let follower: Follower<Thing> = follow(client, None, "", timing, memory(), <_>::default());
    until(&follower, |known| (known.objects().count() == 1).then_some(())).await;
}

#[tokio::test]
async fn a_missing_right_is_named_and_asked_for_again() {
    let forbidden = r#"{"code":403,"message":"things.test is forbidden: User \"x\" cannot list resource \"things\""}"#;
    let denials = (0..4).map(|_| Answer::Says(403, forbidden.to_owned()));
    let script = Script::of(denials.chain([Answer::Says(200, list(7, &[]))]));
    let follower = script.follow();
    let trouble = until(&follower, |known| known.trouble.clone().filter(|_| known.refused)).await;
    assert!(trouble.contains("resources: [things], verbs: [list]"), "{trouble}");
    until(&follower, |known| {
        (known.known && !known.refused && known.trouble.is_none()).then_some(())
    })
    .await;
}

#[tokio::test]
async fn only_a_rule_that_stays_refuses_a_list() {
    for (code, answer, times, refused) in [
        (
            410,
            r#"{"code":410,"reason":"Expired","message":"too old resource version"}"#,
            4,
            false,
        ),
        (401, "Unauthorized", 4, false),
        (200, "<style>{}</style>", 4, false),
        (302, "log in first", 4, false),
        // An API server that starts has not read its rules.
        (403, "not today", 3, false),
        (403, "not today", 4, true),
    ] {
        let script = Script::of((0..times).map(|_| Answer::Says(code, answer.to_owned())));
        let follower = script.follow();
        // The last answer is in use before another is asked for.
        script.asked(times + 1).await;
        assert!(follower.read(|known| known.trouble.is_some()), "{code}");
        assert_eq!(
            follower.read(|known| (known.known, known.refused)),
            (false, refused),
            "{code}"
        );
    }
}

#[tokio::test]
async fn an_outage_ends_no_refusal_and_begins_none() {
    for (codes, refused) in [([403, 403, 403, 403, 500], true), ([403, 403, 403, 500, 403], false)] {
        let script = Script::of(codes.map(|code| Answer::Says(code, "not today".to_owned())));
        let follower = script.follow();
        script.asked(codes.len() + 1).await;
        assert_eq!(follower.read(|known| known.refused), refused, "{codes:?}");
    }
}

#[tokio::test]
async fn a_version_that_cannot_be_listed_is_given_up() {
    for code in [410, 504] {
        let script = Script::of([
            Answer::Says(200, list(7, &[])),
            Answer::Lines(vec![forgotten()]),
            Answer::Says(code, "too large resource version".to_owned()),
        ]);
        let _follower = script.follow();
        let asked = script.asked(4).await;
        assert_eq!(asked[2].1, "/apis/test/v2/things?resourceVersion=7");
        assert_eq!(asked[3].1, "/apis/test/v2/things?resourceVersion=0", "{code}");
    }
}

#[tokio::test]
async fn a_list_follows_a_watch_without_lines() {
    let script = Script::of([
        Answer::Says(200, list(7, &[thing("x", 1, 1)])),
        Answer::Lines(Vec::new()),
        Answer::Says(504, "Too large resource version: 7, current: 3".to_owned()),
        Answer::Says(200, list(3, &[])),
    ]);
    let client = script.client().0;
    client.streams_lists.store(false, std::sync::atomic::Ordering::Relaxed);
    let timing = Timing {
        watch: Duration::ZERO,
        ..BRISK
    };
    let follower: Follower<Thing> = follow(client, None, "", timing, memory(), <_>::default());
    let asked = script.asked(4).await;
    assert_eq!(asked[2].1, "/apis/test/v2/things?resourceVersion=7");
    assert_eq!(asked[3].1, "/apis/test/v2/things?resourceVersion=0");
    until(&follower, |known| {
        (known.known && known.objects().next().is_none()).then_some(())
    })
    .await;
}

#[tokio::test]
async fn watches_that_a_proxy_ends_are_added_up() {
    let silent = || Answer::Silent(Vec::new());
    let script = Script::of([Answer::Says(200, list(7, &[])), silent(), silent()]);
    let client = script.client().0;
    client.streams_lists.store(false, std::sync::atomic::Ordering::Relaxed);
    let timing = Timing {
        watch: Duration::from_millis(80),
        long_silence: Duration::from_millis(20),
        ..BRISK
    };
    let _follower: Follower<Thing> = follow(client, None, "", timing, memory(), <_>::default());
    assert_eq!(script.asked(4).await[3].1, "/apis/test/v2/things?resourceVersion=7");
}

#[tokio::test]
async fn left_out_objects_enter_once_there_is_room() {
    let many: Vec<_> = (0..6).map(|number| thing(&format!("n{number}"), 1, 1)).collect();
    let script = Script::of([
        Answer::Says(200, list(7, &many)),
        Answer::Silent(vec![
            line("DELETED", &thing("n0", 8, 1)),
            line("DELETED", &thing("n1", 9, 1)),
        ]),
        Answer::Says(200, list(9, &many[2..])),
    ]);
    // Memory for four of six things, and half of it for a namespace that may come.
    let follower = script.follow_within(ObjectMemory::new(4200));
    until(&follower, |known| {
        (known.objects().count() == 4 && known.problems().next().is_none()).then_some(())
    })
    .await;
    assert_eq!(script.asked(3).await[2].1, "/apis/test/v2/things?resourceVersion=9");
}

#[tokio::test]
async fn lists_that_hang_leave_other_namespaces_theirs() {
    let script = Script::default();
    let client = script.client().0;
    client.streams_lists.store(false, std::sync::atomic::Ordering::Relaxed);
    let follow_in = |namespace| {
        let changed = <_>::default();
        follow::<Thing>(client.clone(), Some(namespace), "", BRISK, memory(), changed)
    };
    let _hanging: Vec<_> = (0..9).map(|_| follow_in("a")).collect();
    script.asked(7).await;
    let _honest = follow_in("b");
    let asked = script.asked(8).await;
    assert!(
        asked.iter().take(8).any(|(_, call)| call.contains("/namespaces/b/")),
        "{asked:#?}"
    );
}

#[tokio::test]
async fn a_broken_list_is_read_again_without_loss() {
    let whole = list(7, &[thing("x", 1, 1), thing("y", 2, 2)]);
    let script = Script::of([
        Answer::Says(200, whole.clone()),
        Answer::Lines(vec![forgotten()]),
        Answer::Says(200, whole[..whole.len() - 20].to_owned()),
        Answer::Says(200, list(9, &[thing("x", 8, 3)])),
    ]);
    let follower = script.follow();
    let trouble = until(&follower, |known| known.trouble.clone()).await;
    assert!(trouble.contains("ended early"), "{trouble}");
    assert_eq!(follower.read(|known| known.objects().count()), 2);
    until(&follower, |known| {
        (known.objects().count() == 1 && known.trouble.is_none()).then_some(())
    })
    .await;
}
