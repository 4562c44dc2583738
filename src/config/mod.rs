//! What `vscaled run` is told: flags, environment and a file → one validated [`Config`].
//!
//! In come three layers of text, each key in any of them ([`Layer`]); a flag goes before the environment, which goes
//! before the file, which goes before the default ([`KEYS`]). Out goes a [`Config`] of plain, checked values, or a
//! [`ConfigError`] that names the key, the value, what is allowed and where the value came from. On SIGHUP the file is
//! read again ([`Config::reload`]): keys marked live take effect, the others are reported and keep their value.
//!
//! Nothing here touches what the paths name, and nothing outside reads a flag or a variable.

mod check;
mod given;
mod key;
mod keys;
mod report;
mod sources;
mod table;
#[cfg(test)]
mod tests;
mod values;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use jiff::SignedDuration;
use serde::Serialize;

pub use check::ConfigError;
pub use given::{Given, Origin};
pub use key::Key;
pub use keys::{KEYS, Layer};
pub use report::ReportConfig;
pub use sources::{RunArguments, Sources};
pub use values::{AuditLog, LogFormat, RuntimeSocket, Share, Source};

use crate::cgroup::CgroupPath;
use crate::decide;
use crate::objects::UpdateMode;
use crate::plan::{Driver, KubeletVersion};
use crate::resources::{Bytes, WeightFormula};
use crate::runtime::Deadlines;
use keys::Resolved;

/// What a process ends with when its configuration is unusable: EX_USAGE of sysexits.h.
pub const EXIT_BAD_CONFIGURATION: u8 = 64;

/// The `apiVersion` of a configuration file.
pub const API_VERSION: &str = "vscaled.io/v1alpha1";

/// The `kind` of a configuration file.
pub const KIND: &str = "AgentConfiguration";

/// The agent's configuration. Every value was checked; what a key means is said once, in [`KEYS`].
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Config {
    /// Empty when not known.
    pub node_name: String,
    /// Where pods and VPAs come from.
    pub source: Source,
    /// How to reach the API server; none uses the service account of the agent's pod.
    #[serde(serialize_with = "values::path_or_empty")]
    pub kubeconfig: Option<PathBuf>,
    /// The directory of manifests.
    pub manifests: PathBuf,
    /// Where the agent keeps what must outlive it.
    pub state_dir: PathBuf,
    /// The control socket.
    pub socket: PathBuf,
    /// Whose members may make every call at the socket.
    #[serde(serialize_with = "values::or_empty")]
    pub operator_group: Option<String>,
    /// Whose members may make the calls that change nothing.
    #[serde(serialize_with = "values::or_empty")]
    pub reader_group: Option<String>,
    /// Who changed what.
    pub audit_log: AuditLog,
    /// How large one file of it becomes.
    pub audit_log_size: Bytes,
    /// How many files of it are kept.
    pub audit_log_files: usize,
    /// Metrics and health; none serves no HTTP.
    #[serde(serialize_with = "values::or_empty")]
    pub http_address: Option<SocketAddr>,
    /// The container runtime's CRI socket.
    pub runtime_socket: RuntimeSocket,
    /// Where the cgroup hierarchies are mounted.
    pub cgroup_root: PathBuf,
    /// The kubelet's top cgroup; none finds it.
    #[serde(serialize_with = "values::or_auto")]
    pub kubepods: Option<CgroupPath>,
    /// Who creates cgroups; none finds out.
    #[serde(serialize_with = "values::or_auto_named")]
    pub cgroup_driver: Option<Driver>,
    /// How the runtime turns shares into weights; none finds out.
    #[serde(serialize_with = "values::or_auto_named")]
    pub weight_formula: Option<WeightFormula>,
    /// Whose rules the pod level follows; none finds out.
    #[serde(serialize_with = "values::or_auto")]
    pub kubelet_version: Option<KubeletVersion>,
    /// The kernel's log.
    pub kmsg: PathBuf,
    /// Which modes of VPAs are acted on.
    #[serde(serialize_with = "values::mode_names")]
    pub update_modes: Vec<UpdateMode>,
    /// Whose VPAs are acted on; none acts on every recommender's.
    #[serde(serialize_with = "values::or_empty")]
    pub recommender: Option<String>,
    /// The age from which a pod is changed within its recommended range.
    #[serde(serialize_with = "values::signed_duration")]
    pub in_place_lifetime_threshold: SignedDuration,
    /// The relative difference from which such a pod is changed.
    pub update_threshold: f64,
    /// How soon after its start a kill for memory is quick.
    #[serde(serialize_with = "values::signed_duration")]
    pub quick_oom_threshold: SignedDuration,
    /// The time between two checks of every value.
    #[serde(serialize_with = "values::duration")]
    pub sweep_interval: Duration,
    /// The deadline of one update by the runtime.
    #[serde(serialize_with = "values::duration")]
    pub runtime_timeout: Duration,
    /// Pods worked on at the same time.
    pub workers: usize,
    /// Where OOM reports go.
    #[serde(flatten)]
    pub report: ReportConfig,
    /// Whether limits that are about to be reached, or that throttle all the time, are grown.
    pub guard: bool,
    /// Available memory that is never given out.
    pub guard_reserve: Share,
    /// By how much one pod's limits may grow within an hour.
    pub guard_pod_budget: Share,
    /// By how much all pods' limits may grow within an hour.
    pub guard_node_budget: Share,
    /// How long a container has to be quiet before what it was lent is taken back.
    #[serde(serialize_with = "values::duration")]
    pub guard_quiet_period: Duration,
    /// Whether pods say what is applied to them.
    pub applied_annotation: bool,
    /// How log lines look.
    pub log_format: LogFormat,
    /// What is logged, in the syntax of tracing's `EnvFilter`.
    pub log_level: String,
    /// Decide and plan, but never write.
    pub observe_only: bool,
    /// What the values above were made from, for [`Self::reload`].
    #[serde(skip)]
    given: Resolved,
}

