//! Looks at the node: the mounts, the root of all pods, the runtime, and who lives there.
//!
//! One task. It looks when it is asked to, when the runtime says that something happened, and again soon while
//! something essential is missing. Everything it finds goes to the coordinator as one [`Refreshed`]; what is missing is
//! a problem in words, never the end.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::coordinator::{Event, Refreshed};
use super::inventory::Inventory;
use crate::actuate::{Lanes, Node};
use crate::cgroup::systemd::Systemd;
use crate::cgroup::{Cgroup, CgroupPath, Hierarchy, Kubepods, PodEntry};
use crate::plan::{CgroupVersion, Driver, KubeletVersion, NodeTraits, RuntimeKind};
use crate::resources::{ControlFile, CpuShares, Setting, WeightFormula};
use crate::runtime::{
    ContainerRuntime, Cri, Deadlines, EventStream, ListedContainer, RuntimeEvent, RuntimeInfo, discover, weight,
};
use crate::sources::NodeView;

/// Events of one start or stop come together: look once for all of them.
const SETTLE: Duration = Duration::from_millis(5);
/// How soon to look again while something essential is missing.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Longest wait for one call over D-Bus.
const BUS_DEADLINE: Duration = Duration::from_secs(5);
/// How many containers are asked for their shares and weight to learn the runtime's formula.
const PAIRS: usize = 5;

/// What is configured rather than found out.
#[derive(Debug, Clone, Default)]
pub(super) struct SurveyOptions {
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
pub(super) struct Survey {
    options: SurveyOptions,
    lanes: Arc<Lanes>,
    view: watch::Receiver<Arc<NodeView>>,
    hierarchy: Option<Hierarchy>,
    runtime: Option<(Arc<Cri>, RuntimeInfo)>,
    happenings: Option<EventStream>,
    systemd: Option<Arc<Systemd>>,
    formula: Option<WeightFormula>,
    /// The runtime's last list: containers keep their names while it is away.
    listed: Vec<ListedContainer>,
}

/// What one look gathered so far.
#[derive(Debug, Default)]
struct Findings {
    problems: Vec<String>,
    incomplete: bool,
}

impl Findings {
    fn problem(&mut self, text: impl std::fmt::Display) {
        self.problems.push(text.to_string());
        self.incomplete = true;
    }
}

impl Survey {
    pub(super) fn new(options: SurveyOptions, lanes: Arc<Lanes>, view: watch::Receiver<Arc<NodeView>>) -> Self {
        Self {
            options,
            lanes,
            view,
            hierarchy: None,
            runtime: None,
            happenings: None,
            systemd: None,
            formula: None,
            listed: Vec::new(),
        }
    }

    /// Looks until nobody listens any more.
    pub(super) async fn run(mut self, mut asked: mpsc::Receiver<()>, events: mpsc::Sender<Event>) {
        loop {
            let (refreshed, incomplete) = self.look().await;
            if events.send(Event::Refreshed(refreshed)).await.is_err() {
                return;
            }
            let again = Instant::now()
                + if incomplete {
                    LOOK_AGAIN
                } else {
                    Duration::from_secs(3600)
                };
            // Cancel-safe: a lost wake-up is made good by the look that follows any other.
            tokio::select! {
                request = asked.recv() => if request.is_none() { return },
                () = next_change(&mut self.happenings) => {}
                () = tokio::time::sleep_until(again) => {}
            }
            tokio::time::sleep(SETTLE).await;
        }
    }

    async fn look(&mut self) -> (Refreshed, bool) {
        let mut findings = Findings::default();
        self.find_runtime(&mut findings).await;
        self.list(&mut findings).await;
        let hierarchy = self.find_hierarchy(&mut findings);
        let told = self.runtime.as_ref().and_then(|(_, info)| info.cgroup_driver);
        let driver = self.options.driver.or(told);
        let found = hierarchy.and_then(|hierarchy| self.find_pods(hierarchy, driver, &mut findings));
        let Some((hierarchy, kubepods, scanned)) = found else {
            let nothing = Refreshed {
                node: None,
                inventory: Inventory::default(),
                problems: findings.problems,
            };
            return (nothing, true);
        };
        let units = self.find_systemd(kubepods.driver, &mut findings).await;
        self.learn_formula(&hierarchy, &scanned).await;
        let traits = self.traits(&hierarchy, kubepods.driver);
        let runtime = self
            .runtime
            .as_ref()
            .map(|(cri, _)| Arc::clone(cri) as Arc<dyn ContainerRuntime>);
        let runtime_name = self
            .runtime
            .as_ref()
            .map(|(_, info)| format!("{} {}", info.name, info.version));
        let node = Arc::new(Node {
            hierarchy,
            kubepods,
            traits,
            runtime,
            runtime_name,
            units,
            lanes: Arc::clone(&self.lanes),
        });
        let view = Arc::clone(&self.view.borrow());
        let inventory = Inventory::assemble(scanned, &self.listed, &view.pods);
        (
            Refreshed {
                node: Some(node),
                inventory,
                problems: findings.problems,
            },
            findings.incomplete,
        )
    }

