//! The API server → the latest [`SourceState`] of this node.
//!
//! One task, [`KubernetesSource::run`], follows the pods bound to this node, at the API server or at the kubelet, and the
//! Node itself. In the namespaces of these pods it follows the VPAs. Where a VPA targets the workload of a local pod, it
//! also follows the LimitRanges, HorizontalPodAutoscalers and ResourceQuotas of the namespace. It reads workloads one by one
//! (`owners`). It follows nothing for the whole cluster, so the load of a node on
//! the API server depends on that node alone. All lists of a kind share the memory for that kind (`kinds`).
//!
//! The lists name the namespaces in which something has changed. The source reads these again, and keeps what the view has of all
//! others: a change costs what its namespace has. The changes of ten milliseconds make one view.
//!
//! The view has every pod of the node, and names those that cannot be decided about: not all objects that decide about them are known
//! (`view`), yet or because the API server refuses one. The first view waits for these objects and for the Node for a time.
//! During an outage the last state stays, with a problem.

mod kinds;
mod owners;
mod rests;
#[cfg(test)]
mod tests;
mod view;

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::iter::once;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::{KnownObjects, NodeView, SourceState, Undecided};
use crate::kubernetes::{
    ApiClient, ApiError, Followed, Follower, Latest, ListChanges, Object, ObjectMemory, Timing, follow, follow_kubelet,
};
use crate::model::objects::{
    HorizontalPodAutoscaler, LimitRange, Node, Owner, Pod, ResourceQuota, Shared, VerticalPodAutoscaler,
};
use crate::slots::{Class, Slots};
use owners::{OwnerKey, Owners};
use rests::Rests;
use view::{FirstPods, Missing, Namespace, may_have_vpa, objects_about};

/// How long a burst of changes is collected before the view is built.
const QUIET: Duration = Duration::from_millis(1);

/// The least time between two views: tenants may change objects thousands of times a second. See also [`Rests`].
const PAUSE: Duration = Duration::from_millis(10);

/// A namespace is read again after this time, also without a change.
const AT_LATEST: Duration = Duration::from_secs(60 * 60);

/// How long the lists of a namespace stay after its last pod has left. A new pod often arrives soon.
const LINGER: Duration = Duration::from_secs(5 * 60);

/// Requests for workloads under way at once, shared among namespaces: those of tenants' pods must not keep the calls of operators
/// waiting.
const AT_ONCE: u64 = 5;

/// The most objects of one list in the problems.
const MOST_PROBLEMS: usize = 20;

/// The most bytes of all problems, far below what an answer to `get` or `doctor` may have.
const PROBLEM_BYTES: usize = 256 << 10;

/// Follows the part of the cluster that concerns one node.
#[derive(Debug)]
pub struct KubernetesSource {
    client: ApiClient,
    timing: Timing,
    pods: Follower<Pod>,
    node_name: String,
    node: Follower<Node>,
    /// Why no Node has that name, as the log has it.
    node_problem: Option<String>,
    namespaces: BTreeMap<String, NamespaceLists>,
    /// The memory for the lists of all namespaces, by kind.
    memory: BTreeMap<&'static str, ObjectMemory>,
    /// The latest view.
    view: NodeView,
    /// None before the first list, and after the first view.
    first_pods: Option<FirstPods>,
    changes: ListChanges,
    rests: Rests,
    requests: Slots<String>,
    answers: JoinSet<OwnerAnswer>,
    sender: watch::Sender<Arc<SourceState>>,
}

/// What the API server says of a workload.
type OwnerAnswer = (OwnerKey, Result<Option<Owner>, ApiError>);

/// The trouble of a list or request, and the problems of its objects.
type ListProblems = (Option<String>, Vec<String>);

#[derive(Debug)]
struct NamespaceLists {
    vpas: Follower<VerticalPodAutoscaler>,
    /// None until a VPA targets the workload of a local pod.
    bounds: Option<(
        Follower<LimitRange>,
        Follower<HorizontalPodAutoscaler>,
        Follower<ResourceQuota>,
    )>,
    owners: Owners,
    /// When the last pod left the namespace.
    idle_since: Option<Instant>,
    /// The problems when the namespace was last read.
    problems: Vec<ListProblems>,
    /// When the namespace is to be read again, also without a change.
    due: Instant,
}

/// The memory for all lists of a kind, with the kind's name.
fn memory_of<T: Object>() -> (&'static str, ObjectMemory) {
    (T::plural(), ObjectMemory::new(T::MEMORY))
}

