//! Parsers of single values: text → value, or the allowed values in words. Pure.

use std::borrow::Borrow;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use jiff::SignedDuration;
use serde::de::DeserializeOwned;
use serde::de::value::{Error, StrDeserializer};

use super::values::{List, Optional, PathSetting};
use crate::model::objects::{UpdateMode, is_label, is_subdomain};
use crate::model::{Bytes, CgroupPath};
use crate::observe::log;

/// The error names the allowed values.
type Parsed<T> = Result<T, String>;

pub(super) const ADDRESS: &str = "an IP address and a port such as 127.0.0.1:9464";
pub(super) const BOOLEAN: &str = "false or true";
pub(super) const ENDPOINT: &str = "https://host:port, http://host:port or unix:///path";
pub(super) const SHARE: &str = "an amount of memory such as 512Mi, or a whole percentage from 0% to 100%";

/// A parser that clap takes.
pub(super) trait Parser<T>: Fn(&str) -> Parsed<T> + Clone + Send + Sync + 'static {}

impl<T, F: Fn(&str) -> Parsed<T> + Clone + Send + Sync + 'static> Parser<T> for F {}

/// Room for a socket's path in `sockaddr_un` (unix(7)), without the final NUL.
const MAX_SOCKET_PATH: usize = 107;

fn parser<T: 'static>(
    allowed: &'static str,
    parse: impl Fn(&str) -> Option<T> + Clone + Send + Sync + 'static,
) -> impl Parser<T> {
    move |text: &str| parse(text).ok_or_else(|| allowed.to_owned())
}

/// A value in the notation of its `FromStr`.
pub(super) fn read<T: FromStr + 'static>(allowed: &'static str) -> impl Parser<T> {
    parser(allowed, |text| text.parse().ok())
}

/// A variant of `T` under its name in serde.
pub(super) fn named<T: DeserializeOwned + 'static>(allowed: &'static str) -> impl Parser<T> {
    parser(allowed, |text| T::deserialize(StrDeserializer::<Error>::new(text)).ok())
}

/// `word` for none, or a value.
pub(super) fn or<T: 'static>(word: &'static str, parse: impl Parser<T>) -> impl Parser<Optional<T>> {
    let name = if word.is_empty() { "empty" } else { word };
    move |text: &str| match parse(text) {
        _ if text == word => Ok(None),
        parsed => parsed.map(Some).map_err(|allowed| format!("{name}, or {allowed}")),
    }
}

pub(super) fn auto_none_or(parse: impl Parser<PathBuf>) -> impl Parser<PathSetting> {
    move |text: &str| match text {
        "auto" => Ok(PathSetting::Auto),
        "none" => Ok(PathSetting::None),
        text => parse(text)
            .map(PathSetting::Path)
            .map_err(|allowed| format!("auto, none, or {allowed}")),
    }
}

/// The name of a node or a receiver: a DNS subdomain (RFC 1123), or empty.
pub(super) fn host_name() -> impl Parser<String> {
    parser(
        "empty, or a name of at most 253 lower case letters, digits and, not first or last, `-`, in parts joined by `.`",
        |text| (text.is_empty() || is_subdomain(text)).then(|| text.to_owned()),
    )
}

/// A name that groupadd(8) accepts, or a number. The parser does not look the group up.
pub(super) fn group() -> impl Parser<String> {
    parser("the name or number of a group", |text| {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.@$".contains(&byte);
        (text.len() <= 64 && text.bytes().all(allowed)).then(|| text.to_owned())
    })
}

pub(super) fn absolute_path() -> impl Parser<PathBuf> {
    parser("an absolute path", absolute)
}

/// The kernel's log: a device, or `syslog` for the system call.
pub(super) fn kernel_log() -> impl Parser<PathBuf> {
    parser("an absolute path or `syslog`", |text| match text {
        "syslog" => Some(text.into()),
        text => absolute(text),
    })
}

