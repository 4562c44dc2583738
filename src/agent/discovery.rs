//! Looks at the node: the mounts, the root of all pods, the runtime, and who lives there.
//!
//! One task. It looks when it is asked to, when the runtime says that something happened, and again soon while
//! something essential is missing. Everything it finds goes to the controller as one [`Discovered`]; what is missing is
//! a problem in words, never the end. A look costs the runtime one call, however many containers there are, and one more
//! for each of the few that are new.

mod formula;
mod managers;
mod pod_levels;
mod starts;
mod unsaved;

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use self::formula::LearnedFormula;
use self::pod_levels::PodLevels;
use self::starts::Starts;
pub(super) use self::unsaved::UnsavedLimits;
use crate::actuate::shrink::Freezer;
use crate::actuate::{Concurrency, KnownFrom, LeastLimits, Node, RuntimeLink};
use crate::cgroup::systemd::Systemd;
use crate::cgroup::{Hierarchy, Kubepods, PodEntry, page_size};
use crate::config::{Config, PathSetting};
use crate::model::objects::PodId;
use crate::model::{CgroupVersion, Driver, KubeletVersion, NodeTraits, RuntimeKind, WeightFormula};
use crate::oom::watch::NodePods;
use crate::reconcile::controller::{Discovered, Event};
use crate::reconcile::inventory::Inventory;
use crate::runtime::{
    ContainerRuntime, Cri, EventStream, Happened, ListedContainer, RuntimeError, RuntimeEvent, RuntimeInfo,
    RuntimeMetrics, discover, weight,
};
use crate::sources::NodeView;

/// Events of one start or stop come together: look once for all of them.
const SETTLE: Duration = Duration::from_millis(5);
/// How soon to look again while something essential is missing.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// When to look again where nothing is missing and nothing is told.
const IDLE: Duration = Duration::from_secs(3600);
/// Longest wait for one call over D-Bus.
const BUS_DEADLINE: Duration = Duration::from_secs(5);

/// What discovery begins with, and what it is connected to.
#[derive(Debug)]
pub(super) struct DiscoveryLinks {
    pub(super) config: Config,
    /// What every node that is found shares, however often it is replaced.
    pub(super) concurrency: Arc<Concurrency>,
    pub(super) freezer: Arc<Freezer>,
    /// Limits that were grown in an emergency.
    pub(super) least_limits: Arc<LeastLimits>,
    pub(super) runtime_metrics: RuntimeMetrics,
    pub(super) view: watch::Receiver<Arc<NodeView>>,
    /// Who lives here, for whoever must not wait for the controller.
    pub(super) residents: watch::Sender<Arc<NodePods>>,
    /// The formula by which a pass saw the runtime write a weight.
    pub(super) seen: watch::Receiver<Option<WeightFormula>>,
    /// Memory limits that an earlier agent may have grown without saving them.
    pub(super) unsaved: UnsavedLimits,
}

/// The task's own memory: what is found once stays found.
#[derive(Debug)]
pub(super) struct Discovery {
    links: DiscoveryLinks,
    hierarchy: Option<Hierarchy>,
    runtime: Option<KnownRuntime>,
    happenings: Option<EventStream>,
    systemd: Option<Arc<Systemd>>,
    formula: LearnedFormula,
    /// The runtime's last lists: containers keep their names while it is away.
    containers: Vec<ListedContainer>,
    pods: Vec<PodId>,
    starts: Starts,
    pod_levels: PodLevels,
}

/// The runtime that was found, and who it is now.
#[derive(Debug)]
struct KnownRuntime {
    cri: Arc<Cri>,
    info: RuntimeInfo,
    /// It was lost, or may have been: whoever answers now may be an upgrade of it.
    doubted: bool,
}

impl Discovery {
    pub(super) fn new(links: DiscoveryLinks) -> Self {
        Self {
            links,
            hierarchy: None,
            runtime: None,
            happenings: None,
            systemd: None,
            formula: LearnedFormula::default(),
            containers: Vec::new(),
            pods: Vec::new(),
            starts: Starts::default(),
            pod_levels: PodLevels::default(),
        }
    }

