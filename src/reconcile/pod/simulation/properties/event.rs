//! What can happen to a pod in the properties of its state, also in an order and with results that no cluster has.

use serde_json::Value;

use super::*;
use crate::decide::CanaryWait;
use crate::model::{MemoryLimit, MilliCpu};
use crate::plan::shrink::{Before, Trouble};
use crate::resize::{Grant, ResizeError};

/// The hooks of both containers. The second has none after it has grown.
const HOOKS: [(&str, &str); 3] = [
    ("VSCALED_AFTER_GROW", "signal: SIGHUP"),
    ("VSCALED_BEFORE_SHRINK", r#"["free", "{new}"]"#),
    ("VSCALED_ON_MEMORY_PRESSURE", "signal: SIGUSR1"),
];

/// As in a manifest: the object has no UID and describes any pod of its name.
fn hooked_pod(in_place: bool) -> Pod {
    let mut pod = pod();
    pod.metadata.uid.clear();
    if !in_place {
        pod.status = <_>::default();
    }
    for (container, hooks) in pod.spec.containers.iter_mut().zip([&HOOKS[..], &HOOKS[1..]]) {
        let values = hooks.iter().map(|(name, value)| (*name, Some((*value).to_owned())));
        container.hook_variables = values.collect();
    }
    pod
}

pub(super) fn limits(mib: u64) -> PodAmounts {
    with_limit(&pod(), mib).requirements()
}

/// Something that happens to the pod.
#[derive(Debug, Clone)]
pub(super) enum Event {
    Decided {
        mib: Option<u64>,
        no_room: bool,
    },
    /// Another pod gets the change first.
    DecidedToWait {
        mib: u64,
    },
    Runs(bool),
    /// Another pod has the name.
    AnotherRuns,
    Removed,
    /// The agent starts again from the state file. Sources that answer first bring a decision.
    AgentRestarts {
        decided: Option<u64>,
    },
    /// The watch brings the spec that the API server has accepted, or that somebody else has set.
    WatchBrings,
    SomebodyElseSets {
        mib: u64,
    },
    Asks {
        mib: u64,
    },
    Releases,
    Grown {
        mib: u64,
    },
    Pressed {
        mib: u64,
    },
    Quiet {
        mib: u64,
    },
    Throttled(bool),
    PassBegins,
    /// The pass that begins resizes in this way.
    PassResizes(usize),
    PassEnds {
        outcome: usize,
        denied: bool,
    },
    HookEnds(bool),
    StalePassEnds,
    ShrinkEnds(bool),
    Killed,
    PodLevelIs {
        low: bool,
        repair: bool,
    },
    PodLevelRaised(bool),
    Simple(usize),
    Waits {
        seconds: u64,
    },
    /// The wall clock is set forward by so much, or back.
    ClockIsSet {
        seconds: i64,
    },
    /// The same for the second container.
    InSide(Box<Event>),
}

pub(super) fn event() -> impl Strategy<Value = Event> {
    let mib = || 64_u64..512;
    let limits = prop_oneof![
        mib().prop_map(|mib| Event::Grown { mib }),
        mib().prop_map(|mib| Event::Pressed { mib }),
        mib().prop_map(|mib| Event::Quiet { mib }),
        any::<bool>().prop_map(Event::Throttled),
        any::<bool>().prop_map(Event::HookEnds),
    ];
    let limits = limits.boxed();
    let pod = prop_oneof![
        4 => any::<bool>().prop_map(Event::Runs),
        1 => Just(Event::AnotherRuns),
        1 => Just(Event::Removed),
        2 => proptest::option::of(mib()).prop_map(|decided| Event::AgentRestarts { decided }),
        2 => Just(Event::WatchBrings),
        2 => mib().prop_map(|mib| Event::SomebodyElseSets { mib }),
        2 => (any::<bool>(), any::<bool>()).prop_map(|(low, repair)| Event::PodLevelIs { low, repair }),
        2 => any::<bool>().prop_map(Event::PodLevelRaised),
        1 => (-20_000_i64..20_000).prop_map(|seconds| Event::ClockIsSet { seconds }),
    ];
    let passes = prop_oneof![
        2 => Just(Event::PassBegins),
        2 => (0_usize..6).prop_map(Event::PassResizes),
        3 => (0_usize..9, any::<bool>()).prop_map(|(outcome, denied)| Event::PassEnds { outcome, denied }),
        1 => Just(Event::StalePassEnds),
        1 => any::<bool>().prop_map(Event::ShrinkEnds),
        1 => Just(Event::Killed),
    ];
    prop_oneof![
        4 => limits.clone(),
        2 => limits.prop_map(|event| Event::InSide(Box::new(event))),
        4 => pod,
        5 => passes,
        1 => (proptest::option::of(mib()), any::<bool>()).prop_map(|(mib, no_room)| Event::Decided { mib, no_room }),
        1 => mib().prop_map(|mib| Event::DecidedToWait { mib }),
        1 => mib().prop_map(|mib| Event::Asks { mib }),
        1 => Just(Event::Releases),
        1 => (0_usize..9).prop_map(Event::Simple),
        1 => (0_u64..2000).prop_map(|seconds| Event::Waits { seconds }),
    ]
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
        6 => Outcome::Withheld(Withheld::Deferred(reason)),
        7 => Outcome::RolledBack(reason),
        _ => Outcome::Incomplete(reason),
    }
}

