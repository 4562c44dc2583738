//! `vscalectl explain`: the recommendation and the decision for one pod, the values at each level, and the next step.

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use futures::{StreamExt as _, TryStreamExt as _};
use tonic::Code;

use super::output::{Output, optional, or_dash};
use super::page::{Page, TextLine, Tone, toned, word};
use super::workload::WorkloadName;
use super::{Failure, agent::Agent, amount, change, get, io, table};
use crate::control::ClientError;
use crate::control::proto::{Amount, ExplainReply, Pod, RequestAndLimit, Value};

/// The most characters in a line: longer lines are hard to read.
const WIDEST: usize = 120;
/// The indent of values below their level.
const INDENT: usize = 2;
/// The number of pods of a workload that are explained at once.
const AT_ONCE: usize = 8;
/// The number of latest changes.
const LATEST: usize = 5;

/// Shows each value of a pod, from the recommendation to the kernel
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// namespace/name, a UID, or the beginning of a container's id; or a workload, for all of its pods on this node, such as
    /// deployment/web or shop/rollout/web
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pod: String,
    #[command(flatten)]
    pub(super) output: Output,
}

pub(super) fn run(arguments: &Arguments, agent: &Agent) -> Result<(), Failure> {
    let Some(workload) = WorkloadName::read(&arguments.pod) else {
        let reply = agent.call(async |client| Ok(client.explain(arguments.pod.clone()).await?))?;
        return arguments.output.print(&reply, || render(&reply));
    };
    let replies = agent.call(async |client| {
        let pods = workload.pods(client).await?.into_iter().map(|pod| {
            let mut client = client.clone();
            async move { unless_gone(client.explain(get::full_name(&pod)).await) }
        });
        let replies = futures::stream::iter(pods).buffered(AT_ONCE);
        let replies: Vec<Option<ExplainReply>> = replies.try_collect().await?;
        Ok(replies.into_iter().flatten().collect::<Vec<_>>())
    })?;
    let none = format!("no pod of {} is known on this node", arguments.pod);
    let shown = || Page::joined(replies.iter().map(render)).or(none);
    arguments.output.print_list("pods", &replies, shown)
}

/// The answer about one of several pods; none if the pod has gone since they were listed.
fn unless_gone(reply: Result<ExplainReply, ClientError>) -> Result<Option<ExplainReply>, ClientError> {
    match reply {
        Err(ClientError::Answer(status)) if status.code() == Code::NotFound => Ok(None),
        reply => reply.map(Some),
    }
}

/// Everything about one pod.
pub(super) fn render(reply: &ExplainReply) -> Page {
    let width = io::width().unwrap_or(io::WIDTH).min(WIDEST);
    let latest = &reply.changes[reply.changes.len().saturating_sub(LATEST)..];
    let sections = [
        reply.pod.as_ref().map(|pod| head(pod, width)).unwrap_or_default(),
        amounts(&reply.amounts, width),
        levels(&reply.values, width),
        section("why", reply.notes.iter().map(TextLine::from), width),
        section("next", std::iter::once(or_dash(&reply.next).into()), width),
        section("recent", latest.iter().map(change::line_of_pod), width),
    ];
    Page::joined(sections.into_iter().filter(|section| !section.is_empty()))
}

fn section(title: &str, lines: impl Iterator<Item = TextLine>, width: usize) -> Page {
    let mut pages = lines.map(|line| Page::wrapped(line, INDENT, width)).peekable();
    match pages.peek() {
        None => Page::default(),
        Some(_) => pages.fold(toned(Tone::Title, title).into(), Page::then),
    }
}

fn head(pod: &Pod, width: usize) -> Page {
    let by_hand = pod.r#override.as_ref().map(|by_hand| {
        let [by, age, left, reason] = get::by_hand(by_hand);
        format!("{by}, {age} ago, left: {left}; {reason}")
    });
    let rows = [
        ("pod", Some(get::full_name(pod).into())),
        ("uid", Some(or_dash(&pod.uid).into())),
        ("qos", Some(or_dash(&pod.qos_class).into())),
        ("vpa", Some(optional(pod.vpa.as_ref()).into())),
        ("decision", Some(get::decision(pod).into())),
        ("by hand", by_hand.map(TextLine::from)),
        ("state", Some(word(&pod.state))),
    ];
    let rows = rows.into_iter();
    let rows = rows.filter_map(|(name, text)| Some(vec![name.into(), text?]));
    table::align(&rows.collect::<Vec<_>>()).then(Page::wrapped(&pod.detail, 10, width))
}

