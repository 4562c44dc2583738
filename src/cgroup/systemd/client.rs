//! systemd over D-Bus. Blocking, with a deadline for every call once a connection is there.

use std::time::Duration;

use zbus::blocking::Connection;
use zbus::blocking::connection::Builder;
use zbus::zvariant::{DynamicDeserialize, DynamicType, OwnedObjectPath, OwnedValue, Value};

use super::properties::names;
use super::{Properties, Unit, properties, settings};
use crate::model::{CgroupVersion, Settings};

const BUS_NAME: &str = "org.freedesktop.systemd1";
const MANAGER_PATH: &str = "/org/freedesktop/systemd1";
const MANAGER: &str = "org.freedesktop.systemd1.Manager";
const PROPERTIES: &str = "org.freedesktop.DBus.Properties";

/// A connection to systemd over D-Bus.
#[derive(Debug)]
pub struct Systemd {
    connection: Connection,
    version: u32,
}

/// The agent cannot reach systemd, systemd refused a call or did not answer in time, or a property has another value than the
/// one that was set.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
pub struct SystemdError {
    what: String,
    /// The name of the error that systemd answered with.
    answer: Option<String>,
}

impl From<String> for SystemdError {
    fn from(what: String) -> Self {
        Self { what, answer: None }
    }
}

impl Systemd {
    /// Connects to a bus: the system bus, or one at a D-Bus address such as
    /// `unix:path=/host/run/dbus/system_bus_socket`. `deadline` bounds each call, but not the handshake with the bus.
    ///
    /// Errors: [`SystemdError`] names the address, or the first call.
    pub fn connect(address: Option<&str>, deadline: Duration) -> Result<Self, SystemdError> {
        let builder = match address {
            Some(address) => Builder::address(address),
            None => Builder::system(),
        };
        let connection = builder
            .and_then(|builder| builder.method_timeout(deadline).build())
            .map_err(|error| {
                let address = address.unwrap_or("the system bus");
                format!(
                    "cannot reach systemd over D-Bus at {address}: {error}; is the host's /run/dbus/system_bus_socket mounted here?"
                )
            })?;
        let mut systemd = Self { connection, version: 0 };
        let version = systemd.property(MANAGER_PATH, MANAGER, "Version")?;
        systemd.version = <&str>::try_from(&*version).map(leading_number).unwrap_or_default();
        Ok(systemd)
    }

    /// Checks whether systemd answers. A broken connection stays broken: connect again.
    pub fn ping(&self) -> Result<(), SystemdError> {
        self.property(MANAGER_PATH, MANAGER, "Version").map(drop)
    }

    /// systemd's version, such as 252; 0 if it reports none.
    pub const fn version(&self) -> u32 {
        self.version
    }

    /// Sets a unit's properties to these settings until the next boot, and reads them back. systemd writes the cgroup's files
    /// later, from its own event loop: the caller verifies those.
    pub fn set(&self, unit: &Unit, wanted: &Settings) -> Result<(), SystemdError> {
        let wanted =
            properties(wanted, self.version).map_err(|error| format!("cannot set properties of {unit}: {error}"))?;
        // SetUnitProperties would load an absent unit, and keep the properties for a later unit of that name.
        let object = self.object(unit)?;
        let values: Vec<(&str, Value<'_>)> = wanted.iter().map(|(name, value)| (*name, Value::U64(*value))).collect();
        let arguments = (unit.name(), true, values);
        let () = self.call(MANAGER_PATH, MANAGER, "SetUnitProperties", unit.name(), &arguments)?;
        for (property, wanted) in wanted {
            let read_back = self.number(&object, unit, property)?;
            if read_back != wanted {
                let why = "another program sets it";
                let mismatch = format!("{property} of {unit} was set to {wanted} but reads {read_back}: {why}");
                return Err(mismatch.into());
            }
        }
        Ok(())
    }

    /// Reads the values that systemd would write into a unit's files.
    pub fn get(&self, unit: &Unit, version: CgroupVersion) -> Result<Settings, SystemdError> {
        let object = self.object(unit)?;
        let mut read = Properties::new();
        for name in names(version) {
            match self.number(&object, unit, name) {
                Ok(value) => drop(read.insert(name, value)),
                Err(error) if error.answer.as_deref() == Some("org.freedesktop.DBus.Error.UnknownProperty") => {}
                Err(error) => return Err(error),
            }
        }
        Ok(settings(&read, version))
    }

    fn object(&self, unit: &Unit) -> Result<OwnedObjectPath, SystemdError> {
        let answer = self.call(MANAGER_PATH, MANAGER, "GetUnit", unit.name(), &unit.name());
        answer.map_err(|error| match error.answer.as_deref() {
            Some(cgroups_rs::systemd::NO_SUCH_UNIT) => {
                let why = "its pod or container has ended, or the node's cgroup driver is not systemd";
                format!("systemd has no unit {unit}: {why}").into()
            }
            _ => error,
        })
    }

    fn number(&self, object: &OwnedObjectPath, unit: &Unit, name: &'static str) -> Result<u64, SystemdError> {
        let value = self.property(object.as_str(), unit.interface(), name)?;
        u64::try_from(value).map_err(|error| failed("Get", name, &zbus::Error::Variant(error)))
    }

    fn property(&self, object: &str, interface: &str, name: &str) -> Result<OwnedValue, SystemdError> {
        self.call(object, PROPERTIES, "Get", name, &(interface, name))
    }

    fn call<T: for<'m> DynamicDeserialize<'m>>(
        &self,
        object: &str,
        interface: &str,
        method: &'static str,
        subject: &str,
        body: &(impl serde::Serialize + DynamicType),
    ) -> Result<T, SystemdError> {
        let call = self
            .connection
            .call_method(Some(BUS_NAME), object, Some(interface), method, body);
        let answer = call.and_then(|answer| answer.body().deserialize());
        answer.map_err(|error| failed(method, subject, &error))
    }
}

fn failed(method: &'static str, subject: &str, error: &zbus::Error) -> SystemdError {
    SystemdError {
        what: format!("systemd call {method} for {subject}: {error}"),
        answer: match error {
            zbus::Error::MethodError(name, ..) => Some(name.to_string()),
            _ => None,
        },
    }
}

/// `252` of `252.38-1~deb12u1` or `v252`; 0 of anything else.
fn leading_number(text: &str) -> u32 {
    let text = text.strip_prefix('v').unwrap_or(text);
    let digits = text.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
    digits.parse().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_distributions_are_read() {
        assert_eq!(leading_number("252.38-1~deb12u1"), 252);
        assert_eq!(leading_number("v257.9-1.fc42"), 257);
        assert_eq!(leading_number("systemd"), 0);
    }
}
