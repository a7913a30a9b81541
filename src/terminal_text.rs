//! Makes untrusted text safe to print on a terminal.

use std::borrow::Cow;

/// Escapes the characters that would move a terminal's cursor, change its colours or change the direction of text.
pub(crate) fn plain(text: &str) -> Cow<'_, str> {
    if !text.chars().any(moves) {
        return Cow::Borrowed(text);
    }
    let shown = |c: char| if moves(c) { c.escape_default().to_string() } else { c.to_string() };
    Cow::Owned(text.chars().map(shown).collect())
}

/// Whether it is a control character or changes the direction of the text around it.
fn moves(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{2028}' | '\u{2029}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_it_moves_the_terminal() {
        assert!(matches!(plain("Pilots of 〚GH〛 ü"), Cow::Borrowed(_)));
        assert_eq!(plain("a\u{1b}[31mb\nc\u{9b}d\u{202e}"), "a\\u{1b}[31mb\\nc\\u{9b}d\\u{202e}");
    }
}