impl KubernetesSource {
    /// Makes a source and the receiver of its states. Pods come from the kubelet's socket, if one is given.
    ///
    /// # Panics
    /// Outside of a tokio runtime, because following begins at once.
    pub fn new(
        client: ApiClient,
        node_name: &str,
        kubelet: Option<PathBuf>,
        timing: Timing,
    ) -> (Self, watch::Receiver<Arc<SourceState>>) {
        let (sender, receiver) = watch::channel(Arc::default());
        let changes = ListChanges::default();
        // Pods that have ended use no resources. A pod that ends leaves the list.
        let here = format!("spec.nodeName={node_name},status.phase!=Succeeded,status.phase!=Failed");
        let itself = format!("metadata.name={node_name}");
        let (of_pods, of_node) = (ObjectMemory::new(Pod::MEMORY), ObjectMemory::new(Node::MEMORY));
        let pods = match kubelet {
            Some(socket) => follow_kubelet(socket, timing, of_pods.clone(), changes.clone()),
            None => follow(client.clone(), None, &here, timing, of_pods.clone(), changes.clone()),
        };
        let node = follow(client.clone(), None, &itself, timing, of_node, changes.clone());
        let source = Self {
            pods,
            node_name: node_name.to_owned(),
            node,
            node_problem: None,
            client,
            timing,
            namespaces: BTreeMap::new(),
            memory: BTreeMap::from([
                (Pod::plural(), of_pods),
                memory_of::<VerticalPodAutoscaler>(),
                memory_of::<LimitRange>(),
                memory_of::<HorizontalPodAutoscaler>(),
                memory_of::<ResourceQuota>(),
            ]),
            view: NodeView::default(),
            first_pods: None,
            changes,
            rests: Rests::default(),
            requests: Slots::new(AT_ONCE, 0),
            answers: JoinSet::new(),
            sender,
        };
        (source, receiver)
    }

    /// Access to the pods as the API server or the kubelet has last shown them.
    pub fn pods(&self) -> Latest<Pod> {
        self.pods.latest()
    }

