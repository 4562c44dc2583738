//! Starts passes, hooks and watches of shrinks, and takes their results. Passes use the API server's `resize` subresource,
//! but not for a while after the API server said that it does not serve it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use jiff::Timestamp;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument;

use super::logging::log_flipped;
use super::requests::observes;
use super::{Controller, Event};
use crate::actuate::shrink::{Lowering, watch};
use crate::actuate::{HookRun, Job, JobDone, Node, PodHandles, PodResizer, reconcile, run_hook};
use crate::model::objects::{PodKey, PodUid};
use crate::model::{Cause, ContainerId, HookEnd, PodAmounts, Reason};
use crate::plan::shrink::next_turns;
use crate::reconcile::capacity::NodeCapacity;
use crate::reconcile::pod::{self, Check, NodeEvent, Now, PodInput, PodState, next_pass};
use crate::reconcile::work::Before;
use crate::resize::{Act, Facts, NodeSupport};

/// Writes come in bursts, like those of a pass: files are compared this long after the first write.
const BURST: Duration = Duration::from_millis(20);

/// The tasks that work on pods.
#[derive(Debug)]
pub(crate) struct Passes {
    /// How many passes were begun.
    begun: u64,
    /// The UIDs of the pods that passes run for. The state of a pod may be new while a pass from before still runs.
    pub(super) busy: BTreeSet<PodUid>,
    /// The ids of the containers that hooks run in.
    pub(super) hooked: BTreeSet<ContainerId>,
    /// The watches of lower limits by pod; dropping a handle ends its watch.
    pub(super) shrink_watches: BTreeMap<PodKey, AbortOnDropHandle<()>>,
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

/// The pause after the API server said that it does not serve the `resize` subresource. Doubles each time.
const FIRST_WAIT: Duration = Duration::from_secs(10);
const LONGEST_WAIT: Duration = Duration::from_secs(3600);

/// The API server's `resize` subresource, and when the agent may use it.
#[derive(Debug, Default)]
pub(crate) struct ResizeEndpoint {
    /// `None` without an API server.
    pub(crate) resizer: Option<Arc<dyn PodResizer>>,
    /// How many times in a row the API server said that it does not serve the subresource.
    pub(crate) refusals: u32,
    /// The end of the pause.
    pub(crate) retry_at: Option<Instant>,
    /// When the kubelet's version last changed.
    pub(crate) upgraded: Option<Timestamp>,
}

impl ResizeEndpoint {
    /// The subresource, except in a pause.
    pub(super) const fn get(&self) -> Option<&Arc<dyn PodResizer>> {
        match self.retry_at {
            Some(_) => None,
            None => self.resizer.as_ref(),
        }
    }

    /// Begins a pause, in which passes write values directly, unless there is one. Returns its length.
    pub(super) fn refuse(&mut self, now: Instant) -> Option<Duration> {
        self.get()?;
        let wait = FIRST_WAIT.saturating_mul(1 << self.refusals.min(16)).min(LONGEST_WAIT);
        self.refusals = self.refusals.saturating_add(1);
        self.retry_at = Some(now + wait);
        tracing::warn!(asked_again_in = ?wait, "the API server does not resize pods in place: values are written directly");
        Some(wait)
    }

    /// Whether a pause has just ended; true once.
    pub(super) fn take_due(&mut self, now: Instant) -> bool {
        self.retry_at.take_if(|at| *at <= now).is_some()
    }

    /// Ends a pause after the kubelet's version has changed.
    pub(super) fn start_over(&mut self, upgraded: Option<Timestamp>) {
        self.upgraded = upgraded;
        self.refusals = 0;
        self.retry_at = None;
    }

    /// The subresource for a pass with this cause, except in a pause.
    pub(super) fn resizer(&self, cause: &Cause) -> Option<Arc<dyn PodResizer>> {
        let resizer = self.get()?;
        let own = match cause {
            Cause::Operator { .. } | Cause::Released { .. } => resizer.for_operators(),
            _ => None,
        };
        Some(own.unwrap_or_else(|| Arc::clone(resizer)))
    }

