//! Annotates pods with the values that are applied to them, where the kubelet cannot report these, and removes the
//! annotation of a startup boost that VPA's webhook made, once the boost is taken back.
//!
//! Once a second the controller compares the annotations that every pod should have ([`wanted()`])
//! with those it has, and sends the pods that differ. A pod leaves this list when the API server shows the right annotations.
//! So a lost patch is sent again, and an API server that was away gets the latest values only.
//!
//! The task begins a patch every [`PAUSE`], and of one pod every [`PAUSE_PER_POD`]. Each namespace has one patch under way, and
//! all take turns; one whose patches fail waits by itself, and all of those leave one patch to the others: webhooks that answer slowly
//! keep no other namespace waiting. Nothing waits for this task.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use futures::stream::{FuturesUnordered, StreamExt as _};
use jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::pod::PodState;
use crate::kubernetes::{Annotations, ApiClient, ApiError, Problem};
use crate::model::objects::annotation::{APPLIED, BOOST_PREFIX};
use crate::model::objects::{Pod, PodId};
use crate::model::{PodAmounts, Requirements};
use crate::pace::{Backoff, scattered};
use crate::plan::lift_kept;
use crate::rate_limiter::{KeyedRateLimiter, REPEATED_LINES};

/// So many patches are under way at once, one of each namespace at most.
const AT_ONCE: usize = 4;
/// How long the API server may take to answer a patch.
const PATIENCE: Duration = Duration::from_secs(10);
/// The same when annotations are erased: no other patch removes them later.
const PATIENCE_TO_ERASE: Duration = Duration::from_secs(30);
/// The pause between the beginnings of two patches, scattered.
const PAUSE: Duration = Duration::from_millis(500);
/// The least time between two patches of one pod.
const PAUSE_PER_POD: Duration = Duration::from_secs(5);
/// A refused patch is retried after this and the pause of other failures: a user has to change a rule first, unless the
/// API server has just started and does not know its rules yet.
const PAUSE_AFTER_REFUSAL: Duration = Duration::from_secs(20);
/// The pause after the first failure, scattered.
const FIRST_WAIT: Duration = Duration::from_secs(1);
/// The longest pause, unless the API server asks for more.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// The annotations of the pods that should have others.
pub(crate) type WantedAnnotations = BTreeMap<PodId, Annotations>;

/// The handle of the task that annotates pods.
#[derive(Debug)]
pub(crate) struct Annotator {
    notes: watch::Sender<Arc<WantedAnnotations>>,
    problems: watch::Receiver<Vec<String>>,
}

impl Annotator {
    /// Starts the task, which ends with `stop`.
    pub(crate) fn start(client: ApiClient, stop: CancellationToken) -> Self {
        let (notes, noted) = watch::channel(Arc::default());
        let (telling, problems) = watch::channel(Vec::new());
        let writer = AnnotationWriter {
            client,
            noted,
            problems: telling,
            order: PatchOrder::default(),
            rests_until: Instant::now(),
            logged: KeyedRateLimiter::new(REPEATED_LINES),
        };
        // Cancel-safe: the next agent sends a patch that was not sent.
        tokio::spawn(stop.run_until_cancelled_owned(writer.run()));
        Self { notes, problems }
    }

    /// Replaces the annotations to write.
    pub(crate) fn annotate(&self, notes: WantedAnnotations) {
        self.notes.send_if_modified(|before| {
            let news = **before != notes;
            if news {
                *before = Arc::new(notes);
            }
            news
        });
    }

    /// Why pods do not have their annotations.
    pub(crate) fn problems(&self) -> Vec<String> {
        self.problems.borrow().clone()
    }
}

struct AnnotationWriter {
    client: ApiClient,
    noted: watch::Receiver<Arc<WantedAnnotations>>,
    problems: watch::Sender<Vec<String>>,
    order: PatchOrder,
    /// When the next patch may begin.
    rests_until: Instant,
    /// The log lines about failed patches, by the status of the answer: each namespace may have its own.
    logged: KeyedRateLimiter<Option<u16>>,
}

type EndedPatch = (PodId, Annotations, Result<(), ApiError>);

