//! What holds for every sequence of inputs: no effect is forgotten, and nothing stale counts.

use std::collections::BTreeSet;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::actuate::{Grown, LeastLimits};
use crate::guard::{GuardEvent, Guarded};
use crate::model::{CgroupPath, KubeletVersion, LiveContainer, MemoryLimit, Outcome, Reason, ResourceList};
use crate::plan::shrink::{Before, Trouble, WatchReading};
use crate::reconcile::capacity::NodeCapacity;
use crate::reconcile::desired::Recommended;
use crate::reconcile::overrides::Override;
use crate::sources::parse_manifests;

const MIB: u64 = 1 << 20;

const POD: &str = r#"
kind: Pod
metadata:
  name: web
  uid: u1
  annotations: {vscaled.io/before-shrink: '["free", "{new}"]', vscaled.io/after-grow.app: 'signal: SIGHUP',
    vscaled.io/on-memory-pressure: 'signal: SIGUSR1'}
spec:
  containers:
  - {name: app, resources: {requests: {cpu: 100m, memory: 64Mi}, limits: {cpu: 200m, memory: 128Mi}}}
"#;

fn pod() -> Arc<Pod> {
    Arc::clone(&parse_manifests("test", POD).unwrap().view.pods[0])
}

fn limits(mib: u64) -> Vec<NamedRequirements> {
    let mut targets = pod().requirements();
    targets[0].resources.limits.memory = Some(Bytes::new(mib * MIB));
    targets
}

fn live(uid: &str) -> Arc<LivePod> {
    let path = CgroupPath::new("/kubepods/podu").unwrap();
    let app = LiveContainer {
        id: "c".to_owned(),
        path: path.clone(),
    };
    Arc::new(LivePod {
        id: PodId {
            uid: uid.to_owned(),
            namespace: "default".to_owned(),
            name: "web".to_owned(),
        },
        path,
        containers: indexmap::IndexMap::from([("app".to_owned(), app)]),
    })
}

/// Something that happens to the pod.
#[derive(Debug, Clone)]
enum Happening {
    Decided { mib: Option<u64>, no_room: bool },
    Runs(bool),
    Asks { mib: u64 },
    Releases,
    Grown { mib: u64 },
    Pressed { mib: u64 },
    Quiet { mib: u64 },
    PassBegins,
    PassEnds { outcome: usize, denied: bool },
    HookEnds(bool),
    StalePassEnds,
    ShrinkEnds(bool),
    Killed,
    Simple(usize),
    Waits { seconds: i64 },
}

fn happening() -> impl Strategy<Value = Happening> {
    use Happening::{
        Asks, Decided, Grown, HookEnds, Killed, PassBegins, PassEnds, Pressed, Quiet, Releases, Runs, ShrinkEnds,
        Simple, StalePassEnds, Waits,
    };
    let mib = || 64_u64..512;
    prop_oneof![
        (proptest::option::of(mib()), any::<bool>()).prop_map(|(mib, no_room)| Decided { mib, no_room }),
        any::<bool>().prop_map(Runs),
        mib().prop_map(|mib| Asks { mib }),
        Just(Releases),
        mib().prop_map(|mib| Grown { mib }),
        mib().prop_map(|mib| Pressed { mib }),
        mib().prop_map(|mib| Quiet { mib }),
        Just(PassBegins),
        (0_usize..7, any::<bool>()).prop_map(|(outcome, denied)| PassEnds { outcome, denied }),
        any::<bool>().prop_map(HookEnds),
        Just(StalePassEnds),
        any::<bool>().prop_map(ShrinkEnds),
        Just(Killed),
        (0_usize..7).prop_map(Simple),
        (0_i64..2000).prop_map(|seconds| Waits { seconds }),
    ]
}

fn ended(outcome: Outcome) -> JobDone {
    JobDone::new(ChangeRecord::new(live("u1").id.clone(), Cause::Sweep, outcome))
}

fn outcome(which: usize) -> Outcome {
    let reason = "no".to_owned();
    match which {
        0 => Outcome::Applied,
        1 => Outcome::Unchanged,
        2 => Outcome::RuntimeOwed(reason),
        3 => Outcome::Refused(reason),
        4 => Outcome::Interrupted(reason),
        5 => Outcome::Withheld(Withheld::SpecLater(reason)),
        _ => Outcome::Incomplete(reason),
    }
}