pub(super) fn socket_path() -> impl Parser<PathBuf> {
    move |text: &str| {
        let path = absolute(text).filter(|_| text.len() <= MAX_SOCKET_PATH);
        path.ok_or_else(|| format!("an absolute path of at most {MAX_SOCKET_PATH} bytes"))
    }
}

/// A socket's path, or an endpoint in the kubelet's notation: `unix:///run/crio/crio.sock`.
pub(super) fn endpoint_path() -> impl Parser<PathBuf> {
    let parse = socket_path();
    move |text: &str| parse(text.strip_prefix("unix://").unwrap_or(text))
}

fn absolute(text: &str) -> Option<PathBuf> {
    let path = Path::new(text);
    (path.is_absolute() && !text.contains('\0')).then(|| path.to_owned())
}

pub(super) fn cgroup_path() -> impl Parser<CgroupPath> {
    parser("a path below cgroupRoot such as /kubelet/kubepods", |text| {
        CgroupPath::new(text).ok()
    })
}

/// A value between two bounds, which have its notation.
fn between<T: PartialOrd + 'static>(
    what: &'static str,
    parse: fn(&str) -> Option<T>,
    [least, most]: [&'static str; 2],
) -> impl Parser<T> {
    move |text: &str| {
        let value =
            parse(text).filter(|value| parse(least).as_ref() <= Some(value) && Some(value) <= parse(most).as_ref());
        value.ok_or_else(|| format!("{what} from {least} to {most}"))
    }
}

/// An amount of memory or disk in Kubernetes' notation: `16Mi`.
pub(super) fn bytes(least: &'static str, most: &'static str) -> impl Parser<Bytes> {
    between("an amount", |text| text.parse().ok(), [least, most])
}

pub(super) fn number<T: FromStr + PartialOrd + 'static>(least: &'static str, most: &'static str) -> impl Parser<T> {
    between("a number", |text| text.parse().ok(), [least, most])
}

/// A duration in the notation of Kubernetes and jiff: `90s`, `1h30m`, `100ms`.
pub(super) fn duration<T>(least: &'static str, most: &'static str) -> impl Parser<T>
where
    T: TryFrom<SignedDuration> + PartialOrd + 'static,
{
    let parse = |text: &str| T::try_from(text.parse::<SignedDuration>().ok()?).ok();
    between("a duration", parse, [least, most])
}

/// The members of a comma-separated list.
pub(super) fn members(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|member| !member.is_empty())
}

fn list_of<T: 'static>(allowed: &'static str, member: fn(&str) -> Option<T>) -> impl Parser<List<T>> {
    parser(allowed, move |text| members(text).map(member).collect())
}

pub(super) fn update_modes() -> impl Parser<List<UpdateMode>> {
    let allowed = "a list, which may be empty, of Recreate, Auto, InPlaceOrRecreate or InPlace";
    list_of(allowed, |name| {
        named("")(name)
            .ok()
            .filter(|mode: &UpdateMode| mode.updates_running_pods())
    })
}

/// `true` and `false` were the values of earlier versions, and are also names: no list of this version has them.
pub(super) fn hook_namespaces() -> impl Parser<List<String>> {
    let allowed = "a list, which may be empty, of the namespaces whose pods may use hooks: names of at most 63 lower case letters, \
                   digits and, not first or last, `-`; or `*` for every namespace but kube-system; not true or false as in earlier versions";
    list_of(allowed, |name| {
        let is_name = is_label(name) && !["true", "false"].contains(&name);
        (name == "*" || is_name).then(|| name.to_owned())
    })
}

pub(super) fn log_filter(text: &str) -> Parsed<String> {
    if log::parse_filter(text).is_some() {
        return Ok(text.to_owned());
    }
    let levels = list(&log::LEVELS);
    Err(format!("{levels}, or directives such as info,vscaled::plan=debug"))
}

pub(super) fn list(words: &[impl Borrow<str>]) -> String {
    let words = words.join(", ");
    match words.rsplit_once(", ") {
        Some((others, last)) => format!("{others} or {last}"),
        None => words,
    }
}