impl AnnotationWriter {
    /// Writes until the [`Annotator`] is dropped.
    async fn run(mut self) {
        let mut attempts = FuturesUnordered::new();
        loop {
            let notes = Arc::clone(&self.noted.borrow_and_update());
            let now = Instant::now();
            if notes.is_empty() {
                self.problems.send_replace(Vec::new());
            }
            let next = self.order.next(&notes, now).filter(|_| attempts.len() < AT_ONCE);
            let next = next.map(|(at, pod)| (at.max(self.rests_until), pod));
            let due = match next {
                Some((at, pod)) if at <= now => {
                    let annotations = notes.get(&pod).cloned().unwrap_or_default();
                    self.order.begin(&pod, now);
                    attempts.push(attempt(self.client.clone(), pod, annotations));
                    self.rests_until = now + scattered(PAUSE);
                    continue;
                }
                next => next.map(|(at, _)| at),
            };
            // Cancel-safe: none loses anything.
            tokio::select! {
                changed = self.noted.changed() => if changed.is_err() { return },
                Some(ended) = attempts.next() => self.end(ended),
                () = sleep_until(due.unwrap_or(now)), if due.is_some() => {}
            }
        }
    }

    /// Ends the attempt to patch a pod.
    fn end(&mut self, (pod, annotations, answer): EndedPatch) {
        let now = Instant::now();
        let Err(error) = answer else {
            self.order.written(pod, now);
            if !self.order.fails() {
                self.problems.send_replace(Vec::new());
            }
            return;
        };
        let names: Vec<_> = annotations.keys().map(String::as_str).collect();
        let names = names.join(", ");
        let problem = format!("cannot write the annotations that show what is applied to pods ({names}): {error}");
        let wait = self.order.failed(pod, &error.problem, now);
        if self.logged.try_use(error.problem.status(), now.into_std()) {
            tracing::warn!(?wait, "{problem}");
        }
        self.problems.send_replace(vec![problem]);
    }
}

/// Patches one pod.
async fn attempt(client: ApiClient, pod: PodId, annotations: Annotations) -> EndedPatch {
    let answer = client.annotate(&pod, &annotations, PATIENCE).await;
    (pod, annotations, answer)
}

/// When recently patched pods may be patched again, and whose turn it is. A pod that still needs its annotations then was changed
/// by another client, or its patch was lost.
#[derive(Debug, Default)]
pub(crate) struct PatchOrder {
    pods: BTreeMap<PodId, Instant>,
    namespaces: BTreeMap<String, Turns>,
}

/// The latest turn of a namespace, and its pause after failures.
#[derive(Debug)]
struct Turns {
    latest: Instant,
    /// Whether a patch is under way.
    is_busy: bool,
    until: Instant,
    /// `None` unless the latest patch failed.
    backoff: Option<Backoff>,
}

impl PatchOrder {
    /// The next pod to patch, and when: of the pods that are due, one of the namespace whose turn was longest ago. None of a namespace
    /// with a patch under way, and none of one whose latest patch failed while others of that kind have all patches but one.
    pub(crate) fn next(&mut self, notes: &WantedAnnotations, now: Instant) -> Option<(Instant, PodId)> {
        self.pods.retain(|_, next| *next > now);
        self.namespaces.retain(|namespace, turns| {
            let is_wanted = || notes.keys().any(|pod| pod.namespace == *namespace);
            turns.is_busy || turns.latest + LONGEST_WAIT > now || is_wanted()
        });
        let busy = self.namespaces.values().filter(|turns| turns.is_busy);
        let failing = busy.filter(|turns| turns.backoff.is_some()).count();
        let turns = notes.keys().filter_map(|pod| {
            let turns = self.namespaces.get(&pod.namespace);
            let due = self.pods.get(pod).copied().max(turns.map(|turns| turns.until));
            let may_begin = |turns: &Turns| turns.backoff.is_none() || failing + 1 < AT_ONCE;
            let is_free = turns.is_none_or(|turns| !turns.is_busy && may_begin(turns));
            is_free.then(|| (due.unwrap_or(now).max(now), turns.map(|turns| turns.latest), pod))
        });
        let (at, _, pod) = turns.min()?;
        Some((at, pod.clone()))
    }