fn lowering() -> Lowering {
    Lowering {
        target: Target::Pod,
        from: MemoryLimit::Bytes(512 * MIB),
        to: Bytes::new(256 * MIB),
        before: Before::of_test(),
    }
}

impl World {
    /// A world in which the pod does not run yet.
    pub(super) fn with_hooks(in_place: bool) -> Self {
        Self::of(hooked_pod(in_place))
    }

    fn decide_limit(&mut self, mib: Option<u64>, waits: bool, no_room: bool) {
        let mut decision = match mib {
            Some(mib) if waits => self.decision(Reason::CanaryFirst, limits(mib)),
            Some(mib) => self.decision(Reason::OutOfBounds, limits(mib)),
            None => self.decision(Reason::NoVpa, self.state.pod.requirements()),
        };
        decision.canary.waits = waits.then(|| CanaryWait {
            since: self.now.wall,
            targets: decision.amounts.clone(),
        });
        let cause = decision.vpa.clone().map(|vpa| Cause::Recommendation {
            vpa,
            version: String::new(),
            reason: decision.reason,
        });
        self.follow(decision, cause, no_room.then(|| "full".to_owned()));
    }

    pub(super) fn meet(&mut self, event: &Event) {
        self.meet_in(0, event);
    }

    /// The guard and hooks are concerned with this container.
    fn meet_in(&mut self, container: usize, event: &Event) {
        let runs = self.state.live.is_some();
        match event {
            Event::Decided { mib, no_room } => self.decide_limit(*mib, false, *no_room),
            Event::DecidedToWait { mib } => self.decide_limit(Some(*mib), true, false),
            Event::Runs(runs_now) if *runs_now != runs => {
                self.locate(runs_now.then(|| live(self.uid)), None, None);
            }
            Event::AnotherRuns if runs => self.run_another(),
            Event::Removed => {
                self.apply(PodInput::Removed);
                self.copies.hooks.clear();
                self.copies.restarts = 0;
                assert_eq!(self.state.saved(), None);
            }
            Event::AgentRestarts { decided } if runs => self.restart(*decided),
            Event::WatchBrings => self.apply(PodInput::Described(Arc::new(self.server.clone()))),
            Event::SomebodyElseSets { mib } => self.server = with_limit(&self.server, *mib),
            Event::Asks { mib } if runs => self.set_override(limits(*mib)),
            Event::Releases if runs => self.release(),
            Event::Grown { mib } if runs => self.grow_by(container, *mib),
            Event::Pressed { mib } if runs => {
                self.grow_by(container, *mib);
                let [limit, lent] = [AT_FIRST, AT_FIRST + mib].map(|mib| Bytes::new(mib * MIB));
                self.report(container, GuardEvent::Pressure { limit, lent });
            }
            Event::Quiet { mib } if runs => self.report_quiet(container, *mib),
            Event::Throttled(is_throttled) if runs => self.throttle(container, *is_throttled),
            Event::PassBegins => self.start_any_pass(0),
            Event::PassResizes(how) => self.start_any_pass(*how),
            Event::PassEnds { outcome, denied } => self.end_any_pass(*outcome, *denied),
            Event::HookEnds(well) => self.end_hook(container, *well),
            Event::StalePassEnds => self.end_stale_pass(),
            Event::ShrinkEnds(well) => {
                let trouble = Verdict::Trouble(Target::Pod, Trouble::Killed(1));
                let verdict = if *well { Verdict::Kept } else { trouble };
                let number = self.copies.watched.unwrap_or(0);
                self.apply(PodInput::OnNode(NodeEvent::ShrinkWatchEnded { number, verdict }));
            }
            Event::Killed => self.apply(PodInput::OnNode(NodeEvent::Killed {
                target: Target::Pod,
                at: self.now.wall,
                lowered: true,
            })),
            Event::PodLevelIs { low, repair } => {
                let low = low.then_some(LowPodLevel {
                    holds: Bytes::new(MIB),
                    needs: Bytes::new(2 * MIB),
                });
                self.apply(PodInput::PodLevelRead { low, repair: *repair });
            }
            Event::PodLevelRaised(well) => self.end_raising(*well),
            Event::Simple(which) => self.apply_simple(*which),
            Event::Waits { seconds } => {
                self.wait([*seconds; 2]);
                // A pause of growth may be over. The controller decides every minute.
                let decision = Box::new(self.state.decision.clone());
                let took = Duration::ZERO;
                self.apply(PodInput::Decided { decision, took });
            }
            Event::ClockIsSet { seconds } => self.set_clock(*seconds),
            Event::InSide(event) => self.meet_in(1, event),
            Event::Runs(_)
            | Event::AnotherRuns
            | Event::AgentRestarts { .. }
            | Event::Asks { .. }
            | Event::Releases
            | Event::Grown { .. }
            | Event::Pressed { .. }
            | Event::Quiet { .. }
            | Event::Throttled(_) => {}
        }
    }

