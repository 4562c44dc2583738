//! Where the layers come from: clap for flags and environment, a YAML or JSON file.

use std::fs;
use std::path::{Path, PathBuf};

use clap::ArgMatches;
use serde_json::Value;

use super::keys::{Layer, Resolved};
use super::{API_VERSION, ConfigError, KIND};

/// The arguments of `vscaled run`.
#[derive(Debug, Clone, clap::Args)]
pub struct RunArguments {
    /// A file with any of the settings below.
    #[arg(long, env = "VSCALED_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Print the resulting configuration as JSON, which is also YAML, and exit.
    #[arg(long)]
    pub print_config: bool,
    /// Every key.
    #[command(flatten)]
    pub settings: Layer,
}

/// What a configuration is made from; kept, so that a reload can read it again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sources {
    file: Option<PathBuf>,
    /// Flags and environment do not change while a process runs.
    process: Layer,
}

impl Sources {
    /// The layers behind the arguments of `vscaled run`, and the matches they were made from.
    #[must_use]
    pub fn new(arguments: RunArguments, matches: &ArgMatches) -> Self {
        let mut process = arguments.settings;
        process.tell_apart(matches);
        Self {
            file: arguments.config,
            process,
        }
    }

    /// The configuration file, if there is one.
    #[must_use]
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// Reads the file, and lets the higher layers win.
    pub(super) fn resolve(&self) -> Result<Resolved, ConfigError> {
        let file = self.file.as_deref().map(read_file).transpose()?;
        Ok(self.process.clone().resolve(file.unwrap_or_default()))
    }
}

fn read_file(path: &Path) -> Result<Layer, ConfigError> {
    let text = fs::read_to_string(path).map_err(|source| ConfigError::Read {
        path: path.to_owned(),
        source,
    })?;
    let mut layer = parse_file(&text).map_err(|message| ConfigError::File {
        path: path.to_owned(),
        message,
    })?;
    layer.came_from(path);
    Ok(layer)
}

/// One document of our kind; any key may be absent or null.
fn parse_file(text: &str) -> Result<Layer, String> {
    let options = serde_saphyr::options! { strict_booleans: true, with_snippet: false };
    let document: Value = serde_saphyr::from_str_with_options(text, options).map_err(|error| error.to_string())?;
    let Value::Object(mut keys) = document else {
        return Err(format!(
            "a mapping with apiVersion: {API_VERSION} and kind: {KIND} is expected"
        ));
    };
    for (key, expected) in [("apiVersion", API_VERSION), ("kind", KIND)] {
        match keys.remove(key) {
            Some(Value::String(found)) if found == expected => {}
            Some(found) => return Err(format!("{key}: {found} is refused: it must be {expected}")),
            None => return Err(format!("{key}: required, and must be {expected}")),
        }
    }
    serde_path_to_error::deserialize::<_, Layer>(Value::Object(keys)).map_err(|error| {
        let path = error.path().to_string();
        // An unknown key is named by the message; the path is then that of the whole.
        if path == "." {
            error.inner().to_string()
        } else {
            format!("{path}: {}", error.inner())
        }
    })
}
