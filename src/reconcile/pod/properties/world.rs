//! One pod, and everybody else's copies of its state, which only effects keep up to date.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::super::*;
use super::happening::{CONTAINERS, Happening, MIB, limits, live, lowering, outcome, pod};
use crate::actuate::{Grown, LeastLimits};
use crate::decide::CanaryWait;
use crate::guard::{GuardEvent, Guarded};
use crate::model::objects::PodUid;
use crate::model::{ContainerName, KubeletVersion, MilliCpu, Outcome, Reason, ResourceList};
use crate::plan::shrink::Trouble;
use crate::reconcile::overrides::Override;
use crate::resize::{Accepted, Answer, Facts, Grant};
use crate::sources::NodeView;

/// The pod, and everybody else's copies of it.
pub(super) struct World {
    pub(super) state: PodState,
    pub(super) now: Now,
    uid: &'static str,
    /// The container that the guard and hooks are concerned with.
    container: &'static str,
    /// The pod's object in the API server.
    server: Arc<Pod>,
    started: Option<PassId>,
    /// The latest pass.
    pub(super) aims: Option<Box<Job>>,
    hooks: BTreeMap<ContainerName, Box<HookRun>>,
    passes: u64,
    requests: RequestId,
    waiting: BTreeSet<RequestId>,
    saved: Option<SavedPod>,
    guarded: String,
    pub(super) least_limits: LeastLimits,
    watched: Option<u64>,
    /// The pod whose files are watched.
    files: Option<Arc<LivePod>>,
    raising: Option<PodUid>,
    is_decision_due: bool,
    /// The containers that would have started again for a first recommendation.
    restarts: u64,
}

impl World {
    pub(super) fn new(in_place: bool) -> Self {
        let pod = pod(in_place);
        let state = PodState::new(Arc::clone(&pod), PodDecision::undecided(&pod));
        let now = Now {
            wall: Timestamp::from_second(1_700_000_000).unwrap(),
            instant: Instant::now(),
            fraction: 0.5,
        };
        Self {
            guarded: format!("{:?}", state.guarded(true, now.wall)),
            state,
            now,
            uid: "u1",
            container: CONTAINERS[0],
            server: pod,
            started: None,
            aims: None,
            hooks: BTreeMap::new(),
            passes: 0,
            requests: 0,
            waiting: BTreeSet::new(),
            saved: None,
            least_limits: LeastLimits::default(),
            watched: None,
            files: None,
            raising: None,
            is_decision_due: false,
            restarts: 0,
        }
    }

    fn report(&mut self, event: GuardEvent) {
        let of = Guarded {
            pod: live(self.uid).id.clone(),
            container: self.container.into(),
        };
        self.apply(PodInput::Guard(Box::new(Report { of, event })));
    }

    pub(super) fn apply(&mut self, input: PodInput) {
        let by_pass = matches!(input, PodInput::PassEnded { .. });
        for effect in self.state.apply(input, self.now) {
            match effect {
                Effect::SaveState => self.saved = self.state.saved(),
                // The worst case: the agent is killed before the file is written.
                Effect::SaveDescription => {}
                Effect::WatchGuard => self.guarded = format!("{:?}", self.state.guarded(true, self.now.wall)),
                Effect::SetLeastLimits(limits) => self.least_limits.set(limits),
                Effect::RunPass { pass, job } => (self.started, self.aims) = (Some(pass), Some(job)),
                Effect::RunHook(run) => {
                    let other = self.hooks.insert(run.container.clone(), run);
                    assert_eq!(other, None, "two hooks in one container");
                }
                // Only a pass has open cgroups to watch.
                Effect::WatchFiles(_) => self.files = self.state.live.clone().filter(|_| by_pass),
                Effect::WatchShrink(watch) => self.watched = watch.map(|(number, _)| number),
                Effect::Record { answers: Some(id), .. } | Effect::Refuse { request: id, .. } => {
                    assert!(self.waiting.remove(&id), "{id} is answered twice");
                }
                Effect::AdmitRequest { id, request } => {
                    let states = [&self.state].into_iter();
                    let capacity = NodeCapacity::of(
                        states,
                        &NodeView::default(),
                        ResourceList::default(),
                        KubeletVersion::NEWEST,
                        false,
                    );
                    self.apply(PodInput::Admitted {
                        id,
                        request,
                        capacity: Box::new(capacity),
                    });
                }
                Effect::RaisePodLevel { bound, low } => {
                    assert_eq!(self.state.live.as_ref(), Some(bound.live()));
                    assert_eq!(self.state.drift.low_pod_level(), Some(low));
                    self.raising = Some(bound.live().id.uid.clone());
                }
                Effect::Decide => self.is_decision_due = true,
                Effect::Avoided(Avoided::Eviction { restarts }) => self.restarts += restarts,
                Effect::ShrinkEnded(ended) => {
                    assert_eq!(self.state.shrink.watch(), None, "a shrink that has ended is watched");
                    let undone = self.state.work.pending().is_some() && !self.state.desired.is_empty();
                    assert!(ended.is_ok() || undone, "no pass undoes the shrink");
                }
                Effect::Record { answers: None, .. } | Effect::Settled(_) | Effect::Avoided(_) | Effect::Log(_) => {}
            }
        }
    }

