//! The values that the chart takes below `config`: its schema is made from the words with which the agent refuses a value.
//! `VSCALED_WRITE_DOCS=1` writes it anew.

use std::fs;

use regex_lite::Regex;
use serde_json::{Value, json};

use super::parse::{ADDRESS, ENDPOINT};
use super::tests::{load, refusal};
use super::{KEYS, Key};
use crate::model::Bytes;

const SCHEMA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/helm/values.schema.json");

/// The JSON values of a key, which may be more than the agent takes, and never less: the ends of a range of durations, or of amounts
/// with a unit, are left to the agent.
#[derive(Default)]
struct Notation {
    types: Vec<&'static str>,
    /// Regular expressions; a text matches one of them as a whole.
    texts: Vec<String>,
    /// The least and the largest number.
    numbers: Option<[Value; 2]>,
}

impl Notation {
    fn of(key: &Key) -> Self {
        let mut notation = Self::default();
        match load(&[&format!("{}=\u{1}", key.flag())]) {
            Ok(_) => {
                notation.types.extend(["array", "boolean", "number"]);
                notation.texts.push(".*".to_owned());
            }
            Err(refused) => {
                let refused = refused.to_string();
                let (_, allowed) = refused.split_once("is refused: it must be ").unwrap();
                allowed.split(", or ").for_each(|words| notation.add(words));
                // No refusal names the kubelet's notation of a socket.
                let is_path = notation.texts.iter().any(|text| text == "/.*");
                if is_path && load(&[&format!("{}=unix:///a", key.flag())]).is_ok() {
                    notation.texts.push("unix:///.*".to_owned());
                }
            }
        }
        notation
    }

    /// Adds what one of the alternatives in a refusal means.
    fn add(&mut self, words: &str) {
        let names: Vec<&str> = words.split(", ").flat_map(|names| names.split(" or ")).collect();
        if words != "empty"
            && names
                .iter()
                .all(|name| name.bytes().all(|byte| byte.is_ascii_alphabetic()))
        {
            self.types.extend(names.contains(&"true").then_some("boolean"));
            return self.texts.extend(names.into_iter().map(str::to_owned));
        }
        let (what, range) = words.split_once(" from ").unwrap_or((words, ""));
        let range = range.split_once(" to ");
        let text = match what {
            "empty" => String::new(),
            "a number" => {
                self.types.push("number");
                self.numbers = range.map(|(least, most)| [least, most].map(|bound| bound.parse().unwrap()));
                r"[-+.0-9Ee]+".to_owned()
            }
            "an amount" | "an amount of memory such as 512Mi" => {
                self.types.push("number");
                let bytes = |bound: &str| json!(bound.parse::<Bytes>().unwrap().get());
                self.numbers = range.map(|(least, most)| [least, most].map(bytes));
                r"\s*\+?[.0-9]+([numkMGTPE]|[KMGTPE]i|[Ee][-+]?[0-9]+)?\s*".to_owned()
            }
            "a whole percentage" => "0*(100|[0-9]{1,2})%".to_owned(),
            "a duration" => ".*[0-9].*[A-Za-z:].*".to_owned(),
            "an absolute path or `syslog`" => "/.*|syslog".to_owned(),
            path if path.starts_with("an absolute path") || path.starts_with("a path below") => "/.*".to_owned(),
            "a version such as 1.36" => {
                self.types.push("number");
                "v?[+0-9].*".to_owned()
            }
            "the name or number of a group" => {
                self.types.extend(["boolean", "number"]);
                "[-A-Za-z0-9_.@$]*".to_owned()
            }
            name if name.starts_with("a name of at most 253 lower case letters") => {
                self.types.extend(["boolean", "number"]);
                "[-.a-z0-9]+".to_owned()
            }
            ADDRESS => r"([0-9.]+|\[[0-9A-Fa-f:.%]+\]):[0-9]+".to_owned(),
            ENDPOINT => "[A-Za-z]+://.+".to_owned(),
            "directives such as info,vscaled::plan=debug" => {
                self.types.push("array");
                let directive = format!(r"\s*({}|[^,=]*=[^,]+)\s*", self.texts.join("|"));
                format!("{directive}(,{directive})*")
            }
            list => {
                self.types.push("array");
                let member = match list.strip_prefix("a list, which may be empty, of ").unwrap() {
                    names if names.starts_with("the namespaces whose pods may use hooks") => {
                        self.types.push("number");
                        "[-a-z0-9]+|\\*".to_owned()
                    }
                    names => names.replace(", ", "|").replace(" or ", "|"),
                };
                format!(r"[\s,]*(({member})\s*(,[\s,]*|$))*")
            }
        };
        self.texts.push(text);
    }

