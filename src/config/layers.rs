//! The layers of the configuration: the text that flags, variables and a file give for each key, and the place of each text.

use std::collections::BTreeMap;
use std::error::Error as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use anyhow::{Error, Result, anyhow};
use clap::builder::ValueParser;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use serde::{Serialize, Serializer};
use serde_json::Value;
use serde_saphyr::{Span, Spanned};

use super::parse::{list, members};
use super::{API_VERSION, API_VERSION_BEFORE, Config, KIND};
use crate::model::unreadable;

/// The heading in `--help` of the keys that a reload applies.
pub(super) const LIVE: &str = "Settings that SIGHUP applies";

/// Every key, in the order of [`Config`]'s fields.
pub static KEYS: LazyLock<Vec<Key>> = LazyLock::new(|| definition().get_arguments().map(Key::of).collect());

/// One key of the configuration, as [`Config`] defines it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    pub(super) field: String,
    /// The name in the file.
    pub name: String,
    /// The environment variable that gives it.
    pub env: String,
    /// The value of the key without any layer.
    pub default: String,
    /// Whether a reload changes it in a running agent.
    pub live: bool,
    /// The text in help and documentation.
    pub meaning: String,
}

impl Key {
    fn of(arg: &Arg) -> Self {
        let field = arg.get_id().to_string();
        let mut words = field.split('_');
        let first = words.next().unwrap_or_default().to_owned();
        let prefix = if field == "node_name" { "" } else { "VSCALED_" };
        let default = arg.get_default_values().first();
        Self {
            name: words.fold(first, |name, word| name + &word[..1].to_uppercase() + &word[1..]),
            env: format!("{prefix}{}", field.to_uppercase()),
            default: default
                .map(|text| text.to_string_lossy().into_owned())
                .unwrap_or_default(),
            live: arg.get_help_heading() == Some(LIVE),
            // clap drops the final full stop.
            meaning: arg.get_help().map(|help| format!("{help}.")).unwrap_or_default(),
            field,
        }
    }

    /// A text as JSON: a number or a boolean where the default is one, a list where the default has several members.
    fn json(&self, text: &str) -> Value {
        if self.default.contains(',') {
            return members(text).collect();
        }
        match (serde_json::from_str(&self.default), serde_json::from_str(text)) {
            (Ok(Value::Number(_)), Ok(value @ Value::Number(_))) | (Ok(Value::Bool(_)), Ok(value @ Value::Bool(_))) => {
                value
            }
            _ => text.into(),
        }
    }

    /// The flag, with its dashes.
    pub fn flag(&self) -> String {
        format!("--{}", self.field.replace('_', "-"))
    }
}

/// A value as text, so that one parser refuses a value in the same words in every layer. Commas join
/// the members of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PlacedText {
    text: String,
    /// The place of the text, in the words of a refusal.
    place: String,
}

/// The values of one layer, or of all layers together, by field.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Layer(BTreeMap<String, PlacedText>);

/// The arguments of `vscaled run`.
#[derive(Debug, Clone, Args)]
pub struct RunArguments {
    /// A file with any of the settings below.
    #[arg(long, env = "VSCALED_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Print the resulting configuration as JSON, which is also YAML, and exit.
    #[arg(long)]
    pub print_config: bool,
    /// The values of flags and variables.
    #[command(flatten)]
    pub settings: Layer,
}

impl RunArguments {
    /// The path of the configuration file, if the file has the `apiVersion` before the current one.
    pub fn outdated_file(&self) -> Option<&Path> {
        // A pipe was read before. To open it again would wait for its next writer.
        let path = self.config.as_deref().filter(|path| path.is_file())?;
        let document: Value = serde_saphyr::from_str(&fs::read_to_string(path).ok()?).ok()?;
        (document["apiVersion"] == API_VERSION_BEFORE).then_some(path)
    }

