//! The configuration of `vscaled run`: flags, environment and a file → one validated [`Config`].
//!
//! A key is one field of [`Config`] (`settings`). Each layer gives texts with their places (`layers`): a flag overrides the
//! environment, the environment overrides the file, the file overrides the default. The resulting texts are parsed once
//! (`parse`). A refusal names the key, the value, the allowed values and the place. On SIGHUP the agent reads the file again
//! ([`Config::reload`]): live keys take effect, other keys keep their value and are reported.
//!
//! This module opens no path of the configuration, and no other module reads a flag or a variable.

#[cfg(test)]
mod chart_tests;
mod layers;
mod parse;
mod report;
mod settings;
#[cfg(test)]
pub(crate) mod tests;
mod values;

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};

pub use layers::{KEYS, Key, Layer, RunArguments};
pub use report::ReportConfig;
pub use settings::Config;
pub use values::{PathSetting, Share, Source};

use crate::decide;
use crate::runtime::Deadlines;

/// The exit code for an unusable configuration: EX_USAGE of sysexits.h.
pub const EXIT_BAD_CONFIGURATION: u8 = 64;

/// The `apiVersion` of a configuration file.
pub const API_VERSION: &str = "vscaled.io/v1";

/// The `apiVersion` before the current one. Files with it have the same keys and are still read.
const API_VERSION_BEFORE: &str = "vscaled.io/v1alpha1";

/// The advice for a file of the version before.
pub const MEND_API_VERSION: &str = "write `apiVersion: vscaled.io/v1` in it; the keys are the same";

/// The `kind` of a configuration file.
pub const KIND: &str = "AgentConfiguration";

/// The allowed value of `nodeName` with an API server.
const NODE_NAME: &str = "the name of this node's own object with this source";

/// The result of a reload of the configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct Reload {
    /// The configuration from now on.
    pub config: Config,
    /// Live keys with a new value.
    pub applied: Vec<String>,
    /// Other keys with a new value, which keep their old one until the agent is started again.
    pub needs_restart: Vec<String>,
}

/// Whether `hooks` names a namespace, so that the hooks of its pods may run. `*` does not name kube-system.
pub(crate) fn allows_hooks_in(hooks: &[String], namespace: &str) -> bool {
    let is_named = |name: &String| name == namespace || (name == "*" && namespace != "kube-system");
    hooks.iter().any(is_named)
}

impl Config {
    /// Reads and checks all layers.
    ///
    /// Errors: the file cannot be read, or a value is refused. The error names the key, the value, the place and the allowed values.
    pub fn load(arguments: &RunArguments) -> Result<Self> {
        Self::parse(arguments.resolve()?)
    }

    /// Reads all layers again. Every key must have an allowed value, live or not; otherwise nothing changes.
    ///
    /// Errors: as [`Self::load`], or the file is none that can be read twice.
    pub fn reload(&self, arguments: &RunArguments) -> Result<Reload> {
        if let Some(path) = &arguments.config {
            // To open a pipe again would wait for its next writer, and no signal would end the agent meanwhile.
            ensure!(
                path.is_file() || !path.exists(),
                "{}: is no regular file, and is read only at the start",
                path.display()
            );
        }
        let wanted = Self::load(arguments)?;
        let config = Self::parse(self.given.with(&wanted.given, KEYS.iter().filter(|key| key.live)))?;
        Ok(Reload {
            applied: config.difference(self),
            needs_restart: wanted.difference(&config),
            config,
        })
    }

    /// The options that decisions depend on.
    pub fn decide_options(&self) -> decide::Options {
        decide::Options {
            update_threshold: self.update_threshold,
            lifetime: self.in_place_lifetime_threshold,
            oom_window: self.quick_oom_threshold,
            modes: self.update_modes.clone(),
            recommender: self.recommender.clone(),
            burst: self.cpu_burst,
            ..decide::Options::default()
        }
    }

    /// The deadlines of calls to the runtime.
    pub fn deadlines(&self) -> Deadlines {
        Deadlines {
            read: Deadlines::default().read.min(self.runtime_timeout),
            update: self.runtime_timeout,
        }
    }

    /// The configuration as JSON, which is also YAML. As a configuration file it gives the same configuration.
    pub fn to_json(&self) -> Result<String> {
        Ok(serde_json::to_string_pretty(&self.given)? + "\n")
    }

    /// The mount point of the cgroup hierarchies, where it is not the usual one.
    pub fn custom_cgroup_root(&self) -> Option<&Path> {
        Some(&*self.cgroup_root).filter(|root| *root != Path::new("/sys/fs/cgroup"))
    }

    /// The file of the audit log, if there is one.
    pub fn audit_file(&self) -> Option<PathBuf> {
        match &self.audit_log {
            PathSetting::Auto => Some(self.state_dir.join("audit.jsonl")),
            PathSetting::None => None,
            PathSetting::Path(path) => Some(path.clone()),
        }
    }

    fn parse(given: Layer) -> Result<Self> {
        let mut config = given.parse()?;
        let unnamed = config.source.has_cluster() && config.node_name.is_empty();
        let unnamed = unnamed.then_some(("node_name", NODE_NAME));
        let contradiction = unnamed.or_else(|| config.report.contradiction(config.source));
        if let Some(error) = contradiction.and_then(|(field, allowed)| given.refused(field, allowed)) {
            return Err(error);
        }
        config.given = given;
        Ok(config)
    }

    /// The names of the keys with different values. `60s` and `1m` are the same value.
    fn difference(&self, other: &Self) -> Vec<String> {
        let own = Self {
            given: Layer::default(),
            ..self.clone()
        };
        let differs = |key: &&Key| {
            let changed = self.given.with(&other.given, [*key]).parse();
            changed.ok().as_ref() != Some(&own)
        };
        KEYS.iter().filter(differs).map(|key| key.name.clone()).collect()
    }
}
