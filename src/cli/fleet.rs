//! `vscalectl fleet`: makes one answer of the answers of many nodes, which `kubectl vscale` collects.
//!
//! In comes, for each node, a line with its name, an exit code and two numbers, then so many bytes of what the command printed on
//! standard output (JSON) and on standard error. Out goes one document or one table, in which each item names its node, and then the
//! nodes that did not answer, with their reasons. Agents may be of other versions: unknown fields stay in JSON, missing ones are unset.
//! A node that prints something else counts as one without an answer, and changes nothing about the other nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, Read, stdin};

use anyhow::{Context as _, anyhow};
use clap::{Args, Parser as _};
use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::output::{Format, Output};
use super::page::{Page, Tone, toned};
use super::table::Table;
use super::{Cli, Command, Failure, NO_AGENT, REFUSED, change, doctor, explain, io, oom, top};
use crate::control::proto::{Change, Check, ExplainReply, OomKill, Pod, WorkloadWorth};
use crate::model::OBSERVING;

/// The exit code where some nodes answered and others did not.
const INCOMPLETE: u8 = 4;
/// The longest answer of one node, in bytes.
const LONGEST_ANSWER: u64 = 64 << 20;
/// The longest first line of an answer, in bytes.
const LONGEST_HEADER: u64 = 1 << 10;

/// Makes one answer of the answers of many nodes on standard input; `kubectl vscale` runs it
#[derive(Debug, Args)]
#[command(hide = true)]
pub(super) struct Arguments {
    /// The amount by which top sorts nodes and workloads
    #[arg(long, value_enum, default_value_t)]
    sort: top::Sort,
    /// Print for a terminal with so many lines and columns
    #[arg(long, value_names = ["LINES", "COLUMNS"], num_args = 2)]
    screen: Option<Vec<usize>>,
    /// The command whose answers come
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

/// Errors: no node answered, one did not, a check of one fails, or the command is none for many nodes.
pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let words = std::iter::once("vscalectl").chain(arguments.command.iter().map(String::as_str));
    let Cli { command, .. } = Cli::try_parse_from(words).unwrap_or_else(|error| error.exit());
    if let Some([lines, columns]) = arguments.screen.as_deref() {
        io::print_for_screen(*lines, *columns);
    }
    let mut fleet = Fleet::default();
    let shown = match &command {
        Command::Doctor(output) => fleet.show(output, "checks", |checks: Items<Check>| doctor::of_nodes(&checks)),
        Command::Explain(explain) => fleet.show(&explain.output, "pods", |replies: Items<ExplainReply>| {
            let shown = replies.iter().map(|(node, reply)| {
                let title = toned(Tone::Title, format!("node {node}"));
                Page::from(title).then(explain::render(reply))
            });
            Page::joined(shown).or("no such pod is known")
        }),
        Command::Export(export) => fleet
            .items("pods")
            .and_then(|pods: Items<Pod>| export.print(pods.into_iter().map(|(_, pod)| pod).collect())),
        Command::Get(get) => {
            let (list, empty, table) = get.list();
            fleet.show(&get.output, list, |pods: Items<Pod>| {
                rows(pods, |_| "", table).or(empty)
            })
        }
        Command::History(history) => fleet.show(&history.output, "changes", |changes: Items<Change>| {
            rows(changes, |change| &change.at, change::table).or(change::NONE)
        }),
        Command::Oom(oom::Command::List(list)) => fleet.show(&list.output, "kills", |kills: Items<OomKill>| {
            rows(kills, |kill| &kill.time, oom::table).or(oom::NONE)
        }),
        Command::Report(report) => fleet.items("workloads").and_then(|workloads: Items<WorkloadWorth>| {
            let workloads = workloads.into_iter().map(|(_, workload)| workload);
            report.print_sums(fleet.since, workloads)
        }),
        Command::Top(of) => fleet.show(&of.output, "usage", |lines: Items<top::Line>| {
            // Two tables with their titles, an empty line between them, and one for the cursor.
            let rows = io::lines().map_or(usize::MAX, |lines| (lines.saturating_sub(4) / 2).max(1));
            top::of_nodes(&lines, arguments.sort, rows)
        }),
        _ => Err(Failure::usage(anyhow!(
            "this command is for one node: say which with --node NODE"
        ))),
    };
    match (shown, fleet.end()) {
        // What is missing may be on a node that did not answer, unless the answer could not be written.
        (Err(Failure { code: REFUSED, error }), Err(end)) if !error.is::<std::io::Error>() => Err(Failure {
            code: end.code,
            error: error.context(end.error),
        }),
        (shown, end) => shown.and(end),
    }
}

