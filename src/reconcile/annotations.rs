//! Annotates pods with the values that are applied to them, where the kubelet cannot report these, and removes the
//! annotation of a startup boost that VPA's webhook made, once the boost is taken back.
//!
//! Once a second the controller compares the annotations that every pod should have ([`applied_text()`], [`ended_boosts()`])
//! with those it has, and sends the pods that differ. A pod leaves this list when the API server shows the right annotations.
//! So a lost patch is sent again, and an API server that was away gets the latest values only.
//!
//! The task sends one patch at a time, with [`PAUSE`] between two patches and [`PAUSE_PER_POD`] between two of one
//! pod. Nothing waits for this task.

mod order;
mod wanted;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::kubernetes::{Annotations, ApiClient};
use crate::model::objects::{Pod, PodId, annotation};
use crate::pace::{Backoff, scattered};
use order::PatchOrder;

pub(crate) use wanted::{applied_text, ended_boosts, pod_ref};

pub(crate) const APPLIED: &str = annotation::APPLIED;

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
        let writer = Writer {
            client,
            noted,
            problems: telling,
            order: PatchOrder::default(),
            backoff: Backoff::new(FIRST_WAIT, LONGEST_WAIT),
        };
        tokio::spawn(async move {
            // Cancel-safe: the next agent sends a patch that was not sent.
            tokio::select! {
                () = writer.run() => {}
                () = stop.cancelled() => {}
            }
        });
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

struct Writer {
    client: ApiClient,
    noted: watch::Receiver<Arc<WantedAnnotations>>,
    problems: watch::Sender<Vec<String>>,
    order: PatchOrder,
    backoff: Backoff,
}

impl Writer {
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
            Ok(_) => {
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