fn lowering() -> Lowering {
    let memory = crate::plan::shrink::MemoryReading::default();
    Lowering {
        target: Target::Pod,
        from: MemoryLimit::Bytes(512 * MIB),
        to: Bytes::new(256 * MIB),
        before: Before {
            last: WatchReading {
                memory,
                kills: 0,
                stalled: None,
            },
            most: Bytes::ZERO,
            refaults: Bytes::ZERO,
        },
    }
}

fn decision(mib: Option<u64>) -> PodDecision {
    let mut decision = PodDecision::undecided(&pod());
    match mib {
        Some(mib) => {
            decision.vpa = Some("web".to_owned());
            decision.reason = Reason::OutOfBounds;
            decision.containers = limits(mib);
        }
        None => decision.reason = Reason::NoVpa,
    }
    decision
}

/// The pod, and everybody else's copies of it, which only effects keep up to date.
struct World {
    state: PodState,
    now: Now,
    started: Option<PassId>,
    /// What the latest pass aims at.
    aims: Option<Box<Job>>,
    hook: Option<Box<HookRun>>,
    passes: u64,
    requests: RequestId,
    waiting: BTreeSet<RequestId>,
    saved: Option<SavedPod>,
    guarded: String,
    least_limits: LeastLimits,
    watched: Option<u64>,
}

impl World {
    fn new() -> Self {
        let state = PodState::new(pod(), PodDecision::undecided(&pod()));
        let now = Now {
            wall: Timestamp::from_second(1_700_000_000).unwrap(),
            instant: Instant::now(),
        };
        Self {
            guarded: format!("{:?}", state.guarded(true, now.wall)),
            state,
            now,
            started: None,
            aims: None,
            hook: None,
            passes: 0,
            requests: 0,
            waiting: BTreeSet::new(),
            saved: None,
            least_limits: LeastLimits::default(),
            watched: None,
        }
    }

    fn report(&mut self, event: GuardEvent) {
        let of = Guarded {
            pod: live("u1").id.clone(),
            container: "app".to_owned(),
        };
        self.apply(PodInput::Guard(Box::new(Report { of, event })));
    }

    fn apply(&mut self, input: PodInput) {
        for effect in self.state.apply(input, self.now) {
            match effect {
                Effect::SaveState => self.saved = self.state.saved(),
                Effect::WatchGuard => self.guarded = format!("{:?}", self.state.guarded(true, self.now.wall)),
                Effect::SetLeastLimits(limits) => self.least_limits.set(limits),
                Effect::RunPass(pass, job) => (self.started, self.aims) = (Some(pass), Some(job)),
                Effect::RunHook(run) => assert_eq!(self.hook.replace(run), None, "two hooks in one container"),
                Effect::WatchShrink(watch) => self.watched = watch.map(|(number, _)| number),
                Effect::Record(_, _, Some(id)) | Effect::Refuse(id, _) => {
                    assert!(self.waiting.remove(&id), "{id} is answered twice");
                }
                Effect::AdmitRequest(id, request) => {
                    let states = [&self.state].into_iter();
                    let capacity =
                        NodeCapacity::of(states, None, ResourceList::default(), KubeletVersion::NEWEST, false);
                    self.apply(PodInput::Admitted(id, request, Box::new(capacity)));
                }
                Effect::Record(..)
                | Effect::RaisePodLevel(..)
                | Effect::WatchFiles(_)
                | Effect::Decide
                | Effect::Avoided(_)
                | Effect::ShrinkEnded(_) => {}
            }
        }
    }

    fn request(&mut self, request: OperatorRequest) {
        self.requests += 1;
        self.waiting.insert(self.requests);
        self.apply(PodInput::Requested(self.requests, request));
    }

