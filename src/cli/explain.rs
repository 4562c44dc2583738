//! `vscalectl explain`: one pod: what was recommended and decided, what each level holds, and what comes next.

use clap::Args;
use clap::builder::NonEmptyStringValueParser;

use super::output::{Output, Paint, Tone, clean, or_dash};
use super::{Failure, agent::Agent, amount, change, get, table};
use crate::control::proto::{Amount, ExplainReply, Pod, RequestAndLimit, Value};

/// Characters in a line where nobody says how many there is room for.
const WIDTH: usize = 100;
/// Longer lines are hard to read.
const WIDEST: usize = 120;
/// How far values stand below their level.
const INDENT: usize = 2;
/// How many of the latest changes are shown.
const LATEST: usize = 5;

/// Shows where one pod's values come from and where they stand
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// namespace/name, a UID, or the beginning of a container's id
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pod: String,
    #[command(flatten)]
    output: Output,
}

/// Asks and prints.
///
/// # Errors
/// [`Failure`] when the agent does not answer, or knows no such pod.
pub(super) fn run(arguments: &Arguments, agent: &Agent) -> Result<(), Failure> {
    let reply = agent.ask(async |client| Ok(client.explain(arguments.pod.clone()).await?))?;
    let now = jiff::Timestamp::now().to_string();
    arguments.output.print(&reply, |paint| {
        let width = paint.width().unwrap_or(WIDTH).min(WIDEST);
        Page { paint, width }.render(&reply, &now)
    })
}

/// How the answer is laid out.
#[derive(Debug, Clone, Copy)]
struct Page {
    paint: Paint,
    width: usize,
}

impl Page {
    fn render(self, reply: &ExplainReply, now: &str) -> String {
        let mut text = String::new();
        if let Some(pod) = &reply.pod {
            text.push_str(&self.head(pod, now));
        }
        text.push_str(&self.amounts(&reply.amounts));
        text.push_str(&self.levels(&reply.values));
        text.push_str(&self.section("why", reply.notes.iter().map(|note| clean(note))));
        text.push_str(&self.section("next", std::iter::once(or_dash(&reply.next))));
        let latest = &reply.changes[reply.changes.len().saturating_sub(LATEST)..];
        let lines = latest.iter().map(|done| change::of_one_pod(done, self.paint));
        text.push_str(&self.section("lately", lines));
        text
    }

    fn section(self, title: &str, lines: impl Iterator<Item = String>) -> String {
        let body: String = lines.map(|line| table::wrap(&line, INDENT, self.width)).collect();
        if body.is_empty() {
            body
        } else {
            format!("\n{}\n{body}", self.paint.text(Tone::Title, title))
        }
    }

