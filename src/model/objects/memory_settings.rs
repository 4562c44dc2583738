//! The memory settings of a language runtime, or of a database, in a container's command, arguments and environment.
//!
//! They are read while the container is decoded. The result is at most one [`MemorySetting`] for each setting of the runtime:
//! the one that counts. Nothing else of the command line is kept, because a tenant may write a megabyte.

use std::cell::Cell;
use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::command_line::{MOST_WORK, expand, split};
use super::pod::DeclaredContainer;
use super::start_scripts::{self, Reads};
use crate::model::Bytes;

/// Longer values are cut. No runtime reads one.
const LONGEST_VALUE: usize = 64;
/// How many variables are read.
const MOST_VARIABLES: usize = 1024;
/// How many comparisons of variables cost as much as one character.
const COMPARED_AT_ONCE: usize = 16;
/// How deep scripts may be nested.
const DEEPEST_SCRIPT: usize = 3;
/// Stands for the limit of a container without one: the kubelet fills in that of the pod, or about this much, the node's memory.
pub const NODE_MEMORY: Bytes = Bytes::new(8 << 30);

/// One line for each option: the slot that it shares with options which set the same thing, and its flags and variables.
/// .NET reads both prefixes. PostgreSQL takes its own as the word after -c.
macro_rules! memory_options {
    ($($(#[$doc:meta])* $option:ident in $slot:ident = $($name:literal),+;)*) => {
        /// An option of a runtime. Two options that set the same thing share a slot.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
        pub enum MemoryOption {
            $($(#[$doc])* $option,)*
        }

        /// The beginnings of flags that hold their value, and the variables that are an option themselves.
        const NAMES: &[(&str, MemoryOption)] = &[$($(($name, MemoryOption::$option),)+)*];

        impl MemoryOption {
            /// One option for all that set the same thing.
            pub const fn slot(self) -> Self {
                match self { $(Self::$option => Self::$slot,)* }
            }
        }
    };
}

memory_options! {
    JavaMaxHeap in JavaMaxHeap = "-Xmx";
    JavaMaxHeapSize in JavaMaxHeap = "-XX:MaxHeapSize=";
    JavaInitialHeap in JavaInitialHeap = "-Xms";
    JavaInitialHeapSize in JavaInitialHeap = "-XX:InitialHeapSize=";
    /// The memory of which HotSpot takes its shares, in place of the limit.
    JavaMaxRam in JavaMaxRam = "-XX:MaxRAM=";
    JavaMaxRamPercentage in JavaMaxRamPercentage = "-XX:MaxRAMPercentage=";
    JavaMaxRamFraction in JavaMaxRamPercentage = "-XX:MaxRAMFraction=";
    JavaMinRamPercentage in JavaMinRamPercentage = "-XX:MinRAMPercentage=";
    JavaMinRamFraction in JavaMinRamPercentage = "-XX:MinRAMFraction=";
    JavaInitialRamPercentage in JavaInitialRamPercentage = "-XX:InitialRAMPercentage=";
    JavaInitialRamFraction in JavaInitialRamPercentage = "-XX:InitialRAMFraction=";
    GoMemoryLimit in GoMemoryLimit = "GOMEMLIMIT";
    /// The share of the limit that the library automemlimit sets as the limit of the Go runtime.
    GoShare in GoShare = "AUTOMEMLIMIT";
    /// The same share as a flag of Prometheus and others, of kube-state-metrics and prometheus-operator, and of Kyverno.
    GoShareFlag in GoShare = "--auto-gomemlimit.ratio=";
    GoShareDashedFlag in GoShare = "--auto-gomemlimit-ratio=";
    GoShareCamelFlag in GoShare = "--autoMemLimitRatio=";
    /// How often the library reads the limit again.
    GoRefresh in GoRefresh = "--auto-gomemlimit.refresh-interval=";
    /// Whether a program uses the library, and the flag that says no.
    GoSwitch in GoSwitch = "--auto-gomemlimit=", "--enable-auto-gomemlimit=", "--autoMemLimitEnabled=";
    GoSwitchOff in GoSwitch = "--no-auto-gomemlimit=";
    NodeOldSpace in NodeOldSpace = "--max-old-space-size=";
    NodeOldSpacePercentage in NodeOldSpacePercentage = "--max-old-space-size-percentage=";
    DotnetHeapLimit in DotnetHeapLimit = "DOTNET_GCHeapHardLimit", "COMPlus_GCHeapHardLimit";
    DotnetHeapLimitPercent in DotnetHeapLimitPercent = "DOTNET_GCHeapHardLimitPercent", "COMPlus_GCHeapHardLimitPercent";
    RedisMaxMemory in RedisMaxMemory = "--maxmemory=";
    DragonflyMaxMemory in DragonflyMaxMemory = "--maxmemory=";
    /// The caches of VictoriaMetrics.
    VictoriaMetricsBytes in VictoriaMetricsBytes = "--memory.allowedBytes=";
    VictoriaMetricsPercent in VictoriaMetricsPercent = "--memory.allowedPercent=";
    /// The caches of MySQL and MariaDB, of MongoDB, and of PostgreSQL.
    InnodbBufferPool in InnodbBufferPool = "--innodb-buffer-pool-size=";
    WiredTigerCache in WiredTigerCache = "--wiredTigerCacheSizeGB=";
    PostgresBuffers in PostgresBuffers = "shared_buffers";
}

impl MemoryOption {
    pub(super) fn named(name: &str) -> Option<Self> {
        let found = NAMES.iter().find(|(known, _)| known.trim_end_matches('=') == name);
        found.map(|(_, option)| *option)
    }

    /// The option that a variable of this name sets.
    fn of_variable(name: &str) -> Option<Self> {
        Self::named(name).filter(|_| !name.starts_with('-'))
    }

    /// The option as people write it.
    pub fn name(self) -> &'static str {
        let name = NAMES.iter().find(|(_, option)| *option == self);
        name.map_or("", |(name, _)| name.trim_end_matches('='))
    }

    /// Whether the value may be the next word. HotSpot (`-X…`) and Node take none from there, and a switch needs none.
    fn takes_next_word(self) -> bool {
        let has_none = [Self::NodeOldSpace, Self::NodeOldSpacePercentage, Self::GoSwitch];
        self.name().starts_with("--") && !has_none.contains(&self.slot())
    }
}

/// Where a setting stands in the container's manifest.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, derive_more::Display)]
#[serde(rename_all = "camelCase")]
pub enum SettingSource {
    #[display("command")]
    Command,
    #[display("args")]
    Args,
    /// The variable of that name.
    #[display("env {_0}")]
    Env(String),
}

/// One setting that counts.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct MemorySetting {
    pub option: MemoryOption,
    pub source: SettingSource,
    /// As written, with references to variables replaced. `{…}` stands for the value that the kubelet
    /// fills in at the start.
    pub value: String,
    /// The value with the numbers that the kubelet would fill in now for the container's own request and limit.
    #[serde(skip)]
    pub filled_in: Option<String>,
}

/// A variable of a container's environment.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Variable {
    pub(super) name: String,
    pub(super) value: String,
    pub(super) value_from: Option<Value>,
}

/// A container's environment, the container whose resources fill in references to them, and the work that is left for it.
#[derive(Debug)]
pub(super) struct Variables<'a>(&'a [Variable], Option<&'a DeclaredContainer>, &'a Cell<usize>);