/// What a reload did.
#[derive(Debug, Clone, PartialEq)]
pub struct Reload {
    /// The configuration from now on.
    pub config: Config,
    /// Live keys with a new value.
    pub applied: Vec<&'static str>,
    /// Other keys with a new value, which keep their old one until the agent is started again.
    pub needs_restart: Vec<&'static str>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Document<'a> {
    api_version: &'static str,
    kind: &'static str,
    #[serde(flatten)]
    config: &'a Config,
}

impl Config {
    /// Reads and checks all layers.
    ///
    /// # Errors
    /// [`ConfigError`] on a file that cannot be read and on the first value that is refused.
    pub fn load(sources: &Sources) -> Result<Self, ConfigError> {
        Self::check(sources.resolve()?)
    }

    /// Reads all layers again. The whole result must be usable, keys that are not live included; otherwise nothing
    /// changes.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn reload(&self, sources: &Sources) -> Result<Reload, ConfigError> {
        let wanted = Self::load(sources)?;
        let config = Self::check(self.given.reloaded(wanted.given.clone()))?;
        Ok(Reload {
            applied: config.difference(self),
            needs_restart: wanted.difference(&config),
            config,
        })
    }

    /// What decisions depend on.
    #[must_use]
    pub fn decide_options(&self) -> decide::Options {
        decide::Options {
            update_threshold: self.update_threshold,
            lifetime: self.in_place_lifetime_threshold,
            oom_window: self.quick_oom_threshold,
            modes: self.update_modes.clone(),
            recommender: self.recommender.clone(),
        }
    }

    /// How long the runtime may take.
    #[must_use]
    pub fn deadlines(&self) -> Deadlines {
        Deadlines {
            read: Deadlines::default().read.min(self.runtime_timeout),
            update: self.runtime_timeout,
        }
    }

