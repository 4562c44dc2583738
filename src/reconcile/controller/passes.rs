//! Starts passes, hooks and watches of shrinks, and takes their results.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::FutureExt as _;
use jiff::Timestamp;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;
use tracing::{Instrument, Span};

use super::{Controller, Event};
use crate::actuate::shrink::{Lowering, watch};
use crate::actuate::{HookRun, Job, JobDone, Node, PodHandles, Verdict, reconcile, run_hook};
use crate::model::HookEnd;
use crate::plan::resize::{NodeSupport, ResizeDecision};
use crate::plan::shrink::{Progress, next_turns};
use crate::reconcile::pod::{Now, PodInput, PodState};
use crate::reconcile::watching::Written;
use crate::reconcile::work::PassId;

/// Writes come in bursts, like those of a pass: files are compared this long after the first write.
const BURST: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub(crate) struct StartedPass {
    id: PassId,
    key: String,
    /// The logging span, with the pod and the cause.
    span: Span,
}

/// The tasks that work on pods.
#[derive(Debug)]
pub(crate) struct Passes {
    /// How many passes were begun.
    begun: u64,
    /// The UIDs of the pods that passes run for. The state of a pod may be new while a pass from before still runs.
    pub(super) busy: BTreeSet<String>,
    /// The ids of the containers that hooks run in.
    pub(super) hooked: BTreeSet<String>,
    /// The watches of lower limits by pod; dropping a handle ends its watch.
    pub(super) shrink_watches: BTreeMap<String, AbortOnDropHandle<()>>,
    events: mpsc::Sender<Event>,
}

impl Passes {
    pub(crate) const fn new(events: mpsc::Sender<Event>) -> Self {
        Self {
            begun: 0,
            busy: BTreeSet::new(),
            hooked: BTreeSet::new(),
            shrink_watches: BTreeMap::new(),
            events,
        }
    }

    fn is_busy(&self, state: &PodState) -> bool {
        state.live.as_ref().is_none_or(|live| self.busy.contains(&live.id.uid))
    }

    /// Runs a task, and sends its event to the controller.
    pub(super) fn spawn(&self, work: impl Future<Output = Option<Event>> + Send + 'static) -> JoinHandle<()> {
        let events = self.events.clone();
        tokio::spawn(async move {
            let Some(event) = work.await else { return };
            // Fails only when the controller has ended; limits stay as they are then.
            if events.send(event).await.is_err() {
                tracing::debug!("work on a pod ended after the agent did");
            }
        })
    }
}

impl Controller {
    /// Starts every pass that is due for a pod without a running one. The node's
    /// [concurrency](crate::actuate::Concurrency) limits how many passes write at once.
    pub(super) fn start_passes(&mut self) {
        let (Some(node), false) = (self.node.known(), self.options.observe_only) else {
            return;
        };
        let now = Now::read();
        let due = self
            .pods
            .keys_of(|state| state.work.is_due(now.instant) && !self.passes.is_busy(state));
        if due.is_empty() {
            return;
        }
        let (mut capacity, support) = (self.capacity(), self.node_support(&node, now));
        for key in due {
            let Some(state) = self.pods.get(&key).filter(|state| !self.passes.is_busy(state)) else {
                continue;
            };
            let hooks = self.options.hooks.forbidden_by(&state.pod.metadata.namespace).is_none();
            self.apply(&key, PodInput::PassDue { hooks });
            let Some(state) = self.pods.get(&key) else { continue };
            let Some((cause, mut targets)) = state.next_pass(now) else {
                continue;
            };
            let facts = self
                .endpoint
                .facts(state, &targets, cause, &support, &mut capacity, now);
            let resize = facts.map(|facts| {
                let live = state.live.iter();
                // The patch includes limits that the guard has just raised: otherwise the kubelet would lower them again.
                live.for_each(|live| drop(node.least_limits.lift(&live.id.uid, &mut targets)));
                facts.decide(&state.pod, &targets, cause)
            });
            self.passes.begun += 1;
            let number = self.passes.begun;
            let resize = Box::new(resize.unwrap_or_default());
            self.apply(&key, PodInput::PassBegan(number, resize));
        }
    }

    /// Whether the kubelet resizes in place, as the node's pods show it.
    pub(super) fn node_support(&self, node: &Node, now: Now) -> NodeSupport {
        let pods = self.pods.values().map(|state| &*state.pod);
        NodeSupport::of(pods, node.known_kubelet(), self.endpoint.upgraded, now.wall)
    }

    pub(super) fn run_pass(&mut self, key: &str, id: PassId, mut job: Box<Job>) {
        let Some(node) = self.node.known() else { return };
        job.cgroups = self.files.cgroups(key).cloned();
        if let ResizeDecision::Patch(_) = job.resize {
            // The patch waits until the prepared resize is saved.
            self.store.dirty = true;
            job.saved = Some(self.store.writer.next_saved().boxed().shared());
            job.resizer = self.endpoint.resizer(&job.cause);
        }
        let marked = self.store.limit_files.note_written(&id.uid);
        let pass = StartedPass {
            // The span has the level of errors, so that every log level includes it.
            span: tracing::error_span!("pass", pod = %job.targets.bound.live().id, cause = %job.cause),
            id,
            key: key.to_owned(),
        };
        self.passes.busy.insert(pass.id.uid.clone());
        let span = pass.span.clone();
        let work = async move {
            marked.await;
            let done = Box::new(reconcile(node, job).await);
            Some(Event::PassEnded(pass, done))
        };
        self.passes.spawn(work.instrument(span));
    }

