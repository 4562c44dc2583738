//! The API server → the latest [`SourceState`] of this node.
//!
//! One task, [`KubernetesSource::run`], follows the pods bound to this node, at the API server or at the kubelet, and the
//! Node itself. In the namespaces of these pods it follows the VPAs. Where a VPA targets the workload of a local pod, it
//! also follows the LimitRanges, HorizontalPodAutoscalers and ResourceQuotas of the namespace. It reads workloads one by one
//! (`owners`). It follows nothing for the whole cluster, so the load of a node on
//! the API server depends on that node alone. All lists of a kind share the memory for that kind (`kinds`).
//!
//! The view has every pod of the node, and names those that cannot be decided about: not all objects that decide about them are known
//! (`view`), yet or because the API server refuses one. The first view waits for these objects and for the Node for a time.
//! During an outage the last state stays, with a problem.

mod kinds;
mod owners;
#[cfg(test)]
mod tests;
mod view;

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::iter::once;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::{NodeView, SourceState, Undecided};
use crate::kubernetes::{
    ApiClient, ApiError, Follower, Latest, LocalWorkloads, Object, ObjectMemory, Timing, follow, follow_kubelet,
};
use crate::model::objects::{
    HorizontalPodAutoscaler, LimitRange, Node, Owner, Pod, ResourceQuota, Shared, VerticalPodAutoscaler,
};
use crate::pace::REST_FACTOR;
use crate::slots::{Class, Slots};
use owners::{OwnerKey, Owners};
use view::{FirstPods, Missing, Namespace, objects_about};

/// How long a burst of changes is collected before the view is built.
const QUIET: Duration = Duration::from_millis(1);

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
    owners: Owners,
    /// None before the first list, and after the first view.
    first_pods: Option<FirstPods>,
    changed: Arc<Notify>,
    requests: Slots<String>,
    answers: JoinSet<OwnerAnswer>,
    sender: watch::Sender<Arc<SourceState>>,
}

/// What the API server says of a workload.
type OwnerAnswer = (OwnerKey, Result<Option<Owner>, ApiError>);

#[derive(Debug)]
struct NamespaceLists {
    vpas: Follower<VerticalPodAutoscaler>,
    /// None until a VPA targets the workload of a local pod.
    bounds: Option<(
        Follower<LimitRange>,
        Follower<HorizontalPodAutoscaler>,
        Follower<ResourceQuota>,
    )>,
    /// When the last pod left the namespace.
    idle_since: Option<Instant>,
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
        let changed = Arc::new(Notify::new());
        // Pods that have ended use no resources. A pod that ends leaves the list.
        let here = format!("spec.nodeName={node_name},status.phase!=Succeeded,status.phase!=Failed");
        let itself = format!("metadata.name={node_name}");
        let (of_pods, of_node) = (ObjectMemory::new(Pod::MEMORY), ObjectMemory::new(Node::MEMORY));
        let (server, changes) = (|| client.clone(), || Arc::clone(&changed));
        let pods = match kubelet {
            Some(socket) => follow_kubelet(socket, timing, of_pods.clone(), changes()),
            None => follow(server(), None, &here, timing, of_pods.clone(), changes()),
        };
        let node = follow(server(), None, &itself, timing, of_node, changes());
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
            owners: Owners {
                timing,
                ..Owners::default()
            },
            first_pods: None,
            changed,
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

    /// Follows the cluster until `stop`. A namespace with many objects that change all the time leaves time for other tasks.
    pub async fn run(mut self, stop: CancellationToken) {
        loop {
            let began = Instant::now();
            let view = self.build_view();
            SourceState::publish(&self.sender, view, self.problems());
            let rest = Instant::now() + began.elapsed() * REST_FACTOR;
            let wake = self.next_due();
            // Cancel-safe: notifications and answers stay until they are taken.
            tokio::select! {
                () = stop.cancelled() => return,
                () = sleep_until(wake) => continue,
                () = self.changed.notified() => {}
                Some(answer) = self.answers.join_next() => self.store(answer),
            }
            sleep_until(rest.max(Instant::now() + QUIET)).await;
            // One view for all that came meanwhile.
            while let Some(answer) = self.answers.try_join_next() {
                self.store(answer);
            }
        }
    }

    fn store(&mut self, answer: Result<OwnerAnswer, JoinError>) {
        match answer {
            Ok((key, answer)) => self.owners.store(key, answer, Instant::now()),
            Err(error) => tracing::error!(%error, "asking for the owner of a pod failed"),
        }
    }

