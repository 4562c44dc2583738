//! Lays out text in aligned columns, with or without colours.

use std::fmt;

use super::io;
use super::output::{clean_cell, plain};

/// The least width to which [`fitted`] narrows a column.
const NARROWEST: usize = 6;

/// A header and the rows below it.
#[derive(Debug)]
pub(super) struct Table {
    rows: Vec<Vec<String>>,
    /// Whether it is shown no wider than the terminal.
    fits: bool,
}

/// A table that is as wide as its cells. Two spaces separate the titles in `header`.
pub(super) fn list<const N: usize>(header: &str, rows: impl IntoIterator<Item = [String; N]>) -> Table {
    let header = header.split("  ").map(str::to_owned).collect();
    let rows = std::iter::once(header).chain(rows.into_iter().map(Vec::from));
    Table {
        rows: rows.collect(),
        fits: false,
    }
}

/// The same, no wider than the terminal.
pub(super) fn fitted<const N: usize>(header: &str, rows: impl IntoIterator<Item = [String; N]>) -> Table {
    Table {
        fits: true,
        ..list(header, rows)
    }
}

impl Table {
    /// The table, or `empty` for one without rows.
    pub(super) fn or(&self, empty: &str) -> String {
        match self.rows.len() {
            ..=1 => format!("{empty}\n"),
            _ => self.to_string(),
        }
    }

    /// The table with a first column of that title and that text: in each row that does not continue the one before.
    pub(super) fn after(mut self, title: &str, text: &str) -> Self {
        let mut first = title;
        for row in &mut self.rows {
            let continues = row.first().is_some_and(String::is_empty);
            row.insert(0, if continues { String::new() } else { first.to_owned() });
            first = text;
        }
        self
    }

    /// Adds the rows of a table with the same header.
    pub(super) fn append(&mut self, other: Self) {
        self.rows.extend(other.rows.into_iter().skip(1));
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rows = self.rows.clone();
        if let Some(width) = io::width().filter(|_| self.fits) {
            fit(&mut rows, width);
        }
        f.write_str(&align(&rows))
    }
}

