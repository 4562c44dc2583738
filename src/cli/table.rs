//! Lays out text in aligned columns.

use super::io;
use super::page::{Page, TextLine};

/// The least width to which [`fitted`] narrows a column.
const NARROWEST: usize = 6;

/// A header and the rows below it.
#[derive(Debug)]
pub(super) struct Table {
    rows: Vec<Vec<TextLine>>,
    /// Whether it is shown no wider than the terminal.
    fits: bool,
}

/// A table that is as wide as its cells. Two spaces separate the titles in `header`.
pub(super) fn list<const N: usize, C: Into<TextLine>>(header: &str, rows: impl IntoIterator<Item = [C; N]>) -> Table {
    let header = header.split("  ").map(TextLine::from).collect();
    let rows = rows.into_iter().map(|row| Vec::from(row.map(Into::<TextLine>::into)));
    let rows = std::iter::once(header).chain(rows);
    Table {
        rows: rows.collect(),
        fits: false,
    }
}

/// The same, no wider than the terminal.
pub(super) fn fitted<const N: usize, C: Into<TextLine>>(header: &str, rows: impl IntoIterator<Item = [C; N]>) -> Table {
    Table {
        fits: true,
        ..list(header, rows)
    }
}

impl Table {
    /// The table, or `empty` for one without rows.
    pub(super) fn or(self, empty: impl Into<Page>) -> Page {
        match self.rows.len() {
            ..=1 => empty.into(),
            _ => self.page(),
        }
    }

    pub(super) fn page(mut self) -> Page {
        if let Some(width) = io::width().filter(|_| self.fits) {
            fit(&mut self.rows, width);
        }
        align(&self.rows)
    }

    /// The table with a first column of that title and that text: in each row that does not continue the one before.
    pub(super) fn after(mut self, title: &str, text: &str) -> Self {
        let mut first = title;
        for row in &mut self.rows {
            let continues = row.first().is_some_and(|cell| cell.width() == 0);
            row.insert(0, if continues { TextLine::default() } else { first.into() });
            first = text;
        }
        self
    }

    /// Adds the rows of a table with the same header.
    pub(super) fn append(&mut self, other: Self) {
        self.rows.extend(other.rows.into_iter().skip(1));
    }
}

/// Rows of cells in columns as wide as their widest cell, two spaces apart. The last column has no padding.
pub(super) fn align(rows: &[Vec<TextLine>]) -> Page {
    let widths = widths(rows);
    let line = |row: &Vec<TextLine>| {
        let (mut line, mut gap) = (TextLine::default(), 0);
        for (cell, column) in row.iter().zip(&widths) {
            line = line.then(" ".repeat(gap)).then(cell.clone());
            gap = column.saturating_sub(cell.width()) + 2;
        }
        line
    };
    rows.iter().map(line).collect()
}

/// Shortens the widest cells until [`align`] makes no line longer than `limit` characters.
fn fit(rows: &mut [Vec<TextLine>], limit: usize) {
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
            *cell = std::mem::take(cell).shortened(column);
        }
    }
}

/// Columns side by side, as many as fit into `limit` characters. The other columns follow below, each time after the first
/// `fixed` columns. All columns have the same number of cells.
pub(super) fn columns(columns: &[Vec<TextLine>], fixed: usize, limit: usize) -> Page {
    let (fixed, mut others) = columns.split_at(fixed.min(columns.len()));
    let wide = |column: &Vec<TextLine>| column.iter().map(TextLine::width).max().unwrap_or(0) + 2;
    let mut page = Page::default();
    while !others.is_empty() {
        // The last column of a line needs no gap after it.
        let mut room = (limit + 2).saturating_sub(fixed.iter().map(wide).sum());
        let fits = |column: &&Vec<TextLine>| {
            let left = room.checked_sub(wide(column));
            room = left.unwrap_or(0);
            left.is_some()
        };
        let fitting = others.iter().take_while(fits).count().max(1);
        let (block, later) = others.split_at(fitting.min(others.len()));
        let shown = fixed.iter().chain(block);
        let row = |index: usize| shown.clone().map(|column| column[index].clone()).collect();
        page = page.then(align(&(0..others[0].len()).map(row).collect::<Vec<_>>()));
        others = later;
    }
    page
}

