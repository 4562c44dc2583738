//! What a container's command, arguments and environment say about the memory of its language runtime.
//!
//! They come in as the manifest has them and are read while the container is decoded; out goes at most one
//! [`MemorySetting`] for each thing that can be set, the one that counts. Nothing else of them is kept: a tenant may
//! write a megabyte.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use super::command_line::{Word, Work, expand, split};

/// Longer values are cut; no runtime reads one.
const LONGEST_VALUE: usize = 64;
/// Variables after these are not read.
const MOST_VARIABLES: usize = 1024;
/// So many variables can be compared for the price of one character.
const COMPARED_AT_ONCE: usize = 16;
/// How deep scripts in scripts are read.
const DEEPEST_SCRIPT: usize = 3;

/// What can be set. Two options that set the same thing share a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub enum MemoryOption {
    JavaMaxHeap,
    JavaMaxHeapSize,
    JavaInitialHeap,
    JavaInitialHeapSize,
    JavaMaxRamPercentage,
    JavaMaxRamFraction,
    GoMemoryLimit,
    NodeOldSpace,
    NodeOldSpacePercentage,
    DotnetHeapLimit,
    DotnetHeapLimitPercent,
}

/// Flags that hold their value, by how they begin.
const FLAGS: [(&str, MemoryOption); 8] = [
    ("-Xmx", MemoryOption::JavaMaxHeap),
    ("-Xms", MemoryOption::JavaInitialHeap),
    ("-XX:MaxHeapSize=", MemoryOption::JavaMaxHeapSize),
    ("-XX:InitialHeapSize=", MemoryOption::JavaInitialHeapSize),
    ("-XX:MaxRAMPercentage=", MemoryOption::JavaMaxRamPercentage),
    ("-XX:MaxRAMFraction=", MemoryOption::JavaMaxRamFraction),
    ("--max-old-space-size=", MemoryOption::NodeOldSpace),
    ("--max-old-space-size-percentage=", MemoryOption::NodeOldSpacePercentage),
];

/// Variables that are a setting themselves. .NET reads both prefixes.
const VARIABLES: [(&str, MemoryOption); 5] = [
    ("GOMEMLIMIT", MemoryOption::GoMemoryLimit),
    ("DOTNET_GCHeapHardLimit", MemoryOption::DotnetHeapLimit),
    ("COMPlus_GCHeapHardLimit", MemoryOption::DotnetHeapLimit),
    ("DOTNET_GCHeapHardLimitPercent", MemoryOption::DotnetHeapLimitPercent),
    ("COMPlus_GCHeapHardLimitPercent", MemoryOption::DotnetHeapLimitPercent),
];

impl MemoryOption {
    /// The option as people write it.
    pub fn name(self) -> &'static str {
        let mut names = FLAGS.iter().chain(&VARIABLES);
        let name = names.find(|(_, option)| *option == self);
        name.map_or("", |(name, _)| name.trim_end_matches('='))
    }

    /// The option that stands for all that set the same thing.
    const fn slot(self) -> Self {
        match self {
            Self::JavaMaxHeapSize => Self::JavaMaxHeap,
            Self::JavaInitialHeapSize => Self::JavaInitialHeap,
            Self::JavaMaxRamFraction => Self::JavaMaxRamPercentage,
            other => other,
        }
    }
}

/// Where a setting stands in the container's manifest.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum SettingSource {
    Command,
    Args,
    /// The variable of that name.
    Env(String),
}

impl std::fmt::Display for SettingSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Command => f.write_str("command"),
            Self::Args => f.write_str("args"),
            Self::Env(name) => write!(f, "env {name}"),
        }
    }
}

/// One setting that counts.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct MemorySetting {
    pub option: MemoryOption,
    pub source: SettingSource,
    /// As written, with references to variables replaced. `{…}` stands for what is known only when the container starts.
    pub value: String,
}

/// A variable of a container's environment.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Variable {
    name: String,
    value: String,
    value_from: Option<ValueFrom>,
}