    fn happen(&mut self, happening: &Happening) {
        let runs = self.state.live.is_some();
        match happening {
            Happening::Decided { mib, no_room } => {
                let (decision, took) = (Box::new(decision(*mib)), Duration::ZERO);
                self.apply(PodInput::Decided(decision, took));
                self.apply(PodInput::Followed(
                    no_room.then(|| "full".to_owned()),
                    Some(Cause::Sweep),
                    Duration::ZERO,
                ));
            }
            Happening::Runs(runs_now) if *runs_now != runs => self.apply(PodInput::Located(Box::new(Located {
                live: runs_now.then(|| live("u1")),
                saved: None,
                unsaved_limits: None,
            }))),
            Happening::Asks { mib } if runs => self.request(OperatorRequest::Override(Override {
                uid: 0,
                pid: 1,
                reason: String::new(),
                since: self.now.wall,
                until: self.now.wall.checked_add(SignedDuration::from_secs(300)).ok(),
                values: limits(*mib),
            })),
            Happening::Releases if runs => self.request(OperatorRequest::Release {
                uid: 0,
                pid: 1,
                reason: String::new(),
            }),
            Happening::Grown { mib } if runs => {
                // The guard writes first and reports afterwards.
                let to = Bytes::new((128 + mib) * MIB);
                let earlier = self.least_limits.get("u1", "app");
                if earlier.is_none_or(|earlier| earlier < to) {
                    self.least_limits.raise("u1", "app", to);
                    self.report(GuardEvent::Grew {
                        used: to,
                        to,
                        why: String::new(),
                        grown: Box::new(Grown {
                            from: Some(Bytes::new(128 * MIB)),
                            outcome: Outcome::Applied,
                            steps: Vec::new(),
                            took: Duration::ZERO,
                        }),
                    });
                    self.least_limits.end_raise("u1", "app", to);
                }
            }
            Happening::Pressed { mib } if runs => {
                self.happen(&Happening::Grown { mib: *mib });
                self.report(GuardEvent::Pressure {
                    limit: Bytes::new(128 * MIB),
                    lent: Bytes::new((128 + mib) * MIB),
                });
            }
            Happening::Quiet { mib } if runs => self.report(GuardEvent::Quiet {
                peak: Bytes::new(mib * MIB),
            }),
            Happening::PassBegins => {
                self.passes += 1;
                self.apply(PodInput::PassDue(true));
                self.apply(PodInput::PassBegan(self.passes, Box::default()));
            }
            Happening::PassEnds { outcome: which, denied } => {
                if let Some(pass) = self.started.take() {
                    let mut done = ended(outcome(*which));
                    done.api.denied = denied.then(|| "a quota".to_owned());
                    if *which == 0 {
                        done.shrink.touched.push(Target::Pod);
                        done.shrink.lowered.push(lowering());
                    }
                    self.end_pass(pass, done);
                }
            }
            Happening::HookEnds(well) => {
                if let Some(run) = self.hook.take() {
                    let how = if *well { Ok(String::new()) } else { Err(String::new()) };
                    let output = String::new();
                    let evidence = None;
                    self.apply(PodInput::HookEnded(run, HookEnd { how, output, evidence }));
                }
            }
            Happening::StalePassEnds => self.end_stale_pass(),
            Happening::ShrinkEnds(well) => {
                let trouble = Verdict::Trouble(Target::Pod, Trouble::Killed(1));
                let verdict = if *well { Verdict::Kept } else { trouble };
                self.apply(PodInput::ShrinkWatchEnded(self.watched.unwrap_or(0), verdict));
            }
            Happening::Killed => self.apply(PodInput::Killed(Target::Pod)),
            Happening::Simple(which) => {
                let inputs = [
                    PodInput::FilesWritten,
                    PodInput::Swept,
                    PodInput::RuntimeReturned,
                    PodInput::NodeChanged,
                    PodInput::TurnGiven,
                    PodInput::TimePassed,
                    PodInput::ApiServerReturned,
                ];
                inputs
                    .into_iter()
                    .nth(*which)
                    .into_iter()
                    .for_each(|input| self.apply(input));
            }
            Happening::Waits { seconds } => {
                self.now.wall = self.now.wall.checked_add(SignedDuration::from_secs(*seconds)).unwrap();
                self.now.instant += Duration::from_secs(seconds.unsigned_abs());
                self.apply(PodInput::TimePassed);
                // A pause of growth may be over: the controller tells the guard whenever it decides.
                self.guarded = format!("{:?}", self.state.guarded(true, self.now.wall));
            }
            Happening::Runs(_)
            | Happening::Asks { .. }
            | Happening::Releases
            | Happening::Grown { .. }
            | Happening::Pressed { .. }
            | Happening::Quiet { .. } => {}
        }
    }

    fn end_pass(&mut self, pass: PassId, done: JobDone) {
        self.apply(PodInput::PassEnded(
            pass,
            Box::new(done),
            SignedDuration::from_secs(600),
        ));
    }

