//! What holds for every course of an outage of the API server: whatever an operator set, released or let end in it, and whoever
//! else changed the spec meanwhile, in the end the spec and the kernel have the same, and no change of somebody else is lost.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::model::{CgroupPath, KubeletVersion, LiveContainer, Outcome, Reason, ResourceList, Withheld};
use crate::plan::resize::{self, AcceptedResize, ResizeFacts};
use crate::reconcile::capacity::NodeCapacity;
use crate::reconcile::overrides::Override;
use crate::sources::parse_manifests;

const MIB: u64 = 1 << 20;
const AT_FIRST: u64 = 128;

const POD: &str = "
kind: Pod
metadata: {name: web, uid: u1, generation: 1}
spec:
  containers:
  - {name: app, resources: {requests: {cpu: 100m, memory: 64Mi}, limits: {cpu: 200m, memory: 128Mi}}}
status:
  observedGeneration: 1
  containerStatuses:
  - {name: app, resources: {requests: {cpu: 100m, memory: 64Mi}, limits: {cpu: 200m, memory: 128Mi}}}
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
    AgentIsKilled,
    FilesAreWritten,
    /// The API server is there for a moment, but an answer is lost.
    AnswerIsLost,
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

/// The pod, the kernel's limit, and the API server with its spec.
struct World {
    state: PodState,
    now: Now,
    server: Pod,
    away: bool,
    kernel: u64,
    /// Whether a rule of the API server refuses every request.
    denies: bool,
    /// Whether the next request of an outage is carried out although no answer comes.
    carries_out: bool,
    passes: u64,
    requests: u64,
    lost: u32,
}

fn limit(targets: &[NamedRequirements]) -> u64 {
    targets[0].resources.limits.memory.unwrap().get() / MIB
}

fn with_limit(pod: &Pod, mib: u64) -> Pod {
    let mut targets = pod.requirements();
    targets[0].resources.limits.memory = Some(Bytes::new(mib * MIB));
    let mut pod = pod.with_requirements(&targets);
    pod.metadata.generation += 1;
    pod
}

impl World {
    fn new(carries_out: bool) -> Self {
        let pod = Pod::clone(&parse_manifests("test", POD).unwrap().view.pods[0]);
        let mut world = Self {
            state: PodState::new(Arc::new(pod.clone()), PodDecision::undecided(&pod)),
            now: Now {
                wall: Timestamp::from_second(1_700_000_000).unwrap(),
                instant: Instant::now(),
            },
            server: pod,
            away: false,
            denies: false,
            kernel: AT_FIRST,
            carries_out,
            passes: 0,
            requests: 0,
            lost: 0,
        };
        world.locate(None);
        world
    }

    fn locate(&mut self, saved: Option<SavedPod>) {
        let path = CgroupPath::new("/kubepods/podu").unwrap();
        let app = LiveContainer {
            id: "c".to_owned(),
            path: path.clone(),
        };
        let live = LivePod {
            id: PodId {
                uid: "u1".to_owned(),
                namespace: "default".to_owned(),
                name: "web".to_owned(),
            },
            path,
            containers: BTreeMap::from([("app".to_owned(), app)]),
        };
        self.apply(PodInput::Located(Box::new(Located {
            live: Some(Arc::new(live)),
            saved,
            unsaved_limits: None,
        })));
    }

    fn apply(&mut self, input: PodInput) {
        for effect in self.state.apply(input, self.now) {
            match effect {
                Effect::RunPass(pass, job) => self.run(pass, *job),
                Effect::AdmitRequest(id, request) => {
                    let states = [&self.state].into_iter();
                    let kubelet = KubeletVersion::NEWEST;
                    let capacity = NodeCapacity::of(states, None, ResourceList::default(), kubelet, true);
                    let headroom = capacity.headroom(&self.state, crate::decide::StaticManagers::default());
                    self.apply(PodInput::Admitted(id, request, Box::new(headroom)));
                }
                Effect::Record { record, .. } if record.cause == Cause::ChangeLost => {
                    self.lost += u32::from(record.outcome.reason().is_some());
                }
                _ => {}
            }
        }
    }

