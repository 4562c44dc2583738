//! An API server of the test's own that speaks HTTP: lists, watches, patches, the `resize` subresource with the rules of
//! 1.36, and a kubelet that plays its part in the pods' status.
//!
//! Made up, because the API server that can be had here knows no resizing in place. What it says and when follows
//! upstream: `ValidatePodResize` and `dropNonResizeUpdates` for what is accepted, the kubelet's allocation manager for
//! what becomes of it. A test decides what the node has, how long things take, and what fails.

mod admission;
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
pub(crate) use kubelet::{Kubelet, Verdict};
pub(crate) use pods_socket::PodsSocket;
pub(crate) use store::Refusal;
use store::Store;

/// A running API server. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct ApiModel {
    shared: Arc<Shared>,
    entrance: Entrance,
    _tasks: Vec<AbortOnDropHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    /// The node of the agent that calls.
    node: String,
    store: Mutex<Store>,
    faults: Mutex<Faults>,
    kubelet: Mutex<Kubelet>,
    under_way: Mutex<UnderWay>,
    /// Tells of every change, with the newest version.
    changed: watch::Sender<u64>,
}

impl Shared {
    fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap()
    }

    /// Changes what is stored, and tells everybody.
    fn change<R>(&self, change: impl FnOnce(&mut Store) -> R) -> R {
        let mut store = self.store();
        let result = change(&mut store);
        self.changed.send_replace(store.version());
        result
    }
}

impl ApiModel {
    /// An API server with a node of this name that has these amounts, and nothing else.
    pub(crate) async fn start(node: &str, allocatable: &Value) -> Self {
        // Takes a moment to compile, in which nobody is to wait for an answer.
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

    /// What the node has from now on.
    pub(crate) fn allocatable(&self, node: &str, allocatable: &Value) {
        self.put(
            "nodes",
            json!({"metadata": {"name": node}, "status": {"allocatable": allocatable, "capacity": allocatable}}),
        );
    }

    /// How the link to it is from now on.
    pub(crate) fn link(&self, link: Link) {
        self.entrance.link(link);
    }

    /// A kubeconfig for it.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.entrance.kubeconfig()
    }

    /// Makes an object, or puts another in its place.
    pub(crate) fn put(&self, plural: &str, object: Value) {
        self.shared.change(|store| store.put(plural, object));
    }

    /// Changes an object that is there.
    pub(crate) fn change(&self, plural: &str, name: &str, change: impl FnOnce(&mut Value)) {
        self.shared.change(|store| {
            let mut object = store.find(plural, name).unwrap().clone();
            change(&mut object);
            store.put(plural, object);
        });
    }

    /// Removes an object at once. Names may be `namespace/name`, here and below.
    pub(crate) fn remove(&self, plural: &str, name: &str) {
        self.shared.change(|store| store.remove(plural, name));
    }

    /// An object as it is now.
    pub(crate) fn get(&self, plural: &str, name: &str) -> Option<Value> {
        self.shared.store().find(plural, name).cloned()
    }

    /// All objects of a kind as they are now.
    pub(crate) fn all(&self, plural: &str) -> Vec<Value> {
        self.shared.store().all(plural).cloned().collect()
    }

    /// Resizes a pod as anybody with the right to would.
    pub(crate) fn resize(&self, name: &str, containers: &Value) -> Result<(), String> {
        let patch = json!({"spec": {"containers": containers}});
        self.patch_resize(name, &patch).map_err(|refusal| refusal.message)
    }

    /// The same with a patch of the whole pod, and the whole of a refusal.
    pub(crate) fn patch_resize(&self, name: &str, patch: &Value) -> Result<(), Refusal> {
        let resized = self
            .shared
            .change(|store| store.resize(name, patch, false, |_, _| Ok(())));
        resized.map(drop)
    }

    /// Every state that an object has had, oldest first.
    pub(crate) fn states(&self, plural: &str, name: &str) -> Vec<Value> {
        self.shared.store().states(plural, name).cloned().collect()
    }

    /// How often a call was made, such as `patch pods/resize`; dry runs are `dry-run pods/resize`.
    pub(crate) fn calls(&self, call: &str) -> usize {
        self.shared.faults.lock().unwrap().calls(call)
    }

    /// How often which calls were made.
    pub(crate) fn all_calls(&self) -> BTreeMap<String, usize> {
        self.shared.faults.lock().unwrap().all_calls().clone()
    }

    /// How many calls wait for an answer now, and how many have at most.
    pub(crate) fn under_way(&self) -> (usize, usize) {
        let UnderWay { now, most } = *self.shared.under_way.lock().unwrap();
        (now, most)
    }

    /// From now on this goes wrong.
    pub(crate) fn fault(&self, fault: Fault) {
        self.shared.faults.lock().unwrap().add(fault);
    }

    /// Holds the answers to these calls back until the token is cancelled.
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

    /// Nothing goes wrong any more.
    pub(crate) fn mend(&self) {
        self.shared.faults.lock().unwrap().mend();
        self.shared.changed.send_modify(|_| {});
    }

    /// How the kubelet behaves from now on.
    pub(crate) fn kubelet(&self, behave: impl FnOnce(&mut Kubelet)) {
        behave(&mut self.shared.kubelet.lock().unwrap());
        self.shared.changed.send_modify(|_| {});
    }

    /// Forgets the past: whoever asks for it is told that it is gone.
    pub(crate) fn compact(&self) {
        self.shared.store().compact();
    }
}
