//! Looks at the node: the mounts, the root of all pods, the runtime, and who lives there.
//!
//! One task. It looks when it is asked to, when the runtime says that something happened, and again soon while
//! something essential is missing. Everything it finds goes to the controller as one [`Discovered`]; what is missing is
//! a problem in words, never the end. A look costs the runtime one call, however many containers there are, and one more
//! for each of the few that are new.

mod findings;
mod formula;
mod known_runtime;
mod managers;
mod pod_levels;
mod starts;
mod unsaved;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use self::findings::Findings;
use self::formula::LearnedFormula;
use self::known_runtime::KnownRuntime;
use self::pod_levels::PodLevels;
use self::starts::Starts;
pub(super) use self::unsaved::UnsavedLimits;
use crate::actuate::shrink::Freezer;
use crate::actuate::{Concurrency, DriverFrom, KubeletFrom, LeastLimits, Node, RuntimeLink};
use crate::cgroup::systemd::Systemd;
use crate::cgroup::{Hierarchy, Kubepods, PodEntry, page_size};
use crate::model::objects::PodId;
use crate::model::{CgroupPath, CgroupVersion, Driver, KubeletVersion, NodeTraits, RuntimeKind, WeightFormula};
use crate::oom::watch::NodePods;
use crate::reconcile::controller::{Discovered, Event};
use crate::reconcile::inventory::Inventory;
use crate::runtime::{
    ContainerRuntime, Deadlines, EventStream, Happened, ListedContainer, Observer, RuntimeEvent, discover, weight,
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

/// What is configured rather than found out.
#[derive(Debug, Clone, Default)]
pub(super) struct DiscoveryOptions {
    /// Where the cgroup mounts are; `None` takes them from the mount table.
    pub(super) cgroup_root: Option<PathBuf>,
    /// The root of all pods below the mounts.
    pub(super) kubepods: Option<CgroupPath>,
    /// Who creates cgroups.
    pub(super) driver: Option<Driver>,
    /// How the runtime turns shares into weights.
    pub(super) weight: Option<WeightFormula>,
    /// Whose rules the pod level follows.
    pub(super) kubelet: Option<KubeletVersion>,
    /// Where the kubelet keeps its checkpoints.
    pub(super) kubelet_dir: PathBuf,
    /// Which runtime to talk to.
    pub(super) runtime: RuntimeChoice,
    /// Longest waits for the runtime.
    pub(super) deadlines: Deadlines,
}

/// Which runtime to talk to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) enum RuntimeChoice {
    /// The first of the well-known sockets that answers.
    #[default]
    Auto,
    /// None: containers are named by the manifests' status, and only files are written.
    None,
    /// The one at this socket.
    Socket(PathBuf),
}

/// The task's own memory: what is found once stays found.
#[derive(Debug)]
pub(super) struct Discovery {
    options: DiscoveryOptions,
    shared: Shared,
    observer: Observer,
    view: watch::Receiver<Arc<NodeView>>,
    /// Who lives here, for whoever must not wait for the controller.
    residents: watch::Sender<Arc<NodePods>>,
    /// The formula by which a pass saw the runtime write a weight.
    seen: watch::Receiver<Option<WeightFormula>>,
    hierarchy: Option<Hierarchy>,
    runtime: Option<KnownRuntime>,
    happenings: Option<EventStream>,
    systemd: Option<Arc<Systemd>>,
    formula: LearnedFormula,
    /// The runtime's last lists: containers keep their names while it is away.
    lists: RuntimeLists,
    starts: Starts,
    unsaved: UnsavedLimits,
    pod_levels: PodLevels,
}

/// The runtime's last lists.
#[derive(Debug, Default)]
struct RuntimeLists {
    containers: Vec<ListedContainer>,
    pods: Vec<PodId>,
}

/// What every node that is found shares, however often it is replaced.
#[derive(Debug)]
struct Shared {
    concurrency: Arc<Concurrency>,
    freezer: Arc<Freezer>,
    least_limits: Arc<LeastLimits>,
}