    fn set_clock(&mut self, seconds: i64) {
        let by = SignedDuration::from_secs(seconds);
        self.now.wall = self.now.wall.checked_add(by).unwrap();
        self.apply(PodInput::ClockSet(by));
    }

    fn apply_simple(&mut self, which: usize) {
        let inputs = [
            PodInput::Check(Check::FilesWritten),
            PodInput::Check(Check::Swept),
            PodInput::Check(Check::RuntimeReturned),
            PodInput::Check(Check::NodeChanged),
            PodInput::OnNode(NodeEvent::TurnGiven),
            PodInput::TimePassed,
            PodInput::Check(Check::ApiServerReturned),
            PodInput::Check(Check::RoomFreed),
            PodInput::Check(Check::ResizeRetried),
        ];
        let mut inputs = inputs.into_iter();
        self.apply(inputs.nth(which).unwrap());
    }

    fn run_another(&mut self) {
        self.uid = if self.uid == "u1" { "u2" } else { "u1" };
        // The hooks of the earlier pod's containers end with them.
        self.copies.hooks.clear();
        (self.copies.restarts, self.copies.is_decision_due) = (0, false);
        self.locate(Some(live(self.uid)), None, None);
        assert_eq!(self.state.saved(), None, "what was saved for the earlier pod");
        assert!(self.copies.is_decision_due);
    }

    fn grow_by(&mut self, container: usize, mib: u64) {
        let to = AT_FIRST + mib;
        let earlier = self.copies.least_limits.get(&self.uid.into(), CONTAINERS[container]);
        if earlier.is_none_or(|earlier| earlier < Bytes::new(to * MIB)) {
            self.grow(container, to);
        }
    }

    fn throttle(&mut self, container: usize, is_throttled: bool) {
        let throttled = GuardEvent::Throttled {
            from: MilliCpu::new(200),
            to: MilliCpu::new(400),
            why: String::new(),
        };
        let event = Some(throttled).filter(|_| is_throttled);
        self.report(container, event.unwrap_or(GuardEvent::Unthrottled));
    }

    fn end_hook(&mut self, container: usize, well: bool) {
        if let Some(run) = self.copies.hooks.remove(CONTAINERS[container]) {
            let end = HookEnd {
                how: if well { Ok(String::new()) } else { Err(String::new()) },
                output: String::new(),
                evidence: None,
            };
            self.apply(PodInput::OnNode(NodeEvent::HookEnded { run, end }));
        }
    }

