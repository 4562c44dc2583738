//! `vscalectl explain`: one pod: what was recommended and decided, what each level holds, and what comes next.

use clap::Args;
use clap::builder::NonEmptyStringValueParser;

use super::output::{Output, Paint, Tone, clean, optional, or_dash};
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

pub(super) fn run(arguments: &Arguments, agent: &Agent) -> Result<(), Failure> {
    let reply = agent.call(async |client| Ok(client.explain(arguments.pod.clone()).await?))?;
    let now = jiff::Timestamp::now().to_string();
    arguments.output.print(&reply, |paint| {
        let width = paint.width.unwrap_or(WIDTH).min(WIDEST);
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
        let lines = latest.iter().map(|done| change::line_of_pod(done, self.paint));
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
        let shown = |(name, text): (&str, Option<String>)| Some(vec![name.to_owned(), text?]);
        let rows: Vec<_> = rows.into_iter().filter_map(shown).collect();
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
            column("VPA", amounts, |amount| optional(amount.target.as_deref())),
            column("BOUNDS", amounts, bounds),
            column("DECIDED", amounts, |amount| pair(amount.decided.as_ref())),
            column("WANTED", amounts, |amount| pair(amount.wanted.as_ref())),
            column("SPEC", amounts, |amount| pair(amount.spec.as_ref())),
        ];
        let reported = |amount: &Amount| amount.allocated.is_some() || amount.in_force.is_some();
        if amounts.iter().any(reported) {
            columns.push(column("ALLOCATED", amounts, |amount| {
                optional(amount.allocated.as_deref())
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
            let is_shown = |(_, optional, of): &Row| !optional || level.iter().any(|value| !of(value).is_empty());
            let says: Vec<Row> = ROWS.into_iter().filter(is_shown).collect();
            let names = says.iter().map(|(name, ..)| (*name).to_owned());
            let mut columns = vec![std::iter::once(String::new()).chain(names).collect()];
            let worth_a_column = level.iter().filter(|value| !is_unmanaged(value));
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
        let cell = |(name, _, of): &Row| {
            let said = of(value);
            let text = if *name == OWNER {
                or_dash(said)
            } else {
                amount::describe(&value.file, said)
            };
            if *name == KERNEL && !value.difference.is_empty() {
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
fn is_unmanaged(value: &Value) -> bool {
    let agreed = value.difference.is_empty() && value.spec.is_empty() && value.allocated.is_empty();
    let unmanaged = value.wanted.is_empty() && value.runtime.is_empty();
    agreed && unmanaged && amount::is_unlimited(&value.file, &value.kernel)
}

/// One side's value of a file: the name of the row, whether it is left out where it is empty, and the value.
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

fn column(name: &str, amounts: &[Amount], cell: impl Fn(&Amount) -> String) -> Vec<String> {
    std::iter::once(name.to_owned())
        .chain(amounts.iter().map(cell))
        .collect()
}

fn bounds(amount: &Amount) -> String {
    match (amount.lower_bound.as_deref(), amount.upper_bound.as_deref()) {
        (None, None) => "-".to_owned(),
        (lower, upper) => format!("{}…{}", optional(lower), optional(upper)),
    }
}

fn pair(pair: Option<&RequestAndLimit>) -> String {
    pair.map_or_else(
        || "-".to_owned(),
        |RequestAndLimit { request, limit }| {
            format!("{} / {}", optional(request.as_deref()), optional(limit.as_deref()))
        },
    )
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("{:INDENT$}{line}\n", "")).collect()
}
