use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;

use super::*;
use crate::kubernetes::events::{EventRates, OF_A_POD, OF_THE_NODE, PodReference, Subject, Topic};
use crate::model::objects::PodId;
use crate::oom::{Confidence, Evidence, HitLimit, Level, OomReport, OwnWrite, ReportedMemory, ReportedPod, Role};
use crate::rate_limiter::Rate;
use crate::report::log::Pending;
use crate::report::outbox::EventPlan;
use crate::report::testing::{NoPods, arbitrary_kill, kill_of};

#[test]
fn the_hash_is_the_published_one() {
    // The test vector of the empty string and of "a" in the draft's reference code.
    assert_eq!(fnv_1a(""), 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d);
    assert_eq!(fnv_1a("a"), 0xd228_cb69_6f1a_8caf_7891_2b70_4e4a_8964);
}

fn pending(number: u64, kill: OomReport) -> Pending {
    Pending {
        number,
        report: kill.into(),
    }
}

/// The message as it goes to the API server.
fn message(planned: &PlannedEvent) -> String {
    planned.event.body("node-1")["message"].as_str().unwrap().to_owned()
}

/// Events of kills with the rates of a node.
struct Kills {
    events: PodEvents,
    rates: EventRates,
}

impl Kills {
    fn new(most: usize, now: Instant) -> Self {
        Self {
            events: PodEvents::new(most),
            rates: EventRates::new(now),
        }
    }

    fn offer(&mut self, pending: Pending) {
        self.events.offer(pending);
    }

    fn next(&mut self, now: Instant) -> Option<PlannedEvent> {
        let due = self.events.due(now).into_iter();
        let due: Vec<_> = due.map(|(namespace, _)| namespace.to_owned()).collect();
        due.iter().find_map(|namespace| {
            self.events
                .next_event(namespace, now, &mut self.rates, &NoPods::Known, &mut Vec::new())
        })
    }
}

fn all(events: &mut Kills, now: Instant) -> Vec<PlannedEvent> {
    std::iter::from_fn(|| events.next(now)).collect()
}

#[test]
fn few_kills_have_an_event_each() {
    let now = Instant::now();
    let mut events = Kills::new(usize::MAX, now);
    let mut told = Vec::new();
    for number in 1..=2 {
        events.offer(pending(number, kill_of("web", number)));
        told.extend(all(&mut events, now));
    }
    assert_eq!(told.len(), 2);
    assert_eq!((told[0].event.count, told[0].numbers()), (1, vec![1]));
    assert!(
        matches!(&told[0].event.subject, Subject::Pod(PodReference { container, .. }) if container.as_deref() == Some("app"))
    );
    assert_eq!(
        told[0].event.message,
        "The kernel killed \"app\" (pid 1), a child process; the container runs on: the container reached its memory limit of 64Mi"
    );
    assert_ne!(told[0].event.name, told[1].event.name);
    assert!(told[0].event.name.starts_with("web."));
}

#[test]
fn a_flood_becomes_one_event_with_a_count() {
    let start = Instant::now();
    let mut events = Kills::new(usize::MAX, start);
    for number in 1..=100 {
        events.offer(pending(number, kill_of("web", number)));
        all(&mut events, start);
    }
    events.offer(pending(101, kill_of("db", 101)));
    assert_eq!(all(&mut events, start)[0].numbers(), [101]);
    let later = all(&mut events, start + Duration::from_secs(60));
    assert_eq!(later.len(), 1);
    assert_eq!((later[0].event.count, later[0].reports.len()), (90, 90));
    assert!(
        later[0]
            .event
            .message
            .starts_with("The kernel killed 90 processes from 2023-11-14T22:13:31Z to ")
    );
    assert!(events.events.due(start).is_empty());
}

