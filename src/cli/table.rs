//! Text in aligned columns, with or without colour.

/// Columns are not made narrower than this, however little room there is.
const NARROWEST: usize = 6;

/// Rows of cells in columns as wide as their widest cell, two spaces apart. The last column is not padded.
pub(super) fn align(rows: &[Vec<String>]) -> String {
    let widths = widths(rows);
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).map(|(cell, &column)| {
            // Not `{:<}`, which would count the characters of colours.
            cell.clone() + &" ".repeat(column.saturating_sub(width(cell)))
        });
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// Shortens the widest cells, which must be without colour, until [`align`] makes no line longer than `limit` characters.
pub(super) fn fit(rows: &mut [Vec<String>], limit: usize) {
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
                *cell = cell.chars().take(column.saturating_sub(1)).chain(['…']).collect();
            }
        }
    }
}

/// Breaks text into lines of at most `limit` characters at its spaces, no-break ones excepted, each after `indent` spaces.
pub(super) fn wrap(text: &str, indent: usize, limit: usize) -> String {
    let margin = " ".repeat(indent);
    let mut lines = String::new();
    let mut line = String::new();
    for word in text.split_ascii_whitespace() {
        if !line.is_empty() && indent + width(&line) + 1 + width(word) > limit {
            lines.push_str(&format!("{margin}{line}\n"));
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    if !line.is_empty() {
        lines.push_str(&format!("{margin}{line}\n"));
    }
    lines
}

fn widths(rows: &[Vec<String>]) -> Vec<usize> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    (0..columns)
        .map(|column| {
            rows.iter()
                .filter_map(|row| row.get(column))
                .map(|cell| width(cell))
                .max()
        })
        .map(Option::unwrap_or_default)
        .collect()
}

/// Characters on the screen: colour sequences (`ESC [ … m`) take no room.
fn width(cell: &str) -> usize {
    let mut in_sequence = false;
    cell.chars()
        .filter(|&character| {
            let hidden = in_sequence || character == '\u{1b}';
            in_sequence = hidden && character != 'm';
            !hidden
        })
        .count()
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
        let rows = rows(&[["\u{1b}[31mbad\u{1b}[0m", "x"], ["good", "y"]]);
        assert_eq!(align(&rows), "\u{1b}[31mbad\u{1b}[0m   x\ngood  y\n");
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
