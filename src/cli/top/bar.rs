//! The amounts of one resource as a bar: its length is the use; request, target, bounds and limit are marks. Pure.

use ratatui::style::{Color, Style};
use ratatui::text::{Line, Span};

use super::state::Amounts;

/// The meaning of each character of a bar.
pub(super) const LEGEND: &str = "█ used   r request   t target   [ ] bounds   | limit   ! temporary limit";

/// Draws amounts as a bar of `width` characters. The right end is the largest amount.
pub(super) fn bar(amounts: &Amounts, width: usize) -> Line<'static> {
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
        return Line::from(" ".repeat(width));
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
    Line::from(bar)
}

/// The colour that says how close use is to the limit.
pub(super) fn fill(amounts: &Amounts) -> Color {
    let [used, _, limit, ..] = amounts.values;
    match u128::from(used.unwrap_or(0)) * 100 / u128::from(limit.unwrap_or(u64::MAX).max(1)) {
        95.. => Color::Red,
        80.. => Color::Yellow,
        _ => Color::Green,
    }
}