    /// What a pass does with what the API server, and the kernel, would do.
    fn run(&mut self, pass: PassId, job: Job) {
        let viewed = self.state.pod.clone();
        let (known_away, ahead, asked) = match &job.resize {
            ResizeDecision::Write(grant) => (grant.is_written_ahead(), None, grant.is_written_ahead()),
            ResizeDecision::Patch(patch) => (false, patch.ahead, true),
            other => panic!("{other:?}"),
        };
        let later = |why: &str| Outcome::Withheld(Withheld::SpecLater(why.to_owned()));
        let mut done = JobDone::new(ChangeRecord::new(
            job.targets.bound.live().id.clone(),
            job.cause,
            Outcome::Applied,
        ));
        if asked && self.away {
            let as_viewed = ahead.is_none() || self.server.metadata.generation == viewed.metadata.generation;
            if std::mem::take(&mut self.carries_out) && !known_away && as_viewed {
                self.server = with_limit(&self.server, limit(&job.targets.containers));
            }
            done.record.outcome = later("away");
        } else if asked && ahead.is_some() && self.server.metadata.generation != viewed.metadata.generation {
            done.record.outcome = later("changed");
        } else if asked && self.denies {
            let reason = "a quota".to_owned();
            done.api.denied = Some(reason.clone());
            done.record.outcome = Outcome::Refused { reason };
        } else if asked {
            if !resize::same(&job.targets.containers, &self.server.requirements()) {
                self.server = with_limit(&self.server, limit(&job.targets.containers));
            }
            done.api.asked = Some(AcceptedResize {
                targets: job.targets.containers.clone(),
                generation: self.server.metadata.generation,
                held: viewed.requirements(),
            });
        }
        done.api.retry_after = matches!(done.record.outcome, Outcome::Withheld(_)).then_some(Duration::from_secs(5));
        // What is denied is taken back at every level.
        let denied = done.api.denied.is_some();
        self.kernel = limit(&if denied {
            viewed.requirements()
        } else {
            job.targets.containers
        });
        self.apply(PodInput::PassEnded {
            pass,
            done: Box::new(done),
            quiet: SignedDuration::from_secs(600),
        });
    }

    /// Runs passes for as long as one is due. The first of an outage is begun before anybody knows of it.
    fn passes(&mut self, known: bool) {
        for _ in 0..10 {
            if self.state.next_pass(self.now).is_none() {
                return;
            }
            self.passes += 1;
            let facts = ResizeFacts {
                accepted: self.state.resize.accepted.clone(),
                room: None,
                yields: ResourceList::default(),
                kubelet: KubeletVersion::NEWEST,
                failed: None,
                too_early: None,
                unreported: None,
                away: (self.away && known).then(|| "away".to_owned()),
                by_hand: self.state.desired.is_by_hand(),
                ahead: self.state.resize.certainty(),
            };
            let (cause, targets) = self.state.next_pass(self.now).unwrap();
            let resize = Box::new(facts.decide(&self.state.pod, &targets, cause));
            let number = self.passes;
            self.apply(PodInput::PassBegan { number, resize });
        }
        panic!("no end of passes: {:?}", self.state.work);
    }

    fn request(&mut self, request: OperatorRequest) {
        self.requests += 1;
        self.apply(PodInput::Requested(self.requests, request));
    }