#[test]
fn a_kill_outside_pods_is_about_the_node() {
    let now = Instant::now();
    let mut events = Kills::new(usize::MAX, now);
    let mut kill = kill_of("web", 1);
    kill.facts.pod = Some(ReportedPod {
        namespace: String::new(),
        name: String::new(),
        uid: "only-this".to_owned(),
    });
    kill.facts.level = Level::Node;
    events.offer(pending(1, kill));
    let told = all(&mut events, now);
    assert_eq!(told[0].event.subject, Subject::Node);
    assert!(told[0].event.message.ends_with("the node had no memory left"));
}

#[test]
fn an_event_has_a_valid_name_and_message() {
    let now = Instant::now();
    let mut events = Kills::new(usize::MAX, now);
    let mut kill = kill_of(&"long-".repeat(50), 1);
    kill.victim.as_mut().unwrap().comm = "a\u{1b}[2J\n\u{fc}".to_owned();
    kill.own_write = Some(OwnWrite {
        time: kill.time,
        what: "\u{fc}".repeat(2000),
    });
    events.offer(pending(1, kill));
    let told = all(&mut events, now);
    assert!(
        told[0].event.name.len() <= 253 && !told[0].event.name.contains("-."),
        "{}",
        told[0].event.name
    );
    assert!(message(&told[0]).len() <= 1024 && !message(&told[0]).contains(char::is_control));
}

/// Facts of a regular container that ran on.
const RAN_ON: ContainerFacts = ContainerFacts {
    regular: true,
    vpa: true,
    pinned: false,
    survived: Some(true),
};
const NOT_SEEN: ContainerFacts = ContainerFacts {
    survived: None,
    ..RAN_ON
};

fn vpa_events(told: Vec<LastEvent>) -> VpaEvents {
    VpaEvents::new(SignedDuration::from_mins(10), told, PathBuf::new())
}

fn judged(kill: OomReport, facts: ContainerFacts) -> Result<PlannedEvent, &'static str> {
    vpa_events(Vec::new()).decide(&pending(7, kill), facts, Timestamp::UNIX_EPOCH)
}

fn changed(change: impl FnOnce(&mut OomReport)) -> OomReport {
    let mut kill = kill_of("web", 1);
    change(&mut kill);
    kill
}

fn role(role: Role) -> OomReport {
    changed(|kill| kill.victim.as_mut().unwrap().set_role(role))
}

#[test]
fn a_message_says_whose_limit_was_reached() {
    for (level, cause) in [
        (Level::Container, "the container reached its memory limit of 64Mi"),
        (Level::Pod, "the pod reached its memory limit of 64Mi"),
        (
            Level::Qos,
            "the pods of its QoS class reached their memory limit of 64Mi",
        ),
        (Level::Kubepods, "all pods together reached their memory limit of 64Mi"),
        (Level::Node, "the node had no memory left"),
        (Level::Other, "a cgroup reached its memory limit of 64Mi"),
        (Level::Unspecified, "it is not known whose limit was reached"),
    ] {
        let message = text::message(&changed(|kill| kill.facts.level = level).into());
        assert!(message.ends_with(&format!(": {cause}")), "{message}");
    }
}

#[test]
fn a_message_says_who_was_killed() {
    let begins = |kill: OomReport, beginning: &str| {
        let message = text::message(&kill.into());
        assert!(message.starts_with(beginning), "{message}");
    };
    let main = "The kernel killed \"app\" (pid 1), the container's main process: the container";
    begins(role(Role::Main), main);
    begins(
        role(Role::Unspecified),
        "The kernel killed \"app\" (pid 1): the container",
    );
    let unknown = changed(|kill| kill.victim = None);
    begins(unknown, "The kernel killed a process: the container");
}

