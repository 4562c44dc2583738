//! The order, the filter and the selection that the keys choose. Pure.

use std::cmp::Reverse;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::state::{Node, PodLine};

/// An order of pods: its name, and the number by which pods with more come first. The pod's line comes first.
type Order = (&'static str, fn(&[PodLine]) -> Option<i128>);

/// The orders that the key `s` goes through. Pods that are equal stand in the order of their names.
const ORDERS: [Order; 5] = [
    ("name", |_| None),
    ("cpu", |lines| lines[0].cpu.values[0].map(i128::from)),
    ("memory", |lines| lines[0].memory.values[0].map(i128::from)),
    ("throttling", |lines| {
        let all = lines.iter().filter_map(|line| line.throttled_percent);
        all.max().map(i128::from)
    }),
    ("change", |lines| {
        lines[0].last.as_ref().map(|(at, _)| at.as_nanosecond())
    }),
];

/// The lines that the screen shows, and how.
#[derive(Debug, Default)]
pub(super) struct View {
    /// An index of [`ORDERS`].
    order: usize,
    pub(super) filter: String,
    /// Whether keys are letters of the filter.
    pub(super) types: bool,
    pub(super) help: bool,
    /// Whether the screen leaves out containers.
    pods_only: bool,
    /// The names of the selected line.
    selected: Option<(String, Option<String>)>,
}

fn names(line: &PodLine) -> (String, Option<String>) {
    (line.full_name(), line.container.clone())
}

impl View {
    pub(super) fn of(filter: &str) -> Self {
        Self {
            filter: filter.to_owned(),
            ..Self::default()
        }
    }

    pub(super) fn order(&self) -> &'static str {
        ORDERS[self.order].0
    }

    /// The lines that fit the filter, in order. The containers of a pod follow it.
    pub(super) fn lines<'n>(&self, node: &'n Node) -> Vec<&'n PodLine> {
        let pods = node.lines.chunk_by(|_, next| next.container.is_some());
        let mut pods: Vec<&[PodLine]> = pods
            .filter(|lines| lines[0].full_name().contains(&self.filter))
            .collect();
        let (_, most) = ORDERS[self.order];
        pods.sort_by_cached_key(|lines| (Reverse(most(lines)), lines[0].namespace.clone(), lines[0].name.clone()));
        let all = pods.into_iter().flatten();
        all.filter(|line| !self.pods_only || line.container.is_none()).collect()
    }

    /// The index of the selected line: the first one where the selected pod or container has gone.
    pub(super) fn selected(&self, lines: &[&PodLine]) -> usize {
        let is_selected = |line: &&PodLine| self.selected.as_ref() == Some(&names(line));
        lines.iter().position(is_selected).unwrap_or(0)
    }

    /// Does what a key means; `page` lines fit the screen. False: the key ends the program.
    pub(super) fn press(&mut self, key: KeyEvent, node: &Node, page: usize) -> bool {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return !matches!(key.code, KeyCode::Char('c' | 'd'));
        }
        if self.types {
            match key.code {
                KeyCode::Char(letter) => self.filter.push(letter),
                KeyCode::Backspace => drop(self.filter.pop()),
                KeyCode::Enter => self.types = false,
                KeyCode::Esc => (self.types, self.filter) = (false, String::new()),
                _ => {}
            }
            return true;
        }
        if std::mem::take(&mut self.help) {
            return true;
        }
        match key.code {
            KeyCode::Char('q') => return false,
            KeyCode::Char('?' | 'h') => self.help = true,
            KeyCode::Char('/') => self.types = true,
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Char('s') => self.order = (self.order + 1) % ORDERS.len(),
            KeyCode::Char('c') => self.pods_only = !self.pods_only,
            KeyCode::Up | KeyCode::Char('k') => self.select(node, |at| at.saturating_sub(1)),
            KeyCode::Down | KeyCode::Char('j') => self.select(node, |at| at + 1),
            KeyCode::PageUp => self.select(node, |at| at.saturating_sub(page)),
            KeyCode::PageDown | KeyCode::Char(' ') => self.select(node, |at| at + page),
            KeyCode::Home | KeyCode::Char('g') => self.select(node, |_| 0),
            KeyCode::End | KeyCode::Char('G') => self.select(node, |_| usize::MAX),
            _ => {}
        }
        true
    }

    fn select(&mut self, node: &Node, to: impl Fn(usize) -> usize) {
        let lines = self.lines(node);
        let at = to(self.selected(&lines)).min(lines.len().saturating_sub(1));
        self.selected = lines.get(at).map(|line| names(line));
    }
}
