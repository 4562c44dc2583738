//! Discovers the node: the mounts, the root of all pods, the runtime, and the pods with their containers.
//!
//! One task discovers the node when the controller requests it, when the runtime reports an event, and again soon while an
//! essential part is missing. The controller gets the whole result as one [`Discovered`]. A missing part is a problem in
//! words, never the end of the task. Each time costs the runtime one call for each list, and one call for each of the few
//! new containers; with no containers, a search for another runtime as well.

mod formula;
mod limits;
mod managers;
mod starts;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use futures::FutureExt;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{Instant, timeout};

use self::formula::LearnedFormula;
use self::limits::PodLevels;
use self::starts::Starts;
use crate::actuate::shrink::Freezer;
use crate::actuate::{Concurrency, KnownFrom, LeastLimits, Node, RuntimeLink};
use crate::cgroup::systemd::{Systemd, SystemdError};
use crate::cgroup::{Cgroup, Hierarchy, Kubepods, PodEntry, page_size};
use crate::config::{Config, PathSetting};
use crate::guard::MarkedLimits;
use crate::model::objects::{Pod, PodId, PodUid};
use crate::model::{CgroupVersion, Driver, KubeletVersion, NodeTraits, RuntimeKind, WeightFormula};
use crate::oom::watch::NodePods;
use crate::pace::Backoff;
use crate::reconcile::controller::{Discovered, Event};
use crate::reconcile::inventory::Inventory;
use crate::runtime::{
    ContainerRuntime, Cri, EventStream, ListedContainer, RuntimeError, RuntimeEvent, RuntimeInfo, RuntimeMetrics,
    discover, weight,
};
use crate::sources::NodeView;

/// The events of one start or stop come within this time, and one discovery serves them all.
const SETTLE: Duration = Duration::from_millis(5);
/// The pauses while an essential part is missing: each time costs as much as the node has cgroups.
const RETRIES: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(15));
const IDLE: Duration = Duration::from_secs(3600);
/// The longest wait for one call over D-Bus.
const BUS_DEADLINE: Duration = Duration::from_secs(5);
/// The longest wait for systemd: for the calls over an old and a new connection, and for the handshake with the bus, which has no deadline.
const SYSTEMD_PATIENCE: Duration = BUS_DEADLINE.saturating_mul(4);

/// The configuration of discovery, and its connections to other tasks.
#[derive(Debug)]
pub(super) struct DiscoveryLinks {
    pub(super) config: Config,
    pub(super) freezer: Arc<Freezer>,
    pub(super) least_limits: Arc<LeastLimits>,
    pub(super) runtime_metrics: RuntimeMetrics,
    pub(super) view: watch::Receiver<Arc<NodeView>>,
    /// The pods of the node, for the tasks that do not wait for the controller.
    pub(super) node_pods: watch::Sender<Arc<NodePods>>,
    /// The formula that a pass observed when the runtime wrote a weight.
    pub(super) seen: watch::Receiver<Option<WeightFormula>>,
    /// The memory limits that an earlier agent may have grown and not saved, by pod UID.
    pub(super) unsaved: BTreeMap<PodUid, MarkedLimits>,
}

/// The state of the task: a part that it found once stays, a runtime without containers until another one runs some.
#[derive(Debug)]
pub(super) struct Discovery {
    links: DiscoveryLinks,
    /// Every discovered [`Node`] shares it.
    concurrency: Arc<Concurrency>,
    found: Option<FoundPods>,
    runtime: Option<KnownRuntime>,
    runtime_events: Option<EventStream>,
    systemd: Option<Arc<Systemd>>,
    /// The answer of a systemd that took too long.
    late_systemd: Option<JoinHandle<Result<Arc<Systemd>, SystemdError>>>,
    formula: LearnedFormula,
    /// The last lists of the runtime, from which containers keep their names while the runtime is away.
    containers: Vec<ListedContainer>,
    pods: Vec<PodId>,
    starts: Starts,
    /// The problems of the latest discovery.
    problems: Vec<String>,
    retries: Backoff,
    /// When the next discovery is due because of the problems.
    retry_at: Option<Instant>,
    /// The result of the latest comparison of each pod's limits, by UID.
    pod_levels: PodLevels,
}

/// The mounts, the root of all pods, and the pods that have cgroups.
type FoundPods = (Hierarchy, Kubepods, Arc<Vec<PodEntry>>);

#[derive(Debug)]
struct KnownRuntime {
    cri: Arc<Cri>,
    info: RuntimeInfo,
    /// Whether the runtime may have been upgraded since: its events broke off.
    doubted: bool,
}

