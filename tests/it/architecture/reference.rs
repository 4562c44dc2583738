//! The table in docs/rbac.md and the lists in docs/protocol.md are generated from the manifests and the protocol files, the last
//! table of docs/troubleshooting.md from the reasons of decisions, that of deploy/helm/README.md from the chart's schema.
//! docs/events.md has the reason of every Event.
//!
//! `VSCALED_WRITE_DOCS=1 cargo test --test it reference` regenerates them. The tests of `config` and of the metrics
//! check docs/configuration.md and docs/metrics.md.

use std::collections::BTreeSet;
use std::fs;

use serde_json::Value;
use vscaled::model::Reason;

use super::{code_of, root, rust_files};

/// The generated part of a page is between these lines.
const BEGIN: &str = "<!-- generated: VSCALED_WRITE_DOCS=1 cargo test --test it reference -->";
const END: &str = "<!-- end of what is generated -->";

#[test]
fn the_reference_of_rights_is_what_the_manifests_grant() {
    let made = [
        "| group | resources | verbs | what for |".to_owned(),
        "|---|---|---|---|".to_owned(),
    ];
    let rows = rules().into_iter().map(|rule| rule.row());
    compare("docs/rbac.md", &made.into_iter().chain(rows).collect::<Vec<_>>());
}

#[test]
fn the_reference_of_overlays_is_what_they_patch() {
    let page = fs::read_to_string(root().join("docs/rbac.md")).unwrap();
    for (deployed, patched) in [
        ("deploy/base", None),
        ("overlays/legacy", Some("legacy")),
        ("overlays/boost", Some("boost")),
    ] {
        let mut resources: Vec<String> = rules()
            .into_iter()
            .filter(|rule| rule.verbs == ["patch"])
            .flat_map(|rule| rule.resources)
            .collect();
        if let Some(overlay) = patched {
            patch(&mut resources, overlay);
        }
        let row = format!("| `{deployed}` | {} |", quoted(&resources));
        assert!(page.contains(&row), "docs/rbac.md does not say {row}");
    }
}