/// A value that the manifest does not hold.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ValueFrom {
    resource_field_ref: Option<ResourceField>,
    config_map_key_ref: Option<KeyRef>,
    secret_key_ref: Option<KeyRef>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ResourceField {
    resource: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct KeyRef {
    name: String,
    key: String,
}

impl ValueFrom {
    fn placeholder(&self) -> String {
        let key = |kind: &str, from: &KeyRef| format!("{{{kind}:{}/{}}}", from.name, from.key);
        let field = self.resource_field_ref.as_ref();
        let field = field.map(|field| format!("{{{}}}", field.resource));
        let config_map = self.config_map_key_ref.as_ref().map(|from| key("ConfigMap", from));
        let secret = self.secret_key_ref.as_ref().map(|from| key("Secret", from));
        let known = field.or(config_map).or(secret);
        known.unwrap_or_else(|| "{unknown}".to_owned())
    }
}

/// A container's environment.
#[derive(Debug)]
pub(super) struct Variables<'a>(&'a [Variable]);

impl<'a> Variables<'a> {
    /// Of variables of one name the last, which is the one that the process gets, each with its index.
    fn last_of_each_name(&self) -> Vec<(usize, &'a Variable)> {
        let mut names = HashSet::new();
        let mut last: Vec<_> = self.0.iter().enumerate().collect();
        last.reverse();
        last.retain(|(_, variable)| names.insert(variable.name.as_str()));
        last.reverse();
        last
    }

    /// The value of the last variable of that name before `before`, with its own references replaced.
    pub(super) fn value(&self, name: &str, before: usize, work: &mut Work) -> Option<String> {
        let earlier = &self.0[..before.min(self.0.len())];
        if !work.spend(earlier.len() / COMPARED_AT_ONCE) {
            return None;
        }
        let index = earlier.iter().rposition(|variable| variable.name == name)?;
        Some(self.value_at(index, work))
    }

    fn value_at(&self, index: usize, work: &mut Work) -> String {
        let variable = &self.0[index];
        match &variable.value_from {
            Some(from) => from.placeholder(),
            None => expand(&variable.value, self, index, work),
        }
    }
}

/// The settings that count, in the order in which the runtimes read them.
pub(super) fn read(command: &[String], args: &[String], env: &[Variable]) -> Vec<MemorySetting> {
    let variables = Variables(&env[..env.len().min(MOST_VARIABLES)]);
    let mut reader = SettingsReader {
        variables: &variables,
        work: Work::default(),
        settings: Vec::new(),
    };
    let last = variables.last_of_each_name();
    // The JVM reads this one before the command line, and the other after it.
    reader.read_variables(&last, |name| name == "JAVA_TOOL_OPTIONS");
    reader.read_variables(&last, |name| !matches!(name, "JAVA_TOOL_OPTIONS" | "_JAVA_OPTIONS"));
    reader.read_command_line(command, args);
    reader.read_variables(&last, |name| name == "_JAVA_OPTIONS");
    reader.settings
}

struct SettingsReader<'a> {
    variables: &'a Variables<'a>,
    work: Work,
    settings: Vec<MemorySetting>,
}

impl SettingsReader<'_> {
    fn read_variables(&mut self, last: &[(usize, &Variable)], among: impl Fn(&str) -> bool) {
        for &(index, variable) in last {
            // A flag in a variable begins with a dash; only a reference can hide one.
            let is_setting = VARIABLES.iter().any(|(name, _)| *name == variable.name);
            let may_matter = is_setting || variable.value.contains(['-', '$']);
            if may_matter && among(&variable.name) {
                let value = self.variables.value_at(index, &mut self.work);
                let source = SettingSource::Env(variable.name.chars().take(LONGEST_VALUE).collect());
                self.read_variable(&variable.name, &value, &source);
            }
        }
    }

    /// Reads a variable that is a setting itself, or whose value is flags: start scripts read variables of any name.
    fn read_variable(&mut self, name: &str, value: &str, source: &SettingSource) {
        match VARIABLES.iter().find(|(variable, _)| *variable == name) {
            Some((_, option)) => self.add(*option, value, source),
            None if value.trim_start().starts_with(['-', '$', '"', '\'', '@']) => {
                // To Node a single quote is a character like any other.
                let escaped = (name == "NODE_OPTIONS").then(|| value.replace('\'', "\\'"));
                let words = split(escaped.as_deref().unwrap_or(value), &Variables(&[]), &mut self.work);
                self.read_words(all_from(source, words), 0);
            }
            None => {}
        }
    }

    fn read_command_line(&mut self, command: &[String], args: &[String]) {
        let command = command.iter().map(|word| (word, SettingSource::Command));
        let words = command.chain(args.iter().map(|word| (word, SettingSource::Args)));
        let mut expanded = Vec::new();
        for (word, source) in words {
            let word = expand(word, self.variables, usize::MAX, &mut self.work);
            expanded.push((Word::Text(word), source));
        }
        self.read_words(expanded, 0);
    }

    fn read_words(&mut self, words: Vec<(Word, SettingSource)>, depth: usize) {
        let mut program = Program::default();
        for (word, source) in words {
            let Word::Text(word) = word else {
                program = Program::default();
                continue;
            };
            if program.is_argument_of_application(&word) {
                continue;
            }
            if let Some(option) = program.awaited.take() {
                self.add(option, &word, &source);
            } else if let Some((option, value)) = flag(&word) {
                match value {
                    Some(value) => self.add(option, value, &source),
                    None => program.awaited = Some(option),
                }
            } else if word.contains(char::is_whitespace) && depth < DEEPEST_SCRIPT {
                let script = split(&word, self.variables, &mut self.work);
                self.read_words(all_from(&source, script), depth + 1);
            } else if let Some((name, value)) = word.split_once('=').filter(|(name, _)| is_name(name)) {
                self.read_variable(name, value, &source);
            }
        }
    }

    /// Keeps a setting; of several that set the same thing the last counts.
    fn add(&mut self, option: MemoryOption, value: &str, source: &SettingSource) {
        self.settings.retain(|setting| setting.option.slot() != option.slot());
        let mut shown: String = value.chars().take(LONGEST_VALUE).collect();
        if value.chars().nth(LONGEST_VALUE).is_some() {
            shown.push('…');
        }
        self.settings.push(MemorySetting {
            option,
            source: source.clone(),
            value: shown,
        });
    }
}