    /// A pass that does not run any more changes nothing, whatever it says.
    fn end_stale_pass(&mut self) {
        let pass = PassId {
            number: 0,
            uid: "u1".to_owned(),
            generation: self.state.work.generation,
        };
        let before = format!("{:?}", self.state);
        self.end_pass(pass, ended(Outcome::Applied));
        assert_eq!(before, format!("{:?}", self.state));
    }

    /// Everybody's copy is what the state says, and whoever asked has an answer or waits for one.
    fn check(&self) {
        assert_eq!(self.saved, self.state.saved(), "the state file is outdated");
        assert_eq!(
            self.guarded,
            format!("{:?}", self.state.guarded(true, self.now.wall)),
            "the guard is outdated"
        );
        let temporary = self.state.desired.memory_limits().next().map(|(_, limit)| limit);
        assert_eq!(
            self.least_limits.get("u1", "app"),
            temporary,
            "writers heed another limit"
        );
        assert_eq!(self.watched, self.state.shrink.watch().map(|(number, _)| number));
        assert!(
            !self.state.is_announcing() || self.hook.is_some(),
            "a limit is kept for ever"
        );
        let waiting: BTreeSet<_> = self.state.work.requests().collect();
        assert_eq!(self.waiting, waiting, "a request was forgotten");
        if self.state.live.is_none() {
            assert!(waiting.is_empty(), "nobody will answer {waiting:?}");
        } else if !waiting.is_empty() {
            let work = &self.state.work;
            let answers = work.pending.is_some() || work.running.is_some() || work.retry_at.is_some();
            assert!(answers, "no pass will answer {waiting:?}");
        }
    }
}

proptest! {
    #[test]
    fn no_effect_is_forgotten_whatever_happens(happenings in vec(happening(), 0..60)) {
        let mut world = World::new();
        for happening in happenings {
            world.happen(&happening);
            world.check();
        }
    }

    #[test]
    fn the_last_decision_counts_whatever_was_decided_before(
        earlier in vec(proptest::option::of(64_u64..512), 0..8), last in 64_u64..512,
    ) {
        let decided = |decisions: &[Option<u64>]| {
            let mut world = World::new();
            world.happen(&Happening::Runs(true));
            for mib in decisions {
                world.happen(&Happening::Decided { mib: *mib, no_room: false });
            }
            world.state
        };
        let all: Vec<_> = earlier.into_iter().chain([Some(last)]).collect();
        let (one, other) = (decided(&all), decided(&[Some(last)]));
        prop_assert_eq!(&one.desired, &other.desired);
        let targets = |recommended: &Recommended| recommended.targets.clone();
        prop_assert_eq!(one.desired.recommended.as_ref().map(targets), Some(limits(last)));
    }
}

/// A world in which a pass has given the container a limit.
fn settled(mib: u64) -> World {
    let mut world = World::new();
    world.happen(&Happening::Runs(true));
    world.decide_and_pass(mib);
    world
}

impl World {
    /// Decides, and runs the pass that follows; returns the limit it keeps, in MiB.
    fn decide_and_pass(&mut self, mib: u64) -> Option<u64> {
        self.happen(&Happening::Decided {
            mib: Some(mib),
            no_room: false,
        });
        self.happen(&Happening::Simple(4));
        self.pass()
    }

    fn pass(&mut self) -> Option<u64> {
        self.happen(&Happening::PassBegins);
        self.happen(&Happening::PassEnds {
            outcome: 1,
            denied: false,
        });
        let holds = self.aims.take().unwrap().targets.holds;
        let held = holds.get(&Target::Container("app".to_owned()));
        held.and_then(|held| held.bounded()).map(|held| held.get() / MIB)
    }

    /// The hook that runs: when it was due, and the limits in MiB.
    fn told(&self) -> Option<(&'static str, u64, u64)> {
        let run = self.hook.as_ref()?;
        Some((run.moment.word(), run.old / MIB, run.new / MIB))
    }
}

#[test]
fn a_lower_limit_waits_until_its_container_was_told_and_no_longer() {
    for well in [true, false] {
        let mut world = settled(128);
        assert_eq!(world.told(), None);
        assert_eq!(world.decide_and_pass(64), Some(128), "the limit is kept meanwhile");
        assert_eq!(world.told(), Some(("before-shrink", 128, 64)));
        assert_eq!(world.state.status(world.now.wall), PodStatus::Working);
        world.happen(&Happening::HookEnds(well));
        assert!(world.state.work.pending.is_some());
        assert_eq!(world.pass(), None);
        assert_eq!(world.told(), None, "it was told once");
    }
}

