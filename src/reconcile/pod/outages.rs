//! What holds for every course of an outage of the API server: whatever an operator set, released or let end in it, and whoever
//! else changed the spec meanwhile, in the end the spec and the kernel have the same, and no change of somebody else is lost.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::guard::{GuardEvent, Guarded, LatestLimits};
use crate::model::{
    CgroupPath, Change, ContainerId, KubeletVersion, LiveContainer, Outcome, Reason, Requirements, Resource,
    ResourceList, Step,
};
use crate::plan::{Capacity, OtherPods, Room};
use crate::reconcile::capacity::NodeCapacity;
use crate::reconcile::overrides::Override;
use crate::resize::{Accepted, Facts};
use crate::sources::{NodeView, parse_manifests};

mod edits;
mod examples;
mod exhaustive;
mod running;
mod unanswered;

use running::{Answer, ROOM, RunningPass, Undo};

const MIB: u64 = 1 << 20;
const AT_FIRST: u64 = 128;
const POD: &str = "
kind: Pod
metadata: {name: web, uid: u1, generation: 1}
spec:
  containers:
  - {name: app, resources: {requests: {cpu: 100m, memory: 64Mi}, limits: {cpu: 200m, memory: 128Mi}}}
  - {name: side, resources: {requests: {cpu: 100m, memory: 64Mi}, limits: {cpu: 200m, memory: 128Mi}}}
status:
  observedGeneration: 1
  containerStatuses:
  - {name: app, resources: {requests: {cpu: 100m, memory: 64Mi}, limits: {cpu: 200m, memory: 128Mi}}}
  - {name: side, resources: {requests: {cpu: 100m, memory: 64Mi}, limits: {cpu: 200m, memory: 128Mi}}}
";

/// Something that happens in an outage.
#[derive(Debug, Clone)]
enum Happening {
    Sets {
        mib: u64,
    },
    Releases,
    OverrideEnds,
    SomebodyElseSets {
        mib: u64,
    },
    /// Somebody else sets the memory limit of the second container.
    SomebodyElseSetsSide {
        mib: u64,
    },
    AgentIsKilled,
    FilesAreWritten,
    /// The kubelet has carried out the spec, which the agent may not have seen.
    KubeletSettles,
    /// The API server is there for a moment, but an answer is lost.
    AnswerIsLost,
    /// The API server fails with the next request, and perhaps carries it out.
    Fails {
        carries_out: bool,
        silent: bool,
    },
    /// The watch brings what there is.
    WatchBrings,
    /// Requests of memory for both containers, with limits of twice as much.
    Recommends {
        mib: [u64; 2],
    },
    Grows {
        container: usize,
        mib: u64,
    },
    IsQuiet {
        container: usize,
    },
    /// It is the pod's turn to lower limits.
    MayLower,
    /// The guard raises a limit after the API server accepted the next patch, so the pass takes the patch back.
    Overtakes(Overtaking),
    /// Another client sets an amount, at once or before the next pass takes its patch back.
    Edits {
        field: edits::Field,
        amid_pass: bool,
    },
}

/// How a pass takes its patch back.
#[derive(Debug, Clone, Copy)]
struct Overtaking {
    container: usize,
    mib: u64,
    /// Whether the API server carries out the second request.
    carries_out: bool,
    /// Whether the agent gets no answer.
    silent: bool,
    /// Whether the agent is killed before the pass ends.
    killed: bool,
}

fn happening() -> impl Strategy<Value = Happening> {
    let mib = || 200_u64..204;
    prop_oneof![
        mib().prop_map(|mib| Happening::Sets { mib }),
        Just(Happening::Releases),
        Just(Happening::OverrideEnds),
        // None that an operator sets: nobody could tell whose it is.
        (300_u64..304).prop_map(|mib| Happening::SomebodyElseSets { mib }),
        Just(Happening::AgentIsKilled),
        Just(Happening::FilesAreWritten),
        Just(Happening::AnswerIsLost),
    ]
}