impl Discovery {
    pub(super) fn new(links: DiscoveryLinks) -> Self {
        Self {
            concurrency: Arc::new(Concurrency::new(links.config.workers)),
            formula: LearnedFormula::kept_in(&links.config.state_dir),
            links,
            found: None,
            runtime: None,
            runtime_events: None,
            systemd: None,
            late_systemd: None,
            containers: Vec::new(),
            pods: Vec::new(),
            starts: Starts::default(),
            problems: Vec::new(),
            retries: RETRIES,
            retry_at: None,
            pod_levels: PodLevels::new(),
        }
    }

    /// Discovers the node again and again until the controller ends.
    pub(super) async fn run(mut self, mut requests: mpsc::Receiver<()>, events: mpsc::Sender<Event>) {
        loop {
            let discovered = self.discover().await;
            let pause = self.pause(&discovered.problems, Instant::now());
            if events.send(Event::Discovered(discovered)).await.is_err() {
                return;
            }
            // Cancel-safe: the discovery that follows serves every wake-up.
            tokio::select! {
                request = requests.recv() => if request.is_none() { return },
                event = next_event(&mut self.runtime_events) => self.handle(&event),
                () = tokio::time::sleep(pause) => {}
            }
            tokio::time::sleep(SETTLE).await;
            self.handle_waiting_events();
        }
    }

    /// How long to wait for a wake-up after a discovery with these problems. Only a retry that was due lengthens the pause: events
    /// wake discovery many times a second, and a problem that ends soon is seen soon.
    fn pause(&mut self, problems: &[String], now: Instant) -> Duration {
        let listed = self.containers.iter().map(|container| container.id.as_str());
        let starting = self.starts.next_list(listed, now);
        let are_others = self.problems != problems;
        if are_others {
            self.retries.reset();
            problems.clone_into(&mut self.problems);
        }
        if are_others || self.retry_at.is_some_and(|at| at <= now) {
            self.retry_at = (!problems.is_empty()).then(|| now + self.retries.next(None));
        }
        let retry = self.retry_at.map(|at| at.saturating_duration_since(now));
        starting.into_iter().chain(retry).fold(IDLE, Duration::min)
    }

    /// Discovers the node once. Problems mean that an essential part is missing.
    pub(super) async fn discover(&mut self) -> Discovered {
        let mut problems = Vec::new();
        let runtime = self.find_runtime(&mut problems).await;
        let runtime_answers = self.list(&mut problems).await.unwrap_or_else(|error| {
            problems.push(error.to_string());
            false
        });
        let reported = self.runtime.as_ref().and_then(|runtime| runtime.info.cgroup_driver);
        let driver = self.links.config.cgroup_driver.or(reported);
        let Some(found) = self.update_pods(driver, &mut problems) else {
            return Discovered {
                runtime_answers,
                problems,
                ..Discovered::default()
            };
        };
        let (_, kubepods, scanned) = &found;
        let units = self.find_systemd(kubepods.driver, &mut problems).await;
        let view = Arc::clone(&self.links.view.borrow());
        let pods: Vec<Arc<Pod>> = view.pods().cloned().collect();
        let inventory = Inventory::assemble(scanned, &self.pods, &self.containers, &pods);
        self.learn_formula(&found, &inventory, &pods, runtime_answers).await;
        let node = self.assemble_node(found, runtime, units, &mut problems);
        let node = Arc::new(node).with_stated_kubelet(view.kubelet_version());
        let inventory = inventory.sharing(&self.links.node_pods.borrow().pods);
        self.links.node_pods.send_replace(Arc::new(NodePods {
            tree: Some((node.hierarchy.clone(), node.kubepods.path.clone())),
            pods: inventory.pods().cloned().collect(),
        }));
        Discovered {
            unsaved_limits: self.find_unsaved_limits(&node, &inventory),
            low_pod_levels: self.find_low_pod_levels(&node, &inventory, &pods),
            node: Some(node),
            inventory,
            runtime_answers,
            problems,
        }
    }