fn widths(rows: &[Vec<TextLine>]) -> Vec<usize> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let cells = |column: usize| rows.iter().filter_map(move |row| row.get(column));
    let widest = |column: usize| cells(column).map(TextLine::width).max().unwrap_or(0);
    (0..columns).map(widest).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::page::{Tone, toned};

    fn rows<const C: usize>(rows: &[[&str; C]]) -> Vec<Vec<TextLine>> {
        rows.iter().map(|row| row.map(TextLine::from).to_vec()).collect()
    }

    fn aligned(rows: &[Vec<TextLine>]) -> String {
        align(rows).shown(false)
    }

    #[test]
    fn cells_stand_below_each_other() {
        let rows = rows(&[["POD", "CPU"], ["web", "1 → 2"], ["database", ""]]);
        assert_eq!(aligned(&rows), "POD       CPU\nweb       1 → 2\ndatabase\n");
        assert_eq!(aligned(&[]), "");
    }

    #[test]
    fn a_wide_last_cell_widens_no_other_line() {
        let wide = "x".repeat(1000);
        let lines = align(&rows(&[["web", "ok"], ["db", &wide]])).into_lines();
        assert_eq!(lines.map(|line| line.width()).collect::<Vec<_>>(), [7, 1005]);
    }

    #[test]
    fn colours_take_no_room() {
        let rows = [
            vec![toned(Tone::Bad, "bad"), "x".into()],
            vec!["good".into(), "y".into()],
        ];
        assert_eq!(align(&rows).shown(true), "\u{1b}[31mbad\u{1b}[0m   x\ngood  y\n");
    }

    #[test]
    fn the_widest_columns_give_way_first() {
        let mut rows = rows(&[["short", "a rather long cell", "an even longer cell here"]]);
        fit(&mut rows, 30);
        assert_eq!(aligned(&rows), "short  a rather l…  an even l…\n");
        let before = rows.clone();
        fit(&mut rows, 30);
        assert_eq!(rows, before);
    }

    #[test]
    fn columns_that_do_not_fit_follow_below() {
        let column = |cells: [&str; 2]| cells.map(TextLine::from).to_vec();
        let all = [
            column(["", "spec"]),
            column(["cpu", "1"]),
            column(["memory", "2"]),
            column(["swap", "3"]),
        ];
        let shown = |columns: &[Vec<TextLine>], limit| super::columns(columns, 1, limit).shown(false);
        assert_eq!(shown(&all, 80), "      cpu  memory  swap\nspec  1    2       3\n");
        assert_eq!(
            shown(&all, 17),
            "      cpu  memory\nspec  1    2\n      swap\nspec  3\n"
        );
        assert_eq!(shown(&all[..1], 10), "");
    }

    #[test]
    fn columns_stay_readable_where_there_is_no_room() {
        let mut rows = rows(&[["abcdefgh", "abcdefgh"]]);
        fit(&mut rows, 3);
        assert_eq!(aligned(&rows), "abcde…  abcde…\n");
    }

    #[test]
    fn tables_of_nodes_name_the_node_once() {
        let mut all = list("POD  CPU", [["a", "1"], ["", "2"]]).after("NODE", "n1");
        all.append(list("POD  CPU", [["b", "3"]]).after("NODE", "n2"));
        assert_eq!(
            all.page().shown(false),
            "NODE  POD  CPU\nn1    a    1\n           2\nn2    b    3\n"
        );
    }

    #[test]
    fn another_text_replaces_an_empty_table() {
        let empty: [[&str; 1]; 0] = [];
        assert_eq!(list("POD", empty).or("no pods").shown(false), "no pods\n");
        assert_eq!(list("POD", [["a"]]).or("no pods").shown(false), "POD\na\n");
    }
}
