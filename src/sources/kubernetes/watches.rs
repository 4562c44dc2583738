//! The followed lists and the requests under way, which the needs of the view change.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::owners::{self, OwnerKey, Owners};
use super::view::{Missing, Namespace};
use crate::kubernetes::{ApiClient, ApiError, Followed, Follower, ListScope, Object, Timing, follow, follow_kubelet};
use crate::model::objects::{HorizontalPodAutoscaler, LimitRange, Node, Owner, Pod, VerticalPodAutoscaler};

/// How long the lists of a namespace stay after its last pod has left. Another pod often follows.
const LINGER: Duration = Duration::from_secs(5 * 60);

/// Requests for workloads under way at once.
const AT_ONCE: usize = 4;

/// The most objects of one list in the problems.
const MOST_PROBLEMS: usize = 20;

/// A requested workload and the answer.
type Answer = (OwnerKey, Result<Option<Owner>, ApiError>);

#[derive(Debug)]
pub(super) struct ClusterWatches {
    client: ApiClient,
    timing: Timing,
    pub(super) pods: Follower<Pod>,
    pub(super) node: Follower<Node>,
    namespaces: BTreeMap<String, NamespaceLists>,
    pub(super) owners: Owners,
    changed: Arc<Notify>,
    permits: Arc<Semaphore>,
    answers: JoinSet<Answer>,
}

#[derive(Debug)]
struct NamespaceLists {
    vpas: Follower<VerticalPodAutoscaler>,
    bounds: Option<(Follower<LimitRange>, Follower<HorizontalPodAutoscaler>)>,
    /// When the last pod left the namespace.
    idle_since: Option<Instant>,
}

impl ClusterWatches {
    pub(super) fn new(client: ApiClient, node: &str, kubelet: Option<PathBuf>, timing: Timing) -> Self {
        let changed = Arc::new(Notify::new());
        let selecting = |field_selector| ListScope {
            namespace: None,
            field_selector,
        };
        // Pods that have ended use no resources. A pod that ends leaves the list.
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

    /// Waits for a change of a list, or stores an answer. Cancel-safe.
    pub(super) async fn changed_or_answered(&mut self) {
        tokio::select! {
            () = self.changed.notified() => {}
            Some(answer) = self.answers.join_next() => match answer {
                Ok((key, answer)) => self.owners.store(key, answer, Instant::now()),
                Err(error) => tracing::error!(%error, "asking for the owner of a pod failed"),
            }
        }
    }

    /// Follows the VPAs of these namespaces, and stops following others after [`LINGER`].
    pub(super) fn follow_vpas(&mut self, wanted: &BTreeSet<String>, now: Instant) {
        for namespace in wanted {
            if !self.namespaces.contains_key(namespace) {
                let lists = NamespaceLists {
                    vpas: self.follow_in(namespace),
                    bounds: None,
                    idle_since: None,
                };
                self.namespaces.insert(namespace.clone(), lists);
            }
        }
        self.namespaces.retain(|namespace, lists| {
            lists.idle_since = (!wanted.contains(namespace)).then(|| lists.idle_since.unwrap_or(now));
            lists.idle_since.is_none_or(|since| now < since + LINGER)
        });
    }

    /// Requests missing objects, and forgets unneeded workloads.
    pub(super) fn request(&mut self, missing: &Missing, now: Instant) {
        for namespace in &missing.bounds {
            let bounds = (self.follow_in(namespace), self.follow_in(namespace));
            if let Some(lists) = self.namespaces.get_mut(namespace) {
                lists.bounds.get_or_insert(bounds);
            }
        }
        for key in self.owners.take_due(&missing.owners, &missing.passed, now) {
            let (client, permits) = (self.client.clone(), Arc::clone(&self.permits));
            self.answers.spawn(async move {
                // The semaphore is never closed.
                let _permit = permits.acquire().await;
                let answer = owners::fetch(&client, &key).await;
                (key, answer)
            });
        }
    }

    /// The time of the next request or of the end of following a namespace.
    pub(super) fn next_due(&self) -> Instant {
        const AT_LATEST: Duration = Duration::from_secs(60 * 60);
        let leaving = self
            .namespaces
            .values()
            .filter_map(|lists| Some(lists.idle_since? + LINGER));
        let due = leaving.chain(self.owners.next_due()).min();
        due.unwrap_or_else(|| Instant::now() + AT_LATEST)
    }

    /// The known objects of each namespace.
    pub(super) fn namespaces(&self) -> BTreeMap<String, Namespace> {
        let known = |lists: &NamespaceLists| {
            let bounds = lists.bounds.as_ref();
            let bounds_refused = bounds.is_some_and(|(ranges, hpas)| is_refused(ranges) || is_refused(hpas));
            Namespace {
                vpas: objects(&lists.vpas),
                refused: bounds_refused || is_refused(&lists.vpas),
                bounds: bounds.and_then(|(ranges, hpas)| objects(ranges).zip(objects(hpas))),
            }
        };
        self.namespaces
            .iter()
            .map(|(name, lists)| (name.clone(), known(lists)))
            .collect()
    }

    /// The problems of lists, requests and objects. The same problem of many lists is one entry.
    pub(super) fn problems(&self) -> Vec<String> {
        let mut problems = Problems::default();
        problems.add_list(&self.pods);
        problems.add_list(&self.node);
        for lists in self.namespaces.values() {
            problems.add_list(&lists.vpas);
            if let Some((ranges, hpas)) = &lists.bounds {
                problems.add_list(ranges);
                problems.add_list(hpas);
            }
        }
        for problem in self.owners.problems() {
            problems.add(&problem.to_string());
        }
        problems.into_texts()
    }

    fn follow_in<T: Object>(&self, namespace: &str) -> Follower<T> {
        let scope = ListScope {
            namespace: Some(namespace.to_owned()),
            field_selector: String::new(),
        };
        follow(self.client.clone(), scope, self.timing, Arc::clone(&self.changed))
    }
}

fn objects<T: Object>(list: &Follower<T>) -> Option<Vec<Arc<T>>> {
    list.read(|list| list.known.then(|| list.objects().cloned().collect()))
}

fn is_refused<T>(list: &Follower<T>) -> bool {
    list.read(|list| list.refused && !list.known)
}

/// Problems by their text behind the first colon: `list pods` and `list nodes` fail alike in an outage.
#[derive(Debug, Default)]
struct Problems {
    alike: BTreeMap<String, (String, usize)>,
    others: Vec<String>,
}

impl Problems {
    fn add_list<T: Object>(&mut self, list: &Follower<T>) {
        list.read(|list: &Followed<T>| {
            if let Some(trouble) = &list.trouble {
                self.add(trouble);
            }
            let mut problems = list.problems();
            self.others.extend(problems.by_ref().take(MOST_PROBLEMS));
            let more = problems.count();
            if more > 0 {
                self.others
                    .push(format!("(and {more} more objects that cannot be used as they are)"));
            }
        });
    }

    fn add(&mut self, problem: &str) {
        let what = problem.split_once(": ").map_or(problem, |(_, what)| what);
        let first = || (problem.to_owned(), 0);
        self.alike.entry(what.to_owned()).or_insert_with(first).1 += 1;
    }

    fn into_texts(self) -> Vec<String> {
        let alike = self.alike.into_values().map(|(first, count)| match count {
            0 | 1 => first,
            more => format!("{first} (and {} more like it)", more - 1),
        });
        alike.chain(self.others).collect()
    }
}