fn all_from(source: &SettingSource, words: Vec<Word>) -> Vec<(Word, SettingSource)> {
    words.into_iter().map(|word| (word, source.clone())).collect()
}

/// Whether a word before `=` is a variable's name.
fn is_name(word: &str) -> bool {
    !word.is_empty()
        && word
            .chars()
            .all(|character| character.is_ascii_alphanumeric() || character == '_')
}

/// The option of a flag, and its value unless that is the next word. V8 takes underscores for dashes.
fn flag(word: &str) -> Option<(MemoryOption, Option<&str>)> {
    if word.starts_with("--") {
        let (name, value) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (word, None),
        };
        let name = name.replace('_', "-") + "=";
        let (_, option) = FLAGS.iter().find(|(begins, _)| *begins == name)?;
        return Some((*option, value));
    }
    let (begins, option) = FLAGS.iter().find(|(begins, _)| word.starts_with(begins))?;
    let value = &word[begins.len()..];
    // OpenJ9 has flags such as -Xmso.
    let is_other_flag = !begins.ends_with('=') && value.starts_with(|first: char| first.is_ascii_alphabetic());
    (!is_other_flag).then_some((*option, Some(value)))
}

/// The program of a command, as far as it says which words are its own flags.
#[derive(Debug, Default)]
struct Program {
    runtime: Option<Launcher>,
    /// The next word belongs to the flag before it.
    skips_next: bool,
    /// The flag whose value is the next word.
    awaited: Option<MemoryOption>,
    /// The application begins after the next word, or has begun.
    application: Option<Begins>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Launcher {
    Java,
    Node,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Begins {
    WithNextWord,
    Before,
}

/// Flags of the launchers whose value is the next word.
const WITH_VALUE: [&str; 18] = [
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
        match self.application {
            Some(Begins::Before) => return true,
            Some(Begins::WithNextWord) => {
                self.application = Some(Begins::Before);
                return true;
            }
            None => {}
        }
        if std::mem::take(&mut self.skips_next) {
            return true;
        }
        match word.rsplit('/').next() {
            _ if self.awaited.is_some() => {}
            Some(script) if script.contains(char::is_whitespace) && self.runtime.is_none() => {}
            Some("java" | "javaw") => self.runtime = Some(Launcher::Java),
            Some("node" | "nodejs") => self.runtime = Some(Launcher::Node),
            _ if self.runtime.is_some() && WITH_VALUE.contains(&word) => self.skips_next = true,
            _ if word == "-jar" || (self.runtime == Some(Launcher::Java) && matches!(word, "-m" | "--module")) => {
                self.application = Some(Begins::WithNextWord);
            }
            // A class or a script; a reference that is not known here can be more flags.
            _ if self.runtime.is_some() && !word.starts_with(['-', '@', '$', '{']) => {
                self.application = Some(Begins::Before);
            }
            _ => {}
        }
        self.application.is_some()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::model::objects::Container;

    /// What is found, one line each.
    fn found(container: Value) -> Vec<String> {
        let container: Container = serde_json::from_value(container).unwrap();
        let lines = container.memory_settings.iter();
        lines
            .map(|setting| format!("{} {} {}", setting.source, setting.option.name(), setting.value))
            .collect()
    }

    #[test]
    fn flags_stand_in_words_and_in_scripts() {
        assert_eq!(
            found(json!({"command": ["java"], "args": ["-Xmx512m", "-Xms256m", "-jar", "app.jar"]})),
            ["args -Xmx 512m", "args -Xms 256m"]
        );
        let scripts = [
            "java -Xmx512m -jar app.jar",
            "exec \"java\" '-Xmx512m' App",
            "cd /app && exec java \\\n  -Xmx512m -jar a.jar 2>&1 | tee log",
            "# java -Xmx4g\njava -Xmx\"512m\" App",
            "su app -c 'java -Xmx512m App'",
            "ulimit -n 10; /usr/bin/java -cp lib -Xmx512m App -Xmx9g",
        ];
        for script in scripts {
            let container = json!({"command": ["/bin/sh", "-ec"], "args": [script]});
            assert_eq!(found(container), ["args -Xmx 512m"], "{script}");
        }
    }

    #[test]
    fn the_last_flag_counts_in_the_order_in_which_the_runtime_reads() {
        let java = |name: &str| json!({"name": name, "value": format!("-Xmx{}m -Xms1m", name.len())});
        let all = ["_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS"].map(java);
        let container = json!({"command": ["java", "-Xmx1g", "-XX:MaxHeapSize=2g", "App"], "env": all});
        assert_eq!(
            found(container),
            ["env _JAVA_OPTIONS -Xmx 13m", "env _JAVA_OPTIONS -Xms 1m"]
        );
        let container = json!({"command": ["java", "-Xmx1g", "-XX:MaxHeapSize=2g", "App"], "env": all[1..]});
        assert!(found(container).contains(&"command -XX:MaxHeapSize 2g".to_owned()));
    }

    #[test]
    fn what_the_application_gets_is_not_the_runtimes() {
        for words in [
            json!(["java", "-jar", "app.jar", "-Xmx1g"]),
            json!(["java", "-cp", "x", "Main", "-Xmx1g"]),
            json!(["java", "-m", "module/Main", "-Xmx1g"]),
            json!(["node", "-r", "dotenv", "server.js", "--max-old-space-size=100"]),
        ] {
            assert_eq!(found(json!({"command": words})), [""; 0]);
        }
    }

    #[test]
    fn node_takes_underscores_and_a_word_of_its_own() {
        for words in [
            json!(["node", "--max-old-space-size=4096", "server.js"]),
            json!(["node", "--max_old_space_size=4096", "server.js"]),
            json!(["node", "--max-old-space-size", "4096", "server.js"]),
        ] {
            assert_eq!(
                found(json!({ "command": words })),
                ["command --max-old-space-size 4096"]
            );
        }
        let env = json!([{"name": "NODE_OPTIONS", "value": "--inspect --max-old-space-size=300"}]);
        assert_eq!(
            found(json!({ "env": env })),
            ["env NODE_OPTIONS --max-old-space-size 300"]
        );
    }

    #[test]
    fn variables_are_replaced_as_kubelet_and_shell_do() {
        let env = json!([
            {"name": "SIZE", "value": "700"},
            {"name": "HEAP", "value": "$(SIZE)m"},
            {"name": "OPTS", "value": "-Xms1m -Xmx$(HEAP)"},
            {"name": "LIMIT", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}}},
            {"name": "MAP", "valueFrom": {"configMapKeyRef": {"name": "app", "key": "heap"}}},
        ]);
        for (word, value) in [
            ("-Xmx$(HEAP)", "700m"),
            ("-Xmx$(LIMIT)m", "{limits.memory}m"),
            ("-Xmx$(MAP)", "{ConfigMap:app/heap}"),
            ("-Xmx$$(HEAP)", "$(HEAP)"),
            ("-Xmx$(GONE)", "$(GONE)"),
        ] {
            let settings = found(json!({"args": [word], "env": env}));
            assert!(settings.contains(&format!("args -Xmx {value}")), "{word}: {settings:?}");
        }
        for (script, value) in [
            ("java $OPTS App", "700m"),
            ("java -Xmx${HEAP} App", "700m"),
            ("java \"-Xmx${GONE:-12m}\" App", "12m"),
            ("java '-Xmx$HEAP' App", "$HEAP"),
            ("java -Xmx$((LIMIT / 2))m App", "$((LIMIT / 2))m"),
            ("export JAVA_TOOL_OPTIONS=\"-Xmx9m\"; java App", "9m"),
        ] {
            let settings = found(json!({"command": ["sh", "-c", script], "env": env}));
            assert!(
                settings.contains(&format!("command -Xmx {value}")),
                "{script}: {settings:?}"
            );
        }
    }