    fn schema(&self, key: &Key) -> Value {
        let pattern = format!("^({})$", self.texts.join("|"));
        let types: Vec<_> = self.types.iter().copied().chain(["null", "string"]).collect();
        let mut schema = json!({"description": key.meaning, "type": types, "pattern": pattern});
        if types.contains(&"array") {
            schema["items"] = json!({"type": "string", "pattern": pattern});
        }
        if let Some([least, most]) = &self.numbers {
            (schema["minimum"], schema["maximum"]) = (least.clone(), most.clone());
        }
        schema
    }
}

/// A line of the schema for each key.
fn lines() -> Vec<String> {
    let line = |key: &Key| format!("        {}: {}", json!(key.name), Notation::of(key).schema(key));
    let lines: Vec<_> = KEYS.iter().map(line).collect();
    lines.join(",\n").lines().map(str::to_owned).collect()
}

#[test]
fn the_chart_has_every_key_with_its_values() {
    let text = fs::read_to_string(SCHEMA).unwrap();
    let is_before = |line: &&str| !line.contains("\"AgentConfiguration\"");
    let begin = text.lines().take_while(is_before).count() + 1;
    let is_key = |line: &&str| line.starts_with("        \"");
    let end = begin + text.lines().skip(begin).take_while(is_key).count();
    let lines = lines();
    if std::env::var_os("VSCALED_WRITE_DOCS").is_some() {
        let (head, tail) = (text.lines().take(begin), text.lines().skip(end));
        let all: Vec<_> = head.chain(lines.iter().map(String::as_str)).chain(tail).collect();
        fs::write(SCHEMA, all.join("\n") + "\n").unwrap();
        return;
    }
    assert_eq!(text.lines().skip(begin).take(end - begin).collect::<Vec<_>>(), lines);
}

#[test]
fn the_chart_takes_what_the_agent_takes() {
    let others = [
        "true",
        "false",
        "auto",
        "none",
        "keep",
        "empty",
        "0",
        "1",
        "0.5",
        "1.36",
        "v1.30.2-gke.1",
        "100%",
        "007%",
        "1.5Gi",
        "1e3",
        " 64Mi",
        "PT1H",
        "1 hour 30 minutes",
        "500us",
        "/a b",
        "unix:///run/a.sock",
        "https://host:1",
        "[fe80::1%3]:80",
        "node-1.example",
        "root",
        "info,debug",
        "off",
        "info, vscaled::plan = debug",
        "h2=trace",
        "InPlace",
        " Auto , InPlace,",
        "shop,*",
        "kube-system",
    ];
    for key in &*KEYS {
        let schema = Notation::of(key).schema(key);
        let pattern = Regex::new(schema["pattern"].as_str().unwrap()).unwrap();
        let has_type = |name: &str| schema["type"].as_array().unwrap().iter().any(|taken| taken == name);
        let mut taken = 0;
        for text in others.into_iter().chain([key.default.as_str()]) {
            let is_refused = load(&[&format!("{}={text}", key.flag())])
                .is_err_and(|error| error.to_string().contains(&format!("{}: ", key.name)));
            if is_refused {
                continue;
            }
            taken += 1;
            assert!(pattern.is_match(text), "{}: {text:?}, {pattern}", key.name);
            // In YAML without quotes, and as a list.
            let scalar = match serde_json::from_str(text) {
                Ok(Value::Number(_)) => "number",
                Ok(Value::Bool(_)) => "boolean",
                _ => "string",
            };
            assert!(has_type(scalar), "{}: {text:?} as a {scalar}", key.name);
            let is_list = has_type("array") && text.split(',').all(|member| pattern.is_match(member));
            assert!(is_list || !text.contains(','), "{}: {text:?} as a list", key.name);
        }
        assert!(taken > 0, "{}", key.name);
    }
}

#[test]
fn the_chart_refuses_what_no_agent_takes() {
    for (name, text) in [
        ("guardReserve", "200%"),
        ("logLevel", "loud"),
        ("updateModes", "Off"),
        ("workers", "many"),
        ("sweepInterval", "30"),
        ("auditLogSize", "10MB"),
        ("source", "etcd"),
        ("observeOnly", "maybe"),
        ("cgroupDriver", "runc"),
        ("hooks", "Shop"),
        ("socket", "unix:///run/vscaled/a.sock"),
    ] {
        let key = KEYS.iter().find(|key| key.name == name).unwrap();
        assert!(refusal(&[&format!("{}={text}", key.flag())]).starts_with(name));
        let schema = Notation::of(key).schema(key);
        let pattern = Regex::new(schema["pattern"].as_str().unwrap()).unwrap();
        assert!(!pattern.is_match(text), "{name}: {text}");
    }
}
