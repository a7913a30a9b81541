//! Tables with columns as wide as their content.

use super::{Color, Painter};
use crate::terminal_text::escape_controls;

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
        escape_controls(&self.text).chars().count()
    }
}

impl<T: Into<String>> From<T> for TableCell {
    fn from(text: T) -> Self {
        Self::tinted(text, Color::None)
    }
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
        let all = || std::iter::once(&self.head).chain(&self.rows);
        let columns = all().map(Vec::len).max().unwrap_or(0);
        let widest = |at: usize| all().filter_map(|row| row.get(at)).map(TableCell::width).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns).map(widest).collect();
        let mut out = String::new();
        for row in all() {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(&widths) {
                line.push_str(&paint.tint(&cell.text, cell.tint));
                line.extend(std::iter::repeat_n(' ', width - cell.width() + 2));
            }
            out.push_str(line.trim_end_matches(' '));
            out.push('\n');
        }
        out
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
}