    fn request(&mut self, request: OperatorRequest) {
        self.requests += 1;
        self.waiting.insert(self.requests);
        self.apply(PodInput::Requested {
            id: self.requests,
            request,
        });
    }

    fn locate(&mut self, live: Option<Arc<LivePod>>, saved: Option<SavedPod>) {
        self.apply(PodInput::Located(Box::new(Located {
            live,
            saved,
            unsaved_limits: None,
        })));
    }

    fn decide(&mut self, mib: Option<u64>, waits: bool, no_room: bool) {
        self.is_decision_due = false;
        let mut decision = PodDecision::undecided(&self.state.pod);
        decision.reason = Reason::NoVpa;
        if let Some(mib) = mib {
            decision.vpa = Some("web".to_owned());
            decision.reason = if waits {
                Reason::CanaryFirst
            } else {
                Reason::OutOfBounds
            };
            decision.amounts = limits(mib);
        }
        decision.canary.waits = waits.then(|| CanaryWait {
            since: self.now.wall,
            targets: decision.amounts.clone(),
        });
        self.apply(PodInput::Decided {
            decision: Box::new(decision),
            took: Duration::ZERO,
        });
        let full = no_room.then(|| "full".to_owned());
        self.apply(PodInput::Followed {
            refused: full,
            cause: Some(Cause::Sweep),
            delay: Duration::ZERO,
        });
    }

