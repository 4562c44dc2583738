//! A test's own message bus, with a fake systemd that answers, or does not.

use std::collections::HashMap;
use std::fs;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use tempfile::TempDir;
use vscaled::actuate::shrink::Freezer;
use vscaled::actuate::{Concurrency, Job, KnownFrom, Node, RuntimeLink, raise_pod_level, reconcile};
use vscaled::cgroup::systemd::{Systemd, SystemdError, Unit};
use vscaled::cgroup::{Hierarchy, Kubepods};
use vscaled::decide::NodePolicies;
use vscaled::model::objects::Pod;
use vscaled::model::{
    BoundPod, Bytes, Cause, CgroupPath, CgroupVersion, ContainerId, CpuWeight, Driver, KubeletVersion, LiveContainer,
    LivePod, MemoryLimit, NodeTraits, Outcome, PageSize, RuntimeKind, Setting, Settings, WeightFormula,
};
use vscaled::plan::shrink::Holds;
use vscaled::plan::{PodTargets, WriteScope};
use zbus::blocking::Connection;
use zbus::blocking::connection::Builder;
use zbus::zvariant::{OwnedObjectPath, OwnedValue};
use zbus::{DBusError, interface};

use crate::cgroup_files::tree::wait_for;
use crate::support::skipped;

const UNIT: &str = "kubepods-pod0123.slice";
const OBJECT: &str = "/org/freedesktop/systemd1/unit/kubepods_2dpod0123_2eslice";
const DEADLINE: Duration = Duration::from_secs(30);

/// A `dbus-daemon` in its own directory.
struct Bus {
    daemon: Child,
    address: String,
    _directory: TempDir,
}

impl Bus {
    fn start() -> Option<Self> {
        let directory = TempDir::new().unwrap();
        let address = format!("unix:path={}/bus", directory.path().display());
        let mut daemon = Command::new("dbus-daemon");
        daemon
            .args(["--session", "--nofork", "--nopidfile", "--address", &address])
            .stderr(Stdio::null());
        let daemon = match daemon.spawn() {
            Ok(daemon) => daemon,
            Err(error) => {
                skipped("fake bus", &format!("cannot start dbus-daemon: {error}"));
                return None;
            }
        };
        wait_for("dbus-daemon", || {
            UnixStream::connect(directory.path().join("bus")).is_ok()
        });
        Some(Self {
            daemon,
            address,
            _directory: directory,
        })
    }

    fn serve(&self, manager: Manager, properties: Properties) -> Connection {
        let builder = Builder::address(self.address.as_str())
            .unwrap()
            .name("org.freedesktop.systemd1")
            .unwrap();
        let builder = builder.serve_at("/org/freedesktop/systemd1", manager).unwrap();
        builder.serve_at(OBJECT, Slice(properties)).unwrap().build().unwrap()
    }

    fn client(&self) -> Result<Systemd, SystemdError> {
        Systemd::connect(Some(&self.address), DEADLINE)
    }
}

impl Drop for Bus {
    fn drop(&mut self) {
        self.daemon.kill().unwrap();
        self.daemon.wait().unwrap();
    }
}

/// A connection to a systemd that has ended since. Without a bus, prints the reason and returns `None`.
pub(crate) fn ended_systemd() -> Option<Systemd> {
    let bus = Bus::start()?;
    let manager = Manager {
        properties: Properties::default(),
        heeds: usize::MAX,
    };
    let _service = bus.serve(manager, Properties::default());
    Some(bus.client().unwrap())
}

type Properties = Arc<Mutex<HashMap<String, u64>>>;

#[derive(DBusError, Debug)]
#[zbus(prefix = "org.freedesktop.systemd1")]
enum ManagerError {
    #[zbus(error)]
    ZBus(zbus::Error),
    NoSuchUnit(String),
}

/// systemd's manager, with one unit.
struct Manager {
    properties: Properties,
    /// How many more calls for new values the manager carries out.
    heeds: usize,
}

#[interface(name = "org.freedesktop.systemd1.Manager")]
impl Manager {
    fn get_unit(&self, name: &str) -> Result<OwnedObjectPath, ManagerError> {
        if name != UNIT {
            return Err(ManagerError::NoSuchUnit(format!("Unit {name} not loaded.")));
        }
        Ok(OBJECT.try_into().unwrap())
    }

    fn set_unit_properties(&mut self, name: &str, runtime: bool, properties: Vec<(String, OwnedValue)>) {
        assert_eq!((name, runtime), (UNIT, true));
        let Some(left) = self.heeds.checked_sub(1) else { return };
        self.heeds = left;
        let values = properties.into_iter();
        let values = values.map(|(name, value)| (name, u64::try_from(value).unwrap()));
        self.properties.lock().unwrap().extend(values);
    }