/// The pod, the kernel's limits, and the API server with its spec.
#[derive(Clone)]
struct World {
    state: PodState,
    now: Now,
    server: Pod,
    away: bool,
    kernel: [u64; 2],
    /// Whether a rule of the API server refuses every request.
    denies: bool,
    /// Whether the next request of an outage is carried out although no answer comes.
    carries_out: bool,
    /// Whether the next request fails without an answer, or with one.
    fails: Option<bool>,
    /// How the guard overtakes the next pass whose patch is accepted.
    overtaking: Option<Overtaking>,
    passes: u64,
    requests: u64,
    lost: u32,
    /// The amounts that another client has set, and those of them that this agent has changed since for no new reason.
    theirs: BTreeMap<edits::Field, u64>,
    overwritten: Vec<edits::Field>,
    /// What another client sets before the next pass takes its patch back.
    amid_pass: Option<edits::Field>,
    /// How many edits another client has made.
    edits: u64,
    /// How often the agent took the spec for another client's.
    yielded: u32,
    running: Option<RunningPass>,
    /// A patch that the agent has not seen the result of, with the generation of the spec if it was carried out.
    unanswered: Option<Option<i64>>,
    /// Whether the API server has denied a patch, and whether the kernel had more than the spec after one.
    denied: bool,
    above_spec: bool,
    /// Whether the spec has an override that the operator has an answer about.
    promised: bool,
    /// Whether the guard may grow a limit further in a moment.
    growing: bool,
    /// What the VPA recommends, and whether the agent that follows a killed one has to decide so again.
    recommended: Option<[u64; 2]>,
    undecided: bool,
    /// Whether the VPA has gone.
    gone: bool,
}

fn limit(targets: &PodAmounts) -> u64 {
    limit_of(targets, 0)
}

fn limit_of(targets: &PodAmounts, container: usize) -> u64 {
    targets.containers[container].resources.limits.memory.unwrap().get() / MIB
}

fn with_limit(pod: &Pod, mib: u64) -> Pod {
    let mut targets = pod.requirements();
    targets.containers[0].resources.limits.memory = Some(Bytes::new(mib * MIB));
    changed(pod, &targets)
}

/// The pod once the API server has changed its spec to this.
fn changed(pod: &Pod, targets: &PodAmounts) -> Pod {
    let mut changed = pod.with_requirements(targets);
    changed.metadata.generation += i64::from(changed.spec != pod.spec);
    changed
}

impl World {
    fn new(carries_out: bool) -> Self {
        let pod = Pod::clone(&parse_manifests("test", POD).unwrap().view.pods[0]);
        let mut world = Self {
            state: PodState::new(Arc::new(pod.clone()), PodDecision::undecided(&pod)),
            now: Now {
                wall: Timestamp::from_second(1_700_000_000).unwrap(),
                instant: Instant::now(),
                fraction: 0.5,
            },
            server: pod,
            away: false,
            denies: false,
            kernel: [AT_FIRST; 2],
            carries_out,
            fails: None,
            overtaking: None,
            passes: 0,
            requests: 0,
            lost: 0,
            theirs: BTreeMap::new(),
            overwritten: Vec::new(),
            amid_pass: None,
            edits: 0,
            yielded: 0,
            running: None,
            unanswered: None,
            denied: false,
            above_spec: false,
            promised: false,
            growing: false,
            recommended: None,
            undecided: false,
            gone: false,
        };
        world.locate(None, None);
        world
    }

    fn locate(&mut self, saved: Option<SavedPod>, unsaved_limits: Option<LatestLimits>) {
        let path = CgroupPath::new("/kubepods/podu").unwrap();
        let containers = ["app", "side"].map(|name| {
            let container = LiveContainer {
                id: ContainerId::of_test(name),
                path: path.clone(),
            };
            (name.into(), container)
        });
        let live = LivePod {
            id: PodId {
                uid: "u1".into(),
                namespace: "default".to_owned(),
                name: "web".to_owned(),
            },
            path,
            containers: indexmap::IndexMap::from(containers),
        };
        self.apply(PodInput::Located(Box::new(Located {
            live: Some(Arc::new(live)),
            saved,
            unsaved_limits,
        })));
    }