    pub(super) fn happen(&mut self, happening: &Happening) {
        let runs = self.state.live.is_some();
        match happening {
            Happening::Decided { mib, no_room } => self.decide(*mib, false, *no_room),
            Happening::DecidedToWait { mib } => self.decide(Some(*mib), true, false),
            Happening::Runs(runs_now) if *runs_now != runs => self.locate(runs_now.then(|| live(self.uid)), None),
            Happening::AnotherRuns if runs => {
                self.uid = if self.uid == "u1" { "u2" } else { "u1" };
                // The hooks of the earlier pod's containers end with them.
                self.hooks.clear();
                (self.restarts, self.is_decision_due) = (0, false);
                self.locate(Some(live(self.uid)), None);
                assert_eq!(self.state.saved(), None, "what was saved for the earlier pod");
                assert!(self.is_decision_due);
            }
            Happening::Removed => {
                self.apply(PodInput::Removed);
                self.hooks.clear();
                self.restarts = 0;
                assert_eq!(self.state.saved(), None);
            }
            Happening::AgentRestarts { decided } if runs => self.restart(*decided),
            Happening::WatchBrings => self.apply(PodInput::Described(Arc::clone(&self.server))),
            Happening::SomebodyElseSets { mib } => self.set_spec(&limits(*mib)),
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
            Happening::Grown { mib } if runs => self.grow(*mib),
            Happening::Pressed { mib } if runs => {
                self.grow(*mib);
                self.report(GuardEvent::Pressure {
                    limit: Bytes::new(128 * MIB),
                    lent: Bytes::new((128 + mib) * MIB),
                });
            }
            Happening::Quiet { mib } if runs => self.report(GuardEvent::Quiet {
                peak: Bytes::new(mib * MIB),
                needed: Bytes::new(mib * MIB),
            }),
            Happening::Throttled(true) if runs => self.report(GuardEvent::Throttled {
                from: MilliCpu::new(200),
                to: MilliCpu::new(400),
                why: String::new(),
            }),
            Happening::Throttled(false) if runs => self.report(GuardEvent::Unthrottled),
            Happening::PassBegins => self.begin_pass(0),
            Happening::PassResizes(how) => self.begin_pass(*how),
            Happening::PassEnds { outcome, denied } => self.end_started_pass(*outcome, *denied),
            Happening::HookEnds(well) => {
                if let Some(run) = self.hooks.remove(self.container) {
                    let how = if *well { Ok(String::new()) } else { Err(String::new()) };
                    let output = String::new();
                    let evidence = None;
                    self.apply(PodInput::HookEnded {
                        run,
                        end: HookEnd { how, output, evidence },
                    });
                }
            }
            Happening::StalePassEnds => self.end_stale_pass(),
            Happening::ShrinkEnds(well) => {
                let trouble = Verdict::Trouble(Target::Pod, Trouble::Killed(1));
                let verdict = if *well { Verdict::Kept } else { trouble };
                self.apply(PodInput::ShrinkWatchEnded {
                    number: self.watched.unwrap_or(0),
                    verdict,
                });
            }
            Happening::Killed => self.apply(PodInput::Killed {
                target: Target::Pod,
                at: self.now.wall,
                lowered: true,
            }),
            Happening::PodLevelIs { low, repair } => {
                let low = low.then_some(LowPodLevel {
                    holds: Bytes::new(MIB),
                    needs: Bytes::new(2 * MIB),
                });
                self.apply(PodInput::PodLevelRead { low, repair: *repair });
            }
            Happening::PodLevelRaised(well) => self.end_raising(*well),
            Happening::Simple(which) => {
                let inputs = [
                    PodInput::FilesWritten,
                    PodInput::Swept,
                    PodInput::RuntimeReturned,
                    PodInput::NodeChanged,
                    PodInput::TurnGiven,
                    PodInput::TimePassed,
                    PodInput::ApiServerReturned,
                    PodInput::RoomFreed,
                    PodInput::ResizeRetried,
                ];
                let mut inputs = inputs.into_iter();
                self.apply(inputs.nth(*which).unwrap());
            }
            Happening::Waits { seconds } => {
                self.now.wall = self.now.wall.checked_add(SignedDuration::from_secs(*seconds)).unwrap();
                self.now.instant += Duration::from_secs(seconds.unsigned_abs());
                self.apply(PodInput::TimePassed);
                // A pause of growth may be over. The controller decides every minute.
                let decision = Box::new(self.state.decision.clone());
                self.apply(PodInput::Decided {
                    decision,
                    took: Duration::ZERO,
                });
            }
            Happening::InSide(happening) => {
                self.container = CONTAINERS[1];
                self.happen(happening);
                self.container = CONTAINERS[0];
            }
            Happening::Runs(_)
            | Happening::AnotherRuns
            | Happening::AgentRestarts { .. }
            | Happening::Asks { .. }
            | Happening::Releases
            | Happening::Grown { .. }
            | Happening::Pressed { .. }
            | Happening::Quiet { .. }
            | Happening::Throttled(_) => {}
        }
    }