    /// Runs a hook of a pod. A container runs one hook at a time, also after the pod's state was new in between.
    pub(super) fn run_hook(&mut self, key: &str, run: Box<HookRun>) {
        let Some(node) = self.node.known() else { return };
        let key = key.to_owned();
        let is_first = self.passes.hooked.insert(run.live.id.clone());
        let span = tracing::error_span!("hook", pod = key, container = run.container, moment = run.moment.word());
        let work = async move {
            let end = if is_first {
                run_hook(node, &run).await
            } else {
                HookEnd::failed("not run: another one runs in this container still".to_owned())
            };
            match &end.how {
                Ok(how) => tracing::info!(how, "a hook ran"),
                Err(why) => tracing::warn!(why, "a hook failed"),
            }
            Some(Event::HookEnded(key, run, end, is_first))
        };
        self.passes.spawn(work.instrument(span));
    }

    /// Takes the result of a pass.
    pub(super) fn end_pass(&mut self, StartedPass { id, key, span }: StartedPass, done: Box<JobDone>) {
        let _about = span.enter();
        self.passes.busy.remove(&id.uid);
        if done.api.unsupported {
            self.endpoint.refuse();
        }
        if done.api.asked.is_some() {
            self.endpoint.accept();
        }
        if done.stale {
            self.node.request_discovery();
        }
        self.publisher.metrics.passed(&done);
        if let Some(formula) = done.formula {
            self.node.learn_formula(formula);
        }
        report_foreign(&done);
        let ended = PodInput::PassEnded {
            pass: id,
            done,
            quiet: self.quiet(),
        };
        self.apply(&key, ended);
    }

    /// Watches the cgroup files of a pod, or stops.
    pub(super) fn watch_files(&mut self, key: &str, handles: Option<PodHandles>) {
        match handles {
            Some(handles) if self.files.watch(key, &handles) => self.apply(key, PodInput::FilesWritten),
            Some(_) => {}
            None => self.files.forget(key),
        }
    }

    pub(super) fn watch_shrink(&mut self, key: &str, number: u64, lowered: Vec<Lowering>) {
        let live = self.pods.get(key).and_then(|state| state.live.clone());
        let (Some(node), Some(live)) = (self.node.known(), live) else {
            return;
        };
        let name = key.to_owned();
        let task = self.passes.spawn(async move {
            let verdict = watch(node, live, lowered).await;
            Some(Event::Pod(name, PodInput::ShrinkWatchEnded(number, verdict)))
        });
        self.passes
            .shrink_watches
            .insert(key.to_owned(), AbortOnDropHandle::new(task));
    }

    /// Notes pods whose files were written, by another process or by a pass. They are compared after the burst.
    pub(super) fn note_written(&mut self, written: Written) {
        match written {
            Written::Pods(pods) => self.files.written.extend(pods),
            Written::PerhapsAll => {
                let all = self.pods.keys_of(|state| !state.desired.is_empty());
                self.files.written.extend(all);
            }
        }
        if self.files.written.is_empty() {
            return;
        }
        // A container with a temporary limit may be about to run out of memory: its files are compared at once.
        let limited = |state: &PodState| state.desired.memory_limits().next().is_some();
        let urgent = |key: &String| self.pods.get(key).is_some_and(limited);
        let wait = if self.files.written.iter().any(urgent) {
            Duration::ZERO
        } else {
            BURST
        };
        let at = Instant::now() + wait;
        self.files.due = Some(self.files.due.map_or(at, |known| known.min(at)));
    }

    /// Lets pods lower their memory limits in turn: a few of one workload at a time, and none while a shrink
    /// of the workload is undone.
    pub(super) fn begin_shrink_turns(&mut self, now: Timestamp) {
        let progress = |state: &PodState| state.live.as_ref().and_then(|_| state.shrink.progress(now));
        let waits = |state: &PodState| progress(state) == Some(Progress::Waits);
        if !self.pods.values().any(waits) {
            return;
        }
        let workload = |state: &PodState| {
            let recommended = state.desired.recommended.as_ref();
            let vpa = recommended.and_then(|recommended| recommended.vpa.clone());
            (state.pod.metadata.namespace.clone(), vpa)
        };
        let pods = self.pods.iter();
        let (keys, pods): (Vec<_>, Vec<_>) = pods
            .filter_map(|(key, state)| Some((key.clone(), (workload(state), progress(state)?))))
            .unzip();
        for index in next_turns(&pods) {
            self.apply(&keys[index], PodInput::TurnGiven);
        }
    }
}

/// Logs values that another process has changed.
fn report_foreign(done: &JobDone) {
    for (target, file, verdict) in &done.flipped {
        match verdict {
            Verdict::Repair => tracing::info!(cgroup = %target, %file, "something else changed a value; repaired"),
            Verdict::LeaveUntil(until) => tracing::warn!(
                cgroup = %target, %file, %until,
                "something else keeps changing this value back; it is left alone until then"
            ),
        }
    }
}
