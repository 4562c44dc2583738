//! What happens to the pod in outages, and beside requests without an answer and other clients.

use super::*;

/// Something that happens to the pod or around it.
#[derive(Debug, Clone)]
pub(super) enum Happening {
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
pub(super) struct Overtaking {
    pub(super) container: usize,
    pub(super) mib: u64,
    /// Whether the API server carries out the second request.
    pub(super) carries_out: bool,
    /// Whether the agent gets no answer.
    pub(super) silent: bool,
    /// Whether the agent is killed before the pass ends.
    pub(super) killed: bool,
}

impl World {
    pub(super) fn happen(&mut self, happening: &Happening) {
        self.is_decided_anew(happening);
        match happening {
            Happening::Sets { mib } => {
                let mut values = self.state.pod.requirements();
                values.containers.truncate(1);
                values.containers[0].resources = Requirements::default();
                values.containers[0].resources.limits.memory = Some(Bytes::new(mib * MIB));
                self.set_override(values);
            }
            Happening::Releases => self.release(),
            Happening::OverrideEnds => self.wait([301, 0]),
            Happening::SomebodyElseSets { mib } => self.server = with_limit(&self.server, *mib),
            Happening::SomebodyElseSetsSide { mib } => {
                let mut targets = self.server.requirements();
                targets.containers[1].resources.limits.memory = Some(Bytes::new(mib * MIB));
                self.server = changed(&self.server, &targets);
            }
            Happening::AgentIsKilled => self.follow_killed(self.state.saved(), None),
            Happening::FilesAreWritten => self.apply(PodInput::Check(Check::FilesWritten)),
            Happening::KubeletSettles => {
                self.kubelet_settles();
                self.apply(PodInput::Check(Check::FilesWritten));
            }
            Happening::AnswerIsLost => {
                self.carries_out = true;
                self.apply(PodInput::Check(Check::ApiServerReturned));
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
                let mut amounts = self.without_own_changes();
                for ((_, has), mib) in amounts.iter_mut().zip(mib) {
                    has.requests.memory = Some(Bytes::new(mib * MIB));
                    has.limits.memory = Some(Bytes::new(2 * mib * MIB));
                }
                self.decide(Reason::OutOfBounds, amounts);
            }
            Happening::Grows { container, mib } => self.grow(*container, *mib),
            Happening::IsQuiet { container } => self.report_quiet(*container, 1),
            Happening::MayLower if self.state.desired.is_empty() => {}
            Happening::MayLower => self.apply(PodInput::OnNode(NodeEvent::TurnGiven)),
            Happening::Overtakes(how) => self.overtaking = Some(*how),
            Happening::Edits { field, amid_pass: true } => self.amid_pass = Some(*field),
            Happening::Edits { field, .. } => self.edit(*field),
        }
    }

    /// Something happens, and the passes end that follow.
    pub(super) fn happen_beside(&mut self, happening: &Happening) {
        self.happen(happening);
        self.passes(true);
        self.wait([0, 20]);
        self.passes(true);
        self.check_copies().unwrap();
    }
}
