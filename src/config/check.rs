//! Text → values, and the words with which a value is refused.

use std::fmt::Display;
use std::io;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use jiff::SignedDuration;
use tracing_subscriber::EnvFilter;

use super::Origin;
use super::key::Value;
use super::values::{AuditLog, RuntimeSocket, Share, UPDATE_MODES};
use crate::objects::UpdateMode;
use crate::resources::Bytes;

/// Room for a socket's path in `sockaddr_un` (unix(7)), without the final NUL.
const MAX_SOCKET_PATH: usize = 107;

/// A configuration that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: cannot be read: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the kernel says.
        source: io::Error,
    },
    /// The file is not a configuration, or has a key that is unknown or of the wrong type.
    #[error("{}: {message}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong, with the key or the line.
        message: String,
    },
    /// A value outside of what is allowed.
    #[error("{key}: {value:?} from {place} is refused: it must be {allowed}")]
    Refused {
        /// The key.
        key: &'static str,
        /// What was given.
        value: String,
        /// Where it was given: a flag, a variable, a file.
        place: String,
        /// What would be accepted.
        allowed: String,
    },
}

/// What a host may be called.
const HOST_NAME: &str = "a name of at most 253 lower case letters, digits, `-` and `.`";

impl Value {
    /// The node's name, which the API server must be told if it is asked.
    pub(super) fn node_name(&self, required: bool) -> Result<String, ConfigError> {
        if required && self.text().is_empty() {
            return Err(self.refused(&format!("{HOST_NAME}, the node's own, with this source")));
        }
        self.host_name()
    }

    /// A DNS subdomain (RFC 1123), as nodes and receivers have for a name; or empty.
    pub(super) fn host_name(&self) -> Result<String, ConfigError> {
        let text = self.text();
        let label = |label: &str| {
            let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
            !label.is_empty() && !label.starts_with('-') && !label.ends_with('-') && label.bytes().all(inner)
        };
        match text {
            "" => Ok(String::new()),
            _ if text.len() <= 253 && text.split('.').all(label) => Ok(text.to_owned()),
            _ => Err(self.refused(&format!("empty, or {HOST_NAME}"))),
        }
    }

    /// One of a few words.
    pub(super) fn one_of<T: Clone>(&self, words: &[(&str, T)]) -> Result<T, ConfigError> {
        match words.iter().find(|(word, _)| *word == self.text()) {
            Some((_, value)) => Ok(value.clone()),
            None => Err(self.refused(&list(words.iter().map(|(word, _)| *word)))),
        }
    }

    /// `auto` for none, else what `read` makes of the text.
    pub(super) fn or_auto<T>(
        &self,
        allowed: &str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, ConfigError> {
        match self.text() {
            "auto" => Ok(None),
            text => read(text)
                .map(Some)
                .ok_or_else(|| self.refused(&format!("auto, or {allowed}"))),
        }
    }

    pub(super) fn text_or_empty(&self) -> Option<String> {
        Some(self.text()).filter(|text| !text.is_empty()).map(str::to_owned)
    }

    /// A name as groupadd(8) takes it, or a number. Whether there is such a group, only the machine knows.
    pub(super) fn group_or_empty(&self) -> Result<Option<String>, ConfigError> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.@$".contains(&byte);
        match self.text() {
            "" => Ok(None),
            text if text.len() <= 64 && text.bytes().all(allowed) => Ok(Some(text.to_owned())),
            _ => Err(self.refused("empty, or the name or number of a group")),
        }
    }

    pub(super) fn absolute_path(&self) -> Result<PathBuf, ConfigError> {
        absolute(self.text()).ok_or_else(|| self.refused("an absolute path"))
    }

    pub(super) fn path_or_empty(&self) -> Result<Option<PathBuf>, ConfigError> {
        match self.text() {
            "" => Ok(None),
            text => absolute(text)
                .map(Some)
                .ok_or_else(|| self.refused("empty, or an absolute path")),
        }
    }

    /// Empty for none, else what the text is read as.
    pub(super) fn read_or_empty<T: FromStr>(&self, allowed: &str) -> Result<Option<T>, ConfigError> {
        match self.text() {
            "" => Ok(None),
            text => text
                .parse()
                .map(Some)
                .map_err(|_| self.refused(&format!("empty, or {allowed}"))),
        }
    }

    pub(super) fn socket_path(&self) -> Result<PathBuf, ConfigError> {
        absolute_socket(self.text())
            .ok_or_else(|| self.refused(&format!("an absolute path of at most {MAX_SOCKET_PATH} bytes")))
    }

    pub(super) fn runtime_socket(&self) -> Result<RuntimeSocket, ConfigError> {
        match self.text() {
            "auto" => Ok(RuntimeSocket::Auto),
            "none" => Ok(RuntimeSocket::None),
            // The kubelet writes its endpoints so.
            text => absolute_socket(text.strip_prefix("unix://").unwrap_or(text))
                .map(RuntimeSocket::Path)
                .ok_or_else(|| {
                    self.refused(&format!(
                        "auto, none, or an absolute path of at most {MAX_SOCKET_PATH} bytes"
                    ))
                }),
        }
    }