    fn turns(&mut self, pod: &PodId, now: Instant) -> &mut Turns {
        let turns = self.namespaces.entry(pod.namespace.clone()).or_insert_with(|| Turns {
            latest: now,
            is_busy: false,
            until: now,
            backoff: None,
        });
        turns.latest = now;
        turns
    }

    /// Notes that a patch of a pod begins. Its namespace has no other until [`Self::written`] or [`Self::failed`].
    pub(crate) fn begin(&mut self, pod: &PodId, now: Instant) {
        self.turns(pod, now).is_busy = true;
    }

    /// Notes that a pod was patched.
    pub(crate) fn written(&mut self, pod: PodId, now: Instant) {
        let turns = self.turns(&pod, now);
        (turns.backoff, turns.is_busy) = (None, false);
        self.pods.insert(pod, now + PAUSE_PER_POD);
    }

    /// Notes that a pod was not patched. Returns the pause of its namespace.
    pub(crate) fn failed(&mut self, pod: PodId, problem: &Problem, now: Instant) -> Duration {
        let turns = self.turns(&pod, now);
        let backoff = turns.backoff.get_or_insert(Backoff::new(FIRST_WAIT, LONGEST_WAIT));
        let wait = backoff.next(problem.retry_after());
        (turns.until, turns.is_busy) = (now + wait, false);
        let of_pod = if problem.is_retryable() {
            PAUSE_PER_POD
        } else {
            PAUSE_AFTER_REFUSAL
        };
        self.pods.insert(pod, now + wait + of_pod);
        wait
    }

    /// Whether the latest patch of a namespace failed.
    pub(crate) fn fails(&self) -> bool {
        self.namespaces.values().any(|turns| turns.backoff.is_some())
    }
}

/// The value of the annotation, where it is known: `None` until a pass has shown what the pod holds, while
/// another process keeps changing its values, and while it is unknown who shows them. `Some(None)` is no annotation: the kubelet
/// reports the values (`by_kubelet`), or nothing is applied.
fn applied_text(state: &PodState, by_kubelet: Option<bool>, now: Timestamp) -> Option<Option<String>> {
    state.live.as_ref()?;
    if by_kubelet? {
        return Some(None);
    }
    let Some(mut applied) = state.desired.targets(&state.pod) else {
        return Some(None);
    };
    let known = state.drift.is_in_sync() && state.drift.paused(now).next().is_none();
    if !known {
        return None;
    }
    lift_kept(&state.holds(now), &mut applied);
    text(&applied).map(Some)
}

/// The annotations of a pod that should be changed. The annotation of a startup boost goes once the pod's spec, as the API
/// server shows it, does not have the boost any more. It stays where no kubelet resizes in place: the spec keeps the boost,
/// and only the annotation has the amounts from before. `by_kubelet`: whether the pod's kubelet resizes in place; unknown until the status
/// of a new pod shows it.
pub(crate) fn wanted(state: &PodState, by_kubelet: Option<bool>, annotate: bool, now: Timestamp) -> Annotations {
    let (pod, has) = (&state.pod, &state.pod.metadata.annotations);
    let mut wanted = Annotations::new();
    let targets = state.desired.targets(pod);
    if by_kubelet == Some(true) && targets.is_none_or(|targets| targets.same(&pod.requirements())) {
        let boosts = state.decision.boosts.done.iter();
        let names = boosts.map(|container| format!("{BOOST_PREFIX}{container}"));
        wanted.extend(names.filter(|name| has.contains_key(name)).map(|name| (name, None)));
    }
    if let Some(applied) = applied_text(state, by_kubelet, now).filter(|_| annotate)
        && has.get(APPLIED) != applied.as_ref()
    {
        wanted.insert(APPLIED.to_owned(), applied);
    }
    wanted
}

/// The pod at the API server; `None` for a pod without a UID, which only a manifest describes.
pub(crate) fn pod_ref(pod: &Pod) -> Option<PodId> {
    let uid = &pod.metadata.uid;
    (!uid.is_empty()).then(|| pod.id_with(uid))
}