    /// The configuration as JSON, which is also YAML: given back as a file it yields the same configuration.
    ///
    /// # Errors
    /// What serde says; a path that is not UTF-8 cannot be written.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string_pretty(&Document {
            api_version: API_VERSION,
            kind: KIND,
            config: self,
        })
    }

    /// Where the audit log is written, if anywhere.
    #[must_use]
    pub fn audit_file(&self) -> Option<PathBuf> {
        match &self.audit_log {
            AuditLog::Auto => Some(self.state_dir.join("audit.jsonl")),
            AuditLog::None => None,
            AuditLog::Path(path) => Some(path.clone()),
        }
    }

    fn check(given: Resolved) -> Result<Self, ConfigError> {
        let hours = SignedDuration::from_hours;
        let seconds = SignedDuration::from_secs;
        let source = given.source.one_of(&[
            ("directory", Source::Directory),
            ("kubernetes", Source::Kubernetes),
            ("both", Source::Both),
        ])?;
        Ok(Self {
            node_name: given.node_name.node_name(source.has_cluster())?,
            source,
            kubeconfig: given.kubeconfig.path_or_empty()?,
            manifests: given.manifests.absolute_path()?,
            state_dir: given.state_dir.absolute_path()?,
            socket: given.socket.socket_path()?,
            operator_group: given.operator_group.group_or_empty()?,
            reader_group: given.reader_group.group_or_empty()?,
            audit_log: given.audit_log.audit_log()?,
            audit_log_size: given.audit_log_size.bytes(Bytes::new(4 << 10)..=Bytes::new(1 << 30))?,
            audit_log_files: given.audit_log_files.number(1..=100)?,
            http_address: given.http_address.address_or_empty()?,
            runtime_socket: given.runtime_socket.runtime_socket()?,
            cgroup_root: given.cgroup_root.absolute_path()?,
            kubepods: given
                .kubepods
                .or_auto("a path below cgroupRoot such as /kubelet/kubepods", |text| {
                    CgroupPath::new(text).ok()
                })?,
            cgroup_driver: given.cgroup_driver.one_of(&[
                ("auto", None),
                ("cgroupfs", Some(Driver::Cgroupfs)),
                ("systemd", Some(Driver::Systemd)),
            ])?,
            weight_formula: given.weight_formula.one_of(&[
                ("auto", None),
                ("linear", Some(WeightFormula::Linear)),
                ("quadratic", Some(WeightFormula::Quadratic)),
            ])?,
            kubelet_version: given
                .kubelet_version
                .or_auto("a version such as 1.36", |text| text.parse().ok())?,
            kmsg: given.kmsg.absolute_path()?,
            update_modes: given.update_modes.update_modes()?,
            recommender: given.recommender.text_or_empty(),
            in_place_lifetime_threshold: given.in_place_lifetime_threshold.duration(seconds(0)..=hours(87_600))?,
            update_threshold: given.update_threshold.number(0.0..=1.0)?,
            quick_oom_threshold: given.quick_oom_threshold.duration(seconds(0)..=hours(24))?,
            sweep_interval: given.sweep_interval.duration(seconds(1)..=hours(1))?.unsigned_abs(),
            runtime_timeout: given
                .runtime_timeout
                .duration(SignedDuration::from_millis(100)..=seconds(300))?
                .unsigned_abs(),
            workers: given.workers.number(1..=64)?,
            report: ReportConfig::check(&given, source)?,
            guard: given.guard.one_of(&[("false", false), ("true", true)])?,
            guard_reserve: given.guard_reserve.share()?,
            guard_pod_budget: given.guard_pod_budget.share()?,
            guard_node_budget: given.guard_node_budget.share()?,
            guard_quiet_period: given
                .guard_quiet_period
                .duration(seconds(1)..=hours(24))?
                .unsigned_abs(),
            applied_annotation: given.applied_annotation.one_of(&[("false", false), ("true", true)])?,
            log_format: given.log_format.one_of(&[
                ("auto", LogFormat::Auto),
                ("text", LogFormat::Text),
                ("json", LogFormat::Json),
            ])?,
            log_level: given.log_level.log_filter()?,
            observe_only: given.observe_only.one_of(&[("false", false), ("true", true)])?,
            given,
        })
    }

    /// The names of the keys whose values differ.
    fn difference(&self, other: &Self) -> Vec<&'static str> {
        let value = |config: &Self, key: &Key| {
            serde_json::to_value(config).map_or(serde_json::Value::Null, |all| all[key.name].clone())
        };
        KEYS.iter()
            .filter(|key| value(self, key) != value(other, key))
            .map(|key| key.name)
            .collect()
    }
}