    async fn find_runtime(&mut self, problems: &mut Vec<String>) -> RuntimeLink {
        let socket = match &self.links.config.runtime_socket {
            PathSetting::None => return RuntimeLink::None,
            PathSetting::Auto => None,
            PathSetting::Path(socket) => Some(socket.as_path()),
        };
        let known = self.runtime.as_ref().map(|runtime| Arc::clone(&runtime.cri));
        // Of several runtimes the one that runs pods counts, and it may have started after another one was found.
        let stays = |cri: &Arc<Cri>| !self.containers.is_empty() || socket == Some(cri.socket());
        if let Some(cri) = known.clone().filter(stays) {
            return RuntimeLink::Found(cri);
        }
        let found = discover(socket, self.links.config.deadlines()).await;
        let gives_way = match (&found, &known) {
            (Ok((cri, _)), Some(known)) => cri.socket() != known.socket() && cri.runs_pods().await,
            _ => false,
        };
        match (found, known) {
            (_, Some(known)) if !gives_way => RuntimeLink::Found(known),
            (Ok((cri, info)), _) => {
                tracing::info!(runtime = info.name, version = info.version, socket = %cri.socket().display(), "runtime");
                self.runtime_events = Some(cri.events());
                let cri = Arc::new(cri.counted(self.links.runtime_metrics.clone()));
                self.runtime = Some(KnownRuntime {
                    cri: Arc::clone(&cri),
                    info,
                    doubted: false,
                });
                RuntimeLink::Found(cri)
            }
            (Err(error), _) => {
                problems.push(format!(
                    "{error}; until one answers, only manifests name containers, and stored specs are not updated"
                ));
                RuntimeLink::Away(error.to_string())
            }
        }
    }

    /// Reads the runtime's lists of pods and running containers, and its name and version first if it is doubted. Returns
    /// whether there is a runtime.
    async fn list(&mut self, problems: &mut Vec<String>) -> Result<bool, RuntimeError> {
        let Some(runtime) = &mut self.runtime else {
            return Ok(false);
        };
        if runtime.doubted {
            let info = runtime.cri.info().await?;
            if info != runtime.info {
                let (name, version) = (&info.name, &info.version);
                tracing::info!(runtime = name, version, "the container runtime has changed");
                runtime.info = info;
            }
            runtime.doubted = false;
        }
        let (pods, containers) = (runtime.cri.list_pods().await?, runtime.cri.list_containers().await?);
        let unusable = pods.unusable.iter().chain(&containers.unusable);
        problems.extend(unusable.map(ToString::to_string));
        pods.entries.iter().for_each(|pod| self.starts.confirm(&pod.sandbox));
        self.pods = pods.entries.into_iter().map(|listed| listed.pod).collect();
        self.containers = containers.entries;
        Ok(true)
    }

    /// Finds the mounts, the root of all pods, and the cgroups below it. Reads directory names only, which waits
    /// for nothing but the kernel.
    fn find_pods(&self, driver: Option<Driver>) -> anyhow::Result<FoundPods> {
        let config = &self.links.config;
        let hierarchy = match &self.found {
            Some((hierarchy, ..)) => hierarchy.clone(),
            None => Hierarchy::discover(config.custom_cgroup_root())?,
        };
        let kubepods = match &config.kubepods {
            Some(path) if !hierarchy.may_have(path) => bail!("kubepods: there is no cgroup {path}"),
            Some(path) => Kubepods::at(path.clone())?,
            None => Kubepods::find(&hierarchy, driver)?,
        };
        let scanned = kubepods.scan(&hierarchy)?;
        Ok((hierarchy, kubepods, Arc::new(scanned)))
    }

    /// Finds the pods again. Those found before stay where that fails, without what was removed.
    fn update_pods(&mut self, driver: Option<Driver>, problems: &mut Vec<String>) -> Option<FoundPods> {
        match self.find_pods(driver) {
            Ok(found) => self.found = Some(found),
            Err(error) => {
                problems.push(error.to_string());
                self.found.iter_mut().for_each(drop_removed);
            }
        }
        self.found.clone()
    }

    /// Learns the runtime's formula of cpu weights: from a pass, from the files, or else from the stored specs.
    async fn learn_formula(
        &mut self,
        (hierarchy, _, scanned): &FoundPods,
        inventory: &Inventory,
        pods: &[Arc<Pod>],
        runtime_answers: bool,
    ) {
        let seen = &mut self.links.seen;
        if let (true, Some(formula)) = (seen.has_changed().unwrap_or(false), *seen.borrow_and_update()) {
            self.formula.note(Some(formula));
        }
        let learns = hierarchy.version() == CgroupVersion::V2 && self.links.config.weight_formula.is_none();
        if learns
            && !self.formula.compare(hierarchy, inventory, pods)
            && let Some(runtime) = self.runtime.as_ref().filter(|_| runtime_answers)
        {
            let (cri, listed) = (runtime.cri.as_ref(), &self.containers);
            self.formula.learn(cri, hierarchy, listed, scanned).await;
        }
    }

