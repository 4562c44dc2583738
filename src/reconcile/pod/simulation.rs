//! One pod in a simulated world: the API server with the pod's object, the kubelet, the kernel's limits, an operator, the VPA, the guard,
//! time, and the [`Copies`] that others have of the pod's state. Each file beside it lets other things happen to the pod.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::guard::{GuardEvent, Guarded, LatestLimit, LatestLimits};
use crate::model::objects::{PodCondition, PodUid};
use crate::model::{
    CgroupPath, Change, ContainerId, KubeletVersion, LiveContainer, Outcome, Reason, Requirements, Resource,
    ResourceList, Step,
};
use crate::plan::{Capacity, OtherPods, Room};
use crate::reconcile::capacity::NodeCapacity;
use crate::reconcile::overrides::Override;
use crate::resize::{Facts, Request};
use crate::sources::{NodeView, parse_manifests};

mod copies;
mod edits;
mod examples;
mod exhaustive;
mod happening;
mod outages;
mod properties;
mod running;
mod unanswered;

use copies::Copies;
use happening::{Happening, Overtaking};
use running::{Answer, ROOM, RunningPass, Undo};

const MIB: u64 = 1 << 20;
const AT_FIRST: u64 = 128;
const CONTAINERS: [&str; 2] = ["app", "side"];
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

/// A pod whose kubelet resizes in place.
fn pod() -> Pod {
    Pod::clone(&parse_manifests("test", POD).unwrap().view.pods[0])
}

/// The running pod with this UID.
fn live(uid: &str) -> Arc<LivePod> {
    let path = CgroupPath::new("/kubepods/podu").unwrap();
    let containers = CONTAINERS.map(|name| {
        let container = LiveContainer {
            id: ContainerId::of_test(&format!("{uid}-{name}")),
            path: path.clone(),
        };
        (name.into(), container)
    });
    Arc::new(LivePod {
        id: PodId {
            uid: uid.into(),
            namespace: "default".to_owned(),
            name: "web".to_owned(),
        },
        path,
        containers: indexmap::IndexMap::from(containers),
    })
}

/// The pod, the kernel's limits, and the API server with its spec.
#[derive(Clone)]
struct World {
    state: PodState,
    now: Now,
    /// The UID of the pod that runs here.
    uid: &'static str,
    copies: Copies,
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
    fn new() -> Self {
        let mut world = Self::of(pod());
        world.locate(Some(live(world.uid)), None, None);
        world
    }

    /// A world in which the pod does not run yet.
    fn of(pod: Pod) -> Self {
        let state = PodState::new(Arc::new(pod.clone()), PodDecision::undecided(&pod));
        let now = Now {
            wall: Timestamp::from_second(1_700_000_000).unwrap(),
            instant: Instant::now(),
            fraction: 0.5,
        };
        Self {
            copies: Copies::of(&state, now.wall),
            state,
            now,
            uid: "u1",
            server: pod,
            away: false,
            denies: false,
            kernel: [AT_FIRST; 2],
            carries_out: false,
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
        }
    }

    fn locate(&mut self, live: Option<Arc<LivePod>>, saved: Option<SavedPod>, unsaved_limits: Option<LatestLimits>) {
        self.apply(PodInput::Located(Box::new(Located {
            live,
            saved,
            unsaved_limits,
        })));
    }

    fn apply(&mut self, input: PodInput) {
        let by_pass = matches!(input, PodInput::OnNode(NodeEvent::PassEnded { .. }));
        for effect in self.state.apply(input, self.now) {
            match effect {
                Effect::RunPass { pass, job } => {
                    let (viewed, least) = (Arc::clone(&self.state.pod), self.least_limits());
                    self.running = Some(RunningPass::new(pass, *job, viewed, least));
                }
                Effect::AdmitRequest { id, request } => {
                    let capacity = Box::new(self.capacity());
                    self.apply(PodInput::Admitted { id, request, capacity });
                }
                Effect::Log(LogLine::SpecChanged) => self.yielded += 1,
                effect => {
                    if let Effect::Record { record, .. } = &effect
                        && record.cause == Cause::ChangeLost
                    {
                        self.lost += u32::from(record.outcome.reason().is_some());
                    }
                    self.copies.update(effect, &self.state, self.now.wall, by_pass);
                }
            }
        }
    }