impl<'a> Variables<'a> {
    /// Pays for work. Returns whether there was enough left.
    pub(super) fn spend(&self, cost: usize) -> bool {
        let left = self.2.get().checked_sub(cost);
        self.2.set(left.unwrap_or(0));
        left.is_some()
    }

    /// The last variable of each name, with its index: the process gets that one.
    fn last_of_each_name(&self) -> Vec<(usize, &'a Variable)> {
        let all = self.0.iter().enumerate();
        let last: HashMap<&str, usize> = all.clone().map(|(index, one)| (one.name.as_str(), index)).collect();
        all.filter(|(index, one)| last.get(one.name.as_str()) == Some(index))
            .collect()
    }

    /// The value of the last variable of that name before index `before`, with its own references replaced.
    pub(super) fn value(&self, name: &str, before: usize) -> Option<String> {
        let earlier = &self.0[..before.min(self.0.len())];
        let mut affordable = self.spend(earlier.len() / COMPARED_AT_ONCE).then(|| earlier.iter())?;
        let index = affordable.rposition(|variable| variable.name == name)?;
        Some(self.value_at(index))
    }

    fn value_at(&self, index: usize) -> String {
        let variable = &self.0[index];
        match &variable.value_from {
            Some(from) => self.value_from(from),
            None => expand(&variable.value, self, index),
        }
    }