    /// The facts about a pod's resize, where a pass goes through the API server. Its targets count as requested from now on.
    pub(super) fn facts(
        &self,
        state: &PodState,
        targets: &PodAmounts,
        cause: &Cause,
        support: &NodeSupport,
        capacity: &mut NodeCapacity,
        now: Now,
    ) -> Option<Facts> {
        let resizer = self.get()?;
        if !support.may_resize(&state.pod, now.wall) {
            return None;
        }
        let (of_node, of_pod) = (capacity.reserve(state, targets), pod::facts(state, cause, now));
        // The saved object may be older than the spec: an agent that knows no more patches nothing that nobody asked for since.
        let is_silent = state.decision.reason == Reason::SourcesSilent && !state.desired.is_by_hand();
        let silent = is_silent.then(|| "the API server has not sent its objects yet".to_owned());
        Some(Facts {
            too_early: of_pod.too_early,
            by_hand: of_pod.by_hand,
            unreported: support.unreported(&state.pod, now.wall),
            away: resizer.away().or(silent),
            ..of_node
        })
    }
}

impl Controller {
    /// Starts every pass that is due for a pod without a running one. The node's
    /// [concurrency](crate::actuate::Concurrency) limits how many passes write at once.
    pub(super) fn start_passes(&mut self) {
        if self.config.observe_only {
            // The setting may be new. A request whose pass runs gets its answer from that.
            let waits = |state: &PodState| state.work.requests().next().is_some() && !self.passes.is_busy(state);
            let waiting = self.pods.keys_of(waits);
            return self.apply_to_all(waiting, || PodInput::RequestsRefused(observes()));
        }
        let Some(node) = self.node.known() else { return };
        let now = Now::read();
        let is_due = |state: &PodState| state.work.is_due(now.instant) && !self.passes.is_busy(state);
        let due = self.pods.active().filter(|(_, state)| is_due(state));
        let due: Vec<PodKey> = due.map(|(key, _)| key.clone()).collect();
        if due.is_empty() {
            return;
        }
        let mut capacity = self.endpoint.get().map(|_| self.capacity(self.pods.values()));
        let support = self.node_support(&node, now);
        for key in due {
            let Some(state) = self.pods.get(&key) else { continue };
            let hooks = self.hooks_forbidden_by(state).is_none();
            self.apply(&key, PodInput::OnNode(NodeEvent::PassDue(hooks)));
            let Some(state) = self.pods.get(&key) else { continue };
            let Some((cause, mut targets)) = next_pass(state, now) else {
                continue;
            };
            let capacity = capacity.as_mut();
            let facts = capacity.and_then(|of_all| self.endpoint.facts(state, &targets, cause, &support, of_all, now));
            let resize = facts.map(|facts| {
                let live = state.live.iter();
                // The patch includes limits that the guard has just raised: otherwise the kubelet would lower them again.
                live.for_each(|live| drop(node.least_limits.lift(&live.id.uid, &mut targets)));
                state.resize.next(&state.pod, &targets, cause, &facts)
            });
            self.passes.begun += 1;
            let number = self.passes.begun;
            let resize = Box::new(resize.unwrap_or_default());
            tracing::debug!(pod = %key, pass = number, %cause, %resize, "a pass begins");
            self.apply(&key, PodInput::OnNode(NodeEvent::PassBegan { number, resize }));
        }
    }

    /// Whether the kubelet resizes in place, as the node's pods show it.
    pub(super) fn node_support(&self, node: &Node, now: Now) -> NodeSupport {
        let pods = self.pods.values().map(|state| &*state.pod);
        NodeSupport::of(pods, node.known_kubelet(), self.endpoint.upgraded, now.wall)
    }