    /// Time passes on the wall clock and on the monotonic clock.
    fn wait(&mut self, [wall, monotonic]: [u64; 2]) {
        self.now.wall = self.now.wall.checked_add(Duration::from_secs(wall)).unwrap();
        self.now.instant += Duration::from_secs(monotonic);
        self.apply(PodInput::TimePassed);
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
            let to = Bytes::new(mib * MIB);
            let limit = LatestLimit { to, for_pod: false };
            return self.follow_killed(saved, Some([(name.into(), limit)].into()));
        }
        self.happen(&Happening::Grows { container, mib });
    }

    /// Another agent follows, which finds these limits of the guard beside what is saved.
    fn follow_killed(&mut self, saved: Option<SavedPod>, unsaved_limits: Option<LatestLimits>) {
        // An agent that has an API server lists the pods first.
        self.start_agent(match self.away {
            true => Arc::clone(&self.state.pod),
            false => Arc::new(self.server.clone()),
        });
        self.locate(Some(live(self.uid)), saved, unsaved_limits);
    }

    /// Another agent starts with this object of the pod, and has not located it.
    fn start_agent(&mut self, pod: Arc<Pod>) {
        (self.running, self.undecided) = (None, true);
        let decision = PodDecision::undecided(&pod);
        self.state = PodState::new(pod, decision);
        self.copies.start_agent(&self.state, self.now.wall);
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
        let Some((cause, targets)) = next_pass(&self.state, self.now) else {
            return false;
        };
        let resize = self.next_act(cause, &targets, self.away && known);
        self.start_pass_with(resize);
        true
    }

    /// What a pass does about the resize, where it knows of an outage or does not.
    fn next_act(&self, cause: &Cause, targets: &PodAmounts, knows_outage: bool) -> Act {
        let facts = facts(&self.state, cause, self.now);
        let facts = Facts {
            away: knows_outage.then(|| "away".to_owned()),
            room: Some(ROOM),
            too_early: facts.too_early.filter(|_| self.growing),
            ..facts
        };
        self.state.resize.next(&self.state.pod, targets, cause, &facts)
    }

    fn start_pass_with(&mut self, resize: Act) {
        self.passes += 1;
        self.apply(PodInput::OnNode(NodeEvent::PassBegan {
            number: self.passes,
            resize: Box::new(resize),
        }));
    }

    fn report(&mut self, container: usize, event: GuardEvent) {
        let of = Guarded {
            pod: live(self.uid).id.clone(),
            container: CONTAINERS[container].into(),
        };
        self.apply(PodInput::OnNode(NodeEvent::Guard(Box::new(Report { of, event }))));
    }

    /// The guard raises the least limit first, and reports afterwards.
    fn grow(&mut self, container: usize, mib: u64) {
        let (uid, name, to) = (PodUid::from(self.uid), CONTAINERS[container], Bytes::new(mib * MIB));
        self.copies.least_limits.raise(&uid, name, to);
        let grown = Box::new(Grown {
            from: Some(Bytes::new(AT_FIRST * MIB)),
            outcome: Outcome::Applied,
            steps: Vec::new(),
            took: Duration::ZERO,
            systemd_failed: false,
        });
        let event = GuardEvent::Grew {
            used: to,
            to,
            why: String::new(),
            for_pod: false,
            grown,
        };
        self.report(container, event);
        self.copies.least_limits.end_raise(&uid, name, to);
    }

    /// The guard sees a container that needs no more than this.
    fn report_quiet(&mut self, container: usize, mib: u64) {
        let (peak, needed) = (Bytes::new(mib * MIB), Bytes::new(mib * MIB));
        self.report(container, GuardEvent::Quiet { peak, needed });
    }

    /// The amounts of the pod as the VPA's rules see them.
    fn without_own_changes(&self) -> PodAmounts {
        let PodState {
            pod, desired, resize, ..
        } = &self.state;
        desired.without_own_changes(pod, resize).requirements()
    }

    fn decision(&self, reason: Reason, amounts: PodAmounts) -> PodDecision {
        let mut decision = PodDecision::undecided(&self.state.pod);
        decision.vpa = (reason != Reason::NoVpa).then(|| "web".to_owned());
        decision.reason = reason;
        decision.amounts = amounts;
        decision.burst = self.state.desired.burst;
        decision
    }

    fn decide(&mut self, reason: Reason, amounts: PodAmounts) {
        self.follow(self.decision(reason, amounts), Some(Cause::Sweep), None);
    }

    /// Brings a decision into force, unless the node has no room for it.
    fn follow(&mut self, decision: PodDecision, cause: Option<Cause>, refused: Option<String>) {
        self.copies.is_decision_due = false;
        self.apply(PodInput::Decided {
            decision: Box::new(decision),
            took: Duration::ZERO,
        });
        self.apply(PodInput::Followed {
            refused,
            cause,
            delay: Duration::ZERO,
        });
    }

    fn lose_vpa(&mut self) {
        (self.recommended, self.undecided, self.gone) = (None, false, true);
        self.decide(Reason::NoVpa, self.state.pod.requirements());
    }

    fn request(&mut self, request: OperatorRequest) {
        self.requests += 1;
        self.copies.waiting.insert(self.requests);
        self.apply(PodInput::Requested {
            id: self.requests,
            request,
        });
    }

    /// An operator sets these amounts for five minutes.
    fn set_override(&mut self, values: PodAmounts) {
        self.request(OperatorRequest::Override(self.by_hand(values)));
    }

    fn by_hand(&self, values: PodAmounts) -> Override {
        Override {
            since: self.now.wall,
            until: self.now.wall.checked_add(SignedDuration::from_secs(300)).ok(),
            ..Override::by_root(values)
        }
    }

    fn capacity(&self) -> NodeCapacity {
        let (states, view) = ([&self.state].into_iter(), NodeView::default());
        NodeCapacity::of(states, &view, ResourceList::default(), KubeletVersion::NEWEST, true)
    }

    fn release(&mut self) {
        self.request(OperatorRequest::Release {
            uid: 0,
            pid: 1,
            reason: String::new(),
        });
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

    /// The kubelet has not resized the pod, for this reason.
    fn kubelet_says(&mut self, kind: &str, reason: &str) {
        let observed_generation = self.server.metadata.generation;
        self.server.status.observed_generation = observed_generation;
        self.server.status.conditions = vec![PodCondition {
            kind: kind.to_owned(),
            status: "True".to_owned(),
            reason: reason.to_owned(),
            observed_generation,
            ..PodCondition::default()
        }];
    }

    /// The API server is back, and is heard of.
    fn recover(&mut self) {
        self.away = false;
        if let Some(mib) = self.recommended.filter(|_| self.undecided) {
            self.happen(&Happening::Recommends { mib });
            self.happen(&Happening::MayLower);
        }
        self.apply(PodInput::Check(Check::ApiServerReturned));
        self.passes(true);
        self.hear();
    }

    /// The API server is back. What was lowered meanwhile waits for its turn.
    fn recover_and_lower(&mut self) {
        self.recover();
        self.happen(&Happening::MayLower);
        self.recover();
    }

    /// No request fails any more, and the guard takes back what it gave.
    fn calm(&mut self) {
        self.fails = None;
        for container in 0..CONTAINERS.len() {
            self.happen(&Happening::IsQuiet { container });
        }
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
            self.wait([0, 20]);
            self.passes(true);
            if self.server.metadata.generation == generation {
                return;
            }
        }
        panic!("the spec does not come to rest: {:?}", self.state);
    }
}
