//! Annotates pods with the values that are applied to them, where the kubelet cannot report these, and removes the
//! annotation of a startup boost that VPA's webhook made, once the boost is taken back.
//!
//! Once a second the controller compares the annotations that every pod should have ([`wanted()`])
//! with those it has, and sends the pods that differ. A pod leaves this list when the API server shows the right annotations.
//! So a lost patch is sent again, and an API server that was away gets the latest values only.
//!
//! The task sends one patch at a time, with [`PAUSE`] between two patches and [`PAUSE_PER_POD`] between two of one
//! pod. Nothing waits for this task.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::pod::PodState;
use crate::kubernetes::{Annotations, ApiClient};
use crate::model::objects::annotation::{APPLIED, BOOST_PREFIX};
use crate::model::objects::{Pod, PodId};
use crate::model::{PodAmounts, Requirements};
use crate::pace::{Backoff, scattered};
use crate::plan::lift_kept;

/// The pause between two patches, scattered.
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
            backoff: Backoff::new(FIRST_WAIT, LONGEST_WAIT),
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
    backoff: Backoff,
}

impl AnnotationWriter {
    /// Writes until the [`Annotator`] is dropped.
    async fn run(mut self) {
        loop {
            let notes = Arc::clone(&self.noted.borrow_and_update());
            let now = Instant::now();
            if notes.is_empty() {
                self.problems.send_replace(Vec::new());
            }
            match self.order.next(&notes, now) {
                Some((at, pod)) if at <= now => {
                    let annotations = notes.get(&pod).cloned().unwrap_or_default();
                    let pause = self.write(pod, &annotations).await;
                    sleep_until(Instant::now() + pause).await;
                }
                next => {
                    let at = next.map_or(now, |(at, _)| at);
                    // Cancel-safe: neither loses anything.
                    let changed = tokio::select! {
                        changed = self.noted.changed() => changed,
                        () = sleep_until(at), if at > now => Ok(()),
                    };
                    if changed.is_err() {
                        return;
                    }
                }
            }
        }
    }

    /// Patches one pod; returns the pause before the next patch.
    async fn write(&mut self, pod: PodId, annotations: &Annotations) -> Duration {
        let answer = self.client.annotate(&pod, annotations).await;
        let now = Instant::now();
        match answer {
            Ok(()) => {
                self.order.not_before(pod, now + PAUSE_PER_POD);
                self.backoff.reset();
                self.problems.send_replace(Vec::new());
                scattered(PAUSE)
            }
            Err(error) => {
                if !error.problem.is_retryable() {
                    self.order.not_before(pod, now + PAUSE_AFTER_REFUSAL);
                }
                let names: Vec<_> = annotations.keys().map(String::as_str).collect();
                let names = names.join(", ");
                let problem = format!("not every pod says in its annotations what is applied to it ({names}): {error}");
                let wait = self.backoff.next(error.problem.retry_after());
                tracing::warn!(?wait, "{problem}");
                self.problems.send_replace(vec![problem]);
                wait
            }
        }
    }
}

/// When recently patched pods may be patched again. A pod that still needs its annotations then was changed by another
/// client, or its patch was lost.
#[derive(Debug, Default)]
pub(crate) struct PatchOrder {
    next: BTreeMap<PodId, Instant>,
}

impl PatchOrder {
    /// The next pod to patch, and when.
    pub(crate) fn next(&mut self, notes: &WantedAnnotations, now: Instant) -> Option<(Instant, PodId)> {
        self.next.retain(|_, next| *next > now);
        let due = |pod| self.next.get(pod).copied().unwrap_or(now);
        let first = notes.keys().map(|pod| (due(pod), pod)).min()?;
        Some((first.0, first.1.clone()))
    }

    /// Keeps a pod from being patched before `next`.
    pub(crate) fn not_before(&mut self, pod: PodId, next: Instant) {
        self.next.insert(pod, next);
    }
}

/// The value of the annotation, where it is known: `None` until a pass has shown what the pod holds, and while
/// another process keeps changing its values. `Some(None)` is no annotation: the kubelet reports the values
/// (`by_kubelet`), or nothing is applied.
fn applied_text(state: &PodState, by_kubelet: bool, now: Timestamp) -> Option<Option<String>> {
    state.live.as_ref()?;
    if by_kubelet {
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
/// and only the annotation has the amounts from before.
pub(crate) fn wanted(state: &PodState, by_kubelet: bool, annotate: bool, now: Timestamp) -> Annotations {
    let (pod, has) = (&state.pod, &state.pod.metadata.annotations);
    let mut wanted = Annotations::new();
    let targets = state.desired.targets(pod);
    if by_kubelet && targets.is_none_or(|targets| targets.same(&pod.requirements())) {
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

/// Removes the annotation of pods that have the values of their specs again; returns the failures, one sentence each.
pub(crate) async fn erase(client: &ApiClient, pods: impl Iterator<Item = &Pod>) -> Vec<String> {
    let mut problems = Vec::new();
    for pod in pods.filter(|pod| pod.metadata.annotations.contains_key(APPLIED)) {
        if let Some(object) = pod_ref(pod)
            && let Err(error) = client
                .annotate(&object, &Annotations::from([(APPLIED.to_owned(), None)]))
                .await
        {
            let name = pod.full_name();
            problems.push(format!(
                "{name} still says {APPLIED}: {error}; remove it with `kubectl annotate`"
            ));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::NamedRequirements;

    const SOON: Duration = Duration::from_secs(5);

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
        let noted = notes(&["web"]);
        assert_eq!(order.next(&noted, now), Some((now, pod("web"))));
        order.not_before(pod("web"), now + SOON);
        assert_eq!(order.next(&noted, now), Some((now + SOON, pod("web"))));
        let later = now + SOON;
        assert_eq!(order.next(&noted, later), Some((later, pod("web"))));
    }

    #[test]
    fn a_waiting_pod_holds_up_no_other() {
        let (mut order, now) = (PatchOrder::default(), Instant::now());
        let noted = notes(&["api", "web"]);
        order.not_before(pod("api"), now + SOON);
        assert_eq!(order.next(&noted, now), Some((now, pod("web"))));
    }

    #[test]
    fn nothing_is_kept_of_pods_that_are_gone() {
        let (mut order, now) = (PatchOrder::default(), Instant::now());
        order.not_before(pod("web"), now + SOON);
        assert_eq!(order.next(&WantedAnnotations::new(), now + SOON), None);
        assert!(order.next.is_empty());
    }

    #[test]
    fn containers_show_amounts_like_manifests() {
        let named = |name, resources| NamedRequirements::new(name, serde_json::from_str(resources).unwrap());
        let app = r#"{"requests":{"cpu":"300m","memory":"128Mi"},"limits":{"cpu":"2","memory":"1Gi"}}"#;
        let side = r#"{"requests":{"cpu":"10m"},"limits":{}}"#;
        let said = text(&PodAmounts::from_iter([named("side", side), named("app", app)])).unwrap();
        assert_eq!(said, format!(r#"{{"app":{app},"side":{side}}}"#));
    }
}