    pub(super) fn run_pass(&mut self, key: &PodKey, pass: u64, mut job: Box<Job>) {
        let Some(node) = self.node.known() else { return };
        job.cgroups = self.files.cgroups(key).cloned();
        job.resizer = self.endpoint.resizer(&job.cause);
        let state = self.pods.get(key);
        let overrides = state.is_some_and(|state| is_saved_first(state, &job.cause));
        let patches = matches!(job.resize, Act::Patch(_));
        job.saved = (overrides || patches).then(|| {
            self.store.retry_failed();
            self.store.saved().boxed().shared()
        });
        job.is_saved_first = overrides;
        let uid = &job.targets.bound.live().id.uid;
        let marked = self.store.limit_files.note_written(uid);
        self.passes.busy.insert(uid.clone());
        // The span has the level of errors, so that every log level includes it.
        let span = tracing::error_span!("pass", pod = %job.targets.bound.live().id, cause = %job.cause);
        let (key, of_pass) = (key.clone(), span.clone());
        let work = async move {
            marked.await;
            let done = Box::new(reconcile(node, job).await);
            Some(Event::PassEnded {
                key,
                pass,
                span: of_pass,
                done,
            })
        };
        self.passes.spawn(work.instrument(span));
    }

    /// Runs a hook of a pod. A container runs one hook at a time, also after the pod's state was new in between.
    pub(super) fn run_hook(&mut self, key: &PodKey, run: Box<HookRun>) {
        let Some(node) = self.node.known() else { return };
        let state = self.pods.get(key);
        // The configuration may have changed since the hook became due.
        let forbidden = state.and_then(|state| self.hooks_forbidden_by(state));
        let namespace = state
            .map(|state| state.pod.metadata.namespace.clone())
            .unwrap_or_default();
        let key = key.clone();
        let is_first = self.passes.hooked.insert(run.live.id.clone());
        let span =
            tracing::error_span!("hook", pod = %key, container = run.container.as_str(), moment = run.moment.word());
        let work = async move {
            let end = match forbidden {
                Some(why) => HookEnd::failed(format!("not run: {why}")),
                None if is_first => run_hook(node, &namespace, &run).await,
                None => HookEnd::failed("not run: another hook still runs in this container".to_owned()),
            };
            match &end.how {
                Ok(how) => tracing::info!(how, "a hook ran"),
                Err(why) => tracing::warn!(why, "a hook failed"),
            }
            Some(Event::HookEnded {
                key,
                run,
                end,
                is_only: is_first,
            })
        };
        self.passes.spawn(work.instrument(span));
    }

    /// Takes the result of a pass.
    pub(super) fn end_pass(&mut self, key: &PodKey, pass: u64, done: Box<JobDone>) {
        self.passes.busy.remove(&done.record.pod.uid);
        let (outcome, reason) = (done.record.outcome.word(), done.record.outcome.reason());
        let (steps, verified) = (done.record.steps.len(), done.record.stages.verified);
        tracing::debug!(pass, outcome, reason, steps, ?verified, "a pass ended");
        if done.api.unsupported {
            self.endpoint.refuse(Instant::now());
            self.watch_all();
        }
        if done.api.accepted().is_some() {
            self.endpoint.refusals = 0;
        }
        let (denied, namespace) = (done.api.denied(), &done.record.pod.namespace);
        let has_learned = denied.is_some_and(|why| self.node.answers.learn_denial(namespace, why, Timestamp::now()));
        if done.stale || done.systemd_failed {
            self.node.request_discovery();
        }
        self.publisher.metrics.passed(&done);
        if let Some(formula) = done.formula {
            // The next discovery brings a node that uses it.
            self.node.formula.send_replace(Some(formula));
            self.node.request_discovery();
        }
        log_flipped(&done);
        if self.pods.get(key).is_none() {
            let is_news = !done.record.steps.is_empty();
            self.publisher.history.add(done.record, is_news);
            return;
        }
        let quiet = self.quiet();
        self.apply(key, PodInput::OnNode(NodeEvent::PassEnded { pass, done, quiet }));
        if has_learned {
            self.decide_all(Timestamp::now());
        }
    }

    /// Watches the cgroup files of a pod, or stops.
    pub(super) fn watch_files(&mut self, key: &PodKey, handles: Option<PodHandles>) {
        match handles {
            Some(handles) if self.files.watch(key, &handles) => self.apply(key, PodInput::Check(Check::FilesWritten)),
            Some(_) => {}
            None => self.files.forget(key),
        }
    }

