//! Draws the node as the keys chose. Pure.

use ratatui::Frame;
use ratatui::layout::Constraint::{Fill, Length};
use ratatui::layout::{Layout, Rect};
use ratatui::style::{Color, Style, Stylize as _};
use ratatui::text::{Line as Text, Span};
use ratatui::widgets::{Paragraph, Row, Table, TableState, Wrap};

use super::state::{Amounts, Node, PodLine};
use super::view::View;
use crate::cli::amount::short;
use crate::cli::page::Tone;
use crate::model::OBSERVING;
use crate::printable::is_dangerous;

/// Room for `9999Mi/9999Mi`.
const NUMBERS: u16 = 13;
/// The widest bar. The screen leaves out bars narrower than [`NARROWEST`].
const WIDEST: u16 = 40;
const NARROWEST: u16 = 8;
/// The least heights of a screen that shows details of the selected line, and the latest changes and kills.
const DETAILS_FROM: u16 = 14;
const NEWS_FROM: u16 = 20;

const KEYS: &str = "q quit  ? help  / filter  s sort  c containers  ↑↓ select";
const HELP: &str = "\
vscalectl top shows what the pods of this node use. It changes nothing.

  q, Ctrl-C        quit
  ?                this page; any key leaves it
  /                filter: type a part of namespace/name; Enter keeps it, Esc clears it
  s                sort by name, cpu, memory, throttling, latest change
  c                show or hide containers
  ↑ ↓ PgUp PgDn    select a line; its numbers stand below the list
  Home End

In a bar the right end is the largest amount:

  █ used   r request   t target   [ ] bounds   | limit   ! temporary limit";

/// Draws the screen; returns the number of lines of the list that fit it.
pub(super) fn draw(frame: &mut Frame<'_>, node: &Node, view: &View) -> usize {
    let lines = view.lines(node);
    let selected = view.selected(&lines);
    let height = frame.area().height;
    let details = if height >= DETAILS_FROM { 5 } else { 0 };
    let news = if height >= NEWS_FROM { height / 5 + 1 } else { 0 };
    let areas = Layout::vertical([Length(1), Fill(1), Length(details), Length(news), Length(1)]);
    let [head, list, details, news, foot] = areas.areas(frame.area());
    frame.render_widget(header(node, view).reversed(), head);
    if view.help {
        let help = Paragraph::new(HELP).wrap(Wrap { trim: false });
        frame.render_widget(help, list.union(news));
    } else {
        draw_list(frame, list, &lines, selected);
        if let Some(line) = lines.get(selected) {
            frame.render_widget(Paragraph::new(describe(line)), details);
        }
        frame.render_widget(Paragraph::new(latest(node, news.height)), news);
    }
    frame.render_widget(footer(node, view), foot);
    // Whoever wrote it: no dangerous character reaches the terminal.
    for cell in &mut frame.buffer_mut().content {
        if cell.symbol().contains(is_dangerous) {
            cell.set_char(char::REPLACEMENT_CHARACTER);
        }
    }
    usize::from(list.height.saturating_sub(1)).max(1)
}

fn header(node: &Node, view: &View) -> Text<'static> {
    let count = |is_counted: fn(&PodLine) -> bool| node.lines.iter().filter(|line| is_counted(line)).count();
    let throttled = count(|line| line.container.is_some() && line.throttled_percent > Some(0));
    let temporary = count(|line| [&line.cpu, &line.memory].iter().any(|of| of.temporary_until.is_some()));
    let agent = &node.agent;
    let mut parts = vec![
        format!("vscaled {}", agent.version),
        format!("{} pods", count(|line| line.container.is_none())),
        format!("sorted by {}", view.order()),
        format!("{throttled} throttled"),
        format!("{temporary} temporary limits"),
        format!("cgroup {}", agent.cgroup_version),
    ];
    if !view.filter.is_empty() {
        parts.insert(1, format!("filter {:?}", view.filter));
    }
    Text::from(format!("{:<400}", parts.join(" · ")))
}

fn footer(node: &Node, view: &View) -> Text<'static> {
    match node.agent.problems.first() {
        _ if view.types => Text::from(format!("filter: {}█", view.filter)).bold(),
        Some(problem) if problem == OBSERVING => Text::from_iter(["? help  ".dim(), problem.clone().into()]),
        Some(problem) => Text::from_iter(["? help  ".dim(), format!("degraded: {problem}").red()]),
        None => Text::from(KEYS).dim(),
    }
}

/// A column: its title, its width, and its cell for a line.
type Column = (&'static str, u16, fn(&PodLine, u16) -> Text<'static>);

