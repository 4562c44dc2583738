//! Asks, once there is room; and reads what was answered to what was asked before.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::undo::Undo;
use super::{AcceptedResize, Answer, ResizeError, ResizeTerms, Unreported};
use crate::actuate::in_kernel::prepare;
use crate::actuate::job::{Job, JobDone};
use crate::actuate::least_limits::lift;
use crate::actuate::node::Node;
use crate::model::objects::Pod;
use crate::model::{Cause, NamedRequirements, Outcome, Resource, Step, StepRecord, Withheld};
use crate::plan::resize::{self, Phase};

/// A kubelet that could not lower a limit tries again every ten seconds or so, and looks at what is in use first.
const MAKE_ROOM_EVERY: Duration = Duration::from_secs(2);

/// How far the kubelet is with what the spec has, and what it has granted so far.
type Granted = (Phase, Vec<NamedRequirements>);

/// Sees to it that the spec has the job's targets, and leaves in the job what the kernel may hold.
///
/// Errors: the end of the pass: nothing was asked for, or nothing came of it, and every value stays as it is.
pub(in crate::actuate) async fn patch_resize(node: &Arc<Node>, job: &mut Job) -> Result<Answer, Box<JobDone>> {
    let Some(through) = job.through.take() else {
        return Ok(Answer::default());
    };
    let mut answer = Answer::default();
    // A limit that is there cannot be taken away through the API server.
    let lift_undeclared = std::mem::take(&mut job.targets.lift_undeclared);
    // What was given in an emergency is asked for, too: the kubelet would take it away.
    lift(
        &mut job.targets.containers,
        &node.least_limits.of(&job.targets.bound.live().id.uid),
    );
    let changes = match through.changes(job.targets.bound.object(), &job.targets.containers) {
        Ok(changes) => changes,
        Err(unaskable) => return Err(refused(job, unaskable.to_string())),
    };
    let fits = through.fits(job.targets.bound.object(), &job.targets.containers, node.traits.kubelet);
    let granted_so_far = if changes.is_empty() {
        Some(so_far(&through, job.targets.bound.object()))
    } else if let Some(unreported) = &through.unreported {
        return Err(not_reported(job, unreported));
    } else if let Some(wait) = through.urgent {
        return Ok(postponed(job, &through, wait));
    } else {
        if through.room.is_some()
            && let Err(full) = &fits
        {
            let mut done = refused(job, full.clone());
            done.api.no_room = true;
            return Err(done);
        }
        request(node, job, &through, &changes, &mut answer).await?
    };
    if answer.report.denied.is_some() {
        return Ok(answer);
    }
    let Some((phase, granted)) = granted_so_far else {
        answer.report.unsupported = true;
        job.targets.lift_undeclared = lift_undeclared;
        job.targets.kubelet_unasked = true;
        return Ok(answer);
    };
    // Until the kubelet is done it writes these files as well, not all of them at once.
    job.held_before &= phase == Phase::Settled;
    if let Err(withheld) = phase.grants(fits) {
        if let Some(pass) = answer.prepared.take() {
            take_back(job, pass.into_abandoned());
        }
        answer.undo = None;
        let kept = resize::meanwhile(&withheld, &job.targets.containers, granted.clone());
        answer.makes_room = !resize::same(&kept, &granted);
        answer.report.retry_after = answer.makes_room.then_some(MAKE_ROOM_EVERY);
        job.targets.containers = kept;
        answer.withheld = Some(withheld);
    }
    Ok(answer)
}

/// Where what the spec has already got to.
fn so_far(through: &ResizeTerms, pod: &Pod) -> Granted {
    let phase = match (through.unseen(pod), Phase::of(pod), &through.failed) {
        (Some(_), _, _) => Phase::Accepted,
        // It tries again: until it has succeeded, this is no reason to write what it could not.
        (None, Phase::InProgress, Some(why)) => Phase::Failed(why.clone()),
        (None, phase, _) => phase,
    };
    let granted = resize::granted(pod, &phase, through.held());
    (phase, granted)
}

/// Nothing is asked for now: the kernel is given what was granted, with the limits that are kept or were grown. A pass that
/// is for nothing else is done with that.
fn postponed(job: &mut Job, through: &ResizeTerms, wait: Duration) -> Answer {
    let (phase, granted) = so_far(through, job.targets.bound.object());
    job.held_before &= phase == Phase::Settled;
    job.targets.containers = granted;
    let mut answer = Answer::default();
    let done = match job.cause {
        Cause::Regret { .. } => true,
        Cause::Guard { resource, .. } => resource == Resource::Memory,
        _ => false,
    };
    if !done {
        let why = "a memory limit is being grown; the API server is asked once that is over";
        answer.withheld = Some(Withheld::Postponed(why.to_owned()));
    }
    answer.report.retry_after = Some(wait);
    answer
}

