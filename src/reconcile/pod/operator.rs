//! Operators' requests, carried out one after another. Pure.

use super::{Effect, Effects, Now, PodState};
use crate::model::objects::Pod;
use crate::model::{Cause, ControlError};
use crate::reconcile::capacity::NodeCapacity;
use crate::reconcile::overrides::Override;
use crate::reconcile::work::{Before, OperatorRequest, RequestId};

/// The refusal of a request for a pod that does not run here.
pub(crate) fn not_running(pod: &Pod) -> ControlError {
    ControlError::Refused(format!("{} has no running container on this node", pod.full_name()))
}

/// The refusal of a request whose pod or agent went away.
pub(crate) fn ended_early() -> ControlError {
    ControlError::Busy("the pod or the agent ended before the request finished".to_owned())
}

impl PodState {
    /// Carries out an operator's request on the desired state, and makes the pass due that answers.
    pub(super) fn admit(
        &mut self,
        id: RequestId,
        request: OperatorRequest,
        room: &NodeCapacity,
        effects: &mut Effects,
    ) {
        let admitted = match request {
            OperatorRequest::Override(values) => {
                let cause = values.cause();
                self.set_override(values, room).map(|before| (cause, before))
            }
            OperatorRequest::Release { uid, pid, reason } => match self.desired.end_override() {
                Some(ended) => Ok((Cause::Released { uid, pid, reason }, Before::Release(ended))),
                None => {
                    let name = self.pod.full_name();
                    Err(format!("{name} has no override; `vscalectl get overrides` lists them"))
                }
            },
        };
        match admitted {
            Ok((cause, before)) => {
                self.work.wait_for_answer(id, before);
                self.restart(cause, effects.now);
            }
            Err(message) => effects.list.extend(self.work.refuse(id, message)),
        }
    }

    /// Sets an override if there is room, and keeps no limit any more, for a hook or after a failed shrink: an operator waits for neither.
    ///
    /// Errors: a sentence with the numbers. Nothing changes then.
    pub(crate) fn set_override(&mut self, values: Override, room: &NodeCapacity) -> Result<Before, String> {
        let wanted = room.admit_override(self, values)?;
        self.hooks.forget_announced();
        let before = (std::mem::replace(&mut self.desired, wanted), self.shrink.forget_all());
        Ok(Before::Override(Box::new(before)))
    }

    pub(super) fn restore_before(&mut self, before: Before, now: Now) {
        let (desired, mut shrinks) = match before {
            Before::Override(before) => *before,
            Before::Release(overridden) => return self.desired.put_override(overridden),
        };
        self.desired.undo_override(desired, self.resize.is_ours(&self.pod));
        if !self.desired.has_amounts() {
            // The recommendation whose limits waited for the pod's turn has ended meanwhile.
            shrinks.end_waiting();
        }
        self.shrink.restore(shrinks, now.wall);
    }

    /// No pass runs for this pod any more, or none begins: refuses every request that waits.
    pub(super) fn stop_running(&mut self, error: &ControlError, effects: &mut Effects) {
        self.work.cancel();
        let (requests, before) = self.work.take_requests();
        for request in requests {
            let error = error.clone();
            effects.push(Effect::Refuse { request, error });
        }
        if let Some(before) = before {
            self.restore_before(before, effects.now);
        }
    }
}