    /// Looks until nobody listens any more.
    pub(super) async fn run(mut self, mut asked: mpsc::Receiver<()>, events: mpsc::Sender<Event>) {
        loop {
            let discovered = self.discover().await;
            let incomplete = !discovered.problems.is_empty();
            if events.send(Event::Discovered(discovered)).await.is_err() {
                return;
            }
            let listed = self.containers.iter().map(|container| container.id.as_str());
            let starting = self.starts.next_list(listed, Instant::now());
            let again = starting
                .into_iter()
                .chain(incomplete.then_some(LOOK_AGAIN))
                .fold(IDLE, Duration::min);
            let again = Instant::now() + again;
            // Cancel-safe: a lost wake-up is made good by the look that follows any other.
            tokio::select! {
                request = asked.recv() => if request.is_none() { return },
                event = next_event(&mut self.happenings) => self.note(&event),
                () = tokio::time::sleep_until(again) => {}
            }
            tokio::time::sleep(SETTLE).await;
            self.note_waiting();
        }
    }

    /// Looks once. Something essential is missing where there are problems.
    pub(super) async fn discover(&mut self) -> Discovered {
        let mut problems = Vec::new();
        let runtime = self.find_runtime(&mut problems).await;
        let runtime_answers = self.list(&mut problems).await.unwrap_or_else(|error| {
            problems.push(error.to_string());
            false
        });
        let info = self.runtime.as_ref().map(|runtime| runtime.info.clone());
        let told = info.as_ref().and_then(|info| info.cgroup_driver);
        let configured = self.links.config.cgroup_driver;
        let (hierarchy, kubepods, scanned) = match self.find_pods(configured.or(told)) {
            Ok(found) => found,
            Err(error) => {
                problems.push(error.to_string());
                return Discovered {
                    runtime_answers,
                    problems,
                    ..Discovered::default()
                };
            }
        };
        let units = self.find_systemd(kubepods.driver, &mut problems).await;
        let seen = &mut self.links.seen;
        if let (true, Some(formula)) = (seen.has_changed().unwrap_or(false), *seen.borrow_and_update()) {
            self.formula.known = Some(formula);
        }
        if runtime_answers {
            self.learn_formula(&hierarchy, &scanned).await;
        }
        let config = &self.links.config;
        let traits = NodeTraits {
            version: hierarchy.version(),
            driver: kubepods.driver,
            runtime: info.as_ref().map_or(RuntimeKind::Containerd, |info| info.kind),
            container_weight: config.weight_formula.or(self.formula.known).unwrap_or(weight::ASSUMED),
            kubelet: config.kubelet_version.unwrap_or(KubeletVersion::NEWEST),
            page: page_size(),
        };
        let view = Arc::clone(&self.links.view.borrow());
        let node = Arc::new(Node {
            managers: managers::static_managers(&config.kubelet_dir, &hierarchy, &scanned, &mut problems),
            hierarchy,
            kubepods,
            traits,
            runtime,
            runtime_name: info.map(|info| format!("{} {}", info.name, info.version)),
            driver_from: KnownFrom::of(configured, told),
            formula_from: KnownFrom::of(config.weight_formula, self.formula.known),
            kubelet_from: KnownFrom::of(config.kubelet_version, None),
            units,
            concurrency: Arc::clone(&self.links.concurrency),
            freezer: Arc::clone(&self.links.freezer),
            least_limits: Arc::clone(&self.links.least_limits),
        })
        .with_stated_kubelet(view.kubelet_version());
        let inventory = Inventory::assemble(scanned, &self.pods, &self.containers, &view.pods);
        self.links.residents.send_replace(Arc::new(NodePods {
            tree: Some((node.hierarchy.clone(), node.kubepods.path.clone())),
            pods: inventory.pods().cloned().collect(),
        }));
        Discovered {
            unsaved_limits: self.links.unsaved.find(&node, &inventory),
            low_pod_levels: self.pod_levels.find(&node, &inventory, &view.pods),
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
        if let Some(runtime) = &self.runtime {
            return RuntimeLink::Found(Arc::clone(&runtime.cri) as Arc<dyn ContainerRuntime>);
        }
        match discover(socket, self.links.config.deadlines()).await {
            Ok((cri, info)) => {
                tracing::info!(runtime = info.name, version = info.version, socket = %cri.socket().display(), "runtime");
                self.happenings = Some(cri.events());
                let cri = Arc::new(cri.counted(self.links.runtime_metrics.clone()));
                self.runtime = Some(KnownRuntime {
                    cri: Arc::clone(&cri),
                    info,
                    doubted: false,
                });
                RuntimeLink::Found(cri)
            }
            Err(error) => {
                problems.push(format!(
                    "{error}; until one answers, containers are named by manifests only and stored specs stay old"
                ));
                RuntimeLink::Away(error.to_string())
            }
        }
    }

    /// Takes the runtime's lists of pods and running containers; in doubt, after it has said who it is.
    /// Whether there is a runtime.
    async fn list(&mut self, problems: &mut Vec<String>) -> Result<bool, RuntimeError> {
        let Some(runtime) = &mut self.runtime else {
            return Ok(false);
        };
        if runtime.doubted {
            let info = runtime.cri.info().await?;
            if info != runtime.info {
                let (name, version) = (&info.name, &info.version);
                tracing::info!(runtime = name, version, "the runtime is another one now");
                runtime.info = info;
            }
            runtime.doubted = false;
        }
        let (pods, listing) = (runtime.cri.list_pods().await?, runtime.cri.list_containers().await?);
        problems.extend(listing.unusable.iter().map(ToString::to_string));
        (self.pods, self.containers) = (pods, listing.containers);
        Ok(true)
    }

    /// The mounts, the root of all pods, and who has a cgroup there. Reads directory names: quick, and it never waits
    /// for anything but the kernel.
    fn find_pods(&mut self, driver: Option<Driver>) -> anyhow::Result<(Hierarchy, Kubepods, Vec<PodEntry>)> {
        let config = &self.links.config;
        let hierarchy = match self.hierarchy.take() {
            Some(hierarchy) => hierarchy,
            None => Hierarchy::discover(config.custom_cgroup_root())?,
        };
        self.hierarchy = Some(hierarchy.clone());
        let kubepods = match &config.kubepods {
            Some(path) => Kubepods::at(path.clone())?,
            None => Kubepods::find(&hierarchy, driver)?,
        };
        let scanned = kubepods.scan(&hierarchy)?;
        Ok((hierarchy, kubepods, scanned))
    }

    async fn find_systemd(&mut self, driver: Driver, problems: &mut Vec<String>) -> Option<Arc<Systemd>> {
        if driver == Driver::Cgroupfs {
            return None;
        }
        let known = self.systemd.take();
        let connected = tokio::task::spawn_blocking(move || match known {
            Some(systemd) if systemd.ping().is_ok() => Ok(systemd),
            _ => Systemd::connect(None, BUS_DEADLINE).map(Arc::new),
        });
        match connected.await {
            Ok(Ok(systemd)) => self.systemd = Some(systemd),
            Ok(Err(error)) => problems.push(format!(
                "{error}; pods' files are written without it, and systemd may put its own values back"
            )),
            Err(error) => problems.push(error.to_string()),
        }
        self.systemd.clone()
    }

    /// Only cgroup v2 has weights to learn from; a configured formula needs no learning.
    async fn learn_formula(&mut self, hierarchy: &Hierarchy, scanned: &[PodEntry]) {
        if let (CgroupVersion::V2, None, Some(runtime)) =
            (hierarchy.version(), self.links.config.weight_formula, &self.runtime)
        {
            self.formula
                .learn(runtime.cri.as_ref(), hierarchy, &self.containers, scanned)
                .await;
        }
    }

    /// Takes in everything else that has happened by now: one look serves it all.
    fn note_waiting(&mut self) {
        while let Some(event) = next_event(&mut self.happenings).now_or_never() {
            self.note(&event);
        }
    }

    fn note(&mut self, event: &RuntimeEvent) {
        match event {
            RuntimeEvent::Container { id, happened } => {
                match happened {
                    Happened::Started => self.starts.started(id, Instant::now()),
                    Happened::Stopped | Happened::Removed => self.starts.ended(id),
                    Happened::Updated | Happened::OutOfMemory => {}
                }
                return;
            }
            RuntimeEvent::Lost { why } => tracing::warn!(why, "the runtime is lost; enforcing what is known"),
            RuntimeEvent::Resync => {}
        }
        if let Some(runtime) = &mut self.runtime {
            runtime.doubted = true;
        }
        self.formula.doubt();
    }
}

/// Waits for something that changes who lives here; for ever, where nothing is told. Cancel-safe: what it
/// passes over is no news.
///
/// Updates are passed over. Each one that a pass sends is told back, and to look at the whole node for each would cost
/// more than the pass did; what somebody else updates shows in the files.
async fn next_event(happenings: &mut Option<EventStream>) -> RuntimeEvent {
    if let Some(stream) = happenings {
        while let Some(event) = stream.next().await {
            match event {
                RuntimeEvent::Container {
                    happened: Happened::Updated,
                    ..
                } => {}
                event => return event,
            }
        }
        *happenings = None;
    }
    std::future::pending().await
}

#[cfg(test)]
mod tests;