    /// The value that the kubelet fills in when the container starts, if it follows from its
    /// resources, or else a placeholder.
    fn value_from(&self, from: &Value) -> String {
        let text = |field: &str| from.pointer(field).and_then(Value::as_str).unwrap_or_default();
        let resource = text("/resourceFieldRef/resource");
        if !resource.is_empty() {
            let of = text("/resourceFieldRef/containerName");
            let own = self.1.filter(|own| ["", &own.name].contains(&of));
            let resources = own.map(|own| own.resources.requirements());
            let memory = resources.and_then(|resources| match resource {
                "limits.memory" => Some(resources.limits.nonzero().memory.unwrap_or(NODE_MEMORY)),
                "requests.memory" => resources.with_requests().requests.memory,
                _ => None,
            });
            let divisor = from.pointer("/resourceFieldRef/divisor").map(Bytes::deserialize);
            let divisor = divisor.and_then(Result::ok).map_or(1, Bytes::get).max(1);
            let number = memory.map(|memory| memory.get().div_ceil(divisor));
            return number.map_or_else(|| format!("{{{resource}}}"), |number| number.to_string());
        }
        let mut sources = [("ConfigMap", "configMapKeyRef"), ("Secret", "secretKeyRef")].into_iter();
        let source = sources.find(|(_, field)| from.get(field).is_some_and(Value::is_object));
        source.map_or("{unknown}".to_owned(), |(kind, field)| {
            let [name, key] = ["name", "key"].map(|part| text(&format!("/{field}/{part}")));
            format!("{{{kind}:{name}/{key}}}")
        })
    }
}

/// The settings that count, in the order in which the runtimes read them.
pub(super) fn read(declared: &DeclaredContainer) -> Vec<MemorySetting> {
    let mut settings = read_with(declared, None);
    if settings.iter().any(|setting| setting.value.contains("s.memory}")) {
        let filled_in = read_with(declared, Some(declared));
        for (setting, filled_in) in settings.iter_mut().zip(filled_in) {
            let is_same = setting.option == filled_in.option && setting.value != filled_in.value;
            setting.filled_in = is_same.then_some(filled_in.value);
        }
    }
    settings
}

fn read_with(declared: &DeclaredContainer, filled_in_by: Option<&DeclaredContainer>) -> Vec<MemorySetting> {
    let env = &declared.env[..declared.env.len().min(MOST_VARIABLES)];
    let work = Cell::new(MOST_WORK);
    let variables = &Variables(env, filled_in_by, &work);
    let mut reader = SettingsReader {
        variables,
        settings: Vec::new(),
    };
    let mut last = variables.last_of_each_name();
    last.sort_by_key(|(_, variable)| match variable.name.as_str() {
        // For the JVM the first is the weakest and the last the strongest. .NET prefers this prefix to the other.
        "JAVA_TOOL_OPTIONS" => 0,
        "_JAVA_OPTIONS" => 3,
        name => 1 + usize::from(name.starts_with("DOTNET_")),
    });
    let after = last.partition_point(|(_, variable)| variable.name != "_JAVA_OPTIONS");
    reader.read_variables(&last[..after]);
    let command = declared.command.iter().map(|word| (word, &SettingSource::Command));
    let args = declared.args.iter().map(|word| (word, &SettingSource::Args));
    let words = command
        .chain(args)
        .map(|(word, source)| (expand(word, variables, usize::MAX), source));
    reader.read_command(words.collect(), 0);
    reader.read_variables(&last[after..]);
    reader.settings
}