    fn head(self, pod: &Pod, now: &str) -> String {
        let mut rows = vec![["pod".to_owned(), get::full_name(pod)]];
        rows.push(["uid".to_owned(), or_dash(&pod.uid)]);
        rows.push(["qos".to_owned(), or_dash(&pod.qos_class)]);
        rows.push(["vpa".to_owned(), or_dash(pod.vpa.as_deref().unwrap_or_default())]);
        rows.push(["decision".to_owned(), get::decision(pod)]);
        if let Some(by_hand) = &pod.r#override {
            let (by, age, left) = (get::by(by_hand), get::age(by_hand, now), get::left(by_hand, now));
            let reason = or_dash(&by_hand.reason);
            rows.push(["by hand".to_owned(), format!("{by}, {age} ago, left: {left}; {reason}")]);
        }
        rows.push(["state".to_owned(), self.paint.word(&pod.state)]);
        let rows: Vec<_> = rows.into_iter().map(|row| row.to_vec()).collect();
        let mut text = table::align(&rows);
        text.push_str(&table::wrap(&clean(&pod.detail), 10, self.width));
        text
    }

    /// From the recommendation to what the kubelet reports, as `request / limit`.
    fn amounts(self, amounts: &[Amount]) -> String {
        if amounts.is_empty() {
            return String::new();
        }
        let mut columns = vec![
            column("CONTAINER", amounts, |amount| clean(&amount.container)),
            column("", amounts, |amount| clean(&amount.resource)),
            column("VPA", amounts, |amount| {
                or_dash(amount.target.as_deref().unwrap_or_default())
            }),
            column("BOUNDS", amounts, bounds),
            column("DECIDED", amounts, |amount| pair(amount.decided.as_ref())),
            column("WANTED", amounts, |amount| pair(amount.wanted.as_ref())),
            column("SPEC", amounts, |amount| pair(amount.spec.as_ref())),
        ];
        let reported = |amount: &Amount| amount.allocated.is_some() || amount.in_force.is_some();
        if amounts.iter().any(reported) {
            columns.push(column("ALLOCATED", amounts, |amount| {
                or_dash(amount.allocated.as_deref().unwrap_or_default())
            }));
            columns.push(column("IN FORCE", amounts, |amount| pair(amount.in_force.as_ref())));
        }
        format!("\n{}", table::columns(&columns, 2, self.width))
    }

    /// One table for each level: a column for each file, a row for each who has a say.
    fn levels(self, values: &[Value]) -> String {
        let mut text = String::new();
        let same_level = |a: &Value, b: &Value| (&a.level, &a.name, &a.path) == (&b.level, &b.name, &b.path);
        for level in values.chunk_by(same_level) {
            text.push_str(&format!("\n{}\n", self.title(&level[0])));
            let says: Vec<Row> = ROWS.into_iter().filter(|row| row.is_shown(level)).collect();
            let mut columns = vec![
                std::iter::once(String::new())
                    .chain(says.iter().map(|row| row.name.to_owned()))
                    .collect(),
            ];
            let worth_a_column = level.iter().filter(|value| !is_nobodys(value));
            columns.extend(worth_a_column.map(|value| self.file(value, &says)));
            text.push_str(&indented(&table::columns(&columns, 1, self.width - INDENT)));
            for value in level.iter().filter(|value| !value.difference.is_empty()) {
                let said = format!("! {}: {}", clean(&value.file), clean(&value.difference));
                text.push_str(&table::wrap(&said, INDENT, self.width));
            }
        }
        text
    }

    fn file(self, value: &Value, says: &[Row]) -> Vec<String> {
        let cell = |row: &Row| {
            let said = (row.of)(value);
            let text = if row.name == OWNER {
                or_dash(said)
            } else {
                amount::in_words(&value.file, said)
            };
            if row.name == KERNEL && !value.difference.is_empty() {
                self.paint.text(Tone::Bad, &text)
            } else {
                text
            }
        };
        let mark = if value.difference.is_empty() { "" } else { " !" };
        std::iter::once(clean(&value.file) + mark)
            .chain(says.iter().map(cell))
            .collect()
    }

    /// The level, its name and where it is. The path is not shortened: people copy it.
    fn title(self, value: &Value) -> String {
        let name = format!("{} {}", value.level, value.name);
        format!(
            "{}  {}",
            self.paint.text(Tone::Title, name.trim_end()),
            clean(&value.path)
        )
    }
}

const KERNEL: &str = "kernel";
const OWNER: &str = "owner";

/// Whether it is no limit at all, and nobody says that there should be one: swap, mostly.
fn is_nobodys(value: &Value) -> bool {
    let said = [
        &value.spec,
        &value.allocated,
        &value.wanted,
        &value.runtime,
        &value.difference,
    ];
    said.iter().all(|said| said.is_empty()) && amount::is_unlimited(&value.file, &value.kernel)
}

/// Somebody who has a say about a value.
#[derive(Clone, Copy)]
struct Row {
    name: &'static str,
    of: fn(&Value) -> &str,
    /// Whether it is left out where it says nothing.
    optional: bool,
}

const ROWS: [Row; 7] = [
    Row {
        name: "spec",
        of: |value| &value.spec,
        optional: false,
    },
    Row {
        name: "allocated",
        of: |value| &value.allocated,
        optional: true,
    },
    Row {
        name: "wanted",
        of: |value| &value.wanted,
        optional: false,
    },
    Row {
        name: "runtime",
        of: |value| &value.runtime,
        optional: true,
    },
    Row {
        name: "systemd",
        of: |value| &value.systemd,
        optional: true,
    },
    Row {
        name: KERNEL,
        of: |value| &value.kernel,
        optional: false,
    },
    Row {
        name: OWNER,
        of: |value| &value.owner,
        optional: false,
    },
];

impl Row {
    fn is_shown(self, level: &[Value]) -> bool {
        !self.optional || level.iter().any(|value| !(self.of)(value).is_empty())
    }
}

fn column(name: &str, amounts: &[Amount], cell: impl Fn(&Amount) -> String) -> Vec<String> {
    std::iter::once(name.to_owned())
        .chain(amounts.iter().map(cell))
        .collect()
}

fn bounds(amount: &Amount) -> String {
    match (&amount.lower_bound, &amount.upper_bound) {
        (None, None) => "-".to_owned(),
        (lower, upper) => {
            let text = |bound: &Option<String>| or_dash(bound.as_deref().unwrap_or_default());
            format!("{}…{}", text(lower), text(upper))
        }
    }
}

fn pair(pair: Option<&RequestAndLimit>) -> String {
    let text = |amount: &Option<String>| or_dash(amount.as_deref().unwrap_or_default());
    match pair {
        Some(RequestAndLimit { request, limit }) => format!("{} / {}", text(request), text(limit)),
        None => "-".to_owned(),
    }
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("{:INDENT$}{line}\n", "")).collect()
}
