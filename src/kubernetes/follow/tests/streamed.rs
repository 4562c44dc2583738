//! Lists at the beginning of watches, where the API server offers that.

use super::super::Followed;
use super::task::{Answer, Script, forgotten, until};
use super::{Thing, bookmark, line, list, thing};

const ALL_TOLD: &str = r#"{"metadata":{"resourceVersion":"7","annotations":{"k8s.io/initial-events-end":"true"}}}"#;

#[tokio::test]
async fn a_streaming_list_begins_the_watch() {
    let script = Script::of([Answer::Silent(vec![
        line("ADDED", &thing("x", 1, 1)),
        line("ADDED", &thing("gone", 2, 1)),
        line("DELETED", &thing("gone", 3, 1)),
        line("BOOKMARK", ALL_TOLD),
        line("MODIFIED", &thing("x", 8, 2)),
    ])]);
    let follower = script.follow_anew();
    let size = |followed: &Followed<Thing>| followed.objects().next().map(|thing| thing.size);
    until(&follower, |followed| (size(followed) == Some(2)).then_some(())).await;
    assert_eq!(
        follower.read(|followed| (followed.known, followed.objects().count())),
        (true, 1)
    );
    let asked = &script.asked(1).await[0].1;
    let parameters = "allowWatchBookmarks=true&resourceVersion=0&";
    assert!(asked.contains("watch=true") && asked.contains(parameters), "{asked}");
    assert!(
        asked.ends_with("&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"),
        "{asked}"
    );
}

#[tokio::test]
async fn nothing_is_gone_during_a_list() {
    let told = |things: &[String]| things.iter().map(|thing| line("ADDED", thing)).collect::<Vec<_>>();
    let both = [thing("x", 1, 1), thing("y", 2, 1)];
    let mut whole = told(&both);
    whole.extend([line("BOOKMARK", ALL_TOLD), forgotten()]);
    let script = Script::of([
        Answer::Lines(whole),
        Answer::Lines(told(&both[..1])),
        Answer::Silent(told(&both[..1])),
    ]);
    let follower = script.follow_anew();
    let asked = script.asked(3).await;
    assert!(
        asked[1].1.contains("&resourceVersion=7&") && asked[2].1.contains("&resourceVersion=7&"),
        "{asked:?}"
    );
    assert_eq!(follower.read(|followed| followed.objects().count()), 2);
}

#[tokio::test]
async fn an_api_server_that_refuses_it_is_asked_once() {
    let invalid = r#"{"kind":"Status","code":422,"reason":"Invalid","message":"sendInitialEvents: Forbidden"}"#;
    let script = Script::of([
        Answer::Says(422, invalid.to_owned()),
        Answer::Says(200, list(7, &[thing("x", 1, 1)])),
        Answer::Lines(vec![forgotten()]),
        Answer::Says(200, list(9, &[])),
    ]);
    let follower = script.follow_anew();
    until(&follower, |followed| {
        (followed.known && followed.objects().next().is_none()).then_some(())
    })
    .await;
    let asked = script.asked(4).await;
    assert_eq!(asked[1].1, "/apis/test/v2/things?resourceVersion=0");
    assert_eq!(asked[3].1, "/apis/test/v2/things?resourceVersion=7");
}

#[tokio::test]
async fn a_missing_right_to_list_is_named() {
    let forbidden = r#"{"kind":"Status","code":403,"reason":"Forbidden","message":"not today"}"#;
    let says_no = || Answer::Says(403, forbidden.to_owned());
    let whole = vec![line("ADDED", &thing("x", 1, 1)), line("BOOKMARK", ALL_TOLD)];
    let script = Script::of([says_no(), says_no(), Answer::Silent(whole)]);
    let follower = script.follow_anew();
    let trouble = until(&follower, |followed| followed.trouble.clone()).await;
    assert!(
        trouble.starts_with("list things: ") && trouble.contains("not today"),
        "{trouble}"
    );
    until(&follower, |followed| followed.known.then_some(())).await;
}

#[tokio::test]
async fn without_streaming_lists_a_list_is_read() {
    let script = Script::of([
        Answer::Silent(vec![line("ADDED", &thing("x", 1, 1)), bookmark(7)]),
        Answer::Says(200, list(8, &[thing("y", 1, 1)])),
    ]);
    let follower = script.follow_anew();
    let names = until(&follower, |followed| {
        followed.known.then(|| {
            followed
                .objects()
                .map(|thing| thing.metadata.name.clone())
                .collect::<Vec<_>>()
        })
    });
    assert_eq!(names.await, ["y"]);
}
