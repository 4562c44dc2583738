//! Text in aligned columns.

/// Rows of cells in columns as wide as their widest cell, two spaces apart. The last column is not padded.
pub(super) fn align(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns)
        .map(|column| {
            rows.iter()
                .filter_map(|row| row.get(column))
                .map(|cell| cell.chars().count())
                .max()
        })
        .map(Option::unwrap_or_default)
        .collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_stand_below_each_other() {
        let rows = [["POD", "CPU"], ["web", "1 → 2"], ["database", ""]].map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(align(&rows), "POD       CPU\nweb       1 → 2\ndatabase\n");
        assert_eq!(align(&[]), "");
    }
}
