//! Text for people. A line is made of the texts of others and of colours; [`io`](super::io) alone makes characters of it, and escapes
//! dangerous ones then. So no text leaves its line, has another colour than its tone, or brings a terminal's sequence, whoever wrote it.

use ratatui::text::Span;

use crate::model::OBSERVING;
use crate::printable::printable;

/// The meaning of a text, which decides its colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tone {
    Good,
    Waiting,
    Bad,
    Title,
    Plain,
}

impl Tone {
    /// The tone of a pod's state, or of the outcome of a change.
    pub(super) fn of(word: &str) -> Self {
        match word {
            "Applied" | "InSync" => Self::Good,
            "Working" | "Owed" | "RuntimeOwed" | "Planned" | "InFlight" => Self::Waiting,
            "Refused" | "RolledBack" | "Incomplete" | "Foreign" => Self::Bad,
            _ => Self::Plain,
        }
    }

    /// The terminal's sequence that begins the colour.
    const fn sequence(self) -> Option<&'static str> {
        match self {
            Self::Good => Some("\u{1b}[32m"),
            Self::Waiting => Some("\u{1b}[33m"),
            Self::Bad => Some("\u{1b}[31m"),
            Self::Title => Some("\u{1b}[1m"),
            Self::Plain => None,
        }
    }
}

/// The sequence that ends every colour.
const END: &str = "\u{1b}[0m";

/// A line, or a part of one such as the cell of a table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct TextLine(Vec<(Tone, String)>);

impl<T: Into<String>> From<T> for TextLine {
    fn from(text: T) -> Self {
        toned(Tone::Plain, text)
    }
}

/// A text in the colour of its tone.
pub(super) fn toned(tone: Tone, text: impl Into<String>) -> TextLine {
    TextLine(vec![(tone, text.into())])
}

/// A problem of the agent. Observing is none: the configuration requests it.
pub(super) fn problem(text: &str) -> TextLine {
    match text {
        OBSERVING => text.into(),
        _ => toned(Tone::Bad, "degraded:").then(format!(" {text}")),
    }
}

/// A word in its own tone.
pub(super) fn word(word: &str) -> TextLine {
    toned(Tone::of(word), word)
}

impl TextLine {
    /// This line, and then another text.
    pub(super) fn then(mut self, next: impl Into<Self>) -> Self {
        self.0.append(&mut next.into().0);
        self
    }

    /// The parts of a line, with this text between them.
    pub(super) fn joined(parts: impl IntoIterator<Item = Self>, between: &str) -> Self {
        let join = |all: Self, next: Self| all.then(between).then(next);
        parts.into_iter().reduce(join).unwrap_or_default()
    }

    /// The columns on a screen: a character of East Asia takes two.
    pub(super) fn width(&self) -> usize {
        columns(&self.shown(false))
    }

    /// No more than so many columns, without a colour where characters are left out.
    pub(super) fn shortened(self, most: usize) -> Self {
        if self.width() <= most {
            return self;
        }
        let mut end = 0;
        let fits = |one: &char| {
            end += columns(&one.to_string());
            end < most
        };
        let shown = self.shown(false);
        shown.chars().take_while(fits).chain(['…']).collect::<String>().into()
    }

    /// The text between white space, word by word.
    fn words(&self) -> impl Iterator<Item = Self> {
        let mut words = vec![Self::default()];
        for (tone, text) in &self.0 {
            let text = printable(text, &[]);
            for (number, part) in text.split(|one: char| one.is_ascii_whitespace()).enumerate() {
                if number > 0 {
                    words.push(Self::default());
                }
                if let (Some(word), false) = (words.last_mut(), part.is_empty()) {
                    word.0.push((*tone, part.to_owned()));
                }
            }
        }
        words.into_iter().filter(|word| !word.0.is_empty())
    }

    /// The characters, with their colours if they are wanted.
    pub(super) fn shown(&self, colours: bool) -> String {
        let parts = self.0.iter().map(|(tone, text)| {
            let text = printable(text, &[]);
            match tone.sequence().filter(|_| colours && !text.is_empty()) {
                Some(sequence) => format!("{sequence}{text}{END}"),
                None => text.into_owned(),
            }
        });
        parts.collect()
    }
}

fn columns(text: &str) -> usize {
    Span::raw(text).width()
}

/// Lines one below the other.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Page(Vec<TextLine>);

impl<T: Into<TextLine>> From<T> for Page {
    fn from(line: T) -> Self {
        Self(vec![line.into()])
    }
}

impl<T: Into<TextLine>> FromIterator<T> for Page {
    fn from_iter<I: IntoIterator<Item = T>>(lines: I) -> Self {
        Self(lines.into_iter().map(Into::into).collect())
    }
}

