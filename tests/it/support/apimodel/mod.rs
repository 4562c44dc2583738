//! A model of an API server and of a kubelet, in the test's own process: lists, watches and patches over HTTP, the `resize`
//! subresource, and a kubelet that carries resizes out and writes the pods' status.
//!
//! It is for what real parts cannot be made to show: an answer that is late, lost, torn or of any code, a conflict or another
//! client's write at a chosen moment, a watch that stalls or whose past is forgotten, a link that is silent, a kubelet that
//! sleeps, refuses or fails, an agent that is killed between two steps, thousands of objects, the number of calls, and the same
//! load in every round of a benchmark. Everything else is tested with real parts (`cluster_today`). Its rules follow upstream's
//! `ValidatePodResize` and `dropNonResizeUpdates`, and `resize_recordings` holds its answers to those of real ones.
//!
//! It has no admission but the shipped policies, which it checks for each of the agent's writes: no quotas, LimitRanges and
//! webhooks. Its node always has room, and its kubelet knows no sidecars and does not start containers.

mod entrance;
mod faults;
mod kubelet;
pub(crate) mod objects;
mod pods_socket;
mod rules;
mod serve;
mod store;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;

use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::support::policy::Policy;
use entrance::Entrance;
pub(crate) use entrance::Link;
pub(crate) use faults::{Effect, Fault};
use faults::{Faults, UnderWay};
pub(crate) use kubelet::{Kubelet, ResizeResult};
pub(crate) use pods_socket::PodsSocket;
pub(crate) use store::Refusal;
use store::Store;

/// A running API server model. Dropping the value ends it.
#[derive(Debug)]
pub(crate) struct ApiModel {
    shared: Arc<Shared>,
    entrance: Entrance,
    _tasks: Vec<AbortOnDropHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    /// The node of the agent under test.
    node: String,
    store: Mutex<Store>,
    faults: Mutex<Faults>,
    kubelet: Mutex<Kubelet>,
    under_way: Mutex<UnderWay>,
    /// The newest version; changes with every write.
    changed: watch::Sender<u64>,
}

impl Shared {
    fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap()
    }

    /// Changes the store and notifies all watches.
    fn change<R>(&self, change: impl FnOnce(&mut Store) -> R) -> R {
        let mut store = self.store();
        let result = change(&mut store);
        self.changed.send_replace(store.version());
        result
    }
}

impl ApiModel {
    /// Starts an API server with one node of this name and capacity, which only the agent heeds.
    pub(crate) async fn start(node: &str, allocatable: &Value) -> Self {
        // Compiling the policies takes a moment. Compile them before a call waits for an answer.
        thread::spawn(|| ["pods", "events"].map(Policy::of));
        let shared = Arc::new(Shared {
            node: node.to_owned(),
            store: Mutex::default(),
            faults: Mutex::default(),
            kubelet: Mutex::new(Kubelet::prompt()),
            under_way: Mutex::default(),
            changed: watch::Sender::new(0),
        });
        let (entrance, server) = Entrance::open(serve::router(Arc::clone(&shared))).await;
        let kubelet = tokio::spawn(kubelet::run(Arc::clone(&shared), node.to_owned()));
        let model = Self {
            shared,
            entrance,
            _tasks: [server, kubelet].map(AbortOnDropHandle::new).into(),
        };
        model.allocatable(node, allocatable);
        model
    }

    /// Sets the node's capacity.
    pub(crate) fn allocatable(&self, node: &str, allocatable: &Value) {
        self.put(
            "nodes",
            json!({"metadata": {"name": node}, "status": {"allocatable": allocatable, "capacity": allocatable}}),
        );
    }

    /// Sets the state of the network.
    pub(crate) fn link(&self, link: Link) {
        self.entrance.link(link);
    }

    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.entrance.kubeconfig()
    }

    /// Creates or replaces an object.
    pub(crate) fn put(&self, plural: &str, object: Value) {
        self.shared.change(|store| store.put(plural, object));
    }

    /// Changes an existing object.
    pub(crate) fn change(&self, plural: &str, name: &str, change: impl FnOnce(&mut Value)) {
        self.shared.change(|store| {
            let mut object = store.find(plural, name).unwrap().clone();
            change(&mut object);
            store.put(plural, object);
        });
    }

    /// Removes an object at once. Here and below, a name may be `namespace/name`.
    pub(crate) fn remove(&self, plural: &str, name: &str) {
        self.shared.change(|store| store.remove(plural, name));
    }

    pub(crate) fn get(&self, plural: &str, name: &str) -> Option<Value> {
        self.shared.store().find(plural, name).cloned()
    }

    /// Returns all objects of a kind.
    pub(crate) fn all(&self, plural: &str) -> Vec<Value> {
        self.shared.store().all(plural).cloned().collect()
    }

    /// Resizes a pod as a user with the right to do so.
    pub(crate) fn resize(&self, name: &str, containers: &Value) -> Result<(), String> {
        let patch = json!({"spec": {"containers": containers}});
        self.patch_resize(name, &patch).map_err(|refusal| refusal.message)
    }

    /// Patches the `resize` subresource with a patch of the whole pod, and returns the whole refusal.
    pub(crate) fn patch_resize(&self, name: &str, patch: &Value) -> Result<(), Refusal> {
        let resized = self
            .shared
            .change(|store| store.resize(name, patch, false, |_, _| Ok(())));
        resized.map(drop)
    }

    /// Every state of an object, oldest first.
    pub(crate) fn states(&self, plural: &str, name: &str) -> Vec<Value> {
        self.shared.store().states(plural, name).cloned().collect()
    }

    /// The number of calls such as `patch pods/resize`; dry runs count as `dry-run pods/resize`, and conflicts
    /// do not count.
    pub(crate) fn calls(&self, call: &str) -> usize {
        self.shared.faults.lock().unwrap().calls(call)
    }

    /// The number of calls of each kind.
    pub(crate) fn all_calls(&self) -> BTreeMap<String, usize> {
        self.shared.faults.lock().unwrap().all_calls().clone()
    }

    /// The number of calls without an answer: now, and the highest so far.
    pub(crate) fn under_way(&self) -> (usize, usize) {
        let UnderWay { now, most } = *self.shared.under_way.lock().unwrap();
        (now, most)
    }

    /// Adds a fault.
    pub(crate) fn fault(&self, fault: Fault) {
        self.shared.faults.lock().unwrap().add(fault);
    }

    /// Holds back the answers to these calls until the token is cancelled.
    pub(crate) fn hold_answers(
        &self,
        verbs: &[&'static str],
        resource: &'static str,
        times: Option<u32>,
    ) -> CancellationToken {
        let answering = CancellationToken::new();
        for verb in verbs {
            self.fault(Fault {
                verb,
                resource,
                times,
                effect: Effect::Held(answering.clone()),
            });
        }
        answering
    }

    /// Removes all faults.
    pub(crate) fn mend(&self) {
        self.shared.faults.lock().unwrap().mend();
        self.shared.changed.send_modify(|_| {});
    }

    /// Changes the behaviour of the kubelet.
    pub(crate) fn kubelet(&self, behave: impl FnOnce(&mut Kubelet)) {
        behave(&mut self.shared.kubelet.lock().unwrap());
        self.shared.changed.send_modify(|_| {});
    }

    /// Forgets old versions: a watch from such a version gets 410 Gone.
    pub(crate) fn compact(&self) {
        self.shared.store().compact();
    }
}