/// Items of the answers, each with the name of its node.
pub(super) type Items<T> = Vec<(String, T)>;

/// The name of a node, the items of its list, and the rest of its answer.
type List<T> = (String, Vec<T>, Map<String, Value>);

/// One table of all items, oldest first, with a column for the node.
fn rows<T>(mut items: Items<T>, at: fn(&T) -> &str, table: fn(&[T]) -> Table) -> Table {
    items.sort_by_cached_key(|(_, item)| at(item).parse::<Timestamp>().ok());
    let mut all = table(&[]).after("NODE", "");
    for (node, item) in &items {
        all.append(table(std::slice::from_ref(item)).after("NODE", node));
    }
    all
}

/// What is known of the answers that were read.
#[derive(Default)]
struct Fleet {
    /// The nodes that were asked, up to here.
    nodes: usize,
    /// Those that answered and ended with a failure, as `doctor` does where a check fails.
    failing: usize,
    /// The earliest start of counts of those that answered.
    since: Option<Timestamp>,
    /// The nodes without an answer, by the reason.
    unanswered: BTreeMap<String, BTreeSet<String>>,
}

impl Fleet {
    /// The list of that name from each answer. A node that prints something else did not answer.
    ///
    /// Errors: the input ends early or has another form.
    fn lists<T: DeserializeOwned>(&mut self, name: &str) -> Result<Vec<List<T>>, Failure> {
        let mut lists = Vec::new();
        loop {
            let mut header = String::new();
            let read = stdin().lock().take(LONGEST_HEADER).read_line(&mut header);
            if read.context("cannot read the answers").map_err(Failure::usage)? == 0 {
                return Ok(lists);
            }
            let unusable = || Failure::usage(anyhow!("{header:?} is not the first line of a node's answer"));
            let fields: Vec<&str> = header.split_whitespace().collect();
            let [node, code, output, errors] = fields.as_slice() else {
                return Err(unusable());
            };
            let output = read_input(output).ok_or_else(unusable)?;
            let errors = read_input(errors).ok_or_else(unusable)?;
            self.nodes += 1;
            let why = match list_in(&output, name) {
                Ok((items, document)) => {
                    warnings(&errors).for_each(|warning| io::warn(&format!("{node}: {warning}")));
                    self.failing += usize::from(*code != "0");
                    let since = document.get("since").and_then(|since| since.as_str()?.parse().ok());
                    self.since = [self.since, since].into_iter().flatten().min();
                    lists.push(((*node).to_owned(), items, document));
                    continue;
                }
                Err(_) if output.is_empty() => reason(&errors, code),
                // `kubectl vscale` keeps no more of it, either.
                Err(_) if u64::try_from(output.len()) == Ok(LONGEST_ANSWER) => {
                    format!("its answer has more than {} MiB", LONGEST_ANSWER >> 20)
                }
                Err(error) => format!("its answer is not readable: {error}"),
            };
            self.unanswered.entry(why).or_default().insert((*node).to_owned());
        }
    }

    /// The items of the list of that name, from all answers.
    ///
    /// Errors: also where no node answered. An empty table would say that there is nothing.
    fn items<T: DeserializeOwned>(&mut self, list: &str) -> Result<Items<T>, Failure> {
        let (mut all, lists) = (Vec::new(), self.lists(list)?);
        if let (true, Some(missing)) = (lists.is_empty(), self.missing()) {
            return Err(missing);
        }
        for (node, items, document) in lists {
            let problems = document.get("agent").and_then(|agent| agent["problems"].as_array());
            let problems = problems.into_iter().flatten().filter_map(Value::as_str);
            for problem in problems.filter(|problem| *problem != OBSERVING) {
                io::warn(&format!("{node}: degraded: {problem}"));
            }
            all.extend(items.into_iter().map(|item| (node.clone(), item)));
        }
        Ok(all)
    }

