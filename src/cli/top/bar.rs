//! One amount as a bar: what is used, and marks for request, target, bounds and limit. Pure.

use ratatui::style::{Color, Style};
use ratatui::text::{Line, Span};

use super::state::Amounts;

/// What each character of a bar means.
pub(super) const LEGEND: &str = "█ used   r request   t target   [ ] bounds   | limit   ! temporary limit";

/// Draws amounts in so many characters, the largest of them at the right end.
pub(super) fn bar(amounts: &Amounts, width: usize) -> Line<'static> {
    let limit = if amounts.temporary_until.is_some() { '!' } else { '|' };
    // What comes later hides what came before it.
    let marks = [
        (amounts.lower_bound, '['),
        (amounts.upper_bound, ']'),
        (amounts.request, 'r'),
        (amounts.target, 't'),
        (amounts.limit, limit),
    ];
    let used = amounts.used.unwrap_or(0);
    let scale = marks.iter().filter_map(|(amount, _)| *amount).fold(used, u64::max);
    if scale == 0 || width == 0 {
        return Line::from(" ".repeat(width));
    }
    let cells = |amount: u64| usize::try_from(u128::from(amount) * width as u128 / u128::from(scale)).unwrap_or(width);
    // A little of something is something.
    let filled = cells(used).max(usize::from(used > 0));
    let mut bar: Vec<Span<'_>> = (0..width)
        .map(|cell| match cell < filled {
            true => Span::styled("█", fill(amounts)),
            false => Span::styled("·", Color::DarkGray),
        })
        .collect();
    for (amount, mark) in marks {
        let Some(amount) = amount.filter(|amount| *amount > 0) else {
            continue;
        };
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

/// How close use is to the limit.
pub(super) fn fill(amounts: &Amounts) -> Color {
    let part = amounts
        .used
        .zip(amounts.limit)
        .map(|(used, limit)| u128::from(used) * 100 / u128::from(limit.max(1)));
    match part {
        Some(95..) => Color::Red,
        Some(80..) => Color::Yellow,
        _ => Color::Green,
    }
}