    async fn find_runtime(&mut self, findings: &mut Findings) {
        let socket = match &self.options.runtime {
            RuntimeChoice::None => return,
            RuntimeChoice::Auto => None,
            RuntimeChoice::Socket(socket) => Some(socket.as_path()),
        };
        if self.runtime.is_some() {
            return;
        }
        match discover(socket, self.options.deadlines).await {
            Ok((cri, info)) => {
                tracing::info!(runtime = info.name, version = info.version, socket = %cri.socket().display(), "runtime");
                self.happenings = Some(cri.events());
                self.runtime = Some((Arc::new(cri), info));
            }
            Err(error) => findings.problem(format_args!(
                "{error}; until one answers, containers are named by manifests only and stored specs stay old"
            )),
        }
    }

    async fn list(&mut self, findings: &mut Findings) {
        let Some((cri, _)) = &self.runtime else { return };
        match cri.list_containers().await {
            Ok(listing) => {
                for error in listing.unusable {
                    findings.problem(error);
                }
                self.listed = listing.containers;
            }
            Err(error) => findings.problem(error),
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
                .map_or(RuntimeKind::Containerd, |(_, info)| info.kind),
            container_weight: self.options.weight.or(self.formula).unwrap_or(weight::ASSUMED),
            kubelet: self.options.kubelet.unwrap_or(KubeletVersion::NEWEST),
        }
    }

    /// Learns the formula from pairs of shares (the runtime's) and weight (the kernel's), the youngest container first.
    async fn learn_formula(&mut self, hierarchy: &Hierarchy, scanned: &[PodEntry]) {
        let known = self.formula.is_some() || self.options.weight.is_some();
        let (CgroupVersion::V2, false, Some((cri, _))) = (hierarchy.version(), known, &self.runtime) else {
            return;
        };
        let places = || scanned.iter().flat_map(|pod| &pod.containers);
        let mut youngest: Vec<&ListedContainer> = self.listed.iter().collect();
        youngest.sort_by_key(|container| std::cmp::Reverse(container.created_at));
        let mut pairs = Vec::new();
        for container in youngest.into_iter().take(PAIRS) {
            let Some(place) = places().find(|place| place.place.id.as_str() == container.id) else {
                continue;
            };
            let stored = cri
                .container(&container.id)
                .await
                .ok()
                .and_then(|answer| answer.resources);
            let shares = stored
                .and_then(|stored| u64::try_from(stored.cpu_shares?).ok())
                .map(CpuShares::new);
            let weight = Cgroup::open(hierarchy, &place.path).and_then(|cgroup| cgroup.read_all());
            if let (Some(shares), Ok(settings)) = (shares, weight)
                && let Some(Setting::CpuWeight(weight)) = settings.get(ControlFile::CpuWeight)
            {
                pairs.push((shares, weight));
            }
        }
        self.formula = weight::detect(pairs);
        if let Some(formula) = self.formula {
            tracing::info!(%formula, "the runtime's formula for cpu weights");
        }
    }
}

/// Waits for something that changes who lives here; for ever, where nothing is told.
async fn next_change(happenings: &mut Option<EventStream>) {
    let Some(stream) = happenings else {
        return std::future::pending().await;
    };
    match stream.next().await {
        Some(RuntimeEvent::Lost { why }) => tracing::warn!(why, "the runtime is lost; enforcing what is known"),
        Some(RuntimeEvent::Container { .. } | RuntimeEvent::Resync) => {}
        None => *happenings = None,
    }
}
