//! Tables: columns as wide as what stands in them.

use super::{Paint, Tint};
use crate::plain::plain;

/// What stands in one place of a table.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cell {
    text: String,
    tint: Tint,
}

impl Cell {
    pub(crate) fn tinted(text: impl Into<String>, tint: Tint) -> Self {
        Self { text: text.into(), tint }
    }

    /// An operation's state.
    pub(crate) fn state(state: impl Into<String>) -> Self {
        let state = state.into();
        Self { tint: Tint::of_state(&state), text: state }
    }

    fn width(&self) -> usize {
        plain(&self.text).chars().count()
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::tinted(text, Tint::None)
    }
}

/// Rows below a head.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    head: Vec<Cell>,
    rows: Vec<Vec<Cell>>,
}

impl Table {
    pub(crate) fn new(head: &[&str]) -> Self {
        Self { head: head.iter().map(|name| Cell::tinted(*name, Tint::Head)).collect(), rows: Vec::new() }
    }

    pub(crate) fn row(&mut self, row: Vec<Cell>) {
        self.rows.push(row);
    }

    /// All of it; only the head if there is nothing below.
    pub(crate) fn print(&self, paint: Paint) -> String {
        let all = || std::iter::once(&self.head).chain(&self.rows);
        let columns = all().map(Vec::len).max().unwrap_or(0);
        let widest = |at: usize| all().filter_map(|row| row.get(at)).map(Cell::width).max().unwrap_or(0);
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

/// Names and what they are, one below the other; a blank name goes on with the one above.
pub(crate) fn fields(pairs: &[(&str, Cell)], paint: Paint) -> String {
    let widest = pairs.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    let line = |(name, cell): &(&str, Cell)| {
        let pad = " ".repeat(widest - name.chars().count());
        format!("{}{pad}  {}\n", paint.tint(name, Tint::Dim), paint.tint(&cell.text, cell.tint))
    };
    pairs.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_what_is_in_them() {
        let mut table = Table::new(&["ID", "STATE", "NOTE"]);
        table.row(vec!["1".into(), Cell::state("succeeded"), "".into()]);
        table.row(vec!["éé22".into(), Cell::state("dead"), "a\nb".into()]);
        assert_eq!(table.print(Paint::none()), "ID    STATE      NOTE\n1     succeeded\néé22  dead       a\\nb\n");
        assert_eq!(fields(&[("a", "1".into()), ("long", "2".into())], Paint::none()), "a     1\nlong  2\n");
    }
}