    pub(super) fn watch_shrink(&mut self, key: &PodKey, number: u64, lowered: Vec<Lowering>) {
        let live = self.pods.get(key).and_then(|state| state.live.clone());
        let (Some(node), Some(live)) = (self.node.known(), live) else {
            return;
        };
        let name = key.clone();
        let task = self.passes.spawn(async move {
            let verdict = watch(node, live, lowered).await;
            Some(Event::Pod(
                name,
                PodInput::OnNode(NodeEvent::ShrinkWatchEnded { number, verdict }),
            ))
        });
        let watches = &mut self.passes.shrink_watches;
        watches.insert(key.clone(), AbortOnDropHandle::new(task));
    }

    /// Notes pods whose files were written, by another process or by a pass. They are compared after the burst.
    pub(super) fn note_written(&mut self, written: Option<BTreeSet<PodKey>>) {
        let all = || self.pods.keys_of(|state| !state.desired.is_empty());
        self.files
            .written
            .extend(written.unwrap_or_else(|| all().into_iter().collect()));
        if self.files.written.is_empty() {
            return;
        }
        // A container with a temporary limit may be about to run out of memory: its files are compared at once.
        let limited = |state: &PodState| state.desired.memory_limits().next().is_some();
        let urgent = |key: &PodKey| self.pods.get(key).is_some_and(limited);
        let is_urgent = self.files.written.iter().any(urgent);
        let at = Instant::now() + if is_urgent { Duration::ZERO } else { BURST };
        self.files.due = Some(self.files.due.map_or(at, |known| known.min(at)));
    }