impl Page {
    /// The text's words in lines of at most `limit` columns, each after `indent` spaces. No-break spaces hold.
    pub(super) fn wrapped(text: impl Into<TextLine>, indent: usize, limit: usize) -> Self {
        let mut lines: Vec<TextLine> = Vec::new();
        for word in text.into().words() {
            match lines.last_mut() {
                Some(line) if line.width() + 1 + word.width() <= limit => {
                    *line = std::mem::take(line).then(" ").then(word);
                }
                _ => lines.push(TextLine::from(" ".repeat(indent)).then(word)),
            }
        }
        Self(lines)
    }

    pub(super) fn push(&mut self, line: impl Into<TextLine>) {
        self.0.push(line.into());
    }

    /// This page, and then another one.
    pub(super) fn then(mut self, next: impl Into<Self>) -> Self {
        self.0.append(&mut next.into().0);
        self
    }

    /// Pages with an empty line between them.
    pub(super) fn joined(pages: impl IntoIterator<Item = Self>) -> Self {
        let between = |all: Self, next: Self| all.then("").then(next);
        pages.into_iter().reduce(between).unwrap_or_default()
    }

    /// This page, or another one in place of an empty one.
    pub(super) fn or(self, other: impl Into<Self>) -> Self {
        if self.is_empty() { other.into() } else { self }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn into_lines(self) -> impl Iterator<Item = TextLine> {
        self.0.into_iter()
    }

    /// The characters of all lines.
    pub(super) fn shown(&self, colours: bool) -> String {
        let lines = self.0.iter();
        lines
            .map(|line| line.shown(colours).trim_end().to_owned() + "\n")
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::printable::is_dangerous;
    use crate::printable::tests::HOSTILE;

    #[test]
    fn no_text_leaves_its_line_or_its_colour() {
        let line = TextLine::from(format!("a\n{HOSTILE}")).then(toned(Tone::Bad, HOSTILE));
        let page = Page::from(line.clone()).then(Page::wrapped(line, 2, 20));
        for colours in [true, false] {
            let text = page.shown(colours);
            let without_ours = text.replace("\u{1b}[31m", "").replace(END, "").replace('\n', "");
            assert!(!without_ours.contains(is_dangerous), "{text:?}");
            assert_eq!(text.contains('\u{1b}'), colours);
            assert!(text.starts_with("a\\n\\u{1b}[2J"), "{text:?}");
        }
    }

    #[test]
    fn colours_are_only_added_where_they_are_wanted() {
        assert_eq!(word("Refused").shown(false), "Refused");
        assert_eq!(word("Refused").shown(true), "\u{1b}[31mRefused\u{1b}[0m");
        assert_eq!(word("NotManaged").shown(true), "NotManaged");
        assert_eq!(word("Refused").then(" x").shortened(5), TextLine::from("Refu…"));
    }

    #[test]
    fn wide_characters_take_two_columns() {
        let wide = TextLine::from("負荷試験 ok");
        assert_eq!(wide.width(), 11);
        for (most, shown) in [(11, "負荷試験 ok"), (10, "負荷試験 …"), (8, "負荷試…"), (1, "…")] {
            assert_eq!(wide.clone().shortened(most), TextLine::from(shown), "{most}");
        }
    }

    #[test]
    fn text_is_broken_at_spaces() {
        let wrap = |text: &str, indent, limit| Page::wrapped(text, indent, limit).shown(false);
        assert_eq!(wrap("one two three", 2, 9), "  one two\n  three\n");
        assert_eq!(wrap("unbreakable word", 0, 4), "unbreakable\nword\n");
        assert_eq!(wrap("", 2, 9), "");
    }

    #[test]
    fn words_have_the_tone_of_what_they_mean() {
        for (tone, words) in [
            (Tone::Good, &["Applied", "InSync"][..]),
            (
                Tone::Waiting,
                &["Working", "Owed", "RuntimeOwed", "Planned", "InFlight"],
            ),
            (Tone::Bad, &["Refused", "RolledBack", "Incomplete", "Foreign"]),
            (Tone::Plain, &["NotManaged", "Unchanged", "other"]),
        ] {
            for word in words {
                assert_eq!(Tone::of(word), tone, "{word}");
            }
        }
        let sequences = [Tone::Good, Tone::Waiting, Tone::Bad, Tone::Title].map(|tone| toned(tone, "x").shown(true));
        assert_eq!(
            sequences,
            [32, 33, 31, 1].map(|code| format!("\u{1b}[{code}mx\u{1b}[0m"))
        );
    }

    #[test]
    fn observing_is_no_problem() {
        assert_eq!(problem(OBSERVING).shown(true), OBSERVING);
        assert_eq!(
            problem("no runtime answers").shown(true),
            "\u{1b}[31mdegraded:\u{1b}[0m no runtime answers"
        );
    }
}