fn draw_list(frame: &mut Frame<'_>, area: Rect, lines: &[&PodLine], selected: usize) {
    // A narrow screen leaves out the widest columns first.
    let at_least = |columns, room| if area.width >= columns { room } else { 0 };
    let (state, throttled, last) = (at_least(72, 10), at_least(48, 4), at_least(140, 36));
    let numbers = (area.width.saturating_sub(10) / 2).min(NUMBERS);
    let rest = area.width.saturating_sub(state + throttled + last + 2 * numbers + 7);
    let longest = lines.iter().map(|line| name(line).chars().count()).max();
    let longest = u16::try_from(longest.unwrap_or(0)).unwrap_or(u16::MAX);
    let names = longest.clamp(8, (rest / 2).max(8));
    let bars = (rest.saturating_sub(names) / 2).min(WIDEST);
    let bars = if bars < NARROWEST { 0 } else { bars };
    let columns: [Column; 8] = [
        ("POD", names, |line, _| name(line).into()),
        ("STATE", state, state_of),
        ("CPU", numbers, |line, _| use_and_limit(&line.cpu)),
        ("", bars, |line, width| bar(&line.cpu, width.into())),
        ("MEMORY", numbers, |line, _| use_and_limit(&line.memory)),
        ("", bars, |line, width| bar(&line.memory, width.into())),
        ("THR", throttled, |line, _| {
            let is_much = line.throttled_percent >= Some(25);
            Text::styled(line.throttled(), if is_much { Color::Red } else { Color::Reset })
        }),
        ("LAST CHANGE", last, |line, _| match &line.last {
            Some((_, text)) if line.container.is_none() => text.clone().into(),
            _ => Text::default(),
        }),
    ];
    let columns: Vec<Column> = columns.into_iter().filter(|(_, width, _)| *width > 0).collect();
    let rows = lines
        .iter()
        .map(|line| Row::new(columns.iter().map(|(_, width, cell)| cell(line, *width))));
    let header = Row::new(columns.iter().map(|(title, ..)| *title)).bold();
    let widths = columns.iter().map(|(_, width, _)| Length(*width));
    let table = Table::new(rows, widths).header(header);
    let table = table.row_highlight_style(Style::new().bold().on_dark_gray());
    // By pages: the list scrolls only when the selection leaves a page.
    let room = usize::from(area.height.saturating_sub(1)).max(1);
    let first = (selected / room * room).min(lines.len().saturating_sub(room));
    let mut state = TableState::new().with_selected(selected).with_offset(first);
    frame.render_stateful_widget(table, area, &mut state);
}

fn name(line: &PodLine) -> String {
    match &line.container {
        Some(container) => format!("  {container}"),
        None => line.full_name(),
    }
}

fn use_and_limit(amounts: &Amounts) -> Text<'static> {
    let [used, _, limit, ..] = amounts.values.map(|amount| short(amounts.resource, amount));
    let limit = amounts.values[2].map(|_| format!("/{limit}"));
    Text::from_iter([Span::styled(used, fill(amounts)), limit.unwrap_or_default().into()])
}

/// The state of a pod; nothing for a container.
fn state_of(line: &PodLine, _: u16) -> Text<'static> {
    let colour = match Tone::of(&line.state) {
        _ if line.container.is_some() => return Text::default(),
        Tone::Good => Color::Green,
        Tone::Waiting => Color::Yellow,
        Tone::Bad => Color::Red,
        Tone::Title | Tone::Plain => Color::Reset,
    };
    Text::styled(line.state.clone(), colour)
}

/// The numbers of the selected line.
fn describe(line: &PodLine) -> Vec<Text<'static>> {
    let amounts = |amounts: &Amounts| {
        let until = amounts.temporary_until.as_ref().map(|until| format!(" until {until}"));
        let ([used, request, limit, target, bounds], until) = (amounts.texts(), until.unwrap_or_default());
        let (resource, burst) = (amounts.resource.name(), line.burst(amounts.resource));
        Text::from(format!(
            "{resource:<8}used {used}  request {request}  target {target}  bounds {bounds}  limit {limit}{burst}{until}"
        ))
    };
    let container = line.container.as_ref().map(|container| format!(" {container}"));
    let last = line.last.as_ref().map_or("nothing lately", |(_, text)| text);
    let (name, container) = (line.full_name(), container.unwrap_or_default());
    vec![
        Text::from(format!("{name}{container}  {}  {}", line.state, line.detail)).bold(),
        amounts(&line.cpu),
        amounts(&line.memory),
        Text::from(format!("changed {last}")),
    ]
}

fn latest(node: &Node, height: u16) -> Vec<Text<'static>> {
    let room = usize::from(height.saturating_sub(1));
    let news = node.news.iter().skip(node.news.len().saturating_sub(room));
    let title = Text::from("CHANGES AND KILLS").bold();
    std::iter::once(title).chain(news.cloned()).collect()
}

/// Draws amounts as a bar of `width` characters. The right end is the largest amount.
pub(super) fn bar(amounts: &Amounts, width: usize) -> Text<'static> {
    let limit = if amounts.temporary_until.is_some() { '!' } else { '|' };
    let [used, request, highest, target, lower, upper] = amounts.values;
    // A later mark hides an earlier one in the same cell.
    let marks = [
        (lower, '['),
        (upper, ']'),
        (request, 'r'),
        (target, 't'),
        (highest, limit),
    ];
    let used = used.unwrap_or(0);
    let scale = marks.iter().filter_map(|(amount, _)| *amount).fold(used, u64::max);
    if scale == 0 || width == 0 {
        return Text::from(" ".repeat(width));
    }
    let cells = |amount: u64| usize::try_from(u128::from(amount) * width as u128 / u128::from(scale)).unwrap_or(width);
    // Any use at all fills a cell.
    let filled = cells(used).max(usize::from(used > 0));
    let mut bar = vec![Span::styled("·", Color::DarkGray); width];
    bar[..filled].fill(Span::styled("█", fill(amounts)));
    for (amount, mark) in marks {
        let Some(amount @ 1..) = amount else { continue };
        let cell = cells(amount).min(width - 1);
        let colour = match mark {
            't' => Color::Cyan,
            '!' => Color::Magenta,
            '|' => Color::Red,
            _ => Color::Blue,
        };
        let style = Style::from(colour);
        bar[cell] = Span::styled(mark.to_string(), if cell < filled { style.reversed() } else { style });
    }
    Text::from(bar)
}

/// The colour that says how close use is to the limit.
fn fill(amounts: &Amounts) -> Color {
    let [used, _, limit, ..] = amounts.values;
    match u128::from(used.unwrap_or(0)) * 100 / u128::from(limit.unwrap_or(u64::MAX).max(1)) {
        95.. => Color::Red,
        80.. => Color::Yellow,
        _ => Color::Green,
    }
}