#[test]
fn a_message_ends_with_what_else_is_known() {
    let rest = |change: &dyn Fn(&mut OomReport)| {
        let message = text::message(&changed(change).into());
        message.split_once(" of 64Mi").unwrap().1.to_owned()
    };
    let memory = |kill: &mut OomReport| {
        kill.victim.as_mut().unwrap().memory = Some(ReportedMemory {
            total_vm_bytes: 1 << 30,
            anon_rss_bytes: 3 << 20,
            file_rss_bytes: 2 << 20,
            shmem_rss_bytes: 1 << 20,
        });
    };
    assert_eq!(rest(&memory), ". Its memory: 3Mi anonymous, 2Mi of files, 1Mi shared");
    let own_write = |kill: &mut OomReport| {
        let (time, what) = (kill.time, "memory.max from 9 to 5".to_owned());
        kill.own_write = Some(OwnWrite { time, what });
    };
    assert_eq!(
        rest(&own_write),
        ". vscaled had just lowered that limit: memory.max from 9 to 5"
    );
    for (path, unfinished, words) in [
        (Some("/dump"), None, "Evidence from noon: /dump"),
        (None, None, "Evidence from noon: the hook named no file"),
        (
            None,
            Some(true),
            "A hook for evidence started at noon and had not ended",
        ),
    ] {
        let evidence = |kill: &mut OomReport| {
            kill.evidence = Some(Evidence {
                time: "noon".to_owned(),
                path: path.map(str::to_owned),
                exit_code: None,
                unfinished,
            });
        };
        assert_eq!(rest(&evidence), format!(". {words}"));
    }
}

#[test]
fn recommenders_learn_of_a_killed_child() {
    let Ok(event) = judged(role(Role::Child), NOT_SEEN) else {
        panic!("withheld")
    };
    assert_eq!((event.event.reason, event.numbers()), ("Evicted", vec![7]));
    let annotations: Vec<_> = event
        .event
        .annotations
        .iter()
        .map(|(key, value)| (*key, value.as_str()))
        .collect();
    assert_eq!(
        annotations,
        [
            ("offending_containers", "app"),
            ("offending_containers_usage", "67108864"),
            ("starved_resource", "memory")
        ]
    );
    assert!(event.event.message.contains("nothing was evicted"));
    assert!(
        matches!(&event.event.subject, Subject::Pod(PodReference { pod, .. }) if pod.namespace == "shop" && pod.name == "web")
    );
}

#[test]
fn what_the_pods_status_tells_is_not_told_again() {
    let in_status = Err("InStatus");
    assert_eq!(judged(role(Role::Main), RAN_ON), in_status);
    assert_eq!(judged(role(Role::Unspecified), NOT_SEEN), in_status);
    assert!(judged(role(Role::Unspecified), RAN_ON).is_ok());
    let ended = ContainerFacts {
        survived: Some(false),
        ..RAN_ON
    };
    assert_eq!(judged(role(Role::Child), ended), in_status);
    // All of the container was killed with the child; a group it made itself is another matter.
    let group = |cgroup: &str| {
        changed(|kill| {
            kill.group = vec![1, 2];
            kill.cgroup = Some(cgroup.to_owned());
        })
    };
    assert_eq!(
        judged(group("/kubepods/pod1/crio-id-of-web.scope/container"), NOT_SEEN),
        in_status
    );
    assert_eq!(judged(group("/kubepods/pod1/id-of-web"), NOT_SEEN), in_status);
    let nested = judged(group("/kubepods/pod1/id-of-web/workers"), NOT_SEEN);
    assert!(nested.is_ok());
}

#[test]
fn no_container_is_blamed_on_a_guess() {
    let withheld = |change: fn(&mut OomReport)| judged(changed(change), RAN_ON);
    for level in Level::all() {
        let verdict = judged(changed(|kill| kill.facts.level = level), RAN_ON);
        let sent = verdict.is_ok();
        assert_eq!(sent, level == Level::Container, "{level:?}");
    }
    let uncertain = withheld(|kill| kill.confidence = Confidence::Ambiguous);
    assert_eq!(uncertain, Err("Uncertain"));
    let nameless = withheld(|kill| kill.facts.container.as_mut().unwrap().name.clear());
    assert_eq!(nameless, Err("NoContainer"));
    let unmeasured = withheld(|kill| kill.facts.limit = HitLimit::default());
    assert_eq!(unmeasured, Err("NoUsage"));
    let irregular = ContainerFacts {
        regular: false,
        ..RAN_ON
    };
    assert_eq!(judged(kill_of("web", 1), irregular), Err("NoContainer"));
    let alone = ContainerFacts { vpa: false, ..RAN_ON };
    assert_eq!(judged(kill_of("web", 1), alone), Err("NoVpa"));
}