    /// Follows the cluster until `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut changed = self.changes.subscribe();
        loop {
            let view = self.update_view();
            SourceState::publish(&self.sender, view, self.problems());
            let next = Instant::now() + PAUSE;
            let wake = self.next_due();
            // Cancel-safe: notifications and answers stay until they are taken.
            tokio::select! {
                () = stop.cancelled() => return,
                () = sleep_until(wake) => {}
                Ok(()) = changed.changed() => {}
                Some(answer) = self.answers.join_next() => self.store(answer),
            }
            sleep_until(next.max(Instant::now() + QUIET)).await;
            // One view for all that came meanwhile.
            while let Some(answer) = self.answers.try_join_next() {
                self.store(answer);
            }
        }
    }

    fn store(&mut self, answer: Result<OwnerAnswer, JoinError>) {
        let answer = answer.inspect_err(|error| tracing::error!(%error, "asking for the owner of a pod failed"));
        // The last pod may have left the namespace.
        if let Ok((key, answer)) = answer
            && let Some(lists) = self.namespaces.get_mut(&key.namespace)
        {
            lists.owners.store(key, answer, Instant::now());
            lists.due = Instant::now();
        }
    }

    /// Reads the namespaces again in which something has changed or is due. None while the pods are unknown, or the first view waits.
    fn update_view(&mut self) -> Option<NodeView> {
        let now = Instant::now();
        // The list's end is known before it is notified: the first view must not lack the list's pods.
        let is_first = self.sender.borrow().view.is_none() && self.first_pods.is_none();
        let namespaces_of = |pods: &Followed<Pod>| {
            let all = pods.objects().filter(|_| is_first);
            all.map(|pod| pod.metadata.namespace.clone()).collect()
        };
        let mut changed: BTreeSet<String> = self.pods.read(|pods| pods.known.then(|| namespaces_of(pods)))?;
        let due = self.namespaces.iter().filter(|(_, lists)| lists.due <= now);
        changed.extend(due.map(|(namespace, _)| namespace.clone()));
        self.changes.send_if_modified(|namespaces| {
            changed.append(namespaces);
            false
        });
        for namespace in self.rests.rested(changed, now) {
            let pods = self.pods.read(|pods| pods.objects_in(&namespace).cloned().collect());
            self.update_namespace(namespace, pods, now);
        }
        let local = self.namespaces.iter().filter(|(_, lists)| lists.idle_since.is_none());
        for memory in self.memory.values() {
            memory.expect(local.clone().map(|(namespace, _)| namespace.clone()));
        }
        self.check_node();
        let node = |nodes: &Followed<Node>| nodes.objects().next().map(|node| Node::clone(node));
        self.view.node = self.node.read(node);
        if self.sender.borrow().view.is_none() {
            // The first view waits for the Node and for the pods of the first list.
            let (view, until) = (&self.view, now + self.timing.first_view);
            let first = self.first_pods.get_or_insert_with(|| FirstPods::new(view, until));
            let is_awaited = |pod: &Pod| view.undecided(pod) == Some(Undecided::Awaited) && first.waits_for(pod, now);
            // A list without the Node is an answer, too.
            let awaits_node = view.node.is_none() && self.node.read(|nodes| !nodes.known && !nodes.refused);
            if awaits_node && now < first.until || view.pods().any(|pod| is_awaited(pod)) {
                return None;
            }
            self.first_pods = None;
        }
        Some(self.view.clone())
    }

    /// Reads a namespace with these pods again. Its lists stay for [`LINGER`] after its last local workload.
    fn update_namespace(&mut self, name: String, pods: Vec<Arc<Pod>>, now: Instant) {
        let has_workload = pods.iter().any(|pod| may_have_vpa(pod));
        let mut known = KnownObjects {
            pods,
            ..KnownObjects::default()
        };
        let lists = self.namespaces.remove(&name);
        let new = || NamespaceLists {
            vpas: self.follow_in(&name),
            bounds: None,
            owners: Owners {
                timing: self.timing,
                ..Owners::default()
            },
            idle_since: None,
            problems: Vec::new(),
            due: now,
        };
        let mut vpas = 0;
        if let Some(mut lists) = lists.or_else(|| has_workload.then(new)) {
            lists.idle_since = (!has_workload).then(|| lists.idle_since.unwrap_or(now));
            if lists.idle_since.is_none_or(|since| now < since + LINGER) {
                self.read_lists(&name, &mut lists, &mut known, now);
                // They were read also where none is about a local pod.
                vpas = lists.vpas.read(|vpas| vpas.objects().count());
                self.namespaces.insert(name.clone(), lists);
            }
        }
        self.rests.rest(&name, known.count().max(vpas), now);
        if known == KnownObjects::default() {
            self.view.namespaces.remove(&name);
        } else if self.view.namespaces.get(&name).is_none_or(|before| **before != known) {
            self.view.namespaces.insert(name, Arc::new(known));
        }
    }

    /// Adds the objects of a namespace beside its pods, and requests those that the pods lack.
    fn read_lists(&mut self, namespace: &str, lists: &mut NamespaceLists, known: &mut KnownObjects, now: Instant) {
        let local = lists.owners.local(&known.pods);
        if let Some(workloads) = &local {
            lists.vpas.set_local(workloads);
            lists.bounds.iter().for_each(|(_, hpas, _)| hpas.set_local(workloads));
        }
        let (listed, mut missing) = (lists.known(), Missing::default());
        for pod in &known.pods {
            if let Err(why) = objects_about(pod, Some(&listed), &lists.owners, &mut missing) {
                known.undecided_pods.insert(pod.metadata.uid.clone(), why);
            }
        }
        if let Some(workloads) = local.filter(|_| missing.bounds && lists.bounds.is_none()) {
            let hpas: Follower<HorizontalPodAutoscaler> = self.follow_in(namespace);
            // Its first list is to keep those about local pods.
            hpas.set_local(&workloads);
            lists.bounds = Some((self.follow_in(namespace), hpas, self.follow_in(namespace)));
        }
        for key in lists.owners.take_due(&missing.owners, &missing.passed, now) {
            let (client, requests) = (self.client.clone(), self.requests.clone());
            self.answers.spawn(async move {
                let _slot = requests.wait(&key.namespace, Class::Ordinary).await;
                let answer = owners::fetch(&client, &key).await;
                (key, answer)
            });
        }
        if let Some(bounds) = listed.bounds {
            known.vpas = listed.vpas.unwrap_or_default();
            (known.limit_ranges, known.hpas, known.quotas) = bounds;
        }
        let slots = lists.owners.slots.values();
        known.owners = slots.clone().filter_map(|slot| slot.answer.clone()).flatten().collect();
        lists.problems = lists.problems();
        let leaves = lists.idle_since.map(|since| since + LINGER);
        let due = slots.filter_map(|slot| slot.due).chain(leaves).min();
        lists.due = due.unwrap_or(now + AT_LATEST);
    }

    /// Notes whether the configured Node exists. A list of the pods of a Node that does not exist is empty, and no error.
    fn check_node(&mut self) {
        let is_missing = self.node.read(|nodes| {
            let has_any = nodes.objects().next().is_some() || nodes.problems().next().is_some();
            nodes.known && nodes.trouble.is_none() && !has_any
        });
        let problem = is_missing.then(|| {
            let name = &self.node_name;
            format!("the API server has no Node {name}: set nodeName to the name of this machine's Node object")
        });
        if let Some(problem) = problem.as_ref().filter(|_| self.node_problem.is_none()) {
            tracing::warn!("{problem}");
        }
        self.node_problem = problem;
    }

    /// The time of the next request, of the end of following a namespace, or of the first view.
    fn next_due(&self) -> Instant {
        let of_namespace =
            |(name, lists): (&String, &NamespaceLists)| self.rests.until(name).unwrap_or(lists.due).max(lists.due);
        let namespaces = self.namespaces.iter().map(of_namespace);
        let first_view = self.first_pods.iter().map(|first| first.until);
        let due = namespaces.chain(first_view).chain(self.rests.next()).min();
        due.unwrap_or_else(|| Instant::now() + AT_LATEST)
    }

    /// The problems of lists, requests and objects. The same problem of many lists is one entry: `list pods` and `list nodes`
    /// fail alike in an outage.
    fn problems(&self) -> Vec<String> {
        let own = [problems(&self.pods), problems(&self.node)];
        let of_namespaces = self
            .namespaces
            .values()
            .flat_map(|lists| lists.problems.iter().cloned());
        let (troubles, objects): (Vec<_>, Vec<_>) = own.into_iter().chain(of_namespaces).unzip();
        let mut alike: BTreeMap<String, (String, usize)> = BTreeMap::new();
        for trouble in troubles.into_iter().flatten() {
            let what = trouble.split_once(": ").map_or(trouble.as_str(), |(_, what)| what);
            alike.entry(what.to_owned()).or_insert((trouble, 0)).1 += 1;
        }
        let alike = alike.into_values().map(|(first, count)| match count {
            1 => first,
            more => format!("{first} (and {} more like it)", more - 1),
        });
        let of_node = self.node_problem.iter().cloned();
        let troubles: Vec<String> = of_node.chain(alike).collect();
        within_room(once(troubles).chain(objects))
    }

    fn follow_in<T: Object>(&mut self, namespace: &str) -> Follower<T> {
        let (client, changes) = (self.client.clone(), self.changes.clone());
        let (kind, memory) = memory_of::<T>();
        let memory = self.memory.entry(kind).or_insert(memory);
        follow(client, Some(namespace), "", self.timing, memory.clone(), changes)
    }
}

