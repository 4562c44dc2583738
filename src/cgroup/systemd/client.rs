//! systemd over D-Bus. Blocking, with a deadline for every call.

use std::time::Duration;

use zbus::blocking::Connection;
use zbus::blocking::connection::Builder;
use zbus::zvariant::{DynamicDeserialize, DynamicType, OwnedObjectPath, OwnedValue, Value};

use super::properties::names;
use super::{Properties, QuotaWithoutPeriod, Unit, properties, settings};
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

/// The agent cannot reach systemd, or systemd refused a call.
#[derive(Debug, thiserror::Error)]
pub enum SystemdError {
    #[error(
        "cannot reach systemd over D-Bus at {address}: {source}; is the host's /run/dbus/system_bus_socket mounted here?"
    )]
    Connect { address: String, source: Box<zbus::Error> },
    /// systemd has not loaded such a unit: its pod or container has ended, or systemd did not make it.
    #[error("systemd has no unit {unit}: its pod or container has ended, or the node's cgroup driver is not systemd")]
    NoUnit { unit: Unit },
    /// The settings cannot be written as properties.
    #[error("cannot set properties of {unit}: {source}")]
    Settings { unit: Unit, source: QuotaWithoutPeriod },
    /// A call failed, or systemd did not answer in time.
    #[error("systemd call {method} for {subject}: {source}")]
    Call {
        method: &'static str,
        /// The unit or the property that the call is about.
        subject: String,
        source: Box<zbus::Error>,
    },
    /// The call succeeded, but the property has another value.
    #[error("{property} of {unit} was set to {wanted} but reads {read_back}: something else sets it")]
    Mismatch {
        unit: Unit,
        property: &'static str,
        wanted: u64,
        read_back: u64,
    },
}

impl Systemd {
    /// Connects to a bus: the system bus, or one at a D-Bus address such as
    /// `unix:path=/host/run/dbus/system_bus_socket`. `deadline` bounds each call.
    ///
    /// Errors: [`SystemdError::Connect`], or the first call's [`SystemdError::Call`].
    pub fn connect(address: Option<&str>, deadline: Duration) -> Result<Self, SystemdError> {
        let builder = match address {
            Some(address) => Builder::address(address),
            None => Builder::system(),
        };
        let connection = builder
            .and_then(|builder| builder.method_timeout(deadline).build())
            .map_err(|source| SystemdError::Connect {
                address: address.unwrap_or("the system bus").to_owned(),
                source: Box::new(source),
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

    /// systemd's version, such as 252; 0 if it tells none.
    pub const fn version(&self) -> u32 {
        self.version
    }

    /// Sets a unit's properties to these settings until the next boot, and reads them back. systemd writes the cgroup's files
    /// later, from its own event loop: the caller verifies those.
    pub fn set(&self, unit: &Unit, wanted: &Settings) -> Result<(), SystemdError> {
        let wanted = properties(wanted, self.version).map_err(|source| SystemdError::Settings {
            unit: unit.clone(),
            source,
        })?;
        // SetUnitProperties would load an absent unit, and keep the properties for a later unit of that name.
        let object = self.object(unit)?;
        let values: Vec<(&str, Value<'_>)> = wanted.iter().map(|(name, value)| (*name, Value::U64(*value))).collect();
        let arguments = (unit.name(), true, values);
        let () = self.call(MANAGER_PATH, MANAGER, "SetUnitProperties", unit.name(), &arguments)?;
        for (property, wanted) in wanted {
            let read_back = self.number(&object, unit, property)?;
            if read_back != wanted {
                return Err(SystemdError::Mismatch {
                    unit: unit.clone(),
                    property,
                    wanted,
                    read_back,
                });
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
                Err(error) if is_answer(&error, "org.freedesktop.DBus.Error.UnknownProperty") => {}
                Err(error) => return Err(error),
            }
        }
        Ok(settings(&read, version))
    }

    fn object(&self, unit: &Unit) -> Result<OwnedObjectPath, SystemdError> {
        match self.call(MANAGER_PATH, MANAGER, "GetUnit", unit.name(), &unit.name()) {
            Err(error) if is_answer(&error, cgroups_rs::systemd::NO_SUCH_UNIT) => {
                Err(SystemdError::NoUnit { unit: unit.clone() })
            }
            answer => answer,
        }
    }

    fn number(&self, object: &OwnedObjectPath, unit: &Unit, name: &'static str) -> Result<u64, SystemdError> {
        let value = self.property(object.as_str(), unit.interface(), name)?;
        u64::try_from(value).map_err(|source| failed("Get", name, zbus::Error::Variant(source)))
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
        answer.map_err(|source| failed(method, subject, source))
    }
}

fn failed(method: &'static str, subject: &str, source: zbus::Error) -> SystemdError {
    SystemdError::Call {
        method,
        subject: subject.to_owned(),
        source: Box::new(source),
    }
}

/// Whether systemd answered with this error.
fn is_answer(error: &SystemdError, name: &str) -> bool {
    let SystemdError::Call { source, .. } = error else {
        return false;
    };
    matches!(source.as_ref(), zbus::Error::MethodError(found, ..) if found.as_str() == name)
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
    fn versions_are_read_as_distributions_write_them() {
        assert_eq!(leading_number("252.38-1~deb12u1"), 252);
        assert_eq!(leading_number("v257.9-1.fc42"), 257);
        assert_eq!(leading_number("systemd"), 0);
    }
}