    fn apply(&mut self, input: PodInput) {
        for effect in self.state.apply(input, self.now) {
            match effect {
                Effect::RunPass { pass: id, job } => {
                    let (viewed, least) = (Arc::clone(&self.state.pod), self.least_limits());
                    self.running = Some(RunningPass::new(id, *job, viewed, least));
                }
                Effect::AdmitRequest { id, request } => {
                    let states = [&self.state].into_iter();
                    let kubelet = KubeletVersion::NEWEST;
                    let capacity =
                        NodeCapacity::of(states, &NodeView::default(), ResourceList::default(), kubelet, true);
                    self.apply(PodInput::Admitted {
                        id,
                        request,
                        capacity: Box::new(capacity),
                    });
                }
                Effect::Record { record, .. } if record.cause == Cause::ChangeLost => {
                    self.lost += u32::from(record.outcome.reason().is_some());
                }
                Effect::Log(LogLine::SpecChanged) => self.yielded += 1,
                _ => {}
            }
        }
    }

    /// Runs the pass that was begun to its end.
    fn run(&mut self) {
        let silent = if self.asks().is_some() { self.fails.take() } else { None };
        let carries_out = (silent.is_some() || self.away) && std::mem::take(&mut self.carries_out);
        let answer = match silent.or(self.away.then_some(true)) {
            Some(true) if !carries_out => Answer::NotRead,
            Some(silent) => Answer::Fails { carries_out, silent },
            None if self.denies => Answer::Denies,
            None => Answer::Accepts,
        };
        self.answer(answer);
        let patched = self.running.as_ref().is_some_and(RunningPass::has_patched);
        let Some(how) = self.overtaking.take_if(|_| patched) else {
            return self.end_running(None, None);
        };
        let Overtaking {
            container,
            mib,
            carries_out,
            silent,
            killed,
        } = how;
        let name = self.server.spec.containers[container].name.clone();
        let saved = self.state.saved();
        self.end_running(Some(Undo { carries_out, silent }), Some((container, mib)));
        if killed {
            return self.follow_killed(saved, Some([(name.into(), Bytes::new(mib * MIB))].into()));
        }
        self.happen(&Happening::Grows { container, mib });
    }

    /// Another agent follows, which finds these limits of the guard beside what is saved.
    fn follow_killed(&mut self, saved: Option<SavedPod>, unsaved_limits: Option<LatestLimits>) {
        (self.running, self.undecided) = (None, true);
        // An agent that has an API server lists the pods first.
        let pod = match self.away {
            true => Arc::clone(&self.state.pod),
            false => Arc::new(self.server.clone()),
        };
        let decision = PodDecision::undecided(&pod);
        self.state = PodState::new(pod, decision);
        self.locate(saved, unsaved_limits);
    }

    /// Runs passes for as long as one is due. The first of an outage is begun before anybody knows of it.
    fn passes(&mut self, known: bool) {
        for _ in 0..10 {
            if !self.begin_pass(known) {
                return;
            }
        }
        panic!("no end of passes: {:?}", self.state.work);
    }

    /// Runs the next pass, if one is due.
    fn begin_pass(&mut self, known: bool) -> bool {
        let begins = self.start_pass(known);
        if begins {
            self.run();
        }
        begins
    }

    /// Begins the next pass, if one is due.
    fn start_pass(&mut self, known: bool) -> bool {
        if self.state.next_pass(self.now).is_none() {
            return false;
        }
        self.passes += 1;
        let (cause, targets) = self.state.next_pass(self.now).unwrap();
        let too_early = self.growing.then(|| self.state.too_early_to_patch(cause, self.now));
        let facts = Facts {
            away: (self.away && known).then(|| "away".to_owned()),
            room: Some(ROOM),
            too_early: too_early.flatten(),
            by_hand: self.state.by_hand(self.now.wall),
            ..Facts::default()
        };
        let resize = Box::new(self.state.resize.next(&self.state.pod, &targets, cause, &facts));
        let number = self.passes;
        self.apply(PodInput::PassBegan { number, resize });
        true
    }

    fn report(&mut self, container: usize, event: GuardEvent) {
        let of = Guarded {
            pod: self.state.identity.clone().unwrap(),
            container: self.server.spec.containers[container].name.as_str().into(),
        };
        self.apply(PodInput::Guard(Box::new(Report { of, event })));
    }

