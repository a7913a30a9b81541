//! Tables with columns as wide as their content, or as the terminal permits.

use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

use super::{Color, Painter};
use crate::terminal_text::escape_controls;

/// Space between two columns.
const GAP: usize = 2;

/// Width to which a column may be shortened, unless its heading is wider.
const MIN_COLUMN_WIDTH: usize = 8;

/// A cell of a table.
#[derive(Clone, Debug, Default)]
pub(crate) struct TableCell {
    text: String,
    tint: Color,
}

impl TableCell {
    pub(crate) fn tinted(text: impl Into<String>, tint: Color) -> Self {
        Self { text: text.into(), tint }
    }

    /// A cell with an operation's state.
    pub(crate) fn state(state: impl Into<String>) -> Self {
        let state = state.into();
        Self { tint: Color::of_state(&state), text: state }
    }

    fn width(&self) -> usize {
        escape_controls(&self.text).width()
    }

    /// Prints it in at most `width` columns. Returns the text, and the columns that it fills.
    fn print(&self, width: usize, paint: Painter) -> (String, usize) {
        let text = escape_controls(&self.text);
        let own_width = text.width();
        if own_width <= width {
            return (paint.tint(&text, self.tint), own_width);
        }
        let text = shorten(&text, width);
        (paint.tint(&text, self.tint), text.width())
    }
}

impl<T: Into<String>> From<T> for TableCell {
    fn from(text: T) -> Self {
        Self::tinted(text, Color::None)
    }
}

/// Shortens a text to this many columns; the last one is an ellipsis.
fn shorten(text: &str, width: usize) -> String {
    let mut short = String::new();
    let mut remaining = width.saturating_sub(1);
    for char in text.chars() {
        let Some(rest) = remaining.checked_sub(char.width().unwrap_or(0)) else { break };
        remaining = rest;
        short.push(char);
    }
    short.push('…');
    short
}

/// Rows with a header.
#[derive(Clone, Debug)]
pub(crate) struct TextTable {
    head: Vec<TableCell>,
    rows: Vec<Vec<TableCell>>,
}

impl TextTable {
    pub(crate) fn new(head: &[&str]) -> Self {
        Self { head: head.iter().map(|name| TableCell::tinted(*name, Color::Head)).collect(), rows: Vec::new() }
    }

    pub(crate) fn row(&mut self, row: Vec<TableCell>) {
        self.rows.push(row);
    }

    /// Formats the table; only the header if it has no rows.
    pub(crate) fn print(&self, paint: Painter) -> String {
        let widths = self.widths(paint.width());
        let mut out = String::new();
        for row in std::iter::once(&self.head).chain(&self.rows) {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(&widths) {
                let (text, printed) = cell.print(*width, paint);
                line.push_str(&text);
                line.extend(std::iter::repeat_n(' ', width - printed + GAP));
            }
            out.push_str(line.trim_end_matches(' '));
            out.push('\n');
        }
        out
    }

    /// Widths of the columns. On a terminal that is too narrow, the widest columns are shortened. The first is not: it has
    /// what other commands need, such as an ID.
    fn widths(&self, terminal: Option<usize>) -> Vec<usize> {
        let all = || std::iter::once(&self.head).chain(&self.rows);
        let columns = all().map(Vec::len).max().unwrap_or(0);
        let widest = |at: usize| all().filter_map(|row| row.get(at)).map(TableCell::width).max().unwrap_or(0);
        let mut widths: Vec<usize> = (0..columns).map(widest).collect();
        let Some(terminal) = terminal else { return widths };
        let least = |at: usize| self.head.get(at).map_or(0, TableCell::width).max(MIN_COLUMN_WIDTH);
        while widths.iter().sum::<usize>() + GAP * columns.saturating_sub(1) > terminal {
            let shrinkable = (1..columns).filter(|at| widths[*at] > least(*at));
            // Of equally wide columns the last one, which is rather a note than a name.
            let Some(widest) = shrinkable.max_by_key(|at| widths[*at]) else { break };
            widths[widest] -= 1;
        }
        widths
    }
}

/// Formats pairs of names and values, one a line; an empty name continues the one above.
pub(crate) fn fields(pairs: &[(&str, TableCell)], paint: Painter) -> String {
    let widest = pairs.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    let line = |(name, cell): &(&str, TableCell)| {
        let pad = " ".repeat(widest - name.chars().count());
        format!("{}{pad}  {}\n", paint.tint(name, Color::Dim), paint.tint(&cell.text, cell.tint))
    };
    pairs.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_fit_their_content() {
        let mut table = TextTable::new(&["ID", "STATE", "NOTE"]);
        table.row(vec!["1".into(), TableCell::state("succeeded"), "".into()]);
        table.row(vec!["éé22".into(), TableCell::state("dead"), "a\nb".into()]);
        assert_eq!(table.print(Painter::none()), "ID    STATE      NOTE\n1     succeeded\néé22  dead       a\\nb\n");
        assert_eq!(fields(&[("a", "1".into()), ("long", "2".into())], Painter::none()), "a     1\nlong  2\n");
    }

    fn wide_table() -> TextTable {
        let mut table = TextTable::new(&["ID", "NAME", "NOTE"]);
        table.row(vec!["0123456789abcdef".into(), "旅団の仲間たち".into(), "x".repeat(50).into()]);
        table
    }

    #[test]
    fn wide_columns_are_shortened_to_the_terminal() {
        let printed = wide_table().print(Painter::none().with_width(48));
        assert!(printed.lines().all(|line| line.width() <= 48), "{printed}");
        assert!(printed.contains("0123456789abcdef  旅団の仲間たち  xxx"), "{printed}");
        assert!(printed.lines().nth(1).unwrap().ends_with("x…"), "{printed}");
        let narrow = wide_table().print(Painter::none().with_width(36));
        assert!(narrow.contains("0123456789abcdef  旅団の…   xxxxxxx…\n"), "{narrow}");
    }

    #[test]
    fn identifiers_and_small_columns_are_never_shortened() {
        let printed = wide_table().print(Painter::none().with_width(10));
        assert!(printed.contains("0123456789abcdef  "), "{printed}");
        assert!(printed.lines().nth(1).unwrap().width() == 16 + 2 + 8 + 2 + 8, "{printed}");
    }

    #[test]
    fn nothing_is_shortened_without_a_terminal() {
        assert!(wide_table().print(Painter::none()).contains(&"x".repeat(50)));
    }
}