    /// The guard writes first and reports afterwards.
    fn grow(&mut self, mib: u64) {
        let to = Bytes::new((128 + mib) * MIB);
        let earlier = self.least_limits.get(&self.uid.into(), self.container);
        if earlier.is_none_or(|earlier| earlier < to) {
            self.least_limits.raise(&self.uid.into(), self.container, to);
            self.report(GuardEvent::Grew {
                used: to,
                to,
                why: String::new(),
                for_pod: false,
                grown: Box::new(Grown {
                    from: Some(Bytes::new(128 * MIB)),
                    outcome: Outcome::Applied,
                    steps: Vec::new(),
                    took: Duration::ZERO,
                }),
            });
            self.least_limits.end_raise(&self.uid.into(), self.container, to);
        }
    }

    /// The API server changes the spec.
    fn set_spec(&mut self, targets: &PodAmounts) {
        let mut changed = self.server.with_requirements(targets);
        changed.metadata.generation += i64::from(changed.spec != self.server.spec);
        self.server = Arc::new(changed);
    }

    fn begin_pass(&mut self, how: usize) {
        // The controller waits for a pass of an earlier state, too.
        if self.started.is_some() {
            return;
        }
        let wanted = self.state.targets(self.now.wall).unwrap_or_default();
        let facts = Facts {
            away: (how == 5).then(|| "away".to_owned()),
            by_hand: self.state.by_hand(self.now.wall),
            ..Facts::default()
        };
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
            _ => self.state.resize.next(&self.state.pod, &wanted, &Cause::Sweep, &facts),
        };
        self.passes += 1;
        self.apply(PodInput::PassDue(true));
        self.apply(PodInput::PassBegan {
            number: self.passes,
            resize: Box::new(resize),
        });
    }

    fn ended(&self, outcome: Outcome) -> JobDone {
        JobDone::new(ChangeRecord::new(live(self.uid).id.clone(), Cause::Sweep, outcome))
    }

    fn end_started_pass(&mut self, which: usize, denied: bool) {
        let Some(pass) = self.started.take() else { return };
        let mut done = self.ended(outcome(which));
        let patch = self.aims.as_ref().filter(|job| matches!(job.resize, Act::Patch(_)));
        if denied {
            done.api.answer = Answer::Denied("a quota".to_owned());
        } else if let Some(job) = patch.filter(|_| which < 2) {
            let (targets, held) = (job.targets.amounts.clone(), self.server.requirements());
            self.set_spec(&targets);
            done.api.answer = Answer::Accepted(Accepted {
                targets,
                generation: self.server.metadata.generation,
                before: held.clone(),
                held,
            });
        }
        if which == 0 {
            done.shrink.touched.push(Target::Pod);
            done.shrink.lowered.push(lowering());
        }
        self.end_pass(pass, done);
    }

    fn end_pass(&mut self, pass: PassId, done: JobDone) {
        let quiet = SignedDuration::from_secs(600);
        self.apply(PodInput::PassEnded {
            pass,
            done: Box::new(done),
            quiet,
        });
    }

    /// A pass that does not run any more changes nothing, whatever it says.
    fn end_stale_pass(&mut self) {
        let pass = self.state.work.pass_id(0, self.uid.into());
        let before = format!("{:?}", self.state);
        self.end_pass(pass, self.ended(Outcome::Applied));
        assert_eq!(before, format!("{:?}", self.state));
    }

    fn end_raising(&mut self, well: bool) {
        let Some(uid) = self.raising.take() else { return };
        let is_this = self.state.live.as_ref().is_some_and(|live| live.id.uid == uid);
        let outcome = if well {
            Outcome::Applied
        } else {
            Outcome::Refused("no".to_owned())
        };
        let raised = Grown {
            from: None,
            outcome,
            steps: Vec::new(),
            took: Duration::ZERO,
        };
        self.apply(PodInput::PodLevelRaised {
            uid,
            raised: Box::new(raised),
        });
        assert!(!(well && is_this) || self.state.drift.low_pod_level().is_none());
    }

    /// Another agent starts from the state file.
    fn restart(&mut self, decided: Option<u64>) {
        let before = serde_json::to_value(&self.saved).unwrap();
        let saved: Option<SavedPod> = serde_json::from_value(before.clone()).unwrap();
        self.state = PodState::new(Arc::clone(&self.state.pod), PodDecision::undecided(&self.state.pod));
        self.least_limits = LeastLimits::default();
        self.guarded = format!("{:?}", self.state.guarded(true, self.now.wall));
        (self.started, self.watched, self.files, self.raising) = (None, None, None, None);
        self.hooks.clear();
        self.waiting.clear();
        if decided.is_some() {
            self.decide(decided, false, false);
        }
        let is_saved = saved.is_some();
        self.restarts *= u64::from(saved.as_ref().is_some_and(|saved| saved.state.desired.resized));
        self.locate(Some(live(self.uid)), saved);
        assert!(self.is_decision_due || !is_saved);
        // The state file loses the pod that was found, until it is saved again.
        self.saved = self.state.saved();
        if decided.is_none() {
            // Patches that the pod shows are recognised, and an outage that is over ends.
            let known = |mut value: Value| {
                value["described"].take();
                value["standing"]["asked"].take();
                value["standing"]["asking"].take();
                value
            };
            let after = serde_json::to_value(&self.saved).unwrap();
            let was_ahead = !before["standing"]["writtenAhead"].is_null();
            assert!(
                was_ahead || !is_saved || known(before.clone()) == known(after.clone()),
                "{before} {after}"
            );
        }
    }

    /// Everybody's copy is what the state says, and whoever asked has an answer or waits for one.
    pub(super) fn check(&self) {
        let undescribed = |saved: Option<SavedPod>| {
            saved.map(|saved| SavedPod {
                described: None,
                ..saved
            })
        };
        let [was, is] = [self.saved.clone(), self.state.saved()].map(undescribed);
        assert_eq!(was, is, "the state file is outdated");
        let guarded = format!("{:?}", self.state.guarded(true, self.now.wall));
        assert_eq!(self.guarded, guarded, "the guard is outdated");
        let temporary: BTreeMap<_, _> = self.state.desired.memory_limits().collect();
        for name in CONTAINERS {
            for uid in ["u1", "u2"] {
                let least = temporary.get(name).copied().filter(|_| uid == self.uid);
                assert_eq!(
                    self.least_limits.get(&uid.into(), name),
                    least,
                    "writers heed another limit"
                );
            }
        }
        assert_eq!(self.watched, self.state.shrink.watch().map(|(number, _)| number));
        assert!(
            self.files.is_none() || self.files == self.state.live,
            "files of another pod are watched"
        );
        assert!(
            self.restarts <= CONTAINERS.len() as u64,
            "one recommendation was the first twice"
        );
        assert!(
            !self.state.hooks.is_announcing() || !self.hooks.is_empty(),
            "a limit is kept for ever"
        );
        let waiting: BTreeSet<_> = self.state.work.requests().collect();
        assert_eq!(self.waiting, waiting, "a request was forgotten");
        if self.state.live.is_none() {
            assert!(waiting.is_empty(), "nobody will answer {waiting:?}");
        } else if !waiting.is_empty() {
            let work = &self.state.work;
            let answers = work.pending().is_some() || work.running().is_some() || work.retry_at().is_some();
            assert!(answers, "no pass will answer {waiting:?}");
        }
    }

    /// Decides, and runs the pass that follows; returns the limit it keeps, in MiB.
    pub(super) fn decide_and_pass(&mut self, mib: u64) -> Option<u64> {
        self.decide(Some(mib), false, false);
        self.happen(&Happening::Simple(4));
        self.pass()
    }

    pub(super) fn pass(&mut self) -> Option<u64> {
        self.begin_pass(0);
        self.end_started_pass(1, false);
        let holds = self.aims.take().unwrap().targets.holds;
        let held = holds.get(&Target::Container("app".into()));
        held.and_then(|held| held.bounded()).map(|held| held.get() / MIB)
    }

    /// The hook that runs in the first container: when it was due, and the limits in MiB.
    pub(super) fn told(&self) -> Option<(&'static str, u64, u64)> {
        let run = self.hooks.get("app")?;
        Some((run.moment.word(), run.old / MIB, run.new / MIB))
    }
}