    #[zbus(property)]
    fn version(&self) -> String {
        "257.9-1".to_owned()
    }
}

/// The unit's own properties.
struct Slice(Properties);

#[interface(name = "org.freedesktop.systemd1.Slice")]
impl Slice {
    #[zbus(property, name = "CPUWeight")]
    fn cpu_weight(&self) -> u64 {
        self.0.lock().unwrap().get("CPUWeight").copied().unwrap_or(u64::MAX)
    }

    #[zbus(property)]
    fn memory_max(&self) -> u64 {
        self.0.lock().unwrap().get("MemoryMax").copied().unwrap_or(u64::MAX)
    }
}

fn unit(name: &str) -> Unit {
    Unit::of(&CgroupPath::new(&format!("/kubepods.slice/{name}")).unwrap()).unwrap()
}

fn wanted() -> Settings {
    let memory = Setting::MemoryMax(MemoryLimit::Bytes(64 << 20));
    [Setting::CpuWeight(CpuWeight::new(39)), memory].into_iter().collect()
}

#[test]
fn properties_are_set_and_read_back() {
    let Some(bus) = Bus::start() else { return };
    let properties = Properties::default();
    let manager = Manager {
        properties: properties.clone(),
        heeds: usize::MAX,
    };
    let _service = bus.serve(manager, properties.clone());
    let systemd = bus.client().unwrap();
    assert_eq!(systemd.version(), 257);
    systemd.set(&unit(UNIT), &wanted()).unwrap();
    assert_eq!(properties.lock().unwrap().len(), 2, "only what was asked for");
    assert_eq!(systemd.get(&unit(UNIT), CgroupVersion::V2).unwrap(), wanted());
}

#[test]
fn an_unknown_unit_is_not_taken_for_success() {
    let Some(bus) = Bus::start() else { return };
    let properties = Properties::default();
    let manager = Manager {
        properties: properties.clone(),
        heeds: usize::MAX,
    };
    let _service = bus.serve(manager, properties.clone());
    let error = bus
        .client()
        .unwrap()
        .set(&unit("kubepods-podffff.slice"), &wanted())
        .unwrap_err();
    assert!(error.to_string().starts_with("systemd has no unit "), "{error}");
    assert_eq!(properties.lock().unwrap().len(), 0);
}

#[test]
fn a_property_that_does_not_stick_is_told() {
    let Some(bus) = Bus::start() else { return };
    let properties = Properties::default();
    let manager = Manager {
        properties: properties.clone(),
        heeds: 0,
    };
    let _service = bus.serve(manager, properties);
    let error = bus.client().unwrap().set(&unit(UNIT), &wanted()).unwrap_err();
    let mismatch = format!("CPUWeight of {UNIT} was set to 39 but reads ");
    assert!(error.to_string().starts_with(&mismatch), "{error}");
}

#[test]
fn a_dead_address_is_named() {
    let error = Systemd::connect(Some("unix:path=/nonexistent/bus"), DEADLINE).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("cannot reach systemd over D-Bus at unix:path=/nonexistent/bus"),
        "{error}"
    );
}

#[test]
fn a_systemd_that_never_answers_does_not_hold_the_caller() {
    let Some(bus) = Bus::start() else { return };
    // Owns the name, but does not answer calls.
    let builder = Builder::address(bus.address.as_str()).unwrap();
    let mute = builder.build().unwrap();
    mute.request_name("org.freedesktop.systemd1").unwrap();
    let error = Systemd::connect(Some(&bus.address), Duration::from_millis(100)).unwrap_err();
    assert!(
        error.to_string().starts_with("systemd call Get for Version: "),
        "{error}"
    );
}

/// A pod on plain files in the place of the unit's cgroup. The file of the pod and that of its container `app` have limits of so many MiB.
fn pod_on_files(root: &Path, mebibytes: u64) -> (Pod, LivePod) {
    let path = CgroupPath::new(&format!("/{UNIT}")).unwrap();
    let container = LiveContainer {
        id: ContainerId::parse(&"a".repeat(64)).unwrap(),
        path: path.child("app").unwrap(),
    };
    for path in [&path, &container.path] {
        let directory = path.under(root);
        fs::create_dir_all(&directory).unwrap();
        for (file, mebibytes) in [("memory.max", mebibytes), ("memory.current", 60)] {
            fs::write(directory.join(file), format!("{}\n", mebibytes << 20)).unwrap();
        }
    }
    let limits = json!({"cpu": "1", "memory": "160Mi"});
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "web", "namespace": "shop", "uid": "0123"},
        "spec": {"containers": [{"name": "app", "resources": {"limits": limits, "requests": limits}}]},
    }))
    .unwrap();
    let live = LivePod {
        id: pod.id_with("0123"),
        path,
        containers: indexmap::IndexMap::from([("app".into(), container)]),
    };
    (pod, live)
}