impl Discovery {
    pub(super) fn new(
        options: DiscoveryOptions,
        concurrency: Arc<Concurrency>,
        freezer: Arc<Freezer>,
        observer: Observer,
        view: watch::Receiver<Arc<NodeView>>,
        residents: watch::Sender<Arc<NodePods>>,
        seen: watch::Receiver<Option<WeightFormula>>,
    ) -> Self {
        Self {
            options,
            shared: Shared {
                concurrency,
                freezer,
                least_limits: Arc::default(),
            },
            observer,
            view,
            residents,
            seen,
            hierarchy: None,
            runtime: None,
            happenings: None,
            systemd: None,
            formula: LearnedFormula::default(),
            lists: RuntimeLists::default(),
            starts: Starts::default(),
            unsaved: UnsavedLimits::default(),
            pod_levels: PodLevels::default(),
        }
    }

    /// With the memory limits that an earlier agent may have grown without saving them.
    pub(super) fn recovering(mut self, unsaved: UnsavedLimits) -> Self {
        self.unsaved = unsaved;
        self
    }

    /// With limits that were grown in an emergency, which every node it finds shares.
    pub(super) fn sharing(mut self, least_limits: Arc<LeastLimits>) -> Self {
        self.shared.least_limits = least_limits;
        self
    }