    #[test]
    fn variables_that_are_settings_are_read_wherever_they_are_set() {
        let env = json!([
            {"name": "GOMEMLIMIT", "value": "1GiB"},
            {"name": "GOMEMLIMIT", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory"}}},
            {"name": "COMPlus_GCHeapHardLimit", "value": "20000000"},
        ]);
        assert_eq!(
            found(json!({ "env": env })),
            [
                "env GOMEMLIMIT GOMEMLIMIT {limits.memory}",
                "env COMPlus_GCHeapHardLimit DOTNET_GCHeapHardLimit 20000000"
            ]
        );
        let script = json!({"command": ["sh", "-c", "GOMEMLIMIT=300MiB ./server"]});
        assert_eq!(found(script), ["command GOMEMLIMIT 300MiB"]);
    }

    #[test]
    fn quotes_files_and_white_space_are_what_the_runtime_takes_them_for() {
        let of = |name: &str, value: &str| found(json!({"env": [{"name": name, "value": value}]}));
        for (name, value, setting) in [
            (
                "NODE_OPTIONS",
                "\"--max-old-space-size=512\"",
                "--max-old-space-size 512",
            ),
            (
                "NODE_OPTIONS",
                "--require \"/my app.js\" --max-old-space-size=512",
                "--max-old-space-size 512",
            ),
            (
                "NODE_OPTIONS",
                "--max-old-space-size='512'",
                "--max-old-space-size '512'",
            ),
            ("JAVA_TOOL_OPTIONS", "'-Xmx512m'", "-Xmx 512m"),
            ("JDK_JAVA_OPTIONS", "@/opt/jvm.args -Xmx512m", "-Xmx 512m"),
            ("GOMEMLIMIT", " 512MiB", "GOMEMLIMIT  512MiB"),
            ("GOMEMLIMIT", "512MiB\n", "GOMEMLIMIT 512MiB\n"),
        ] {
            assert_eq!(of(name, value), [format!("env {name} {setting}")]);
        }
        let script = "JAVA_OPTS=\"-Xmx$(free -m | awk '{print $2}')m\" exec /start.sh";
        let settings = found(json!({"command": ["sh", "-c", script]}));
        assert!(settings[0].starts_with("command -Xmx $(free -m"), "{settings:?}");
    }

    #[test]
    fn references_that_multiply_end() {
        let level =
            |level: usize| json!({"name": format!("L{level}"), "value": format!("$(L{0})", level - 1).repeat(50)});
        let mut env: Vec<Value> = (1..40).map(level).collect();
        env.insert(0, json!({"name": "L0", "value": ""}));
        let container = json!({"args": ["-Xmx$(L39)", "-Xms1m"], "env": env});
        assert!(found(container).len() <= 2);
    }

    proptest! {
        #[test]
        fn anything_is_read_and_little_kept(
            words in prop::collection::vec(r#"(-Xm[xs]|--max-old-space-size=?|sh|java|-c|\$|\(|\)|\{|\}|'|"|\\|#|A|=| |é|[0-9]){0,30}"#, 0..6),
            values in prop::collection::vec(r#"(\$\(A\)|\$\(B\)|-Xmx|'|\$\{A:-|[0-9]| ){0,20}"#, 0..4),
        ) {
            let names = ["A", "B", "GOMEMLIMIT", "JAVA_OPTS"];
            let env: Vec<Value> = names.iter().zip(&values).map(|(name, value)| json!({"name": name, "value": value})).collect();
            let container = json!({"command": words, "args": values, "env": env});
            let container: Container = serde_json::from_value(container).unwrap();
            prop_assert!(container.memory_settings.len() <= 8);
            for setting in &container.memory_settings {
                prop_assert!(setting.value.chars().count() <= LONGEST_VALUE + 1);
            }
        }
    }
}