    /// Prints the list of that name of all nodes: drawn, or as a document.
    fn show<T: DeserializeOwned>(
        &mut self,
        output: &Output,
        list: &str,
        draw: impl FnOnce(Items<T>) -> Page,
    ) -> Result<(), Failure> {
        if output.format == Format::Table {
            let items = self.items(list)?;
            return io::print(&draw(items)).map(drop);
        }
        let (mut all, mut nodes) = (Vec::new(), Vec::new());
        for (node, items, mut document) in self.lists::<Map<String, Value>>(list)? {
            for mut item in items {
                item.insert("node".to_owned(), json!(node));
                all.push(item);
            }
            document.insert("node".to_owned(), json!(node));
            nodes.push(Value::Object(document));
        }
        for (why, silent) in &self.unanswered {
            nodes.extend(silent.iter().map(|node| json!({"node": node, "error": why})));
        }
        output.print(&json!({list: all, "nodes": nodes}), Page::default)
    }

    /// The failure of the nodes without an answer, if there are any.
    fn missing(&self) -> Option<Failure> {
        let unanswered: usize = self.unanswered.values().map(BTreeSet::len).sum();
        let nodes = self.nodes;
        (unanswered > 0).then(|| Failure {
            code: if unanswered == nodes { NO_AGENT } else { INCOMPLETE },
            error: anyhow!("{unanswered} of {nodes} nodes did not answer"),
        })
    }

    /// Errors: a node did not answer. Names each of them before.
    fn end(self) -> Result<(), Failure> {
        for (why, nodes) in &self.unanswered {
            let nodes = Vec::from_iter(nodes.iter().map(String::as_str));
            io::warn(&format!("no answer from {}: {why}", nodes.join(", ")));
        }
        match (self.missing(), self.failing) {
            (Some(missing), _) => Err(missing),
            (None, 0) => Ok(()),
            (None, failing) => Err(anyhow!("{failing} of {} nodes have problems", self.nodes).into()),
        }
    }
}

/// So many bytes of standard input. Those beyond [`LONGEST_ANSWER`] are skipped.
fn read_input(bytes: &str) -> Option<Vec<u8>> {
    let mut input = stdin().lock().take(bytes.parse().ok()?);
    let mut read = Vec::new();
    input.by_ref().take(LONGEST_ANSWER).read_to_end(&mut read).ok()?;
    std::io::copy(&mut input, &mut std::io::sink()).ok()?;
    (input.limit() == 0).then_some(read)
}

/// The list of that name in an answer, and the rest of the answer.
fn list_in<T: DeserializeOwned>(answer: &[u8], name: &str) -> serde_json::Result<(Vec<T>, Map<String, Value>)> {
    let mut document: Map<String, Value> = serde_json::from_slice(answer)?;
    let items = document.remove(name).unwrap_or_else(|| json!([]));
    Ok((serde_json::from_value(items)?, document))
}

/// Why a node did not answer: the last line that it printed on standard error.
fn reason(errors: &[u8], code: &str) -> String {
    let errors = String::from_utf8_lossy(errors);
    match errors.lines().map(str::trim).rfind(|line| !line.is_empty()) {
        Some(line) => shortened(line.strip_prefix("vscalectl: ").unwrap_or(line)),
        None => format!("it ended with exit code {code} and said nothing"),
    }
}

/// What the command warned of on a node that answered, such as pods that the answer lacks.
fn warnings(errors: &[u8]) -> impl Iterator<Item = String> {
    let lines = errors.split(|byte| *byte == b'\n');
    let warnings = lines.filter_map(|line| line.strip_prefix(b"vscalectl: warning: "));
    warnings.map(|line| shortened(&String::from_utf8_lossy(line)))
}

/// A line that a node printed, no longer than people read.
fn shortened(line: &str) -> String {
    line.chars().take(300).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_says_why_nothing_came() {
        assert_eq!(
            reason(b"vscalectl: warning: slow\nvscalectl: no vscaled answers\n \n", "3"),
            "no vscaled answers"
        );
        assert_eq!(reason(b"error: no such host", "1"), "error: no such host");
        assert_eq!(reason("ä".repeat(400).as_bytes(), "1"), "ä".repeat(300));
        assert_eq!(reason(b" \n", "137"), "it ended with exit code 137 and said nothing");
    }
}
