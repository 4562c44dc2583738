//! A test's own message bus, with a fake systemd that answers, or does not.

use std::collections::HashMap;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tempfile::TempDir;
use vscaled::cgroup::systemd::{Systemd, SystemdError, Unit};
use vscaled::model::{CgroupPath, CgroupVersion, CpuWeight, MemoryLimit, Setting, Settings};
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
        forgetful: false,
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
    /// Whether the manager ignores new values.
    forgetful: bool,
}

#[interface(name = "org.freedesktop.systemd1.Manager")]
impl Manager {
    fn get_unit(&self, name: &str) -> Result<OwnedObjectPath, ManagerError> {
        if name != UNIT {
            return Err(ManagerError::NoSuchUnit(format!("Unit {name} not loaded.")));
        }
        Ok(OBJECT.try_into().unwrap())
    }

    fn set_unit_properties(&self, name: &str, runtime: bool, properties: Vec<(String, OwnedValue)>) {
        assert_eq!((name, runtime), (UNIT, true));
        for (name, value) in properties {
            if !self.forgetful {
                self.properties
                    .lock()
                    .unwrap()
                    .insert(name, u64::try_from(value).unwrap());
            }
        }
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
        forgetful: false,
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
        forgetful: false,
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
        forgetful: true,
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