    /// Looks until nobody listens any more.
    pub(super) async fn run(mut self, mut asked: mpsc::Receiver<()>, events: mpsc::Sender<Event>) {
        loop {
            let (discovered, incomplete) = self.discover().await;
            if events.send(Event::Discovered(discovered)).await.is_err() {
                return;
            }
            let listed = self.lists.containers.iter().map(|container| container.id.as_str());
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

    /// Looks once; also whether something essential was missing.
    pub(super) async fn discover(&mut self) -> (Discovered, bool) {
        let mut findings = Findings::default();
        let runtime = self.find_runtime(&mut findings).await;
        let runtime_answers = self.list(&mut findings).await;
        let hierarchy = self.find_hierarchy(&mut findings);
        let told = self.runtime.as_ref().and_then(|runtime| runtime.info.cgroup_driver);
        let driver = self.options.driver.or(told);
        let found = hierarchy.and_then(|hierarchy| self.find_pods(hierarchy, driver, &mut findings));
        let Some((hierarchy, kubepods, scanned)) = found else {
            let nothing = Discovered {
                node: None,
                inventory: Inventory::default(),
                unsaved_limits: BTreeMap::new(),
                low_pod_levels: BTreeMap::new(),
                runtime_answers,
                problems: findings.problems,
            };
            return (nothing, true);
        };
        let units = self.find_systemd(kubepods.driver, &mut findings).await;
        if let (true, Some(formula)) = (self.seen.has_changed().unwrap_or(false), *self.seen.borrow_and_update()) {
            self.formula.shown(formula);
        }
        if runtime_answers {
            self.learn_formula(&hierarchy, &scanned).await;
        }
        let traits = self.traits(&hierarchy, kubepods.driver);
        let runtime_name = self.runtime.as_ref().map(KnownRuntime::name_and_version);
        let view = Arc::clone(&self.view.borrow());
        let node = Arc::new(Node {
            managers: managers::static_managers(&self.options.kubelet_dir, &hierarchy, &scanned, &mut findings),
            hierarchy,
            kubepods,
            traits,
            runtime,
            runtime_name,
            driver_from: DriverFrom::of(self.options.driver, told),
            formula_from: self.formula.known_from(self.options.weight),
            kubelet_from: KubeletFrom::configured(self.options.kubelet),
            units,
            concurrency: Arc::clone(&self.shared.concurrency),
            freezer: Arc::clone(&self.shared.freezer),
            least_limits: Arc::clone(&self.shared.least_limits),
        })
        .with_stated_kubelet(view.kubelet_version());
        let inventory = Inventory::assemble(scanned, &self.lists.pods, &self.lists.containers, &view.pods);
        self.residents.send_replace(Arc::new(NodePods {
            tree: Some((node.hierarchy.clone(), node.kubepods.path.clone())),
            pods: inventory.pods().cloned().collect(),
        }));
        (
            Discovered {
                unsaved_limits: self.unsaved.find(&node, &inventory),
                low_pod_levels: self.pod_levels.find(&node, &inventory, &view.pods),
                node: Some(node),
                inventory,
                runtime_answers,
                problems: findings.problems,
            },
            findings.incomplete,
        )
    }

    async fn find_runtime(&mut self, findings: &mut Findings) -> RuntimeLink {
        let socket = match &self.options.runtime {
            RuntimeChoice::None => return RuntimeLink::None,
            RuntimeChoice::Auto => None,
            RuntimeChoice::Socket(socket) => Some(socket.as_path()),
        };
        if let Some(runtime) = &self.runtime {
            return RuntimeLink::Found(Arc::clone(&runtime.cri) as Arc<dyn ContainerRuntime>);
        }
        match discover(socket, self.options.deadlines).await {
            Ok((cri, info)) => {
                tracing::info!(runtime = info.name, version = info.version, socket = %cri.socket().display(), "runtime");
                self.happenings = Some(cri.events());
                let cri = Arc::new(cri.observed(self.observer.clone()));
                self.runtime = Some(KnownRuntime::new(&cri, info));
                RuntimeLink::Found(cri)
            }
            Err(error) => {
                findings.problem(format_args!(
                    "{error}; until one answers, containers are named by manifests only and stored specs stay old"
                ));
                RuntimeLink::Away(error.to_string())
            }
        }
    }

    /// Takes the runtime's lists. Whether there were any to take.
    async fn list(&mut self, findings: &mut Findings) -> bool {
        let Some(runtime) = &mut self.runtime else { return false };
        match runtime.list().await {
            Ok((pods, listing)) => {
                self.lists.pods = pods;
                for error in listing.unusable {
                    findings.problem(error);
                }
                self.lists.containers = listing.containers;
                true
            }
            Err(error) => {
                findings.problem(error);
                false
            }
        }
    }

    fn find_hierarchy(&mut self, findings: &mut Findings) -> Option<Hierarchy> {
        if self.hierarchy.is_none() {
            match Hierarchy::discover(self.options.cgroup_root.as_deref()) {
                Ok(found) => self.hierarchy = Some(found),
                Err(error) => findings.problem(error),
            }
        }
        self.hierarchy.clone()
    }

    /// Reads directory names: quick, and it never waits for anything but the kernel.
    fn find_pods(
        &self,
        hierarchy: Hierarchy,
        driver: Option<Driver>,
        findings: &mut Findings,
    ) -> Option<(Hierarchy, Kubepods, Vec<PodEntry>)> {
        let kubepods = match &self.options.kubepods {
            Some(path) => Kubepods::at(path.clone()),
            None => Kubepods::find(&hierarchy, driver),
        };
        let scanned = kubepods.and_then(|kubepods| kubepods.scan(&hierarchy).map(|scanned| (kubepods, scanned)));
        match scanned {
            Ok((kubepods, scanned)) => Some((hierarchy, kubepods, scanned)),
            Err(error) => {
                findings.problem(error);
                None
            }
        }
    }

    async fn find_systemd(&mut self, driver: Driver, findings: &mut Findings) -> Option<Arc<Systemd>> {
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
            Ok(Err(error)) => findings.problem(format_args!(
                "{error}; pods' files are written without it, and systemd may put its own values back"
            )),
            Err(error) => findings.problem(error),
        }
        self.systemd.clone()
    }

    fn traits(&self, hierarchy: &Hierarchy, driver: Driver) -> NodeTraits {
        NodeTraits {
            version: hierarchy.version(),
            driver,
            runtime: self
                .runtime
                .as_ref()
                .map_or(RuntimeKind::Containerd, |runtime| runtime.info.kind),
            container_weight: self.options.weight.or(self.formula.get()).unwrap_or(weight::ASSUMED),
            kubelet: self.options.kubelet.unwrap_or(KubeletVersion::NEWEST),
            page: page_size(),
        }
    }

    /// Only cgroup v2 has weights to learn from; a configured formula needs no learning.
    async fn learn_formula(&mut self, hierarchy: &Hierarchy, scanned: &[PodEntry]) {
        if let (CgroupVersion::V2, None, Some(runtime)) = (hierarchy.version(), self.options.weight, &self.runtime) {
            self.formula
                .learn(runtime.cri.as_ref(), hierarchy, &self.lists.containers, scanned)
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

/// Waits for something that changes who lives here; for ever, where nothing is told. Cancel-safe: what it passes over is
/// no news.
///
/// Updates are passed over. Each one that a pass sends is told back, and to look at the whole node for each would cost
/// more than the pass did; what somebody else updates shows in the files.
async fn next_event(happenings: &mut Option<EventStream>) -> RuntimeEvent {
    if let Some(stream) = happenings {
        while let Some(event) = stream.next().await {
            let updated = matches!(
                event,
                RuntimeEvent::Container {
                    happened: Happened::Updated,
                    ..
                }
            );
            if !updated {
                return event;
            }
        }
        *happenings = None;
    }
    std::future::pending().await
}

#[cfg(test)]
mod tests;