/// `{"app":{"requests":{"cpu":"300m"},"limits":{"cpu":"600m"}}}`, a container after the other by name, so that the same
/// is always written the same.
fn text(applied: &PodAmounts) -> Option<String> {
    let containers: BTreeMap<&str, &Requirements> = applied
        .containers
        .iter()
        .map(|named| (named.name.as_str(), &named.resources))
        .collect();
    serde_json::to_string(&containers)
        .inspect_err(|error| tracing::error!(%error, "what is applied cannot be written as JSON"))
        .ok()
}

/// Removes the annotation of pods that have the values of their specs again; returns the failures, one sentence each. The client
/// shares its calls among namespaces.
pub(crate) async fn erase(client: &ApiClient, pods: impl Iterator<Item = &Pod>) -> Vec<String> {
    let annotated = pods.filter(|pod| pod.metadata.annotations.contains_key(APPLIED));
    let objects = annotated.filter_map(|pod| Some((pod.full_name(), pod_ref(pod)?)));
    let erased = objects.map(async |(name, object)| {
        let none = Annotations::from([(APPLIED.to_owned(), None)]);
        let error = client.annotate(&object, &none, PATIENCE_TO_ERASE).await.err()?;
        Some(format!(
            "{name} still says {APPLIED}: {error}; remove it with `kubectl annotate`"
        ))
    });
    join_all(erased).await.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use axum::Router;
    use axum::http::Uri;
    use tokio::sync::{Notify, mpsc};

    use super::*;
    use crate::actuate::ForeignWriters;
    use crate::decide::PodDecision;
    use crate::model::{CgroupPath, ControlFile, LivePod, MilliCpu, NamedRequirements, Outcome, Target};
    use crate::reconcile::desired::{DesiredState, InForce, Recommended};
    use crate::sources::parse_manifests;

    fn pod(name: &str) -> PodId {
        PodId {
            uid: name.into(),
            namespace: "shop".to_owned(),
            name: name.to_owned(),
        }
    }

    fn notes(names: &[&str]) -> WantedAnnotations {
        names.iter().map(|name| (pod(name), Annotations::new())).collect()
    }

    #[test]
    fn a_pod_is_annotated_at_once_then_rarely() {
        let (mut order, now) = (PatchOrder::default(), Instant::now());
        let noted = notes(&["api", "web"]);
        assert_eq!(order.next(&noted, now), Some((now, pod("api"))));
        order.written(pod("api"), now);
        assert_eq!(
            order.next(&noted, now),
            Some((now, pod("web"))),
            "a waiting pod holds up no other"
        );
        order.written(pod("web"), now);
        let later = now + PAUSE_PER_POD;
        assert_eq!(order.next(&noted, now), Some((later, pod("api"))));
        assert_eq!(order.next(&noted, later), Some((later, pod("api"))));
        let much_later = later + LONGEST_WAIT;
        assert_eq!(order.next(&WantedAnnotations::new(), much_later), None);
        assert!(
            order.pods.is_empty() && order.namespaces.is_empty(),
            "nothing is kept of pods that are gone"
        );
    }

    #[test]
    fn a_namespace_whose_patches_fail_waits_alone() {
        let (mut order, now) = (PatchOrder::default(), Instant::now());
        let bank = PodId {
            namespace: "bank".to_owned(),
            ..pod("web")
        };
        let mut noted = notes(&["api", "app"]);
        noted.insert(bank.clone(), Annotations::new());
        assert_eq!(order.next(&noted, now), Some((now, pod("api"))));
        let wait = order.failed(pod("api"), &Problem::Timeout(PAUSE), now);
        assert_eq!(order.next(&noted, now), Some((now, bank.clone())));
        order.written(bank, now);
        assert!(order.fails());
        let later = now + wait;
        assert_eq!(
            order.next(&noted, now),
            Some((later, pod("app"))),
            "another pod of it is next"
        );
        order.written(pod("app"), later);
        assert!(!order.fails());
    }

    #[test]
    fn failing_namespaces_leave_one_patch_to_others() {
        let (mut order, now) = (PatchOrder::default(), Instant::now());
        let of = |namespace: String| PodId {
            namespace,
            ..pod("web")
        };
        let slow: Vec<_> = (0..AT_ONCE).map(|number| of(format!("bank{number}"))).collect();
        let mut noted: WantedAnnotations = slow.iter().map(|pod| (pod.clone(), Annotations::new())).collect();
        for pod in &slow {
            order.failed(pod.clone(), &Problem::Timeout(PAUSE), now);
        }
        let later = now + 2 * LONGEST_WAIT;
        for pod in &slow[1..] {
            assert_eq!(order.next(&noted, later), Some((later, slow[0].clone())));
            order.begin(pod, later);
        }
        assert_eq!(order.next(&noted, later), None);
        let shop = of("shop".to_owned());
        noted.insert(shop.clone(), Annotations::new());
        assert_eq!(order.next(&noted, later), Some((later, shop)));
        order.written(slow[1].clone(), later);
        noted.retain(|pod, _| *pod == slow[0]);
        assert_eq!(order.next(&noted, later), Some((later, slow[0].clone())));
    }

    #[tokio::test]
    async fn a_slow_webhook_delays_no_other_namespace() {
        let (patched, mut patches) = mpsc::unbounded_channel();
        let router = Router::new().fallback(move |uri: Uri| {
            let patched = patched.clone();
            async move {
                let path = uri.path().to_owned();
                if path.contains("/bank/") {
                    pending::<()>().await;
                }
                patched.send(path).unwrap();
                "{}"
            }
        });
        let annotator = Annotator::start(ApiClient::to(&router), CancellationToken::new());
        // It sorts first.
        let bank = PodId {
            namespace: "bank".to_owned(),
            ..pod("a")
        };
        let mut wanted = notes(&["api"]);
        wanted.insert(bank, Annotations::new());
        annotator.annotate(wanted);
        let first = patches.recv().await;
        assert_eq!(first.as_deref(), Some("/api/v1/namespaces/shop/pods/api/status"));
        assert!(annotator.problems().is_empty(), "the patch of bank has not timed out");
    }

    #[tokio::test]
    async fn annotations_are_removed_side_by_side() {
        // The API server answers about the first pod once it has been asked about the second.
        let second = Arc::new(Notify::new());
        let router = Router::new().fallback(move |uri: Uri| {
            let second = Arc::clone(&second);
            async move {
                if uri.path().contains("/bank/") {
                    second.notified().await;
                } else {
                    second.notify_one();
                }
                "{}"
            }
        });
        let pods = ["bank", "shop"].map(|namespace| {
            let mut pod = Pod::default();
            pod.metadata.name = "web".to_owned();
            (pod.metadata.uid, pod.metadata.namespace) = (namespace.to_owned(), namespace.to_owned());
            pod.metadata.annotations.insert(APPLIED.to_owned(), "{}".to_owned());
            pod
        });
        let problems = erase(&ApiClient::to(&router), pods.iter()).await;
        assert_eq!(problems, <[String; 0]>::default());
    }

    #[test]
    fn containers_show_amounts_like_manifests() {
        let named = |name, resources| NamedRequirements::new(name, serde_json::from_str(resources).unwrap());
        let app = r#"{"requests":{"cpu":"300m","memory":"128Mi"},"limits":{"cpu":"2","memory":"1Gi"}}"#;
        let side = r#"{"requests":{"cpu":"10m"},"limits":{}}"#;
        let said = text(&PodAmounts::from_iter([named("side", side), named("app", app)])).unwrap();
        assert_eq!(said, format!(r#"{{"app":{app},"side":{side}}}"#));
    }

    #[test]
    fn a_refused_patch_is_repeated_later() {
        for (problem, pause) in [
            (Problem::Timeout(PAUSE), PAUSE_PER_POD),
            (Problem::Unreadable(String::new()), PAUSE_AFTER_REFUSAL),
        ] {
            let (mut order, now) = (PatchOrder::default(), Instant::now());
            order.begin(&pod("api"), now);
            assert_eq!(order.next(&notes(&["api"]), now), None, "its patch is under way");
            let wait = order.failed(pod("api"), &problem, now);
            let next = order.next(&notes(&["api"]), now);
            assert_eq!(next, Some((now + wait + pause, pod("api"))), "{problem}");
        }
    }

    /// A running pod.
    fn running() -> PodState {
        let manifest = "{kind: Pod, metadata: {name: web, uid: u1}, spec: {containers: [{name: app}]}}";
        let pod = Arc::clone(&parse_manifests("test", manifest).unwrap().view.pods[0]);
        let mut state = PodState::new(Arc::clone(&pod), PodDecision::undecided(&pod));
        state.live = Some(Arc::new(LivePod {
            id: pod.id_with("u1"),
            path: CgroupPath::new("/kubepods/podu1").unwrap(),
            containers: <_>::default(),
        }));
        state
    }

    /// The same with half a cpu.
    fn limited() -> PodAmounts {
        let mut amounts = running().pod.requirements();
        amounts.containers[0].resources.limits.cpu = Some(MilliCpu::new(500));
        amounts
    }

    fn recommended() -> Recommended {
        Recommended {
            vpa: Some("web".to_owned()),
            at: Timestamp::UNIX_EPOCH,
            targets: limited(),
            in_force: InForce::default(),
        }
    }

    #[test]
    fn what_is_applied_is_annotated_once_known() {
        let now = Timestamp::now();
        let noted = |state: &PodState, by_kubelet: Option<bool>| wanted(state, by_kubelet, true, now).remove(APPLIED);
        let (mut state, shown) = (running(), text(&limited()));
        assert_eq!(noted(&state, Some(false)), None, "nothing is applied");
        state.desired.recommended = Some(recommended());
        assert_eq!(noted(&state, Some(false)), None, "no pass has shown it");
        state.drift.ended(&Outcome::Applied, ForeignWriters::default(), true);
        assert_eq!(noted(&state, Some(false)), Some(shown.clone()));
        assert_eq!(noted(&state, Some(true)), None, "the kubelet reports it");
        assert_eq!(noted(&state, None), None, "the kubelet may report it");
        assert!(
            wanted(&state, Some(false), false, now).is_empty(),
            "appliedAnnotation: false"
        );

        let annotations = &mut Arc::make_mut(&mut state.pod).metadata.annotations;
        annotations.insert(APPLIED.to_owned(), shown.unwrap());
        assert_eq!(noted(&state, Some(false)), None, "it has the annotation");
        assert_eq!(noted(&state, Some(true)), Some(None));
        let live = state.live.take();
        assert_eq!(noted(&state, Some(true)), None, "it does not run");
        state.live = live;
        state.desired = DesiredState::default();
        assert_eq!(noted(&state, Some(false)), Some(None));
    }

    #[test]
    fn a_value_that_keeps_changing_is_not_shown() {
        let now = Timestamp::now();
        let mut state = running();
        state.desired.recommended = Some(recommended());
        let mut writers = ForeignWriters::default();
        for _ in 0..3 {
            writers.flipped(&Target::Pod, ControlFile::MemoryMax, now);
        }
        state.drift.ended(&Outcome::Applied, writers, true);
        assert!(wanted(&state, Some(false), true, now).is_empty());
    }

    #[test]
    fn the_annotation_of_a_boost_ends_with_it() {
        let (mut state, now) = (running(), Timestamp::now());
        state.decision.boosts.done = vec!["app".to_owned(), "side".to_owned()];
        let name = format!("{BOOST_PREFIX}app");
        let annotations = &mut Arc::make_mut(&mut state.pod).metadata.annotations;
        annotations.insert(name.clone(), String::new());
        let erased = Annotations::from([(name, None)]);
        assert_eq!(wanted(&state, Some(true), false, now), erased);
        assert!(
            wanted(&state, Some(false), false, now).is_empty(),
            "the spec keeps the boost"
        );
        state.desired.recommended = Some(recommended());
        assert!(
            wanted(&state, Some(true), false, now).is_empty(),
            "the spec has the boost still"
        );
    }
}