    fn happen(&mut self, happening: &Happening) {
        match happening {
            Happening::Sets { mib } => {
                let mut values = self.state.pod.requirements();
                values[0].resources = crate::model::Requirements::default();
                values[0].resources.limits.memory = Some(Bytes::new(mib * MIB));
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
            Happening::AgentIsKilled => {
                let saved = self.state.saved();
                let pod = Arc::clone(&self.state.pod);
                let decision = PodDecision::undecided(&pod);
                self.state = PodState::new(pod, decision);
                self.locate(saved);
            }
            Happening::FilesAreWritten => self.apply(PodInput::FilesWritten),
            Happening::AnswerIsLost => {
                self.carries_out = true;
                self.apply(PodInput::ApiServerReturned);
                self.passes(false);
                self.carries_out = false;
            }
        }
    }

    /// The API server is back, and is heard of.
    fn recover(&mut self) {
        self.away = false;
        self.apply(PodInput::ApiServerReturned);
        self.passes(true);
        self.hear();
    }

    /// The watch brings what there is, and the kubelet has done it.
    fn hear(&mut self) {
        for _ in 0..5 {
            let generation = self.server.metadata.generation;
            self.server.status.observed_generation = generation;
            self.server.status.container_statuses[0].resources = Some(self.server.spec.containers[0].resources);
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
    fn in_the_end_spec_and_kernel_agree_and_somebody_elses_change_counts(
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
                prop_assert_eq!(world.kernel, limit(&desired), "the kernel waits for the API server");
            }
        }
        let overridden = world.state.desired.overridden.as_ref().map(|overridden| limit(&overridden.values));
        let ahead = world.state.resize.written_ahead.is_some();
        world.recover();
        let spec = limit(&world.server.requirements());
        let state = &world.state;
        if !state.desired.is_empty() {
            prop_assert_eq!(world.kernel, spec, "{:?}", state);
        }
        prop_assert!(state.resize.written_ahead.is_none() && !state.resize.waits_for_api_server(), "{:?}", state);
        match theirs {
            Some(theirs) if ahead => {
                prop_assert_eq!(spec, theirs);
                prop_assert!(state.desired.overridden.is_none() && world.lost > 0);
            }
            Some(_) => {}
            None => {
                prop_assert_eq!(spec, overridden.unwrap_or(AT_FIRST));
                prop_assert_eq!(world.lost, 0);
            }
        }
    }
}

#[test]
fn a_loss_is_told_once() {
    let mut world = World::new(false);
    world.away = true;
    world.happen(&Happening::Sets { mib: 200 });
    world.passes(false);
    assert!(world.state.resize.waits_for_api_server() && world.kernel == 200);
    assert_eq!(world.state.status(world.now.wall), PodStatus::Owed);
    world.happen(&Happening::SomebodyElseSets { mib: 201 });
    world.recover();
    assert_eq!(
        (world.lost, world.kernel, limit(&world.server.requirements())),
        (1, 201, 201)
    );
}

#[test]
fn an_override_from_before_outlasts_the_denial_of_what_came_while_the_api_server_was_away() {
    let mut world = World::new(false);
    world.happen(&Happening::Sets { mib: 200 });
    world.passes(true);
    world.hear();
    world.away = true;
    let mut decision = PodDecision::undecided(&world.state.pod);
    decision.vpa = Some("web".to_owned());
    decision.reason = Reason::OutOfBounds;
    decision.containers = world.server.requirements();
    decision.containers[0].resources.requests.memory = Some(Bytes::new(80 * MIB));
    world.apply(PodInput::Decided {
        decision: Box::new(decision),
        took: Duration::ZERO,
    });
    world.apply(PodInput::Followed {
        refused: None,
        cause: Some(Cause::Sweep),
        delay: Duration::ZERO,
    });
    world.passes(false);
    assert!(world.state.resize.waits_for_api_server());
    (world.away, world.denies) = (false, true);
    world.apply(PodInput::ApiServerReturned);
    world.passes(true);
    let state = &world.state;
    assert!(state.resize.written_ahead.is_none(), "{state:?}");
    assert_eq!(
        state.desired.overridden.as_ref().map(|set| limit(&set.values)),
        Some(200)
    );
    let spec = limit(&world.server.requirements());
    assert_eq!((world.lost, world.kernel, spec), (0, 200, 200));
}