    /// Builds the view, and requests missing objects. None while the pods are unknown, or the first view waits.
    fn build_view(&mut self) -> Option<NodeView> {
        let now = Instant::now();
        let pods = objects(&self.pods)?;
        let local = self.owners.local(&pods);
        self.follow_vpas(&local, now);
        let (node, awaits_node) = self.node.read(|nodes| {
            let node = nodes.objects().next().map(|node| Node::clone(node));
            // A list without the Node is an answer, too.
            let is_awaited = node.is_none() && !nodes.known && !nodes.refused;
            (node, is_awaited)
        });
        let lists = self.namespaces.iter();
        let namespaces: BTreeMap<_, _> = lists.map(|(name, lists)| (name.clone(), lists.known())).collect();
        let (mut missing, mut view) = (Missing::default(), NodeView::default());
        view.node = node;
        // The first view waits for the Node and for the pods of the first list.
        let is_first = self.sender.borrow().generation == 0;
        let until = now + self.timing.first_view;
        let first_pods = is_first.then(|| &*self.first_pods.get_or_insert_with(|| FirstPods::new(&pods, until)));
        let mut waiting = awaits_node && first_pods.is_some_and(|first| now < first.until);
        for pod in &pods {
            let namespace = namespaces.get(&pod.metadata.namespace);
            if let Err(why) = objects_about(pod, namespace, &self.owners, &mut missing) {
                view.undecided_pods.insert(pod.metadata.uid.clone(), why);
                waiting |= why == Undecided::Awaited && first_pods.is_some_and(|first| first.waits_for(pod, now));
            }
        }
        view.pods = pods;
        self.request(&missing, &local, now);
        add_objects(&mut view, namespaces);
        let owners = self.owners.slots.values().filter_map(|slot| slot.answer.clone());
        view.owners = owners.flatten().collect();
        if !waiting {
            self.first_pods = None;
        }
        self.check_node();
        Some(view).filter(|_| !waiting)
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

    /// Follows the VPAs of the namespaces of local workloads, and stops following others after [`LINGER`].
    fn follow_vpas(&mut self, local: &BTreeMap<String, LocalWorkloads>, now: Instant) {
        for namespace in local.keys() {
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
            let workloads = local.get(namespace);
            lists.idle_since = workloads.is_none().then(|| lists.idle_since.unwrap_or(now));
            if let Some(workloads) = workloads {
                lists.vpas.set_local(workloads);
                lists.bounds.iter().for_each(|(_, hpas, _)| hpas.set_local(workloads));
            }
            lists.idle_since.is_none_or(|since| now < since + LINGER)
        });
        for memory in self.memory.values() {
            memory.expect(local.keys().cloned());
        }
    }

    /// Requests missing objects, and forgets unneeded workloads.
    fn request(&mut self, missing: &Missing, local: &BTreeMap<String, LocalWorkloads>, now: Instant) {
        for (namespace, workloads) in local {
            let unfollowed = |lists: &NamespaceLists| lists.bounds.is_none();
            let is_missing = missing.bounds.contains(namespace);
            if !is_missing || !self.namespaces.get(namespace).is_some_and(unfollowed) {
                continue;
            }
            let hpas: Follower<HorizontalPodAutoscaler> = self.follow_in(namespace);
            // Its first list is to keep those about local pods.
            hpas.set_local(workloads);
            let bounds = (self.follow_in(namespace), hpas, self.follow_in(namespace));
            if let Some(lists) = self.namespaces.get_mut(namespace) {
                lists.bounds = Some(bounds);
            }
        }
        for key in self.owners.take_due(&missing.owners, &missing.passed, now) {
            let (client, requests) = (self.client.clone(), self.requests.clone());
            self.answers.spawn(async move {
                let _slot = requests.wait(&key.namespace, Class::Ordinary).await;
                let answer = owners::fetch(&client, &key).await;
                (key, answer)
            });
        }
    }

    /// The time of the next request, of the end of following a namespace, or of the first view.
    fn next_due(&self) -> Instant {
        const AT_LATEST: Duration = Duration::from_secs(60 * 60);
        let leaving = self.namespaces.values().filter_map(|lists| lists.idle_since);
        let leaving = leaving.map(|since| since + LINGER);
        let requests = self.owners.slots.values().filter_map(|slot| slot.due);
        let first_view = self.first_pods.iter().map(|first| first.until);
        let due = leaving.chain(requests).chain(first_view).min();
        due.unwrap_or_else(|| Instant::now() + AT_LATEST)
    }

    /// The problems of lists, requests and objects. The same problem of many lists is one entry: `list pods` and `list nodes`
    /// fail alike in an outage.
    fn problems(&self) -> Vec<String> {
        let mut found = vec![problems(&self.pods), problems(&self.node)];
        for lists in self.namespaces.values() {
            found.push(problems(&lists.vpas));
            let bounds = lists.bounds.iter();
            found
                .extend(bounds.flat_map(|(ranges, hpas, quotas)| [problems(quotas), problems(ranges), problems(hpas)]));
        }
        let (troubles, objects): (Vec<_>, Vec<_>) = found.into_iter().unzip();
        let owners = self.owners.slots.values().filter_map(|slot| slot.problem.as_ref());
        let owners = owners.map(ToString::to_string);
        let mut alike: BTreeMap<String, (String, usize)> = BTreeMap::new();
        for trouble in troubles.into_iter().flatten().chain(owners) {
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
        let (client, changed) = (self.client.clone(), Arc::clone(&self.changed));
        let (kind, memory) = memory_of::<T>();
        let memory = self.memory.entry(kind).or_insert(memory);
        follow(client, Some(namespace), "", self.timing, memory.clone(), changed)
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
}

/// Adds the known objects of the namespaces to the view.
fn add_objects(view: &mut NodeView, namespaces: BTreeMap<String, Namespace>) {
    for namespace in namespaces.into_values() {
        let Some((limit_ranges, hpas, quotas)) = namespace.bounds else {
            continue;
        };
        view.vpas.extend(namespace.vpas.into_iter().flatten().map(Shared::from));
        view.limit_ranges.extend(limit_ranges.into_iter().map(Shared::from));
        view.hpas.extend(hpas.into_iter().map(Shared::from));
        view.quotas.extend(quotas.into_iter().map(Shared::from));
    }
}

fn objects<T: Object>(list: &Follower<T>) -> Option<Vec<Arc<T>>> {
    list.read(|list| list.known.then(|| list.objects().cloned().collect()))
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

/// The trouble of a list, and the problems of its objects.
fn problems<T: Object>(list: &Follower<T>) -> (Option<String>, Vec<String>) {
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