#[test]
fn an_operator_waits_for_no_hook_and_what_has_grown_is_told_when_it_is_there() {
    let mut world = settled(128);
    world.decide_and_pass(64);
    world.happen(&Happening::Asks { mib: 100 });
    assert_eq!(world.pass(), None);
    assert_eq!(world.told(), Some(("before-shrink", 128, 64)), "it runs still");
    world.happen(&Happening::Releases);
    world.pass();
    world.decide_and_pass(256);
    world.happen(&Happening::HookEnds(true));
    assert_eq!(world.told(), Some(("after-grow", 64, 256)));
    world.happen(&Happening::Decided {
        mib: Some(300),
        no_room: false,
    });
    world.happen(&Happening::PassBegins);
    world.happen(&Happening::PassEnds {
        outcome: 3,
        denied: false,
    });
    world.happen(&Happening::HookEnds(true));
    assert_eq!(world.told(), None, "it did not grow");
}

#[test]
fn a_limit_that_cannot_come_down_is_announced_again_after_a_while() {
    let mut world = settled(128);
    world.decide_and_pass(64);
    for told in [false, true] {
        world.happen(&Happening::HookEnds(true));
        world.happen(&Happening::PassBegins);
        world.happen(&Happening::PassEnds {
            outcome: 3,
            denied: false,
        });
        world.happen(&Happening::Waits {
            seconds: if told { 400 } else { 20 },
        });
        world.happen(&Happening::PassBegins);
        assert_eq!(world.told().is_some(), told);
        world.happen(&Happening::PassEnds {
            outcome: 3,
            denied: false,
        });
    }
    let mut pod = Pod::clone(&world.state.pod);
    let values = pod.metadata.annotations.values_mut();
    values.for_each(|value| *value = "free some".to_owned());
    let mut world = settled(128);
    world.apply(PodInput::Described(Arc::new(pod)));
    assert_eq!(world.decide_and_pass(64), None, "what cannot be read keeps nothing up");
    assert_eq!(world.told(), None);
}

#[test]
fn evidence_is_lent_for_once_an_hour_and_what_was_lent_is_taken_back() {
    let mut world = settled(128);
    let lent = |world: &World| world.least_limits.get("u1", "app").map(|lent| lent.get() / MIB);
    world.happen(&Happening::Pressed { mib: 32 });
    assert_eq!(world.told(), Some(("on-memory-pressure", 128, 160)));
    assert_eq!(lent(&world), Some(160));
    world.happen(&Happening::Quiet { mib: 1 });
    assert_eq!(lent(&world), Some(160), "it is being left");
    let kept = |world: &World| world.state.guarded(true, world.now.wall).unwrap().containers[0].evidence;
    assert_eq!(kept(&world), None);
    world.happen(&Happening::HookEnds(false));
    assert_eq!((lent(&world), world.told()), (None, None));
    world.happen(&Happening::Pressed { mib: 64 });
    assert_eq!(
        (lent(&world), world.told()),
        (Some(192), None),
        "lent, but not for that"
    );
    world.happen(&Happening::Waits { seconds: 3600 });
    assert_eq!(kept(&world), Some(Bytes::new(64 * MIB)));
    assert!(
        world
            .state
            .guarded(false, world.now.wall)
            .is_none_or(|guarded| { guarded.containers.iter().all(|terms| terms.evidence.is_none()) })
    );
    // What was lent before stays lent.
    world.happen(&Happening::Pressed { mib: 96 });
    assert_eq!(world.told(), Some(("on-memory-pressure", 128, 224)));
    world.check();
}

#[test]
fn evidence_waits_for_the_hook_that_runs_and_goes_before_others() {
    let mut world = settled(128);
    world.decide_and_pass(64);
    world.happen(&Happening::Pressed { mib: 32 });
    assert_eq!(world.told(), Some(("before-shrink", 128, 64)));
    world.happen(&Happening::HookEnds(true));
    assert_eq!(world.told(), Some(("on-memory-pressure", 128, 160)));
    world.happen(&Happening::HookEnds(true));
    assert_eq!(world.told(), None);
    world.check();
}
