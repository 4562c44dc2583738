//! What is followed and what is being asked for, and how that comes to follow what is needed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::owners::{self, OwnerKey, Owners};
use super::view::{Missing, Namespace};
use crate::kubernetes::{ApiClient, ApiError, Followed, Follower, Object, Place, Timing, follow, follow_kubelet};
use crate::model::objects::{HorizontalPodAutoscaler, LimitRange, Node, Owner, Pod, VerticalPodAutoscaler};

/// How long a namespace is followed after its last pod has left: another often follows.
const LINGER: Duration = Duration::from_secs(5 * 60);

/// How many workloads are asked for at the same time.
const AT_ONCE: usize = 4;

/// How many objects of one list are named for what is wrong with them.
const MOST_COMPLAINTS: usize = 20;

/// A workload that was asked for, and the answer.
type Answer = (OwnerKey, Result<Option<Owner>, ApiError>);

#[derive(Debug)]
pub(super) struct Feeds {
    client: ApiClient,
    timing: Timing,
    pub(super) pods: Follower<Pod>,
    pub(super) node: Follower<Node>,
    namespaces: BTreeMap<String, NamespaceFeeds>,
    pub(super) owners: Owners,
    changed: Arc<Notify>,
    permits: Arc<Semaphore>,
    answers: JoinSet<Answer>,
}

#[derive(Debug)]
struct NamespaceFeeds {
    vpas: Follower<VerticalPodAutoscaler>,
    bounds: Option<(Follower<LimitRange>, Follower<HorizontalPodAutoscaler>)>,
    /// Since when nobody needs it.
    idle: Option<Instant>,
}

impl Feeds {
    pub(super) fn new(client: ApiClient, node: &str, kubelet: Option<PathBuf>, timing: Timing) -> Self {
        let changed = Arc::new(Notify::new());
        let selecting = |field_selector| Place {
            namespace: None,
            field_selector,
        };
        // Pods that have ended hold nothing any more; those that end leave the list.
        let here = format!("spec.nodeName={node},status.phase!=Succeeded,status.phase!=Failed");
        let itself = format!("metadata.name={node}");
        let pods = match kubelet {
            Some(socket) => follow_kubelet(socket, timing, Arc::clone(&changed)),
            None => follow(client.clone(), selecting(here), timing, Arc::clone(&changed)),
        };
        Self {
            pods,
            node: follow(client.clone(), selecting(itself), timing, Arc::clone(&changed)),
            client,
            timing,
            namespaces: BTreeMap::new(),
            owners: Owners::new(timing),
            changed,
            permits: Arc::new(Semaphore::new(AT_ONCE)),
            answers: JoinSet::new(),
        }
    }

    /// Ends when something that is followed has changed, or an answer was taken over. Cancel-safe.
    pub(super) async fn changed_or_answered(&mut self) {
        tokio::select! {
            () = self.changed.notified() => {}
            Some(answer) = self.answers.join_next() => match answer {
                Ok((key, answer)) => self.owners.store(key, answer, Instant::now()),
                Err(error) => tracing::error!(%error, "asking for the owner of a pod failed"),
            }
        }
    }

    /// Follows the VPAs of these namespaces, and after a while those of no others.
    pub(super) fn follow_vpas(&mut self, wanted: &BTreeSet<String>, now: Instant) {
        for namespace in wanted {
            if !self.namespaces.contains_key(namespace) {
                let feeds = NamespaceFeeds {
                    vpas: self.follow_in(namespace),
                    bounds: None,
                    idle: None,
                };
                self.namespaces.insert(namespace.clone(), feeds);
            }
        }
        self.namespaces.retain(|namespace, feeds| {
            feeds.idle = if wanted.contains(namespace) {
                None
            } else {
                feeds.idle.or(Some(now))
            };
            feeds.idle.is_none_or(|since| now < since + LINGER)
        });
    }

    /// Requests what a view lacks, and drops what no view needs any more.
    pub(super) fn request(&mut self, missing: &Missing, now: Instant) {
        for namespace in &missing.bounds {
            let bounds = (self.follow_in(namespace), self.follow_in(namespace));
            if let Some(feeds) = self.namespaces.get_mut(namespace) {
                feeds.bounds.get_or_insert(bounds);
            }
        }
        for key in self.owners.take_due(&missing.owners, &missing.passed, now) {
            self.answers
                .spawn(question(self.client.clone(), Arc::clone(&self.permits), key));
        }
    }

