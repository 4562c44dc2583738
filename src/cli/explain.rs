//! `vscalectl explain`: the recommendation and the decision for one pod, the values at each level, and the next step.

use clap::Args;
use clap::builder::NonEmptyStringValueParser;

use super::output::{Output, Paint, Tone, clean, optional, or_dash};
use super::{Failure, agent::Agent, amount, change, get, table};
use crate::control::proto::{Amount, ExplainReply, Pod, RequestAndLimit, Value};

/// The characters in a line where standard output is no terminal.
const WIDTH: usize = 100;
/// The most characters in a line: longer lines are hard to read.
const WIDEST: usize = 120;
/// The indent of values below their level.
const INDENT: usize = 2;
/// The number of latest changes.
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

pub(super) fn run(arguments: &Arguments, agent: &Agent) -> Result<(), Failure> {
    let reply = agent.call(async |client| Ok(client.explain(arguments.pod.clone()).await?))?;
    let now = jiff::Timestamp::now().to_string();
    arguments.output.print(&reply, |paint| {
        let width = paint.width.unwrap_or(WIDTH).min(WIDEST);
        Page { paint, width }.render(&reply, &now)
    })
}

/// The layout of the answer.
#[derive(Debug, Clone, Copy)]
struct Page {
    paint: Paint,
    width: usize,
}

impl Page {
    fn render(self, reply: &ExplainReply, now: &str) -> String {
        let latest = &reply.changes[reply.changes.len().saturating_sub(LATEST)..];
        let lately = latest.iter().map(|change| change::line_of_pod(change, self.paint));
        [
            reply.pod.as_ref().map(|pod| self.head(pod, now)).unwrap_or_default(),
            self.amounts(&reply.amounts),
            self.levels(&reply.values),
            self.section("why", reply.notes.iter().map(|note| clean(note))),
            self.section("next", std::iter::once(or_dash(&reply.next))),
            self.section("lately", lately),
        ]
        .concat()
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
        let by_hand = pod.r#override.as_ref().map(|by_hand| {
            let (by, age, left) = (get::by(by_hand), get::age(by_hand, now), get::left(by_hand, now));
            format!("{by}, {age} ago, left: {left}; {}", or_dash(&by_hand.reason))
        });
        let rows = [
            ("pod", Some(get::full_name(pod))),
            ("uid", Some(or_dash(&pod.uid))),
            ("qos", Some(or_dash(&pod.qos_class))),
            ("vpa", Some(optional(pod.vpa.as_deref()))),
            ("decision", Some(get::decision(pod))),
            ("by hand", by_hand),
            ("state", Some(self.paint.word(&pod.state))),
        ];
        let rows = rows
            .into_iter()
            .filter_map(|(name, text)| Some(vec![name.to_owned(), text?]));
        let rows: Vec<_> = rows.collect();
        table::align(&rows) + &table::wrap(&clean(&pod.detail), 10, self.width)
    }

    /// The amounts of each container, from the recommendation to the kubelet's report, as `request / limit`.
    fn amounts(self, amounts: &[Amount]) -> String {
        if amounts.is_empty() {
            return String::new();
        }
        let mut columns = vec![
            column("CONTAINER", amounts, |amount| clean(&amount.container)),
            column("", amounts, |amount| clean(&amount.resource)),
            column("VPA", amounts, |amount| optional(amount.target.as_deref())),
            column("BOUNDS", amounts, bounds),
            column("DECIDED", amounts, |amount| pair(amount.decided.as_ref())),
            column("WANTED", amounts, |amount| pair(amount.wanted.as_ref())),
            column("SPEC", amounts, |amount| pair(amount.spec.as_ref())),
        ];
        let is_reported = |amount: &Amount| amount.allocated.is_some() || amount.in_force.is_some();
        if amounts.iter().any(is_reported) {
            let allocated = |amount: &Amount| optional(amount.allocated.as_deref());
            columns.push(column("ALLOCATED", amounts, allocated));
            columns.push(column("IN FORCE", amounts, |amount| pair(amount.in_force.as_ref())));
        }
        format!("\n{}", table::columns(&columns, 2, self.width))
    }

    /// One table for each level: a column for each file, a row for each source of values.
    fn levels(self, values: &[Value]) -> String {
        let mut text = String::new();
        let same_level = |a: &Value, b: &Value| (&a.level, &a.name, &a.path) == (&b.level, &b.name, &b.path);
        for level in values.chunk_by(same_level) {
            text += &format!("\n{}\n", self.title(&level[0]));
            let is_shown = |(_, optional, of): &Row| !optional || level.iter().any(|value| !of(value).is_empty());
            let rows: Vec<Row> = ROWS.into_iter().filter(is_shown).collect();
            let mut columns = vec![column("", &rows, |(name, ..)| (*name).to_owned())];
            let shown = level.iter().filter(|value| !is_unmanaged(value));
            columns.extend(shown.map(|value| self.file(value, &rows)));
            for line in table::columns(&columns, 1, self.width - INDENT).lines() {
                text += &format!("{:INDENT$}{line}\n", "");
            }
            for value in level.iter().filter(|value| !value.difference.is_empty()) {
                let difference = format!("! {}: {}", clean(&value.file), clean(&value.difference));
                text += &table::wrap(&difference, INDENT, self.width);
            }
        }
        text
    }

    fn file(self, value: &Value, rows: &[Row]) -> Vec<String> {
        let differs = !value.difference.is_empty();
        let mark = if differs { " !" } else { "" };
        column(&(clean(&value.file) + mark), rows, |(name, _, of)| match *name {
            OWNER => or_dash(of(value)),
            KERNEL if differs => self.paint.text(Tone::Bad, &amount::describe(&value.file, of(value))),
            _ => amount::describe(&value.file, of(value)),
        })
    }

    /// The level, its name and its path, in full: people copy it.
    fn title(self, value: &Value) -> String {
        let name = format!("{} {}", value.level, value.name);
        let name = self.paint.text(Tone::Title, name.trim_end());
        format!("{name}  {}", clean(&value.path))
    }
}

