//! What the keys chose: order, filter, selection. Pure.

use std::cmp::Reverse;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::state::{Line, Node, PodLines};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, derive_more::Display)]
#[display(rename_all = "lowercase")]
pub(super) enum Sort {
    #[default]
    Name,
    Cpu,
    Memory,
    Throttling,
    Change,
}

/// Which lines are shown, and how.
#[derive(Debug, Default)]
pub(super) struct View {
    pub(super) sort: Sort,
    pub(super) filter: String,
    /// Whether keys are letters of the filter.
    pub(super) types: bool,
    pub(super) help: bool,
    /// Whether containers are left out.
    pub(super) pods_only: bool,
    selected: Option<Key>,
}

type Key = (String, String, Option<String>);

fn key_of(line: &Line) -> Key {
    (line.namespace.clone(), line.name.clone(), line.container.clone())
}

impl View {
    pub(super) fn of(filter: &str) -> Self {
        Self {
            filter: filter.to_owned(),
            ..Self::default()
        }
    }

    /// The lines that fit the filter, in order; a pod's containers follow it.
    pub(super) fn lines<'n>(&self, node: &'n Node) -> Vec<&'n Line> {
        let fits = |lines: &&PodLines| lines.pod.full_name().contains(&self.filter);
        let mut pods: Vec<&PodLines> = node.pods.iter().filter(fits).collect();
        pods.sort_by_cached_key(|lines| (lines.pod.namespace.clone(), lines.pod.name.clone()));
        match self.sort {
            Sort::Name => {}
            Sort::Cpu => pods.sort_by_key(|lines| Reverse(lines.pod.cpu.used)),
            Sort::Memory => pods.sort_by_key(|lines| Reverse(lines.pod.memory.used)),
            Sort::Throttling => pods.sort_by_key(|lines| {
                let containers = lines.containers.iter().map(|line| line.throttled_percent);
                Reverse(containers.max().flatten().max(lines.pod.throttled_percent))
            }),
            Sort::Change => pods.sort_by_key(|lines| Reverse(lines.pod.last.as_ref().map(|(at, _)| *at))),
        }
        let containers = |lines: &'n PodLines| lines.containers.iter().filter(|_| !self.pods_only);
        pods.into_iter()
            .flat_map(|lines| std::iter::once(&lines.pod).chain(containers(lines)))
            .collect()
    }

    /// Which of these lines is selected: the first if the one that was is gone.
    pub(super) fn selected(&self, lines: &[&Line]) -> usize {
        let is_selected = |line: &&Line| self.selected.as_ref() == Some(&key_of(line));
        lines.iter().position(is_selected).unwrap_or(0)
    }

    /// Takes in a key. `page` lines fit the screen. False: leave.
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
            KeyCode::Char('s') => {
                self.sort = match self.sort {
                    Sort::Name => Sort::Cpu,
                    Sort::Cpu => Sort::Memory,
                    Sort::Memory => Sort::Throttling,
                    Sort::Throttling => Sort::Change,
                    Sort::Change => Sort::Name,
                }
            }
            KeyCode::Char('c') => self.pods_only = !self.pods_only,
            KeyCode::Up | KeyCode::Char('k') => self.go(node, |at| at.saturating_sub(1)),
            KeyCode::Down | KeyCode::Char('j') => self.go(node, |at| at + 1),
            KeyCode::PageUp => self.go(node, |at| at.saturating_sub(page)),
            KeyCode::PageDown | KeyCode::Char(' ') => self.go(node, |at| at + page),
            KeyCode::Home | KeyCode::Char('g') => self.go(node, |_| 0),
            KeyCode::End | KeyCode::Char('G') => self.go(node, |_| usize::MAX),
            _ => {}
        }
        true
    }

    fn go(&mut self, node: &Node, to: impl Fn(usize) -> usize) {
        let lines = self.lines(node);
        let at = to(self.selected(&lines)).min(lines.len().saturating_sub(1));
        self.selected = lines.get(at).map(|line| key_of(line));
    }
}