/// A kill at the pod's limit of 65 MiB.
fn at_the_pods_limit(container_limit: Option<HitLimit>) -> OomReport {
    changed(|kill| {
        kill.facts.level = Level::Pod;
        kill.facts.limit.limit_bytes = Some(65 << 20);
        kill.facts.container_limit = container_limit;
    })
}

#[test]
fn a_container_that_fills_its_pod_is_named() {
    let own = HitLimit {
        limit_bytes: Some(64 << 20),
        usage_bytes: Some(63 << 20),
        ..HitLimit::default()
    };
    let Ok(event) = judged(at_the_pods_limit(Some(own.clone())), RAN_ON) else {
        panic!("withheld")
    };
    let usage = event
        .event
        .annotations
        .iter()
        .find(|(key, _)| *key == "offending_containers_usage");
    assert_eq!(usage.unwrap().1, "67108864", "the container's limit");
    assert_eq!(judged(at_the_pods_limit(None), RAN_ON), Err("NotItsLimit"));
    let message = |limit| text::message(&at_the_pods_limit(limit).into());
    assert!(
        message(Some(own)).contains(
            "the container reached its memory limit of 64Mi, and the kernel enforced the pod's limit of 65Mi"
        )
    );
    assert!(message(None).contains(": the pod reached its memory limit of 65Mi"));
}

/// The same kill in another container of the pod.
fn of_side(mut kill: OomReport) -> OomReport {
    kill.facts.container.as_mut().unwrap().name = "side".to_owned();
    kill
}

#[test]
fn kills_for_others_share_no_event() {
    let now = Instant::now();
    let mut events = Kills::new(usize::MAX, now);
    for (number, limit) in (1..).zip([None, Some(HitLimit::default()), None]) {
        events.offer(pending(number, at_the_pods_limit(limit)));
    }
    events.offer(pending(4, of_side(at_the_pods_limit(None))));
    let numbers: Vec<_> = all(&mut events, now).iter().map(PlannedEvent::numbers).collect();
    assert_eq!(numbers, [vec![1, 3], vec![2], vec![4]]);
}

fn minute(count: u64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + 60 * i64::try_from(count).unwrap()).unwrap()
}

#[test]
fn withheld_kills_are_known_at_once() {
    let mut events = vpa_events(Vec::new());
    let screen = |events: &VpaEvents, kill: OomReport| events.screen(&kill.into(), minute(1));
    assert_eq!(screen(&events, role(Role::Main)), Err("InStatus"));
    let pod = changed(|kill| kill.facts.level = Level::Pod);
    assert_eq!(screen(&events, pod), Err("NotItsLimit"));
    assert_eq!(screen(&events, role(Role::Child)), Ok(()));
    events
        .decide(&pending(1, role(Role::Child)), RAN_ON, minute(0))
        .unwrap();
    assert_eq!(screen(&events, role(Role::Child)), Err("WithinWindow"));
    assert_eq!(
        screen(&events, of_side(role(Role::Child))),
        Ok(()),
        "it has its own window"
    );
}

#[test]
fn a_clock_set_back_costs_one_window() {
    let mut events = vpa_events(Vec::new());
    let mut sent = |at: Timestamp| {
        let verdict = events.decide(&pending(1, role(Role::Child)), RAN_ON, at);
        verdict.is_ok()
    };
    assert!(sent(minute(1 << 19)));
    assert!(!sent(minute(0)));
    assert!(sent(minute(10)));
    // The time of a kill that is withheld for the window counts, too.
    let (now, minutes) = (Timestamp::now(), SignedDuration::from_mins);
    assert!(sent(now + minutes(1 << 19)));
    events.offer(pending(2, role(Role::Child)));
    let screened = events.screen(&role(Role::Child).into(), now + minutes(11));
    assert_eq!(screened, Ok(()));
}

