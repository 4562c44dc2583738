//! Takes a request back that the cgroups turned out unable to hold.
//!
//! Between the look that found room and the write, more may have come into use. The kubelet would write the lower limit
//! all the same, a moment later, and that write kills. So the spec is given back what was granted before.

use std::sync::Arc;

use super::{AcceptedResize, PodResizer};
use crate::actuate::Node;
use crate::actuate::job::JobDone;
use crate::actuate::least_limits::lift;
use crate::model::objects::{Pod, PodId};
use crate::model::{NamedRequirements, StepRecord};
use crate::plan::resize;

/// How to take a request back.
#[derive(Debug)]
pub(in crate::actuate) struct Undo {
    pub(super) resizer: Arc<dyn PodResizer>,
    pub(super) id: PodId,
    /// The pod as it was once it had accepted the request.
    pub(super) pod: Pod,
    /// What the kubelet had granted before.
    pub(super) held: Vec<NamedRequirements>,
}

impl Undo {
    /// Does so if the pass came to nothing; the pass tells of it.
    pub(in crate::actuate) async fn unless_held(mut self, node: &Node, done: &mut JobDone) {
        if done.outcome.holds() {
            return;
        }
        // What was given in an emergency meanwhile is not taken away either.
        lift(&mut self.held, &node.least_limits.of(&self.id.uid));
        let changes = match resize::changes(&self.pod, &self.held) {
            Ok(changes) if changes.is_empty() => return,
            Ok(changes) => changes,
            Err(unaskable) => return done.outcome.add(&format!("the request stands: {unaskable}")),
        };
        let start = std::time::Instant::now();
        let result = self.resizer.resize(&self.id, &changes).await;
        let took = start.elapsed();
        let record = |step| StepRecord::carried_out(step, took, &result);
        done.steps.extend(changes.iter().map(record));
        done.stages.ask += took;
        match result {
            Ok(pod) => {
                done.api.asked = Some(AcceptedResize {
                    targets: self.held.clone(),
                    generation: pod.metadata.generation,
                    held: self.held,
                });
            }
            Err(error) => done
                .outcome
                .add(&format!("the API server did not take the request back: {error}")),
        }
    }
}