#[test]
fn the_rights_to_install_name_every_kind() {
    let read = |path: &str| fs::read_to_string(root().join(path)).unwrap();
    let page = read("docs/rbac.md").to_lowercase();
    let row = page.lines().find(|line| line.starts_with("| install | ")).unwrap();
    let base: Value = serde_saphyr::from_str(&read("deploy/base/kustomization.yaml")).unwrap();
    for file in base["resources"].as_array().unwrap() {
        let text = read(&format!("deploy/base/{}", file.as_str().unwrap()));
        let objects: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
        for object in objects {
            let kind = object["kind"].as_str().unwrap().to_lowercase();
            assert!(row.contains(&kind), "docs/rbac.md lacks {kind}: {row}");
        }
    }
    // The chart looks for another release, wherever it is.
    let check = read("deploy/helm/templates/_check.tpl");
    assert!(check.contains(r#"(lookup "apps/v1" "DaemonSet" "" "")"#), "{check}");
    assert!(row.contains("list daemonsets of all namespaces"), "{row}");
}

#[test]
fn the_reference_of_the_protocol_is_what_the_protocol_files_say() {
    let mut made = Vec::new();
    for file in ["control", "report"] {
        let path = format!("proto/vscaled/{file}/v1/{file}.proto");
        made.push(format!("## `vscaled.{file}.v1`"));
        made.push(String::new());
        made.push(format!("From [{path}](../{path})."));
        made.extend(described(&fs::read_to_string(root().join(&path)).unwrap()));
        made.push(String::new());
    }
    made.pop();
    compare("docs/protocol.md", &made);
}

#[test]
fn the_charts_readme_is_what_its_schema_says() {
    let read = |name: &str| fs::read_to_string(root().join("deploy/helm").join(name)).unwrap();
    let schema: Value = serde_json::from_str(&read("values.schema.json")).unwrap();
    let defaults: Value = serde_saphyr::from_str(&read("values.yaml")).unwrap();
    let mut made = vec!["| value | default | meaning |".to_owned(), "|---|---|---|".to_owned()];
    chart_values("", &schema, &defaults, &mut made);
    compare("deploy/helm/README.md", &made);
}

/// A row for each value that has no values below it.
fn chart_values(path: &str, schema: &Value, defaults: &Value, rows: &mut Vec<String>) {
    for (name, value) in schema["properties"].as_object().unwrap() {
        let (path, default) = (format!("{path}{name}"), &defaults[name]);
        if value.get("properties").is_some() && value.get("additionalProperties").is_none() {
            chart_values(&format!("{path}."), value, default, rows);
            continue;
        }
        let allowed = value["enum"].as_array().map_or_else(String::new, |allowed| {
            let allowed: Vec<_> = allowed.iter().map(|value| format!("`{value}`")).collect();
            format!(" One of {}.", allowed.join(", "))
        });
        let default = if default.is_null() {
            String::new()
        } else {
            format!("`{default}`")
        };
        let meaning = value["description"].as_str().unwrap();
        rows.push(format!("| `{path}` | {default} | {meaning}{allowed} |"));
    }
}

#[test]
fn a_protocol_file_becomes_lists() {
    let text = "// Head.\nsyntax = \"proto3\";\n\n// Serves.\nservice S {\n  // Asks\n  // twice.\n  rpc Ask(Q) returns (stream A);\n}\n\n\
        message Q {}\n\nmessage A {\n  oneof a {\n    // One.\n    optional string b = 1;\n  }\n  map<string, C> c = 2;\n  \
        bool d = 3;\n}\n\nenum C {\n  // None.\n  NONE = 0;\n}\n";
    let expected = "\n### Service S\n\nServes.\n\n- `Ask` (`Q` → `stream A`): Asks twice.\n\n### Q\n\nHas no fields.\n\n### A\n\n\
        - `b` (optional string): One.\n- `c` (map<string, C>), `d` (bool)\n\n### C\n\n- `NONE` (0): None.";
    assert_eq!(described(text).join("\n"), expected);
}

#[test]
fn the_reference_of_decisions_is_what_the_agent_decides() {
    let made = ["| decision | meaning |".to_owned(), "|---|---|".to_owned()];
    let rows = Reason::ALL.iter().map(|reason| {
        let meaning = reason.meaning();
        assert!(!meaning.contains('|'), "{meaning}");
        format!("| {}: {reason} | {meaning} |", reason.action())
    });
    compare(
        "docs/troubleshooting.md",
        &made.into_iter().chain(rows).collect::<Vec<_>>(),
    );
}

#[test]
fn the_reference_of_events_has_every_reason() {
    let page = fs::read_to_string(root().join("docs/events.md")).unwrap();
    let mut reasons = BTreeSet::new();
    for file in rust_files("src") {
        let code = code_of(&file);
        let strings = code.split('"').skip(1).step_by(2).filter(|text| is_reason(text));
        reasons.extend(strings.map(str::to_owned));
    }
    assert!(reasons.len() > 8, "read only {reasons:?}");
    for reason in reasons {
        assert!(
            page.contains(&format!("| `{reason}` | ")),
            "docs/events.md lacks {reason}"
        );
    }
}

/// Whether a string in the code is the reason of an Event.
fn is_reason(text: &str) -> bool {
    let is_one = |rest: &str| rest.starts_with(char::is_uppercase) && rest.chars().all(char::is_alphanumeric);
    let mut prefixes = ["Resize", "Resources", "Temporary"].into_iter();
    prefixes.any(|prefix| text.strip_prefix(prefix).is_some_and(is_one)) || ["OOMKilled", "Evicted"].contains(&text)
}

/// A rule of the agent's ClusterRole, with the comment before it.
struct Rule {
    group: String,
    resources: Vec<String>,
    verbs: Vec<String>,
    comment: String,
}

impl Rule {
    fn row(&self) -> String {
        let group = if self.group.is_empty() {
            "core"
        } else {
            self.group.as_str()
        };
        format!(
            "| {group} | {} | {} | {} |",
            quoted(&self.resources),
            self.verbs.join(", "),
            self.comment.replace('|', "\\|")
        )
    }
}

/// The rules of deploy/base/rbac.yaml. A YAML parser drops comments, so a line-based search finds them.
fn rules() -> Vec<Rule> {
    let text = fs::read_to_string(root().join("deploy/base/rbac.yaml")).unwrap();
    let objects: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
    let role = objects.iter().find(|object| object["kind"] == "ClusterRole").unwrap();
    let words = |list: &Value| -> Vec<String> { serde_json::from_value(list.clone()).unwrap() };
    let (mut comments, mut comment) = (Vec::new(), Vec::new());
    for line in text.lines() {
        match line.strip_prefix("  # ") {
            Some(words) => comment.push(words),
            None if line.starts_with("  - apiGroups:") => {
                comments.push(std::mem::take(&mut comment).join(" "));
            }
            None => {}
        }
    }
    let rules = role["rules"].as_array().unwrap();
    assert_eq!(rules.len(), comments.len());
    let mut previous = String::new();
    let with_comment = rules.iter().zip(comments).map(|(rule, comment)| {
        // One comment may precede several rules.
        if !comment.is_empty() {
            previous = comment;
        }
        let [group] = words(&rule["apiGroups"]).try_into().unwrap();
        Rule {
            group,
            resources: words(&rule["resources"]),
            verbs: words(&rule["verbs"]),
            comment: previous.clone(),
        }
    });
    with_comment.collect()
}

/// Applies an overlay's patch to the resources of a rule.
fn patch(resources: &mut Vec<String>, overlay: &str) {
    let path = format!("deploy/overlays/{overlay}/rights.yaml");
    let steps: Vec<Value> = serde_saphyr::from_str(&fs::read_to_string(root().join(path)).unwrap()).unwrap();
    for step in steps {
        let (_, index) = step["path"].as_str().unwrap().rsplit_once('/').unwrap();
        let (index, value) = (index.parse().unwrap(), step["value"].as_str().unwrap().to_owned());
        match step["op"].as_str().unwrap() {
            "test" => assert_eq!(resources[index], value),
            "add" => resources.insert(index, value),
            "replace" => resources[index] = value,
            other => panic!("{other} is not known here"),
        }
    }
}

fn quoted(words: &[String]) -> String {
    let quoted: Vec<_> = words.iter().map(|word| format!("`{word}`")).collect();
    quoted.join(", ")
}

/// The kind of the current block.
#[derive(Clone, Copy, PartialEq)]
enum Block {
    Service,
    Message,
    Enumeration,
}

/// The reference of a protocol file as lines: a heading, the comment and a list for each block.
fn described(text: &str) -> Vec<String> {
    let (mut lines, mut comment) = (Vec::<String>::new(), Vec::new());
    let mut block = None;
    // Whether the last line is an entry without a comment, which the next such entry continues.
    let mut is_open = false;
    for line in text.lines().map(str::trim) {
        if let Some(words) = line.strip_prefix("//") {
            comment.push(words.trim());
            continue;
        }
        let said = std::mem::take(&mut comment).join(" ");
        let words: Vec<&str> = line.trim_end_matches(';').split_whitespace().collect();
        let (begun, name) = match words.as_slice() {
            ["service", name, ..] => (Block::Service, format!("Service {name}")),
            ["message", name, ..] => (Block::Message, (*name).to_owned()),
            ["enum", name, ..] => (Block::Enumeration, (*name).to_owned()),
            _ => {
                let Some(entry) = block.and_then(|block| entry(block, line)) else {
                    continue;
                };
                match lines.last_mut() {
                    Some(last) if is_open && said.is_empty() => last.push_str(&format!(", {entry}")),
                    _ if said.is_empty() => lines.push(format!("- {entry}")),
                    _ => lines.push(format!("- {entry}: {said}")),
                }
                is_open = said.is_empty();
                continue;
            }
        };
        block = Some(begun);
        is_open = false;
        lines.extend([String::new(), format!("### {name}"), String::new()]);
        if !said.is_empty() {
            lines.extend([said, String::new()]);
        }
        if line.ends_with("{}") {
            lines.push("Has no fields.".to_owned());
        }
    }
    lines
}

/// A call, a field or a value; `None` for other lines. The number of a field stands in the protocol file alone.
fn entry(block: Block, line: &str) -> Option<String> {
    if block == Block::Service {
        let (name, rest) = line.strip_prefix("rpc ")?.split_once('(')?;
        let (takes, answers) = rest.trim_end_matches(");").split_once(") returns (")?;
        return Some(format!("`{name}` (`{takes}` → `{answers}`)"));
    }
    let (declared, number) = line.strip_suffix(';')?.split_once(" = ")?;
    Some(match declared.rsplit_once(' ') {
        Some((kind, name)) => format!("`{name}` ({kind})"),
        None => format!("`{declared}` ({number})"),
    })
}

/// Compares the generated part of a page, or writes it.
fn compare(page: &str, made: &[String]) {
    let path = root().join(page);
    let text = fs::read_to_string(&path).unwrap();
    let (head, rest) = text.split_once(BEGIN).unwrap();
    let (held, tail) = rest.split_once(END).unwrap();
    let made = format!("\n\n{}\n\n", made.join("\n"));
    if std::env::var_os("VSCALED_WRITE_DOCS").is_some() {
        fs::write(path, format!("{head}{BEGIN}{made}{END}{tail}")).unwrap();
        return;
    }
    assert_eq!(held, made, "{page} is not what is generated");
}