/// A node on plain files whose cgroups this systemd has made.
fn node_of(root: &Path, systemd: Systemd) -> Node {
    fs::write(root.join("cgroup.controllers"), "cpu memory\n").unwrap();
    Node {
        hierarchy: Hierarchy::of_tree(root).unwrap(),
        kubepods: Kubepods {
            path: CgroupPath::new("/kubepods.slice").unwrap(),
            driver: Driver::Systemd,
        },
        traits: NodeTraits {
            version: CgroupVersion::V2,
            driver: Driver::Systemd,
            runtime: RuntimeKind::Containerd,
            container_weight: WeightFormula::Quadratic,
            kubelet: KubeletVersion::NEWEST,
            page: PageSize::KIB_4,
        },
        policies: NodePolicies::default(),
        has_bursts: true,
        runtime: RuntimeLink::None,
        runtime_name: None,
        driver_from: KnownFrom::Configured,
        formula_from: KnownFrom::Configured,
        kubelet_from: KnownFrom::Configured,
        units: Some(Arc::new(systemd)),
        concurrency: Arc::new(Concurrency::new(1)),
        freezer: Arc::new(Freezer::below(root).unwrap()),
        least_limits: Arc::default(),
    }
}

/// A pass that gives the pod what its spec says.
fn sweep(pod: &Arc<Pod>, live: &Arc<LivePod>) -> Box<Job> {
    let targets = PodTargets {
        amounts: pod.requirements(),
        bound: BoundPod::new(pod, live).unwrap(),
        lift_undeclared: false,
        kubelet_unasked: false,
        scope: WriteScope::all(),
        burst: None,
        holds: Holds::default(),
    };
    Box::new(Job {
        check_runtime: false,
        ..Job::new(targets, Cause::Sweep)
    })
}

#[tokio::test]
async fn an_undo_goes_on_without_systemd() {
    let Some(bus) = Bus::start() else { return };
    let root = TempDir::new().unwrap();
    let properties = Properties::default();
    let manager = Manager {
        properties: properties.clone(),
        heeds: 1,
    };
    let _service = bus.serve(manager, properties.clone());
    let (pod, live) = pod_on_files(root.path(), 192);
    for path in [&live.path, &live.containers["app"].path] {
        fs::write(path.under(root.path()).join("memory.peak"), format!("{}\n", 60 << 20)).unwrap();
    }
    let weight = live.path.under(root.path()).join("cpu.weight");
    fs::write(&weight, "10\n").unwrap();
    let node = Arc::new(node_of(root.path(), bus.client().unwrap()));
    // The pod's weight grows through systemd. Plain files do not freeze, so the container's lower limit is refused.
    let done = reconcile(node, sweep(&Arc::new(pod), &Arc::new(live))).await;
    assert!(matches!(done.record.outcome, Outcome::RolledBack(_)), "{done:#?}");
    let kept = properties.lock().unwrap()["CPUWeight"];
    assert_ne!(kept, 10, "systemd heeds the pass, and not its undo");
    assert_eq!(fs::read_to_string(weight).unwrap().trim(), "10");
    assert!(done.systemd_failed);
}

#[tokio::test]
async fn a_limit_raised_in_the_file_is_raised_in_systemd() {
    let Some(bus) = Bus::start() else { return };
    let root = TempDir::new().unwrap();
    let properties = Properties::from(Mutex::new(HashMap::from([("MemoryMax".to_owned(), 128 << 20)])));
    let manager = Manager {
        properties: properties.clone(),
        heeds: usize::MAX,
    };
    let _service = bus.serve(manager, properties.clone());
    let kept = || properties.lock().unwrap()["MemoryMax"] >> 20;
    let (pod, live) = pod_on_files(root.path(), 128);
    let node = Arc::new(node_of(root.path(), bus.client().unwrap()));

    let raised = raise_pod_level(&node, &live, Bytes::new(160 << 20));
    assert_eq!(
        (raised.outcome, raised.systemd_failed, kept()),
        (Outcome::Applied, false, 160)
    );

    // The guard writes files alone.
    pod_on_files(root.path(), 192);
    node.least_limits.raise(&live.id.uid, "app", Bytes::new(192 << 20));
    let (pod, live) = (Arc::new(pod), Arc::new(live));
    let done = reconcile(Arc::clone(&node), sweep(&pod, &live)).await;
    assert_eq!((done.record.outcome, kept()), (Outcome::Unchanged, 192));
    assert!(!done.systemd_failed);

    drop(bus);
    let done = reconcile(Arc::clone(&node), sweep(&pod, &live)).await;
    assert!(done.systemd_failed && done.handles.is_some());
    let raised = raise_pod_level(&node, &live, Bytes::new(224 << 20));
    assert_eq!((raised.outcome, raised.systemd_failed), (Outcome::Applied, true));
}