/// The amounts of each container, from the recommendation to the kubelet's report, as `request / limit`.
fn amounts(amounts: &[Amount], width: usize) -> Page {
    if amounts.is_empty() {
        return Page::default();
    }
    let mut columns = vec![
        column("CONTAINER", amounts, |amount| amount.container.clone()),
        column("", amounts, |amount| amount.resource.clone()),
        column("VPA", amounts, |amount| optional(amount.target.as_ref())),
        column("BOUNDS", amounts, bounds),
        column("DECIDED", amounts, |amount| pair(amount, &amount.decided)),
        column("WANTED", amounts, |amount| pair(amount, &amount.wanted)),
        column("SPEC", amounts, |amount| pair(amount, &amount.spec)),
    ];
    // Only kubelets that resize in place report these.
    let is_reported = |amount: &Amount| amount.allocated.is_some() || amount.in_force.is_some();
    if amounts.iter().any(is_reported) {
        columns.extend([
            column("ALLOCATED", amounts, |amount| optional(amount.allocated.as_ref())),
            column("STATUS", amounts, |amount| pair(amount, &amount.in_force)),
        ]);
    }
    table::columns(&columns, 2, width)
}

/// One table for each level: a column for each file, a row for each source of values.
fn levels(values: &[Value], width: usize) -> Page {
    let same_level = |a: &Value, b: &Value| (&a.level, &a.name, &a.path) == (&b.level, &b.name, &b.path);
    Page::joined(values.chunk_by(same_level).map(|level| {
        let first = &level[0];
        let title = toned(Tone::Title, format!("{} {}", first.level, first.name).trim_end());
        // In full: people copy the path.
        let mut page = Page::from(title.then(format!("  {}", first.path)));
        let is_shown = |(_, optional, of): &Row| !optional || level.iter().any(|value| !of(value).is_empty());
        let rows: Vec<Row> = ROWS.into_iter().filter(is_shown).collect();
        let mut columns = vec![column("", &rows, |(name, ..)| (*name).to_owned())];
        let shown = level.iter().filter(|value| !is_unmanaged(value));
        columns.extend(shown.map(|value| file(value, &rows)));
        for line in table::columns(&columns, 1, width - INDENT).into_lines() {
            page.push(TextLine::from(" ".repeat(INDENT)).then(line));
        }
        let differences = level.iter().filter(|value| !value.difference.is_empty());
        let differences = differences.map(|value| format!("! {}: {}", value.file, value.difference));
        differences.fold(page, |page, difference| {
            page.then(Page::wrapped(difference, INDENT, width))
        })
    }))
}