    /// Merges the layers. A reload reads the file again; flags and environment do not change while a process runs.
    pub(super) fn resolve(&self) -> Result<Layer> {
        let default = |key: &Key| {
            let (text, place) = (key.default.clone(), "the default".to_owned());
            (key.field.clone(), PlacedText { text, place })
        };
        let mut given: BTreeMap<_, _> = KEYS.iter().map(default).collect();
        if let Some(file) = &self.config {
            given.extend(read_file(file)?.0);
        }
        given.extend(self.settings.0.clone());
        Ok(Layer(given))
    }
}

/// The arguments that [`Config`] derives. [`Layer`] adds the variables.
fn definition() -> Command {
    Config::augment_args(Command::new("vscaled").no_binary_name(true))
}

/// Takes flags and variables as texts, because `Layer::parse` parses the values of all layers.
impl Args for Layer {
    fn augment_args(command: Command) -> Command {
        let settings = definition();
        let texts = settings.get_arguments().zip(KEYS.iter()).map(|(arg, key)| {
            let text = arg.clone().env(key.env.as_str()).value_parser(ValueParser::string());
            let text = text.hide_default_value(key.default.is_empty());
            match key.default.as_str() {
                // The flag without a value switches the setting on.
                "true" | "false" => text.num_args(0..=1).require_equals(true).default_missing_value("true"),
                _ => text,
            }
        });
        command.args(texts)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Layer {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = KEYS.iter().filter_map(|key| {
            let place = match matches.value_source(&key.field)? {
                ValueSource::EnvVariable => format!("the environment variable {}", key.env),
                ValueSource::CommandLine => format!("the flag {}", key.flag()),
                _ => return None,
            };
            let text = matches.get_one::<String>(&key.field)?.clone();
            Some((key.field.clone(), PlacedText { text, place }))
        });
        Ok(Self(given.collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Writes the document of a configuration file.
impl Serialize for Layer {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let head = [("apiVersion", API_VERSION.into()), ("kind", KIND.into())];
        let keys = self.texts().map(|(key, text)| (key.name.as_str(), key.json(text)));
        serializer.collect_map(head.into_iter().chain(keys))
    }
}

impl Layer {
    /// Every key with a value, in the order of [`KEYS`].
    fn texts(&self) -> impl Iterator<Item = (&Key, &String)> {
        let text = |key: &'static Key| Some((key, &self.0.get(&key.field)?.text));
        KEYS.iter().filter_map(text)
    }

    /// Errors: a line for each refused value.
    pub(super) fn parse(&self) -> Result<Config> {
        let flag = |key: &Key, text: &str| format!("{}={text}", key.flag());
        let flags = self.texts().map(|(key, text)| flag(key, text));
        let parsed = definition().try_get_matches_from(flags);
        parsed
            .and_then(|matches| Config::from_arg_matches(&matches))
            .map_err(|first| {
                // clap ends with the first one, so each is parsed alone.
                let given = self.texts().filter(|(key, text)| **text != key.default);
                let refused = given.filter_map(|(key, text)| {
                    let error = definition().try_get_matches_from([flag(key, text)]).err()?;
                    // The source is the parser's error.
                    self.refused(&key.field, &error.source()?.to_string())
                });
                let refused: Vec<String> = refused.map(|error| error.to_string()).collect();
                if refused.is_empty() {
                    anyhow!("the configuration cannot be read: {first}")
                } else {
                    Error::msg(refused.join("\n"))
                }
            })
    }

    /// These values, with the values of some keys replaced by those of `others`.
    pub(super) fn with<'a>(&self, others: &Self, keys: impl IntoIterator<Item = &'a Key>) -> Self {
        let mut changed = self.0.clone();
        let given = keys.into_iter().filter_map(|key| others.0.get_key_value(&key.field));
        changed.extend(given.map(|(field, text)| (field.clone(), text.clone())));
        Self(changed)
    }

    /// The refusal of a field's value.
    pub(super) fn refused(&self, field: &str, allowed: &str) -> Option<Error> {
        let key = KEYS.iter().find(|key| key.field == field)?;
        let (name, PlacedText { text, place }) = (&key.name, self.0.get(field)?);
        Some(anyhow!(
            "{name}: {text:?} from {place} is refused: it must be {allowed}"
        ))
    }
}

fn read_file(path: &Path) -> Result<Layer> {
    let shown = path.display();
    let text = fs::read_to_string(path).map_err(|error| anyhow!("{shown}: cannot be read: {error}"))?;
    parse_file(&text, path).map_err(|message| anyhow!("{shown}: {message}"))
}

/// Parses the one document of a configuration file. Any key may be absent or null.
///
/// Errors: a line for each refused key.
fn parse_file(text: &str, path: &Path) -> Result<Layer, String> {
    let options = || serde_saphyr::options! { strict_booleans: true, with_snippet: false };
    let document: Value =
        serde_saphyr::from_str_with_options(text, options()).map_err(|error| unreadable(&error, text))?;
    let Value::Object(keys) = document else {
        return Err(format!(
            "a mapping with apiVersion: {API_VERSION} and kind: {KIND} is expected"
        ));
    };
    for (key, expected) in [("apiVersion", API_VERSION), ("kind", KIND)] {
        match keys.get(key) {
            Some(found) if *found == expected || (key == "apiVersion" && *found == API_VERSION_BEFORE) => {}
            Some(found) => return Err(format!("{key}: {found} is refused: it must be {expected}")),
            None => return Err(format!("{key}: required, and must be {expected}")),
        }
    }
    // A second parse gives the lines, which only a mapping has.
    let mut values: BTreeMap<String, Spanned<Value>> =
        serde_saphyr::from_str_with_options(text, options()).map_err(|error| unreadable(&error, text))?;
    values.retain(|name, _| !["apiVersion", "kind"].contains(&name.as_str()));
    let (mut layer, mut refused) = (Layer::default(), BTreeMap::new());
    for (name, value) in values {
        let line = value.referenced.line();
        let written = written(text, value.defined.span());
        let key = KEYS.iter().find(|key| key.name == name);
        let given = key.ok_or_else(|| unknown(&name)).and_then(|key| {
            let text = text_of(value.value, written).map_err(|allowed| format!("{name}: {allowed}"))?;
            let place = format!("{}:{line}", path.display());
            Ok(text.map(|text| (key.field.clone(), PlacedText { text, place })))
        });
        match given {
            Ok(given) => layer.0.extend(given),
            Err(message) => drop(refused.insert((line, name), format!("line {line}: {message}"))),
        }
    }
    if refused.is_empty() {
        return Ok(layer);
    }
    Err(refused.into_values().collect::<Vec<_>>().join("\n"))
}

/// The part of the file that a span covers.
fn written(text: &str, span: Span) -> Option<&str> {
    let start = usize::try_from(span.byte_offset()?).ok()?;
    text.get(start..)?.get(..usize::try_from(span.byte_len()?).ok()?)
}

/// The text of a flag that gives the same value; none for null. `written` is the text in the file, which a number
/// keeps: 1.30 is another version than 1.3.
fn text_of(value: Value, written: Option<&str>) -> Result<Option<String>, &'static str> {
    Ok(match value {
        Value::Null => None,
        Value::Bool(value) => Some(value.to_string()),
        Value::Number(value) => {
            let written = written.filter(|written| written.parse().ok() == value.as_f64());
            Some(written.map_or_else(|| value.to_string(), str::to_owned))
        }
        Value::String(text) => Some(text),
        Value::Array(members) if members.iter().all(Value::is_string) => {
            let members: Vec<_> = members.iter().filter_map(Value::as_str).collect();
            Some(members.join(","))
        }
        Value::Array(_) | Value::Object(_) => {
            return Err("the value must be a text, a number, true or false, or a list of texts");
        }
    })
}

fn unknown(name: &str) -> String {
    let quoted: Vec<_> = KEYS.iter().map(|key| format!("`{}`", key.name)).collect();
    let mut message = format!("unknown field `{name}`, expected one of {}", list(&quoted));
    let similar = |key: &&Key| strsim::jaro_winkler(&key.name, name);
    let nearest = KEYS.iter().max_by(|a, b| similar(a).total_cmp(&similar(b)));
    if let Some(key) = nearest.filter(|key| similar(key) > 0.8) {
        message.push_str(&format!("; did you mean `{}`?", key.name));
    }
    message
}