    /// When something is due that nobody tells of.
    pub(super) fn next_due(&self) -> Instant {
        const AT_LATEST: Duration = Duration::from_secs(60 * 60);
        let leaving = self.namespaces.values().filter_map(|feeds| Some(feeds.idle? + LINGER));
        let due = leaving.chain(self.owners.next_due()).min();
        due.unwrap_or_else(|| Instant::now() + AT_LATEST)
    }

    /// What is known of each namespace.
    pub(super) fn namespaces(&self) -> BTreeMap<String, Namespace> {
        let known = |feeds: &NamespaceFeeds| {
            let bounds = feeds.bounds.as_ref();
            let bounds_refused = bounds.is_some_and(|(ranges, hpas)| is_refused(ranges) || is_refused(hpas));
            Namespace {
                vpas: objects(&feeds.vpas),
                refused: bounds_refused || is_refused(&feeds.vpas),
                bounds: bounds.and_then(|(ranges, hpas)| objects(ranges).zip(objects(hpas))),
            }
        };
        self.namespaces
            .iter()
            .map(|(name, feeds)| (name.clone(), known(feeds)))
            .collect()
    }

    /// What cannot be followed, asked for or used. What is wrong with many lists in the same way is one problem.
    pub(super) fn problems(&self) -> Vec<String> {
        let mut complaints = Complaints::default();
        complaints.about(&self.pods);
        complaints.about(&self.node);
        for feeds in self.namespaces.values() {
            complaints.about(&feeds.vpas);
            if let Some((ranges, hpas)) = &feeds.bounds {
                complaints.about(ranges);
                complaints.about(hpas);
            }
        }
        for problem in self.owners.problems() {
            complaints.add(&problem.to_string());
        }
        complaints.said()
    }

    fn follow_in<T: Object>(&self, namespace: &str) -> Follower<T> {
        let place = Place {
            namespace: Some(namespace.to_owned()),
            field_selector: String::new(),
        };
        follow(self.client.clone(), place, self.timing, Arc::clone(&self.changed))
    }
}

/// Asks for a workload, when few others are asked for.
async fn question(client: ApiClient, permits: Arc<Semaphore>, key: OwnerKey) -> Answer {
    // The semaphore is never closed.
    let _permit = permits.acquire().await;
    let answer = owners::fetch(&client, &key).await;
    (key, answer)
}

fn objects<T: Object>(list: &Follower<T>) -> Option<Vec<Arc<T>>> {
    list.read(|list| list.known.then(|| list.objects().cloned().collect()))
}

fn is_refused<T>(list: &Follower<T>) -> bool {
    list.read(|list| list.refused && !list.known)
}

/// What is wrong, by what it is: `list pods` and `list nodes` fail alike when nobody answers.
#[derive(Debug, Default)]
struct Complaints {
    alike: BTreeMap<String, (String, usize)>,
    others: Vec<String>,
}

impl Complaints {
    fn about<T: Object>(&mut self, list: &Follower<T>) {
        list.read(|list: &Followed<T>| {
            if let Some(trouble) = &list.trouble {
                self.add(trouble);
            }
            let mut complaints = list.problems();
            self.others.extend(complaints.by_ref().take(MOST_COMPLAINTS));
            let more = complaints.count();
            if more > 0 {
                self.others
                    .push(format!("(and {more} more objects that cannot be used as they are)"));
            }
        });
    }

    fn add(&mut self, complaint: &str) {
        let what = complaint.split_once(": ").map_or(complaint, |(_, what)| what);
        let first = || (complaint.to_owned(), 0);
        self.alike.entry(what.to_owned()).or_insert_with(first).1 += 1;
    }

    fn said(self) -> Vec<String> {
        let alike = self.alike.into_values().map(|(first, count)| match count {
            0 | 1 => first,
            more => format!("{first} (and {} more like it)", more - 1),
        });
        alike.chain(self.others).collect()
    }
}
