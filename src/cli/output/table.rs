//! Tables that fit the terminal: on one that is too narrow, text is shortened, and the columns that still do not fit continue
//! on indented lines.

use std::ops::Range;

use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

use super::{Color, Painter};
use crate::terminal_text::escape_controls;

/// Space between two columns.
const GAP: usize = 2;

/// Indentation of the lines on which a row continues.
const INDENT: usize = 4;

/// Width to which a text may be shortened, unless its heading is wider: what fits in less continues on the next line.
const MIN_TEXT_WIDTH: usize = 16;

/// Width for values beside their names, below which they are not wrapped.
const MIN_VALUE_WIDTH: usize = 20;

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
    /// Headings of the columns that may be shortened.
    text_columns: &'static [&'static str],
    rows: Vec<Vec<TableCell>>,
}

/// The columns of one line of each row.
struct LineLayout {
    columns: Range<usize>,
    indent: usize,
    widths: Vec<usize>,
}

impl LineLayout {
    fn width(&self) -> usize {
        self.indent + self.widths.iter().sum::<usize>() + GAP * self.widths.len().saturating_sub(1)
    }
}

impl TextTable {
    /// Creates a table with these columns. Ids, states, numbers and times are never shortened.
    pub(crate) fn new(head: &[&str]) -> Self {
        let head = head.iter().map(|name| TableCell::tinted(*name, Color::Head)).collect();
        Self { head, text_columns: &[], rows: Vec::new() }
    }

    /// The same table. These columns have text, which is shortened where the terminal is too narrow.
    pub(crate) fn with_text_columns(self, text_columns: &'static [&'static str]) -> Self {
        Self { text_columns, ..self }
    }

    pub(crate) fn row(&mut self, row: Vec<TableCell>) {
        self.rows.push(row);
    }

    /// Formats the table; only the header if it has no rows.
    pub(crate) fn print(&self, paint: Painter) -> String {
        let lines = self.layout(paint.width());
        let mut out = String::new();
        for row in std::iter::once(&self.head).chain(&self.rows) {
            for LineLayout { columns, indent, widths } in &lines {
                let mut line = " ".repeat(*indent);
                for (cell, width) in row.iter().skip(columns.start).zip(widths) {
                    let (text, printed) = cell.print(*width, paint);
                    line.push_str(&text);
                    line.extend(std::iter::repeat_n(' ', width - printed + GAP));
                }
                let line = line.trim_end_matches(' ');
                if *indent == 0 || !line.is_empty() {
                    out.push_str(line);
                    out.push('\n');
                }
            }
        }
        out
    }

    /// Distributes the columns over as few lines as possible.
    fn layout(&self, terminal: Option<usize>) -> Vec<LineLayout> {
        let widths = self.content_widths();
        let terminal = terminal.unwrap_or(usize::MAX);
        let mut lines = vec![LineLayout { columns: 0..0, indent: 0, widths: Vec::new() }];
        let mut taken = 0;
        for (column, width) in widths.iter().enumerate() {
            // Text takes what the other columns of its line leave.
            let needed = if self.is_text(column) { (*width).min(self.least_width(column)) } else { *width };
            if column > 0 && taken + needed > terminal {
                lines.push(LineLayout { columns: column..column, indent: INDENT, widths: Vec::new() });
                taken = INDENT;
            }
            taken += needed + GAP;
            if let Some(line) = lines.last_mut() {
                line.columns.end = column + 1;
                line.widths.push(*width);
            }
        }
        for line in &mut lines {
            self.shrink(line, terminal);
        }
        lines
    }

    /// Shortens the texts of a line until it fits.
    fn shrink(&self, line: &mut LineLayout, terminal: usize) {
        while line.width() > terminal {
            let start = line.columns.start;
            let can_shrink = |at: &usize| {
                let column = start + at;
                self.is_text(column) && line.widths[*at] > self.least_width(column)
            };
            // Of equally wide columns the last one, which is rather a note than a name.
            let Some(widest) = (0..line.widths.len()).filter(can_shrink).max_by_key(|at| line.widths[*at]) else {
                return;
            };
            line.widths[widest] -= 1;
        }
    }

    fn is_text(&self, column: usize) -> bool {
        self.head.get(column).is_some_and(|name| self.text_columns.contains(&name.text.as_str()))
    }

    fn least_width(&self, column: usize) -> usize {
        self.head.get(column).map_or(0, TableCell::width).max(MIN_TEXT_WIDTH)
    }

    /// The width of each column's content.
    fn content_widths(&self) -> Vec<usize> {
        let all = || std::iter::once(&self.head).chain(&self.rows);
        let columns = all().map(Vec::len).max().unwrap_or(0);
        let widest = |at: usize| all().filter_map(|row| row.get(at)).map(TableCell::width).max().unwrap_or(0);
        (0..columns).map(widest).collect()
    }
}