    fn start_any_pass(&mut self, how: usize) {
        // The controller waits for a pass of an earlier state, too.
        if self.running.is_some() {
            return;
        }
        let resize = match how {
            0 => Act::Direct,
            1 => Act::End {
                outcome: Outcome::Refused("no".to_owned()),
                retry_after: None,
                no_room: true,
            },
            2 => Act::End {
                outcome: Outcome::Withheld(Withheld::Unanswered("no status".to_owned())),
                retry_after: None,
                no_room: false,
            },
            3 => Act::Write(Grant::default()),
            _ => {
                let wanted = self.state.targets(self.now.wall).unwrap_or_default();
                self.next_act(&Cause::Sweep, &wanted, how == 5)
            }
        };
        self.apply(PodInput::OnNode(NodeEvent::PassDue(true)));
        self.start_pass_with(resize);
    }

    /// The pass that runs has this outcome, whatever it has done. The API server accepts a patch that is kept.
    fn end_any_pass(&mut self, which: usize, denied: bool) {
        if which < 2 && !denied {
            self.answer(Answer::Accepts);
        }
        let Some(pass) = self.running.take() else { return };
        let mut done = pass.done(outcome(which));
        done.api.answer = match denied {
            true => Some(Err(ResizeError::Denied("a quota".to_owned()))),
            false => pass.api.answer,
        };
        if which == 0 {
            done.shrink.touched.push(Target::Pod);
            done.shrink.lowered.push(lowering());
        }
        self.end_pass(pass.number, done);
    }

    /// A pass that does not run any more changes nothing, whatever it says.
    fn end_stale_pass(&mut self) {
        let before = format!("{:?}", self.state);
        let record = ChangeRecord::new(live(self.uid).id.clone(), Cause::Sweep, Outcome::Applied);
        self.end_pass(0, JobDone::new(record));
        assert_eq!(before, format!("{:?}", self.state));
    }

    fn end_raising(&mut self, well: bool) {
        let Some(uid) = self.copies.raising.take() else { return };
        let is_this = self.state.live.as_ref().is_some_and(|live| live.id.uid == uid);
        let refused = Outcome::Refused("no".to_owned());
        let raised = Box::new(Grown {
            from: None,
            outcome: if well { Outcome::Applied } else { refused },
            steps: Vec::new(),
            took: Duration::ZERO,
            systemd_failed: false,
        });
        self.apply(PodInput::PodLevelRaised { uid, raised });
        assert!(!(well && is_this) || self.state.drift.low_pod_level().is_none());
    }

    /// Another agent starts from the state file.
    fn restart(&mut self, decided: Option<u64>) {
        let before = serde_json::to_value(&self.copies.saved).unwrap();
        let saved: Option<SavedPod> = serde_json::from_value(before.clone()).unwrap();
        self.start_agent(Arc::clone(&self.state.pod));
        if decided.is_some() {
            self.decide_limit(decided, false, false);
        }
        let is_saved = saved.is_some();
        self.copies.restarts *= u64::from(saved.as_ref().is_some_and(|saved| saved.state.desired.resized));
        self.locate(Some(live(self.uid)), saved, None);
        assert!(self.copies.is_decision_due || !is_saved);
        if decided.is_none() {
            // Patches that the pod shows are recognised, and an outage that is over ends.
            let known = |mut value: Value| {
                value["described"].take();
                value["standing"]["asked"].take();
                value["standing"]["asking"].take();
                value
            };
            let after = serde_json::to_value(self.state.saved()).unwrap();
            let was_ahead = !before["standing"]["writtenAhead"].is_null();
            assert!(
                was_ahead || !is_saved || known(before.clone()) == known(after.clone()),
                "{before} {after}"
            );
        }
    }

    /// Decides, and runs the pass that follows; returns the limit it keeps, in MiB.
    pub(super) fn decide_and_pass(&mut self, mib: u64) -> Option<u64> {
        self.decide_limit(Some(mib), false, false);
        self.apply(PodInput::OnNode(NodeEvent::TurnGiven));
        self.pass()
    }

    pub(super) fn pass(&mut self) -> Option<u64> {
        self.start_any_pass(0);
        let pass = self.running.as_ref().unwrap();
        let held = pass.holds.get(&Target::Container(CONTAINERS[0].into()));
        let held = held.and_then(|held| held.bounded()).map(|held| held.get() / MIB);
        self.end_any_pass(1, false);
        held
    }

    /// The hook that runs in the first container: when it was due, and the limits in MiB.
    pub(super) fn told(&self) -> Option<(&'static str, u64, u64)> {
        let run = self.copies.hooks.get(CONTAINERS[0])?;
        Some((run.moment.word(), run.old / MIB, run.new / MIB))
    }
}