    fn decide(&mut self, reason: Reason, amounts: PodAmounts) {
        let mut decision = PodDecision::undecided(&self.state.pod);
        decision.vpa = (reason != Reason::NoVpa).then(|| "web".to_owned());
        decision.reason = reason;
        decision.amounts = amounts;
        decision.burst = self.state.desired.burst;
        self.apply(PodInput::Decided {
            decision: Box::new(decision),
            took: Duration::ZERO,
        });
        self.apply(PodInput::Followed {
            refused: None,
            cause: Some(Cause::Sweep),
            delay: Duration::ZERO,
        });
    }

    fn lose_vpa(&mut self) {
        (self.recommended, self.undecided, self.gone) = (None, false, true);
        self.decide(Reason::NoVpa, self.state.pod.requirements());
    }

    fn request(&mut self, request: OperatorRequest) {
        self.requests += 1;
        self.apply(PodInput::Requested {
            id: self.requests,
            request,
        });
    }

    fn happen(&mut self, happening: &Happening) {
        self.is_decided_anew(happening);
        match happening {
            Happening::Sets { mib } => {
                let mut values = self.state.pod.requirements();
                values.containers.truncate(1);
                values.containers[0].resources = Requirements::default();
                values.containers[0].resources.limits.memory = Some(Bytes::new(mib * MIB));
                self.request(OperatorRequest::Override(Override {
                    uid: 0,
                    pid: 1,
                    reason: String::new(),
                    since: self.now.wall,
                    until: self.now.wall.checked_add(SignedDuration::from_secs(300)).ok(),
                    values,
                }));
            }
            Happening::Releases => self.request(OperatorRequest::Release {
                uid: 0,
                pid: 1,
                reason: String::new(),
            }),
            Happening::OverrideEnds => {
                self.now.wall = self.now.wall.checked_add(SignedDuration::from_secs(301)).unwrap();
                self.apply(PodInput::TimePassed);
            }
            Happening::SomebodyElseSets { mib } => {
                self.server = with_limit(&self.server, *mib);
            }
            Happening::SomebodyElseSetsSide { mib } => {
                let mut targets = self.server.requirements();
                targets.containers[1].resources.limits.memory = Some(Bytes::new(mib * MIB));
                self.server = changed(&self.server, &targets);
            }
            Happening::AgentIsKilled => self.follow_killed(self.state.saved(), None),
            Happening::FilesAreWritten => self.apply(PodInput::FilesWritten),
            Happening::KubeletSettles => {
                self.kubelet_settles();
                self.apply(PodInput::FilesWritten);
            }
            Happening::AnswerIsLost => {
                self.carries_out = true;
                self.apply(PodInput::ApiServerReturned);
                self.passes(false);
                self.carries_out = false;
            }
            Happening::Fails { carries_out, silent } => {
                (self.carries_out, self.fails) = (*carries_out, Some(*silent));
            }
            Happening::WatchBrings => {
                self.apply(PodInput::Described(Arc::new(self.server.clone())));
                if self.recommended.is_none() {
                    // Each object is decided about, also without a VPA.
                    self.decide(Reason::NoVpa, self.state.pod.requirements());
                }
            }
            Happening::Recommends { mib } => {
                (self.recommended, self.undecided) = (Some(*mib), false);
                let mut amounts = self.state.without_own_changes().requirements();
                for ((_, has), mib) in amounts.iter_mut().zip(mib) {
                    has.requests.memory = Some(Bytes::new(mib * MIB));
                    has.limits.memory = Some(Bytes::new(2 * mib * MIB));
                }
                self.decide(Reason::OutOfBounds, amounts);
            }
            Happening::Grows { container, mib } => {
                let grown = Box::new(Grown {
                    from: Some(Bytes::new(AT_FIRST * MIB)),
                    outcome: Outcome::Applied,
                    steps: Vec::new(),
                    took: Duration::ZERO,
                });
                let (to, why) = (Bytes::new(mib * MIB), String::new());
                self.report(
                    *container,
                    GuardEvent::Grew {
                        to,
                        used: to,
                        why,
                        for_pod: false,
                        grown,
                    },
                );
            }
            Happening::IsQuiet { container } => {
                let (peak, needed) = (Bytes::new(MIB), Bytes::new(MIB));
                self.report(*container, GuardEvent::Quiet { peak, needed });
            }
            Happening::MayLower if self.state.desired.is_empty() => {}
            Happening::MayLower => self.apply(PodInput::TurnGiven),
            Happening::Overtakes(how) => self.overtaking = Some(*how),
            Happening::Edits { field, amid_pass: true } => self.amid_pass = Some(*field),
            Happening::Edits { field, .. } => self.edit(*field),
        }
    }