/// Rows of cells in columns as wide as their widest cell, two spaces apart. The last column has no padding.
pub(super) fn align(rows: &[Vec<String>]) -> String {
    let cells = |row: &Vec<String>| row.iter().map(|cell| clean_cell(cell)).collect::<Vec<_>>();
    let rows: Vec<_> = rows.iter().map(cells).collect();
    let widths = widths(&rows);
    let mut text = String::new();
    for row in &rows {
        let mut line = String::new();
        for (cell, &column) in row.iter().zip(&widths) {
            // Not `{:<}`, which would count the characters of colours.
            line.push_str(cell);
            line.push_str(&" ".repeat(column.saturating_sub(width(cell)) + 2));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Shortens the widest cells until [`align`] makes no line longer than `limit` characters.
fn fit(rows: &mut [Vec<String>], limit: usize) {
    let mut widths = widths(rows);
    let gaps = 2 * widths.len().saturating_sub(1);
    while widths.iter().sum::<usize>() + gaps > limit {
        match widths.iter_mut().max() {
            Some(widest) if *widest > NARROWEST => *widest -= 1,
            Some(_) | None => break,
        }
    }
    for row in rows {
        for (cell, &column) in row.iter_mut().zip(&widths) {
            if width(cell) > column {
                *cell = plain(cell).chars().take(column - 1).chain(['…']).collect();
            }
        }
    }
}

/// Columns side by side, as many as fit into `limit` characters. The other columns follow below, each time after the first
/// `fixed` columns. All columns have the same number of cells.
pub(super) fn columns(columns: &[Vec<String>], fixed: usize, limit: usize) -> String {
    let (fixed, mut others) = columns.split_at(fixed.min(columns.len()));
    let wide = |column: &Vec<String>| column.iter().map(|cell| width(cell)).max().unwrap_or(0) + 2;
    let mut text = String::new();
    while !others.is_empty() {
        // The last column of a line needs no gap after it.
        let mut room = (limit + 2).saturating_sub(fixed.iter().map(wide).sum());
        let fits = |column: &&Vec<String>| {
            let left = room.checked_sub(wide(column));
            room = left.unwrap_or(0);
            left.is_some()
        };
        let fitting = others.iter().take_while(fits).count().max(1);
        let (block, later) = others.split_at(fitting.min(others.len()));
        let row = |index: usize| {
            fixed
                .iter()
                .chain(block)
                .filter_map(|column| column.get(index).cloned())
                .collect()
        };
        text += &align(&(0..others[0].len()).map(row).collect::<Vec<_>>());
        others = later;
    }
    text
}

/// Breaks text at its spaces into lines of at most `limit` characters, each after `indent` spaces. No-break spaces hold.
pub(super) fn wrap(text: &str, indent: usize, limit: usize) -> String {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_ascii_whitespace() {
        match lines.last_mut() {
            Some(line) if width(line) + 1 + width(word) <= limit => *line += &format!(" {word}"),
            _ => lines.push(format!("{:indent$}{word}", "")),
        }
    }
    lines.iter().map(|line| format!("{line}\n")).collect()
}

fn widths(rows: &[Vec<String>]) -> Vec<usize> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let cells = |column: usize| rows.iter().filter_map(move |row| row.get(column));
    let widest = |column: usize| cells(column).map(|cell| width(cell)).max().unwrap_or(0);
    (0..columns).map(widest).collect()
}

fn width(cell: &str) -> usize {
    plain(cell).chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows<const C: usize>(rows: &[[&str; C]]) -> Vec<Vec<String>> {
        rows.iter().map(|row| row.map(str::to_owned).to_vec()).collect()
    }

    #[test]
    fn cells_stand_below_each_other() {
        let rows = rows(&[["POD", "CPU"], ["web", "1 → 2"], ["database", ""]]);
        assert_eq!(align(&rows), "POD       CPU\nweb       1 → 2\ndatabase\n");
        assert_eq!(align(&[]), "");
    }

    #[test]
    fn colours_take_no_room() {
        let rows = rows(&[["\u{fdd3}bad\u{fdd0}", "x"], ["good", "y"]]);
        assert_eq!(align(&rows), "\u{fdd3}bad\u{fdd0}   x\ngood  y\n");
    }

    #[test]
    fn the_widest_columns_give_way_first() {
        let mut rows = rows(&[["short", "a rather long cell", "an even longer cell here"]]);
        fit(&mut rows, 30);
        assert_eq!(align(&rows), "short  a rather l…  an even l…\n");
        let before = rows.clone();
        fit(&mut rows, 30);
        assert_eq!(rows, before);
    }

    #[test]
    fn a_shortened_cell_has_no_colour() {
        let mut rows = rows(&[["a", "\u{fdd3}rather bad\u{fdd0}"]]);
        fit(&mut rows, 10);
        assert_eq!(align(&rows), "a  rather…\n");
        assert_eq!(width(&rows[0][1]), 7);
    }

    #[test]
    fn columns_that_do_not_fit_follow_below() {
        let column = |cells: [&str; 2]| cells.map(str::to_owned).to_vec();
        let all = [
            column(["", "spec"]),
            column(["cpu", "1"]),
            column(["memory", "2"]),
            column(["swap", "3"]),
        ];
        assert_eq!(columns(&all, 1, 80), "      cpu  memory  swap\nspec  1    2       3\n");
        assert_eq!(
            columns(&all, 1, 17),
            "      cpu  memory\nspec  1    2\n      swap\nspec  3\n"
        );
        assert_eq!(columns(&all[..1], 1, 10), "");
    }

    #[test]
    fn columns_stay_readable_where_there_is_no_room() {
        let mut rows = rows(&[["abcdefgh", "abcdefgh"]]);
        fit(&mut rows, 3);
        assert_eq!(align(&rows), "abcde…  abcde…\n");
    }

    #[test]
    fn text_is_broken_at_spaces() {
        assert_eq!(wrap("one two three", 2, 9), "  one two\n  three\n");
        assert_eq!(wrap("unbreakable word", 0, 4), "unbreakable\nword\n");
        assert_eq!(wrap("", 2, 9), "");
    }
}