    fn assemble_node(
        &self,
        (hierarchy, kubepods, scanned): FoundPods,
        runtime: RuntimeLink,
        units: Option<Arc<Systemd>>,
        problems: &mut Vec<String>,
    ) -> Node {
        let config = &self.links.config;
        let info = self.runtime.as_ref().map(|runtime| &runtime.info);
        let formula = self.formula.known;
        let traits = NodeTraits {
            version: hierarchy.version(),
            driver: kubepods.driver,
            runtime: info.map_or(RuntimeKind::Containerd, |info| info.kind),
            container_weight: config.weight_formula.or(formula).unwrap_or(weight::ASSUMED),
            kubelet: config.kubelet_version.unwrap_or(KubeletVersion::NEWEST),
            page: page_size(),
        };
        Node {
            policies: managers::policies(config, &hierarchy, &scanned, problems),
            has_bursts: has_bursts(&hierarchy, &scanned),
            hierarchy,
            kubepods,
            traits,
            runtime,
            runtime_name: info.map(|info| format!("{} {}", info.name, info.version)),
            driver_from: KnownFrom::of(config.cgroup_driver, info.and_then(|info| info.cgroup_driver)),
            formula_from: KnownFrom::of(config.weight_formula, formula),
            kubelet_from: KnownFrom::of(config.kubelet_version, None),
            units,
            concurrency: Arc::clone(&self.concurrency),
            freezer: Arc::clone(&self.links.freezer),
            least_limits: Arc::clone(&self.links.least_limits),
        }
    }

    async fn find_systemd(&mut self, driver: Driver, problems: &mut Vec<String>) -> Option<Arc<Systemd>> {
        if driver == Driver::Cgroupfs {
            return None;
        }
        let known = self.systemd.take();
        let connect = move || match known {
            Some(systemd) if systemd.ping().is_ok() => Ok(systemd),
            _ => Systemd::connect(None, BUS_DEADLINE).map(Arc::new),
        };
        let connected = answer_within(&mut self.late_systemd, SYSTEMD_PATIENCE, connect).await;
        match connected.and_then(|connected| connected.map_err(|error| error.to_string())) {
            Ok(systemd) => self.systemd = Some(systemd),
            Err(why) => problems.push(format!(
                "{why}; pods' files are written without it, and systemd may put its own values back"
            )),
        }
        self.systemd.clone()
    }

    fn handle_waiting_events(&mut self) {
        while let Some(event) = next_event(&mut self.runtime_events).now_or_never() {
            self.handle(&event);
        }
    }

    fn handle(&mut self, event: &RuntimeEvent) {
        match event {
            RuntimeEvent::Started(id) => return self.starts.started(id, Instant::now()),
            RuntimeEvent::Ended(id) => return self.starts.confirm(id),
            RuntimeEvent::Lost { why } => tracing::warn!(
                why,
                "lost the container runtime; the values of known containers stay enforced"
            ),
            RuntimeEvent::Resync => {}
        }
        if let Some(runtime) = &mut self.runtime {
            runtime.doubted = true;
        }
        self.formula.doubt();
    }
}

/// The answer of systemd to a call in another thread: a call without an end must not keep the agent from working.
/// One that is `late` already goes on, without a wait, in the place of this one.
///
/// Errors: a sentence. The answer is late, or the call has panicked.
async fn answer_within<T: Send + 'static>(
    late: &mut Option<JoinHandle<T>>,
    patience: Duration,
    call: impl FnOnce() -> T + Send + 'static,
) -> Result<T, String> {
    let (mut answer, patience) = match late.take() {
        Some(earlier) => (earlier, Duration::ZERO),
        None => (spawn_blocking(call), patience),
    };
    match timeout(patience, &mut answer).await {
        Ok(answer) => answer.map_err(|panic| format!("internal error: {panic}")),
        Err(_) => {
            *late = Some(answer);
            Err("systemd does not answer over D-Bus".to_owned())
        }
    }
}

/// Whether the cgroups of pods have bursts; true without pods.
fn has_bursts(hierarchy: &Hierarchy, scanned: &[PodEntry]) -> bool {
    let read = |pod: &PodEntry| Cgroup::open(hierarchy, &pod.path).ok()?.read_all().ok();
    scanned.iter().find_map(read).is_none_or(|held| held.burst().is_some())
}

/// Drops the pods and containers whose cgroups were removed. A scan that failed says nothing about the others.
fn drop_removed((hierarchy, _, scanned): &mut FoundPods) {
    Arc::make_mut(scanned).retain_mut(|pod| {
        pod.containers.retain(|container| hierarchy.may_have(&container.path));
        hierarchy.may_have(&pod.path)
    });
}

/// Waits for an event, for ever where the runtime reports none. Cancel-safe.
async fn next_event(runtime_events: &mut Option<EventStream>) -> RuntimeEvent {
    match runtime_events {
        Some(stream) => stream.next().await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