struct SettingsReader<'a> {
    variables: &'a Variables<'a>,
    settings: Vec<MemorySetting>,
}

impl SettingsReader<'_> {
    fn read_variables(&mut self, last: &[(usize, &Variable)]) {
        for &(index, variable) in last {
            // A flag in a variable begins with a dash, which only a reference can hide.
            let is_setting = MemoryOption::of_variable(&variable.name).is_some()
                || start_scripts::of_variable(&variable.name).is_some();
            if is_setting || variable.value.contains(['-', '$']) {
                let value = self.variables.value_at(index);
                let source = SettingSource::Env(variable.name.chars().take(LONGEST_VALUE).collect());
                self.read_variable(&variable.name, &value, &source);
            }
        }
    }

    /// Reads a variable that is an option itself, or whose value has flags: start scripts read variables of any name.
    fn read_variable(&mut self, name: &str, value: &str, source: &SettingSource) {
        match (MemoryOption::of_variable(name), start_scripts::of_variable(name)) {
            (Some(option), _) => self.add(option, value, source),
            (None, Some(Reads::Size(option, unit))) if !value.trim_start().starts_with('-') => {
                let is_bare = value.ends_with(|last: char| last.is_ascii_digit() || last == '}');
                // Some scripts add the unit to a variable that others hand on as it is. No heap has a million MiB.
                let is_bytes = unit != "k" && value.parse().is_ok_and(|number: u64| number >= 1 << 20);
                let unit = if is_bare && !is_bytes { unit } else { "" };
                // Scripts take neither for a size.
                if !matches!(value, "" | "0") {
                    self.add(option, &format!("{value}{unit}"), source);
                }
            }
            (None, reads)
                if matches!(reads, Some(Reads::Flags))
                    || value.trim_start().starts_with(['-', '$', '"', '\'', '@']) =>
            {
                // To Node a single quote is a character like any other.
                let escaped = (name == "NODE_OPTIONS").then(|| value.replace('\'', "\\'"));
                let value = escaped.as_deref().unwrap_or(value);
                self.read_script(value, &Variables(&[], None, self.variables.2), source, 0);
            }
            (None, _) => {}
        }
    }

    fn read_script(&mut self, script: &str, variables: &Variables, source: &SettingSource, depth: usize) {
        for command in split(script, variables) {
            let words = command.into_iter().map(|word| (word, source));
            self.read_command(words.collect(), depth);
        }
    }

    fn read_command(&mut self, words: Vec<(String, &SettingSource)>, depth: usize) {
        let (mut program, mut words) = (Program::default(), words.into_iter());
        while let Some((word, source)) = words.next() {
            if program.is_argument_of_application(&word) {
                continue;
            }
            // A runtime gets its argument, or the value of a system property, as one word.
            let is_script = word.contains(char::is_whitespace) && !program.is_runtime && !word.starts_with("-D");
            if is_script && depth < DEEPEST_SCRIPT {
                self.read_script(&word, self.variables, source, depth + 1);
            } else if let Some((option, value)) = flag(&word) {
                let is_split = !word.contains('=') && option.takes_next_word();
                let next = is_split.then(|| words.next()).flatten();
                // Redis takes the value from the next word alone.
                let is_dragonfly = program.is_dragonfly || !is_split;
                let option = match option {
                    MemoryOption::RedisMaxMemory if is_dragonfly => MemoryOption::DragonflyMaxMemory,
                    option => option,
                };
                self.add(option, next.as_ref().map_or(value, |(next, _)| next.as_str()), source);
            } else if let Some((name, value)) = word.split_once('=').filter(|(name, _)| is_name(name)) {
                self.read_variable(name, value, source);
            }
        }
    }

    /// Keeps a setting. Of several that set the same thing, the last counts.
    fn add(&mut self, option: MemoryOption, value: &str, source: &SettingSource) {
        self.settings.retain(|setting| setting.option.slot() != option.slot());
        let mut value: String = value.chars().take(LONGEST_VALUE + 1).collect();
        if let Some((end, _)) = value.char_indices().nth(LONGEST_VALUE) {
            value.replace_range(end.., "…");
        }
        self.settings.push(MemorySetting {
            option,
            source: source.clone(),
            value,
            filled_in: None,
        });
    }
}