#[test]
fn a_container_has_one_event_in_each_window() {
    let mut events = vpa_events(Vec::new());
    let mut judge = |pod: &str, at: u64, pinned: bool| {
        let facts = ContainerFacts { pinned, ..RAN_ON };
        let verdict = events.decide(&pending(at, kill_of(pod, at + 1)), facts, minute(at));
        // The windows outlive the agent.
        let (_, told) = events.ended(&[at]).unwrap();
        events = vpa_events(told);
        verdict.err()
    };
    assert_eq!(judge("web", 0, false), None);
    assert_eq!(judge("web", 9, false), Some("WithinWindow"));
    assert_eq!(judge("db", 9, false), None, "each container has a window of its own");
    assert_eq!(judge("web", 10, false), None);
    assert_eq!(judge("web", 60, true), Some("Pinned"));
    assert_eq!(judge("web", 24 * 60 + 9, true), Some("Pinned"));
    assert_eq!(judge("web", 24 * 60 + 10, true), None);
}

/// The most Events in any stretch of time that begins with one of them.
fn within(times: &[Instant], rate: Rate) -> bool {
    times.iter().enumerate().all(|(at, begin)| {
        times[at..].iter().enumerate().all(|(more, end)| {
            let intervals = (*end - *begin).as_secs() / rate.every.as_secs();
            u64::try_from(more).unwrap() < u64::from(rate.burst) + intervals
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn no_rate_is_exceeded_and_no_kill_lost(
        kills in prop::collection::vec((arbitrary_kill(), 0u64..3), 0..150),
    ) {
        let mut now = Instant::now();
        let mut events = Kills::new(usize::MAX, now);
        let mut sent: Vec<(Instant, PlannedEvent)> = Vec::new();
        let total = kills.len();
        for (number, (kill, pause)) in (1..).zip(kills) {
            now += Duration::from_secs(pause);
            events.offer(pending(number, kill));
            sent.extend(all(&mut events, now).into_iter().map(|event| (now, event)));
        }
        while !events.events.due(now).is_empty() {
            now += Duration::from_secs(1);
            sent.extend(all(&mut events, now).into_iter().map(|event| (now, event)));
        }
        let mut numbers: Vec<u64> = sent.iter().flat_map(|(_, event)| event.numbers()).collect();
        numbers.sort_unstable();
        prop_assert_eq!(numbers, (1..=u64::try_from(total).unwrap()).collect::<Vec<_>>());
        for (_, event) in &sent {
            prop_assert_eq!(event.event.count, u64::try_from(event.reports.len()).unwrap());
            prop_assert!(event.event.name.len() <= 253 && message(event).len() <= 1024);
        }
        prop_assert!(within(&sent.iter().map(|(at, _)| *at).collect::<Vec<_>>(), OF_THE_NODE));
        let pods: BTreeSet<_> = sent.iter().map(|(_, event)| pod_of(event)).collect();
        for uid in pods.into_iter().flatten() {
            let times: Vec<_> = sent.iter().filter(|(_, event)| pod_of(event) == Some(uid)).map(|(at, _)| *at).collect();
            prop_assert!(within(&times, OF_A_POD));
        }
    }

    #[test]
    fn recommenders_learn_of_own_limits_only(
        kills in prop::collection::vec((arbitrary_kill(), 0u64..6000, any::<(bool, bool, bool, Option<bool>)>()), 0..80),
    ) {
        let usual = SignedDuration::from_secs(6000);
        let mut events = VpaEvents::new(usual, Vec::new(), PathBuf::new());
        let mut now = minute(0);
        let mut last = BTreeMap::new();
        for (number, (kill, pause, (regular, vpa, pinned, survived))) in (1..).zip(kills) {
            now += Duration::from_secs(pause);
            let facts = ContainerFacts { regular, vpa, pinned, survived };
            let main = kill.victim.as_ref().is_some_and(|victim| victim.role() == Role::Main);
            let pending = pending(number, kill);
            let Ok(event) = events.decide(&pending, facts, now) else { continue };
            prop_assert!(regular && vpa && !main && survived != Some(false));
            prop_assert_eq!(pending.report.facts().limit_of(), Level::Container);
            let lengths = event.event.annotations.iter().map(|(_, value)| value.split(',').count());
            prop_assert!(lengths.eq([1, 1, 1]), "as many of each, or the recommender drops it");
            let Subject::Pod(PodReference { pod: PodId { uid, .. }, container, .. }) = event.event.subject else { panic!("about the node") };
            if let Some(before) = last.insert((uid, container), now) {
                let window = if pinned { vpa::PINNED_WINDOW } else { usual };
                prop_assert!(now.duration_since(before) >= window);
            }
        }
    }
}

fn pod_of(event: &PlannedEvent) -> Option<&str> {
    match &event.event.subject {
        Subject::Pod(PodReference { pod, .. }) => Some(&pod.uid),
        Subject::Node => None,
    }
}

#[test]
fn an_event_is_named_by_its_first_report() {
    let plan = |reports: &[u64]| {
        let now = Instant::now();
        let mut events = Kills::new(usize::MAX, now);
        for number in reports {
            events.offer(pending(*number, kill_of("web", *number)));
        }
        events.next(now).unwrap()
    };
    let (sent, again) = (plan(&[2, 3, 4]), plan(&[3, 4, 5, 6, 2]));
    assert_eq!(sent.event.name, again.event.name);
    assert_ne!(sent.event.name, plan(&[3, 4]).event.name);
    assert_eq!(again.covered_by(sent.event.count), [2, 3, 4]);
    assert_eq!(again.covered_by(0), [2], "its name tells of the first at least");
    assert_eq!(again.covered_by(again.event.count), again.numbers());
}

#[test]
fn the_largest_group_goes_when_full() {
    let now = Instant::now();
    let mut events = Kills::new(20, now);
    for number in 1..=29 {
        events.offer(pending(number, kill_of("web", number)));
        if number <= 10 {
            all(&mut events, now);
        }
    }
    assert_eq!(all(&mut events, now), [], "the pod had its share");
    events.offer(pending(30, kill_of("web", 30)));
    assert_eq!(events.next(now).unwrap().event.count, 20);
}

#[test]
fn a_flood_leaves_other_namespaces_their_events() {
    let now = Instant::now();
    let mut events = Kills::new(usize::MAX, now);
    let of = |namespace: &str, pod: &str, number: u64| {
        let mut kill = kill_of(pod, number);
        let reported = kill.facts.pod.as_mut().unwrap();
        (reported.namespace, reported.uid) = (namespace.to_owned(), format!("{namespace}-{pod}"));
        pending(number, kill)
    };
    for number in 0..100 {
        events.offer(of("hostile", &format!("pod-{number}"), number));
    }
    assert_eq!(all(&mut events, now).len(), 43);
    events.offer(of("shop", "web", 100));
    assert_eq!(all(&mut events, now)[0].numbers(), [100]);
}

#[test]
fn a_pods_changes_do_not_delay_its_kills() {
    let now = Instant::now();
    let mut kills = Kills::new(usize::MAX, now);
    kills.offer(pending(1, kill_of("web", 1)));
    let subject = subject(&kill_of("web", 1).facts);
    let changes = (0..99).filter(|_| kills.rates.try_use(&subject, Topic::Change, false, now));
    assert_eq!(changes.count(), 10);
    assert_eq!(all(&mut kills, now).len(), 1);
}

#[test]
fn kills_and_changes_share_the_nodes_rate() {
    let now = Instant::now();
    let mut kills = Kills::new(usize::MAX, now);
    let subject = |number: u64| subject(&kill_of(&number.to_string(), 1).facts);
    let changes = (0..99).filter(|number| kills.rates.try_use(&subject(*number), Topic::Change, true, now));
    assert_eq!(changes.count(), 43);
    kills.offer(pending(1, kill_of("web", 1)));
    assert_eq!(all(&mut kills, now), []);
    assert_eq!(all(&mut kills, now + OF_THE_NODE.every).len(), 1);
}