    /// Lets pods lower their memory limits in turn: a few of one workload at a time, and none while a shrink
    /// of the workload is undone.
    pub(super) fn begin_shrink_turns(&mut self, now: Timestamp) {
        fn workload(state: &PodState) -> (&str, Option<&str>) {
            let recommended = state.desired.recommended.as_ref();
            let vpa = recommended.and_then(|recommended| recommended.vpa.as_deref());
            (&state.pod.metadata.namespace, vpa)
        }
        let progress = |state: &PodState| state.live.as_ref().and_then(|_| state.shrink.progress(now));
        let pods = self.pods.active();
        let (keys, pods): (Vec<_>, Vec<_>) = pods
            .filter_map(|(key, state)| Some((key.clone(), (workload(state), progress(state)?))))
            .unzip();
        for index in next_turns(&pods) {
            self.apply(&keys[index], PodInput::OnNode(NodeEvent::TurnGiven));
        }
    }
}

/// Whether a pass waits until the state is saved, before anything else: it carries out an override. The end of an override, which may hurt,
/// waits for no disk, and neither does an undone shrink.
fn is_saved_first(state: &PodState, cause: &Cause) -> bool {
    let request = state.work.request();
    let overrides = request.is_some_and(|request| matches!(request.before, Some(Before::Override(_))));
    overrides && !cause.is_emergency()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::decide::PodDecision;
    use crate::model::objects::Pod;
    use crate::model::{ChangeRecord, KubeletVersion, LivePod, MilliCpu, Outcome, ResourceList, Step};
    use crate::plan::shrink::FailedShrinks;
    use crate::reconcile::controller::tests::controller;
    use crate::reconcile::overrides::Override;
    use crate::reconcile::pod::Located;
    use crate::resize::{Grant, ResizeError};
    use crate::sources::{NodeView, parse_manifests};

    /// An API server that knows no pod.
    #[derive(Debug)]
    pub(in crate::reconcile::controller) struct Way;

    #[tonic::async_trait]
    impl PodResizer for Way {
        async fn resize(&self, _: &Pod, _: &[Step]) -> Result<Pod, ResizeError> {
            Err(ResizeError::Gone(String::new()))
        }

        async fn read(&self, _: &Pod) -> Result<Pod, ResizeError> {
            Err(ResizeError::Gone(String::new()))
        }

        fn away(&self) -> Option<String> {
            None
        }
    }

    /// One with another way for operators.
    #[derive(Debug)]
    struct Ways;

    #[tonic::async_trait]
    impl PodResizer for Ways {
        async fn resize(&self, pod: &Pod, steps: &[Step]) -> Result<Pod, ResizeError> {
            Way.resize(pod, steps).await
        }

        async fn read(&self, pod: &Pod) -> Result<Pod, ResizeError> {
            Way.read(pod).await
        }

        fn away(&self) -> Option<String> {
            None
        }

        fn for_operators(&self) -> Option<Arc<dyn PodResizer>> {
            Some(Arc::new(Way))
        }
    }

    #[test]
    fn only_operators_have_a_way_of_their_own() {
        let (uid, pid, reason) = (0, 1, String::new());
        let operator = Cause::Operator { uid, pid, reason };
        let reason = String::new();
        let released = Cause::Released { uid, pid, reason };
        let ways: [Arc<dyn PodResizer>; 2] = [Arc::new(Ways), Arc::new(Way)];
        let words = ways.map(|way| {
            let endpoint = ResizeEndpoint {
                resizer: Some(way),
                ..ResizeEndpoint::default()
            };
            [&operator, &released, &Cause::Sweep].map(|cause| format!("{:?}", endpoint.resizer(cause).unwrap()))
        });
        assert_eq!(words, [["Way", "Way", "Ways"], ["Way"; 3]]);
    }

    #[test]
    fn only_an_override_waits_for_the_disk() {
        let pod = Pod::default();
        let decision = PodDecision::undecided(&pod);
        let mut state = PodState::new(Arc::new(pod), decision);
        let ended = Override::by_root(PodAmounts::default());
        let replaced = Box::new((state.desired.clone(), FailedShrinks::default()));
        let shrink = Cause::FailedShrink { why: String::new() };
        // Also after an interruption, which is another cause.
        let causes = [Cause::Retry, shrink];
        let waits = |state: &PodState| causes.each_ref().map(|cause| is_saved_first(state, cause));
        assert_eq!(waits(&state), [false; 2]);
        state.work.wait_for_answer(7, Before::Override(replaced));
        assert_eq!(waits(&state), [true, false]);
        state.work.wait_for_answer(8, Before::Release(ended));
        assert_eq!(waits(&state), [false; 2]);
    }

    #[test]
    fn silent_sources_request_nothing_new() {
        let manifest = "
kind: Pod
metadata: {name: web, uid: u1}
spec: {containers: [{name: app}]}
status: {containerStatuses: [{name: app, resources: {}}]}
";
        let pod = Arc::clone(&parse_manifests("test", manifest).unwrap().view.pods[0]);
        let mut state = PodState::new(Arc::clone(&pod), PodDecision::undecided(&pod));
        let endpoint = ResizeEndpoint {
            resizer: Some(Arc::new(Way)),
            ..ResizeEndpoint::default()
        };
        let is_away = |state: &PodState| {
            let (view, machine, now) = (NodeView::default(), ResourceList::default(), Now::read());
            let mut capacity = NodeCapacity::of([].into_iter(), &view, machine, KubeletVersion::NEWEST, true);
            let support = NodeSupport::of([&*pod].into_iter(), None, None, now.wall);
            let cause = Cause::Sweep;
            let facts = endpoint.facts(state, PodAmounts::NONE, &cause, &support, &mut capacity, now);
            facts.unwrap().away.is_some()
        };
        assert!(is_away(&state));
        state.desired.returning = true;
        assert!(!is_away(&state), "what an operator or the guard has set is taken back");
        state.desired = <_>::default();
        state.decision.reason = Reason::NoVpa;
        assert!(!is_away(&state));
    }

    #[tokio::test]
    async fn a_preview_waits_for_no_source() {
        let [directory, root] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let mut controller = controller(directory.path());
        controller.endpoint.resizer = Some(Arc::new(Way));
        controller.node.found.node = Some(Arc::new(Node::on_files(root.path())));
        let mut pod = Pod::default();
        pod.metadata.generation = 1;
        let pod = Arc::new(pod);
        controller.pods.add(&pod);
        let facts = controller.snapshot(&pod.key()).unwrap().resize.unwrap();
        assert!(facts.away.is_none() && facts.unreported.is_some(), "{facts:?}");
    }

    #[tokio::test]
    async fn freed_room_starts_the_passes_it_holds() {
        let directory = tempfile::tempdir().unwrap();
        let mut controller = controller(directory.path());
        controller.endpoint.resizer = Some(Arc::new(Way));
        let manifests = ["a", "b"].map(|name| {
            let app = "{name: app, resources: {requests: {cpu: 100m}}}";
            let metadata = format!("{{name: {name}, namespace: shop, uid: {name}, generation: 1}}");
            let status = format!("{{observedGeneration: 1, containerStatuses: [{app}]}}");
            format!("---\n{{kind: Pod, metadata: {metadata}, spec: {{containers: [{app}]}}, status: {status}}}\n")
        });
        let view = parse_manifests("test", &manifests.concat()).unwrap().view;
        for pod in &view.pods {
            let (key, mut live) = (pod.key(), LivePod::on_files(["app"]));
            live.id = pod.id_with(&pod.metadata.uid);
            let refused = Outcome::Refused("full".to_owned());
            let mut done = JobDone::new(ChangeRecord::new(live.id.clone(), Cause::Sweep, refused));
            done.api.no_room = true;
            let located = Located {
                live: Some(Arc::new(live)),
                saved: None,
                unsaved_limits: None,
            };
            let mut decision = Box::new(PodDecision::undecided(pod));
            decision.reason = Reason::OutOfBounds;
            decision.amounts.containers[0].resources.requests.cpu = Some(MilliCpu::new(200));
            let (refused, cause, delay, took) = (None, None, Duration::ZERO, Duration::ZERO);
            let (number, resize) = (1, Box::new(Act::Write(Grant::default())));
            controller.pods.add(pod);
            controller.apply(&key, PodInput::Located(Box::new(located)));
            controller.apply(&key, PodInput::Decided { decision, took });
            controller.apply(&key, PodInput::Followed { refused, cause, delay });
            controller.apply(&key, PodInput::OnNode(NodeEvent::PassBegan { number, resize }));
            controller.end_pass(&key, number, Box::new(done));
        }
        let starts = |controller: &mut Controller, millicpu| {
            let mut node = crate::model::objects::Node::default();
            node.status.allocatable.cpu = Some(MilliCpu::new(millicpu));
            controller.sources.view = Arc::new(NodeView {
                node: Some(node),
                ..view.clone().into()
            });
            controller.follow_freed_room(Timestamp::now());
            let is_due = |state: &PodState| state.work.pending().is_some();
            controller.pods.values().map(is_due).collect::<Vec<_>>()
        };
        assert_eq!(starts(&mut controller, 200), [false, false]);
        assert_eq!(starts(&mut controller, 300), [true, false]);
        assert_eq!(starts(&mut controller, 400), [true, true]);
    }

    #[test]
    fn an_unsupporting_api_server_is_asked_rarely() {
        let mut now = Instant::now();
        let mut endpoint = ResizeEndpoint {
            resizer: Some(Arc::new(Way)),
            ..ResizeEndpoint::default()
        };
        for seconds in [10, 20, 40] {
            let wait = Duration::from_secs(seconds);
            assert_eq!(endpoint.refuse(now), Some(wait));
            assert_eq!(endpoint.refuse(now), None, "a pass that was under way says nothing new");
            assert!(endpoint.get().is_none() && !endpoint.take_due(now));
            now += wait;
            assert!(endpoint.take_due(now) && endpoint.get().is_some());
        }
        endpoint.refusals = 0;
        assert_eq!(endpoint.refuse(now), Some(FIRST_WAIT));
        endpoint.start_over(None);
        assert!(endpoint.get().is_some());
        for _ in 0..40 {
            endpoint.refuse(now);
            endpoint.retry_at = None;
        }
        assert_eq!(endpoint.refuse(now), Some(LONGEST_WAIT));
    }
}