/// Whether a word before `=` is a variable's name, or an option whose value may be flags
/// for a runtime (`npm --node-options=…`).
fn is_name(word: &str) -> bool {
    let word = word.strip_prefix("--").unwrap_or(word);
    let is_part = |character: char| character.is_ascii_alphanumeric() || matches!(character, '_' | '-');
    !word.starts_with('-') && !word.is_empty() && word.chars().all(is_part)
}

/// The option of a flag, and its value, which is empty where it may be the next word. V8 accepts underscores for dashes and one dash
/// for two. `-J` passes a flag on to a JVM.
fn flag(word: &str) -> Option<(MemoryOption, &str)> {
    let word = word.strip_prefix("-J").unwrap_or(word);
    let (name, value) = word.strip_prefix('-')?.split_once('=').unwrap_or((&word[1..], ""));
    let name = format!("--{}=", name.trim_start_matches('-').replace('_', "-"));
    if let Some((_, option)) = NAMES.iter().find(|(begins, _)| *begins == name) {
        return Some((*option, value));
    }
    let (begins, option) = NAMES.iter().find(|(begins, _)| word.starts_with(begins))?;
    let value = &word[begins.len()..];
    // OpenJ9 has flags such as -Xmso.
    let is_other_flag = !begins.ends_with('=') && value.starts_with(|first: char| first.is_ascii_alphabetic());
    (!is_other_flag).then_some((*option, value))
}

/// The program of a command, which decides which words are its own flags, and how it reads them.
#[derive(Debug, Default)]
struct Program {
    /// The program is java or node.
    is_runtime: bool,
    is_dragonfly: bool,
    /// The program is npm or the like: what follows `--` is for a script of the package.
    runs_scripts: bool,
    /// The next word is the value of the flag before it.
    skips_next: bool,
    /// The following words are for the application, or for a program that only prints or searches text.
    is_done: bool,
}

/// The launchers' flags whose value is the next word.
const WITH_VALUE: [&str; 19] = [
    "-cp",
    "-classpath",
    "--class-path",
    "-p",
    "--module-path",
    "--upgrade-module-path",
    "--add-modules",
    "--add-exports",
    "--add-opens",
    "--add-reads",
    "--patch-module",
    "--limit-modules",
    "--enable-native-access",
    "-e",
    "--eval",
    "-r",
    "--require",
    "--import",
    "--loader",
];

impl Program {
    /// Whether the runtime passes the word on to the application instead of reading it.
    fn is_argument_of_application(&mut self, word: &str) -> bool {
        if self.is_done || std::mem::take(&mut self.skips_next) {
            return true;
        }
        match word.rsplit('/').next().filter(|_| !word.contains('=')) {
            Some(script) if script.contains(char::is_whitespace) && !self.is_runtime => {}
            Some("java" | "javaw" | "node" | "nodejs") => self.is_runtime = true,
            _ if self.is_runtime && WITH_VALUE.contains(&word) => self.skips_next = true,
            Some("echo" | "printf" | "grep" | "-jar") => self.is_done = true,
            // A class or a script. An unknown reference can be more flags.
            _ if self.is_runtime => {
                self.is_done = matches!(word, "-m" | "--module") || !word.starts_with(['-', '@', '$', '{']);
            }
            Some("npm" | "pnpm" | "yarn") => self.runs_scripts = true,
            Some("exec") => self.runs_scripts = false,
            Some("--") => self.is_done = self.runs_scripts,
            Some("dragonfly") => self.is_dragonfly = true,
            _ => {}
        }
        self.is_done
    }
}

#[cfg(test)]
mod tests;