    pub(super) fn audit_log(&self) -> Result<AuditLog, ConfigError> {
        match self.text() {
            "auto" => Ok(AuditLog::Auto),
            "none" => Ok(AuditLog::None),
            text => absolute(text)
                .map(AuditLog::Path)
                .ok_or_else(|| self.refused("auto, none, or an absolute path")),
        }
    }

    /// An amount of memory or disk as Kubernetes writes it: `16Mi`.
    pub(super) fn bytes(&self, range: RangeInclusive<Bytes>) -> Result<Bytes, ConfigError> {
        let bytes = Bytes::parse(self.text()).ok().filter(|bytes| range.contains(bytes));
        bytes.ok_or_else(|| self.refused(&format!("an amount from {} to {}", range.start(), range.end())))
    }

    pub(super) fn address_or_empty(&self) -> Result<Option<SocketAddr>, ConfigError> {
        if self.text().is_empty() {
            return Ok(None);
        }
        let address = self.text().parse().map(Some);
        address.map_err(|_| self.refused("empty, or an IP address and a port such as 127.0.0.1:9464"))
    }

    pub(super) fn number<T: FromStr + PartialOrd + Display>(&self, range: RangeInclusive<T>) -> Result<T, ConfigError> {
        let number = self.text().parse().ok().filter(|number| range.contains(number));
        number.ok_or_else(|| self.refused(&format!("a number from {} to {}", range.start(), range.end())))
    }

    /// A duration as Kubernetes and jiff write it: `90s`, `1h30m`, `100ms`.
    pub(super) fn duration(&self, range: RangeInclusive<SignedDuration>) -> Result<SignedDuration, ConfigError> {
        let duration = self.text().parse().ok().filter(|duration| range.contains(duration));
        duration.ok_or_else(|| self.refused(&format!("a duration from {:#} to {:#}", range.start(), range.end())))
    }

    pub(super) fn update_modes(&self) -> Result<Vec<UpdateMode>, ConfigError> {
        let names = self.text().split(',').map(str::trim).filter(|name| !name.is_empty());
        let mode = |name| {
            UPDATE_MODES
                .iter()
                .find(|(known, _)| *known == name)
                .map(|(_, mode)| *mode)
        };
        names.map(mode).collect::<Option<Vec<_>>>().ok_or_else(|| {
            let known = list(UPDATE_MODES.iter().map(|(name, _)| *name));
            self.refused(&format!("a list, which may be empty, of {known}"))
        })
    }

    /// Levels and `target=level` directives. A lone word that is no level would be a target to `EnvFilter`, and silence
    /// everything else: it is a slip of the pen.
    pub(super) fn log_filter(&self) -> Result<String, ConfigError> {
        const LEVELS: [&str; 6] = ["error", "warn", "info", "debug", "trace", "off"];
        let directive = |text: &str| text.contains('=') || LEVELS.contains(&text.trim());
        let text = self.text();
        match EnvFilter::builder().parse(text) {
            Ok(_) if text.split(',').all(directive) => Ok(text.to_owned()),
            Ok(_) | Err(_) => {
                let levels = list(LEVELS.into_iter());
                Err(self.refused(&format!("{levels}, or directives such as info,vscaled::plan=debug")))
            }
        }
    }

    /// An amount of memory, or a part of the node's.
    pub(super) fn share(&self) -> Result<Share, ConfigError> {
        let share = self.text().parse();
        share.map_err(|()| self.refused("an amount of memory such as 512Mi, or a percentage from 0% to 100%"))
    }

    fn text(&self) -> &str {
        &self.given.text
    }

    pub(super) fn refused(&self, allowed: &str) -> ConfigError {
        let place = match &self.given.origin {
            Origin::Flag => format!("the flag {}", self.key.flag()),
            Origin::Environment => format!("the environment variable {}", self.key.env),
            Origin::File(path) => path.display().to_string(),
            Origin::Default => "the default".to_owned(),
        };
        ConfigError::Refused {
            key: self.key.name,
            value: self.text().to_owned(),
            place,
            allowed: allowed.to_owned(),
        }
    }
}

fn absolute(text: &str) -> Option<PathBuf> {
    let path = Path::new(text);
    (path.is_absolute() && !text.contains('\0')).then(|| path.to_owned())
}

fn absolute_socket(text: &str) -> Option<PathBuf> {
    absolute(text).filter(|_| text.len() <= MAX_SOCKET_PATH)
}

/// `a, b or c`.
fn list<'a>(words: impl Iterator<Item = &'a str>) -> String {
    let words: Vec<_> = words.collect();
    match words.split_last() {
        Some((last, [])) => (*last).to_owned(),
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
        None => String::new(),
    }
}