fn file(value: &Value, rows: &[Row]) -> Vec<TextLine> {
    let differs = !value.difference.is_empty();
    let mark = if differs { " !" } else { "" };
    column(&format!("{}{mark}", value.file), rows, |(name, _, of)| match *name {
        OWNER => or_dash(of(value)).into(),
        KERNEL if differs => toned(Tone::Bad, amount::describe(&value.file, of(value))),
        _ => amount::describe(&value.file, of(value)).into(),
    })
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

fn column<T, C: Into<TextLine>>(title: &str, rows: &[T], cell: impl Fn(&T) -> C) -> Vec<TextLine> {
    let cells = rows.iter().map(|row| cell(row).into());
    std::iter::once(title.into()).chain(cells).collect()
}

fn bounds(amount: &Amount) -> String {
    match (&amount.lower_bound, &amount.upper_bound) {
        (None, None) => "-".to_owned(),
        (lower, upper) => amount::both(&amount.resource, [lower, upper].map(Option::as_deref)).join("…"),
    }
}

fn pair(of: &Amount, pair: &Option<RequestAndLimit>) -> String {
    let both = |pair: &RequestAndLimit| {
        let texts = [&pair.request, &pair.limit].map(Option::as_deref);
        amount::both(&of.resource, texts).join(" / ")
    };
    optional(pair.as_ref().map(both))
}

#[cfg(test)]
mod tests {
    use tonic::Status;

    use super::*;
    use crate::control::proto::Change;

    /// The words of each line.
    fn words(page: &Page) -> Vec<String> {
        let text = page.shown(false);
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        text.lines().map(words).collect()
    }

    #[test]
    fn a_pod_that_goes_meanwhile_is_left_out() {
        let refused = |status| unless_gone(Err(ClientError::Answer(status)));
        assert!(matches!(refused(Status::not_found("no pod shop/web-1")), Ok(None)));
        assert!(refused(Status::internal("no file")).is_err());
        assert!(matches!(unless_gone(Ok(ExplainReply::default())), Ok(Some(_))));
    }

    #[test]
    fn each_amount_is_in_its_column() {
        let text = |text: &str| Some(text.to_owned());
        let pair = |request: &str, limit: &str| {
            Some(RequestAndLimit {
                request: text(request),
                limit: text(limit),
            })
        };
        let mut amount = Amount {
            container: "app".to_owned(),
            resource: "cpu".to_owned(),
            target: text("1"),
            lower_bound: text("2"),
            upper_bound: text("3"),
            decided: pair("4", "5"),
            wanted: pair("6", "7"),
            spec: pair("8", "9"),
            allocated: text("10"),
            in_force: pair("11", "12"),
            rules: Vec::new(),
        };
        let shown = |amount: &Amount| words(&amounts(std::slice::from_ref(amount), 100));
        assert_eq!(
            shown(&amount),
            [
                "CONTAINER VPA BOUNDS DECIDED WANTED SPEC ALLOCATED STATUS",
                "app cpu 1 2…3 4 / 5 6 / 7 8 / 9 10 11 / 12",
            ]
        );
        (amount.upper_bound, amount.allocated, amount.in_force) = (None, None, None);
        (amount.wanted, amount.spec) = (None, pair("8", ""));
        assert_eq!(
            shown(&amount),
            [
                "CONTAINER VPA BOUNDS DECIDED WANTED SPEC",
                "app cpu 1 2…- 4 / 5 - 8 / -"
            ]
        );
        (amount.lower_bound, amount.upper_bound) = (None, text("3"));
        assert!(shown(&amount)[1].starts_with("app cpu 1 -…3 "));
        amount.upper_bound = None;
        assert!(shown(&amount)[1].starts_with("app cpu 1 - 4"));
        (amount.lower_bound, amount.upper_bound) = (text("2"), text("2500m"));
        amount.decided = pair("500m", "5");
        assert!(shown(&amount)[1].starts_with("app cpu 1 2000m…2500m 500m / 5000m "));
    }

    fn value(file: &str, kernel: &str) -> Value {
        Value {
            level: "container".to_owned(),
            name: "app".to_owned(),
            path: "/kubepods/pod1/c0ffee".to_owned(),
            file: file.to_owned(),
            kernel: kernel.to_owned(),
            ..Value::default()
        }
    }

    #[test]
    fn each_source_has_its_row() {
        let all = Value {
            spec: "1".to_owned(),
            allocated: "2".to_owned(),
            wanted: "3".to_owned(),
            runtime: "4".to_owned(),
            systemd: "5".to_owned(),
            owner: "systemd".to_owned(),
            difference: "another program wrote it".to_owned(),
            ..value("cpu.weight", "6")
        };
        let page = levels(&[all], 100);
        assert_eq!(
            words(&page),
            [
                "container app /kubepods/pod1/c0ffee",
                "cpu.weight !",
                "spec 1",
                "allocated 2",
                "wanted 3",
                "runtime 4",
                "systemd 5",
                "kernel 6",
                "owner systemd",
                "! cpu.weight: another program wrote it",
            ]
        );
        assert!(page.shown(true).contains("\u{1b}[31m6\u{1b}[0m"));
        assert_eq!(
            words(&levels(&[value("cpu.weight", "6")], 100)),
            [
                "container app /kubepods/pod1/c0ffee",
                "cpu.weight",
                "spec -",
                "wanted -",
                "kernel 6",
                "owner -"
            ]
        );
    }

    #[test]
    fn files_without_any_limit_are_left_out() {
        let unlimited = value("memory.memsw.limit_in_bytes", "9223372036854771712");
        let limited = value("memory.limit_in_bytes", "67108864");
        let shown = |other: Value| levels(&[limited.clone(), other], 100).shown(false);
        let text = shown(unlimited.clone());
        assert!(text.contains("67108864 (64Mi)") && !text.contains("memsw"), "{text}");
        let wanted = Value {
            wanted: "134217728".to_owned(),
            ..unlimited
        };
        let text = shown(wanted);
        assert!(
            text.contains("memsw") && text.contains("9223372036854771712 (none)"),
            "{text}"
        );
    }

    #[test]
    fn only_the_latest_changes_are_recent() {
        let changes = (0..7).map(|number| Change {
            outcome: "Applied".to_owned(),
            cause: format!("cause-{number}"),
            ..Change::default()
        });
        let reply = ExplainReply {
            changes: changes.collect(),
            ..ExplainReply::default()
        };
        let text = render(&reply).shown(false);
        assert_eq!(text.matches("Applied").count(), 5, "{text}");
        assert!(
            !text.contains("cause-1") && text.contains("cause-2") && text.contains("cause-6"),
            "{text}"
        );
        assert!(text.starts_with("next\n  -\n"), "{text}");
    }
}
