//! Colours, if the output is a terminal.

use std::env;

use crate::terminal_text::escape_controls;

/// The role of a text, which decides its colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Color {
    /// No special role.
    #[default]
    None,
    /// Success.
    Good,
    /// In progress, or needs attention.
    Care,
    /// Failure.
    Bad,
    /// Less important.
    Dim,
    /// Heading.
    Head,
}

impl Color {
    const fn code(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Good => "32",
            Self::Care => "33",
            Self::Bad => "31",
            Self::Dim => "2",
            Self::Head => "1",
        }
    }

    /// Colour of an operation in this state.
    pub(crate) fn of_state(state: &str) -> Self {
        match state {
            "succeeded" => Self::Good,
            "dead" | "needs_review" => Self::Bad,
            "scheduled" | "running" | "delayed" | "retrying" | "reconciling" => Self::Care,
            "cancelled" => Self::Dim,
            _ => Self::None,
        }
    }
}

/// Colours and width of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Painter {
    on: bool,
    /// Columns of the terminal; `None` if the output is not one: then nothing is shortened.
    width: Option<usize>,
}

impl Painter {
    /// Colours on a terminal, unless `NO_COLOR` is set (<https://no-color.org>).
    pub(crate) fn for_terminal(is_terminal: bool) -> Self {
        let unwanted = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let unable = env::var_os("TERM").is_some_and(|term| term == "dumb");
        let width = if is_terminal { terminal_size::terminal_size_of(std::io::stdout()) } else { None };
        let width = width.map(|(width, _)| usize::from(width.0)).filter(|width| *width > 0);
        Self { on: is_terminal && !unwanted && !unable, width }
    }

    /// Columns of the terminal, if the output is one.
    pub(crate) const fn width(self) -> Option<usize> {
        self.width
    }

    /// The same for a terminal of this width.
    #[cfg(test)]
    pub(crate) const fn with_width(self, width: usize) -> Self {
        Self { width: Some(width), ..self }
    }

    /// No colours.
    #[cfg(test)]
    pub(crate) const fn none() -> Self {
        Self { on: false, width: None }
    }

    /// Returns a text in its colour. Control characters are escaped.
    pub(crate) fn tint(self, text: &str, tint: Color) -> String {
        let text = escape_controls(text);
        match (self.on, tint) {
            (false, _) | (true, Color::None) => text.into_owned(),
            (true, tint) => format!("\u{1b}[{}m{text}\u{1b}[0m", tint.code()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escape_sequences_in_text_are_escaped() {
        let on = Painter { on: true, width: None };
        assert_eq!(on.tint("dead", Color::of_state("dead")), "\u{1b}[31mdead\u{1b}[0m");
        assert_eq!(on.tint("a\u{1b}[2Jb", Color::None), "a\\u{1b}[2Jb");
        assert_eq!(Painter::none().tint("dead", Color::Bad), "dead");
        assert!(!Painter::for_terminal(false).on);
    }
}