    /// The kubelet has written the spec to the cgroups of the containers whose amounts changed.
    fn kubelet_settles(&mut self) {
        let spec = self.server.requirements();
        let status = &mut self.server.status;
        status.observed_generation = self.server.metadata.generation;
        status.conditions.clear();
        for (number, status) in status.container_statuses.iter_mut().enumerate() {
            if status.resources.replace(spec.containers[number].resources) != Some(spec.containers[number].resources) {
                self.kernel[number] = limit_of(&spec, number);
            }
        }
    }

    /// The API server is back, and is heard of.
    fn recover(&mut self) {
        self.away = false;
        if let Some(mib) = self.recommended.filter(|_| self.undecided) {
            self.happen(&Happening::Recommends { mib });
            self.happen(&Happening::MayLower);
        }
        self.apply(PodInput::ApiServerReturned);
        self.passes(true);
        self.hear();
    }

    /// The watch brings what there is, and the kubelet has done it.
    fn hear(&mut self) {
        for _ in 0..5 {
            let generation = self.server.metadata.generation;
            self.server.status.observed_generation = generation;
            let spec = self.server.spec.containers.clone();
            for (status, container) in self.server.status.container_statuses.iter_mut().zip(spec) {
                status.resources = Some(container.resources);
            }
            self.apply(PodInput::Described(Arc::new(self.server.clone())));
            self.passes(true);
            self.now.instant += Duration::from_secs(20);
            self.apply(PodInput::TimePassed);
            self.passes(true);
            if self.server.metadata.generation == generation {
                return;
            }
        }
        panic!("the spec does not come to rest: {:?}", self.state);
    }
}

proptest! {
    #[test]
    fn in_the_end_spec_and_kernel_agree(
        before in proptest::option::of(200_u64..204),
        carries_out in any::<bool>(),
        happenings in vec(happening(), 0..12),
    ) {
        let mut world = World::new(carries_out);
        if let Some(mib) = before {
            world.happen(&Happening::Sets { mib });
            world.passes(true);
            world.hear();
        }
        world.away = true;
        let mut theirs = None;
        for (index, happening) in happenings.iter().enumerate() {
            if let Happening::SomebodyElseSets { mib } = happening {
                theirs = Some(*mib);
            }
            world.happen(happening);
            world.passes(index > 0);
            let desired = world.state.desired.targets(&world.state.pod);
            if let Some(desired) = desired {
                prop_assert_eq!(world.kernel[0], limit(&desired), "the kernel waits for the API server");
            }
        }
        let overridden = world.state.desired.overridden.as_ref().map(|overridden| limit(&overridden.values));
        let ahead = world.state.resize.is_ahead();
        world.recover();
        let spec = limit(&world.server.requirements());
        let state = &world.state;
        if !state.desired.is_empty() {
            prop_assert_eq!(world.kernel[0], spec, "{:?}", state);
        }
        prop_assert!(!state.resize.is_ahead() && !state.resize.progress().waits_for_api_server(), "{:?}", state);
        match theirs {
            Some(theirs) if ahead => {
                prop_assert_eq!(spec, theirs);
                prop_assert!(state.desired.overridden.is_none());
                prop_assert!(world.lost > 0 || overridden.is_none(), "what an operator set is lost silently");
            }
            Some(_) => {}
            None => {
                prop_assert_eq!(spec, overridden.unwrap_or(AT_FIRST));
                prop_assert_eq!(world.lost, 0);
            }
        }
    }
}