/// Nothing is asked for, and nothing written, before the kubelet reports the pod's resources.
fn not_reported(job: &mut Job, unreported: &Unreported) -> Box<JobDone> {
    let mut done = refused(job, String::new());
    done.outcome = Outcome::Withheld(Withheld::Unanswered(unreported.why.clone()));
    done.api.retry_after = unreported.wait;
    done
}

/// Makes room, then asks. None where there is no such way.
async fn request(
    node: &Arc<Node>,
    job: &mut Job,
    through: &ResizeTerms,
    changes: &[Step],
    answer: &mut Answer,
) -> Result<Option<Granted>, Box<JobDone>> {
    let granted = resize::granted(
        job.targets.bound.object(),
        &Phase::of(job.targets.bound.object()),
        through.held(),
    );
    let pass = prepare(node, Box::new(errand(job))).await?;
    if let Some(saved) = &through.saved {
        saved.clone().await;
    }
    let start = Instant::now();
    let result = through.resizer.resize(&job.targets.bound.live().id, changes).await;
    let took = start.elapsed();
    answer.took = took;
    let record = |step| StepRecord::carried_out(step, took, &result);
    let steps: Vec<StepRecord> = changes.iter().map(record).collect();
    let asked = |generation| AcceptedResize {
        targets: job.targets.containers.clone(),
        generation,
        held: granted.clone(),
    };
    match result {
        Ok(pod) => {
            answer.steps = steps;
            answer.report.asked = Some(asked(pod.metadata.generation));
            answer.prepared = Some(pass);
            let granted_so_far = (Phase::of(&pod), granted.clone());
            answer.undo = Some(Undo {
                resizer: Arc::clone(&through.resizer),
                id: job.targets.bound.live().id.clone(),
                pod,
                held: granted,
            });
            Ok(Some(granted_so_far))
        }
        Err(ResizeError::Denied(why)) => {
            take_back(job, pass.into_abandoned());
            // What was written before anybody asked is taken back as well.
            job.targets.containers = granted;
            job.held_before = false;
            answer.steps = steps;
            answer.report.denied = Some(why);
            Ok(None)
        }
        Err(error) => {
            let mut done = pass.into_abandoned();
            done.stages.ask = took;
            done.steps = steps;
            // What the spec has become is somebody else's, and later than what was asked for.
            let altered = matches!(error, ResizeError::Altered(_));
            done.api.asked = altered.then(|| asked(job.targets.bound.object().metadata.generation));
            turned_down(job, done, &error).map(|()| None)
        }
    }
}

/// Nothing came of asking; the pass ends with that, unless there is no such way.
fn turned_down(job: &mut Job, mut done: JobDone, error: &ResizeError) -> Result<(), Box<JobDone>> {
    let reason = error.to_string();
    done.outcome = match error {
        ResizeError::Unsupported(_) => {
            take_back(job, done);
            return Ok(());
        }
        ResizeError::Gone(_) => {
            done.stale = true;
            Outcome::Interrupted { reason }
        }
        ResizeError::Altered(_) | ResizeError::Denied(_) => Outcome::Refused { reason },
        ResizeError::Refused { retry_after, .. } => {
            done.api.retry_after = *retry_after;
            Outcome::Refused { reason }
        }
    };
    Err(Box::new(done))
}

/// The job of making room for what is to be asked for. Takes over what the job knows about the pod's cgroups.
fn errand(job: &mut Job) -> Job {
    Job {
        targets: job.targets.clone(),
        handles: job.handles.take(),
        through: None,
        cause: job.cause.clone(),
        asked: job.asked,
        // The targets are new: what differs from them was not changed by anybody.
        held_before: false,
        foreign: std::mem::take(&mut job.foreign),
        check_runtime: job.check_runtime,
        seen: job.seen.clone(),
    }
}

/// What the errand knows about the pod's cgroups is the job's again.
fn take_back(job: &mut Job, done: JobDone) {
    job.handles = done.handles;
    job.foreign = done.foreign;
    job.targets.scope.quotas = done.quotas;
    job.seen.extend(done.shrink.seen);
}

fn refused(job: &mut Job, reason: String) -> Box<JobDone> {
    let foreign = std::mem::take(&mut job.foreign);
    Box::new(JobDone {
        handles: job.handles.take(),
        ..JobDone::failed(reason, foreign)
    })
}

/// The steps that asking would take, for those who only want to know.
///
/// Errors: a sentence: why nothing would be asked for.
pub(in crate::actuate) fn preview(node: &Node, job: &Job) -> Result<Vec<StepRecord>, String> {
    let Some(through) = &job.through else {
        return Ok(Vec::new());
    };
    let mut targets = job.targets.containers.clone();
    lift(&mut targets, &node.least_limits.of(&job.targets.bound.live().id.uid));
    let changes = resize::changes(job.targets.bound.object(), &targets).map_err(|error| error.to_string())?;
    if through.room.is_some() && !changes.is_empty() {
        through.fits(job.targets.bound.object(), &targets, node.traits.kubelet)?;
    }
    Ok(changes.iter().map(StepRecord::planned).collect())
}