const KERNEL: &str = "kernel";
const OWNER: &str = "owner";

/// Whether the file has no limit and no source sets one, as for swap mostly.
fn is_unmanaged(value: &Value) -> bool {
    let others = [
        &value.difference,
        &value.spec,
        &value.allocated,
        &value.wanted,
        &value.runtime,
    ];
    others.iter().all(|text| text.is_empty()) && amount::is_unlimited(&value.file, &value.kernel)
}

/// A source of values: the name of the row, whether an empty row is left out, and the value.
type Row = (&'static str, bool, fn(&Value) -> &str);

const ROWS: [Row; 7] = [
    ("spec", false, |value| &value.spec),
    ("allocated", true, |value| &value.allocated),
    ("wanted", false, |value| &value.wanted),
    ("runtime", true, |value| &value.runtime),
    ("systemd", true, |value| &value.systemd),
    (KERNEL, false, |value| &value.kernel),
    (OWNER, false, |value| &value.owner),
];

fn column<T>(title: &str, rows: &[T], cell: impl Fn(&T) -> String) -> Vec<String> {
    std::iter::once(title.to_owned()).chain(rows.iter().map(cell)).collect()
}

fn bounds(amount: &Amount) -> String {
    match (amount.lower_bound.as_deref(), amount.upper_bound.as_deref()) {
        (None, None) => "-".to_owned(),
        (lower, upper) => format!("{}…{}", optional(lower), optional(upper)),
    }
}

fn pair(pair: Option<&RequestAndLimit>) -> String {
    match pair {
        Some(RequestAndLimit { request, limit }) => {
            format!("{} / {}", optional(request.as_deref()), optional(limit.as_deref()))
        }
        None => "-".to_owned(),
    }
}