/// Formats pairs of names and values, one a line; an empty name continues the one above. Values that do not fit the terminal
/// continue on the next line.
pub(crate) fn fields(pairs: &[(&str, TableCell)], paint: Painter) -> String {
    let widest = pairs.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    let available = paint.width().and_then(|width| width.checked_sub(widest + GAP));
    let available = available.filter(|width| *width >= MIN_VALUE_WIDTH).unwrap_or(usize::MAX);
    let mut out = String::new();
    for (name, cell) in pairs {
        for (at, line) in wrap(&escape_controls(&cell.text), available).into_iter().enumerate() {
            let name = if at == 0 { *name } else { "" };
            let pad = " ".repeat(widest - name.chars().count() + GAP);
            let printed = format!("{}{pad}{}", paint.tint(name, Color::Dim), paint.tint(line, cell.tint));
            out.push_str(printed.trim_end_matches(' '));
            out.push('\n');
        }
    }
    out
}

/// Breaks a text into lines of at most this many columns: at spaces, or else within a word.
fn wrap(text: &str, width: usize) -> Vec<&str> {
    let (mut lines, mut rest) = (Vec::new(), text);
    loop {
        let mut used = 0;
        let end = rest.char_indices().find(|(_, char)| {
            used += char.width().unwrap_or(0);
            used > width
        });
        let Some((end, _)) = end else {
            lines.push(rest);
            return lines;
        };
        // A space at the very end of the line is not printed.
        let space = if rest[end..].starts_with(' ') { Some(end) } else { rest[..end].rfind(' ').filter(|at| *at > 0) };
        let (line, next) = rest.split_at(space.unwrap_or(end));
        lines.push(line);
        rest = next.trim_start_matches(' ');
        if rest.is_empty() {
            return lines;
        }
    }
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
        let mut table = TextTable::new(&["ID", "NAME", "STATE", "NOTE"]).with_text_columns(&["NAME", "NOTE"]);
        table.row(vec![
            "0123456789abcdef".into(),
            "旅団の仲間たちと海の歌".into(),
            "needs_review".into(),
            "x".repeat(50).into(),
        ]);
        table
    }

    #[test]
    fn text_is_shortened_to_the_terminal() {
        let printed = wide_table().print(Painter::none().with_width(90));
        let expected = format!(
            "ID                NAME                    STATE         NOTE\n\
             0123456789abcdef  旅団の仲間たちと海の歌  needs_review  {}…\n",
            "x".repeat(33)
        );
        assert_eq!(printed, expected);
    }

    #[test]
    fn columns_that_do_not_fit_continue_on_indented_lines() {
        let printed = wide_table().print(Painter::none().with_width(50));
        let expected = format!(
            "ID                NAME                STATE\n    NOTE\n\
             0123456789abcdef  旅団の仲間たちと…   needs_review\n    {}…\n",
            "x".repeat(45)
        );
        assert_eq!(printed, expected);
        let narrow = wide_table().print(Painter::none().with_width(20));
        assert_eq!(
            narrow,
            "ID\n    NAME\n    STATE\n    NOTE\n\
             0123456789abcdef\n    旅団の仲間たち…\n    needs_review\n    xxxxxxxxxxxxxxx…\n"
        );
        assert!(printed.lines().all(|line| line.width() <= 50) && narrow.lines().all(|line| line.width() <= 20));
    }

    #[test]
    fn identifiers_are_never_shortened() {
        let printed = wide_table().print(Painter::none().with_width(10));
        assert!(printed.contains("0123456789abcdef\n") && printed.contains("    needs_review\n"), "{printed}");
    }

    #[test]
    fn nothing_is_shortened_without_a_terminal() {
        assert!(wide_table().print(Painter::none()).contains(&"x".repeat(50)));
    }

    #[test]
    fn values_continue_on_the_next_line() {
        let pairs = [("a", "to be or not to be, that".into()), ("long", "x".repeat(30).into()), ("", "end".into())];
        let narrow = Painter::none().with_width(26);
        let expected =
            "a     to be or not to be,\n      that\nlong  xxxxxxxxxxxxxxxxxxxx\n      xxxxxxxxxx\n      end\n";
        assert_eq!(fields(&pairs, narrow), expected);
        assert!(fields(&pairs, Painter::none()).contains(&"x".repeat(30)));
        assert_eq!(wrap("海の歌 海の歌", 7), ["海の歌", "海の歌"]);
        assert_eq!(wrap("", 7), [""]);
    }
}
