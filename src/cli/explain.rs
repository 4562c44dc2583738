//! `vscalectl explain`: one pod, value by value: what the spec gives, what is wanted, what is there, and what comes next.

use clap::Args;
use clap::builder::NonEmptyStringValueParser;

use super::output::{Output, Paint, Tone, clean, or_dash};
use super::{Failure, agent::Agent, change, get, table};
use crate::control::proto::{ExplainReply, Pod, Value};

/// Characters in a line that people need not scroll for.
const WIDTH: usize = 100;
/// How far values stand below their level: two spaces, the mark, one more.
const INDENT: usize = 4;
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
    arguments.output.print(&reply, |paint| render(&reply, &now, paint))
}

fn render(reply: &ExplainReply, now: &str, paint: Paint) -> String {
    let mut text = String::new();
    if let Some(pod) = &reply.pod {
        text.push_str(&head(pod, now, paint));
    }
    text.push_str(&values(&reply.values, paint));
    if !reply.notes.is_empty() {
        text.push_str("\nwhy\n");
        reply
            .notes
            .iter()
            .for_each(|note| text.push_str(&table::wrap(&clean(note), 2, WIDTH)));
    }
    text.push_str("\nnext\n");
    text.push_str(&table::wrap(&or_dash(&reply.next), 2, WIDTH));
    if !reply.changes.is_empty() {
        text.push_str("\nlately\n");
        let latest = &reply.changes[reply.changes.len().saturating_sub(LATEST)..];
        for done in latest {
            text.push_str(&table::wrap(&change::line(done, paint), 2, WIDTH));
        }
    }
    text
}

fn head(pod: &Pod, now: &str, paint: Paint) -> String {
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
    rows.push(["state".to_owned(), paint.word(&pod.state)]);
    let rows: Vec<_> = rows.into_iter().map(|row| row.to_vec()).collect();
    let mut text = table::align(&rows);
    text.push_str(&table::wrap(&clean(&pod.detail), 10, WIDTH));

    let header = ["CONTAINER", "RESOURCE", "REQUEST", "LIMIT"];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    rows.extend(get::amounts(&pod.containers).into_iter().map(|row| row.to_vec()));
    table::fit(&mut rows, WIDTH);
    text.push('\n');
    text.push_str(&table::align(&rows));
    text
}

/// Every value below its level, marked where it is not what it should be.
fn values(values: &[Value], paint: Paint) -> String {
    if values.is_empty() {
        return String::new();
    }
    let mut rows = vec![
        ["FILE", "SPEC", "WANTED", "KERNEL", "RUNTIME", "OWNER"]
            .map(str::to_owned)
            .to_vec(),
    ];
    rows.extend(values.iter().map(cells));
    table::fit(&mut rows, WIDTH - INDENT);
    let aligned = table::align(&rows);
    let mut lines = aligned.lines();
    let mut text = format!("\n{:INDENT$}{}\n", "", lines.next().unwrap_or_default());
    let mut level = None;
    for (value, line) in values.iter().zip(lines) {
        let this = (&value.level, &value.name, &value.path);
        if level != Some(this) {
            text.push_str(&title(value));
            level = Some(this);
        }
        if value.difference.is_empty() {
            text.push_str(&format!("{:INDENT$}{line}\n", ""));
        } else {
            text.push_str(&format!("  {}\n", paint.text(Tone::Bad, &format!("! {line}"))));
            text.push_str(&table::wrap(&clean(&value.difference), INDENT + 2, WIDTH));
        }
    }
    text
}

fn cells(value: &Value) -> Vec<String> {
    [
        &value.file,
        &value.spec,
        &value.wanted,
        &value.kernel,
        &value.runtime,
        &value.owner,
    ]
    .map(|cell| or_dash(cell))
    .to_vec()
}

/// The level, its name and where it is. The path is not shortened: people copy it.
fn title(value: &Value) -> String {
    let name = if value.name.is_empty() { "" } else { " " };
    format!(
        "{}{name}{}  {}\n",
        clean(&value.level),
        clean(&value.name),
        clean(&value.path)
    )
}