impl NamespaceLists {
    /// The known objects.
    fn known(&self) -> Namespace {
        let bounds = self.bounds.as_ref();
        let bounds_refused = bounds.is_some_and(|(ranges, hpas, _)| is_refused(ranges) || is_refused(hpas));
        // Without the right to read quotas any more, those that were read would be held for ever.
        let quotas = |list: &Follower<ResourceQuota>| {
            let is_refused = list.read(|list| list.refused);
            if is_refused { Some(Vec::new()) } else { objects(list) }
        };
        Namespace {
            vpas: objects(&self.vpas),
            refused: bounds_refused || is_refused(&self.vpas),
            bounds: bounds.and_then(|(ranges, hpas, list)| Some((objects(ranges)?, objects(hpas)?, quotas(list)?))),
            targets: OnceCell::new(),
        }
    }

    /// The problems of the lists and of the requests for workloads.
    fn problems(&self) -> Vec<ListProblems> {
        let mut found = vec![problems(&self.vpas)];
        if let Some((ranges, hpas, quotas)) = &self.bounds {
            found.extend([problems(quotas), problems(ranges), problems(hpas)]);
        }
        let requests = self.owners.slots.values().filter_map(|slot| slot.problem.as_ref());
        found.extend(requests.map(|problem| (Some(problem.to_string()), Vec::new())));
        found
    }
}

fn objects<T: Object>(list: &Follower<T>) -> Option<Vec<Shared<T>>> {
    let all = |list: &Followed<T>| list.objects().cloned().map(Shared::from).collect();
    list.read(|list| list.known.then(|| all(list)))
}

fn is_refused<T>(list: &Follower<T>) -> bool {
    list.read(|list| list.refused && !list.known)
}

/// The problems of all lists, as far as they have room: one of each list after the other, so that none takes the room of others.
fn within_room(lists: impl IntoIterator<Item = Vec<String>>) -> Vec<String> {
    let all = lists.into_iter().flat_map(|list| list.into_iter().enumerate());
    let mut all: Vec<_> = all.collect();
    if all.iter().map(|(_, problem)| problem.len()).sum::<usize>() > PROBLEM_BYTES {
        all.sort_by_key(|(turn, _)| *turn);
    }
    let mut length = 0;
    let fits = |(_, problem): &&(usize, String)| {
        length += problem.len();
        length <= PROBLEM_BYTES
    };
    let fitting = all.iter().take_while(fits).count();
    let more = all.len() - fitting;
    let fitting = all.into_iter().take(fitting).map(|(_, problem)| problem);
    let more = (more > 0).then(|| format!("(and {more} more problems of objects)"));
    fitting.chain(more).collect()
}

fn problems<T: Object>(list: &Follower<T>) -> ListProblems {
    list.read(|list| {
        let mut all = list.problems();
        let mut first: Vec<_> = all.by_ref().take(MOST_PROBLEMS).collect();
        let more = all.count();
        if more > 0 {
            first.push(format!("(and {more} more objects that cannot be used as they are)"));
        }
        (list.trouble.clone(), first)
    })
}
