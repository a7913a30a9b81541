//! Makes untrusted text safe to print on a terminal.

use std::borrow::Cow;

/// Escapes the characters that would move a terminal's cursor, change its colours or change the direction of text.
pub(crate) fn escape_controls(text: &str) -> Cow<'_, str> {
    if !text.chars().any(needs_escape) {
        return Cow::Borrowed(text);
    }
    let escaped = |c: char| if needs_escape(c) { c.escape_default().to_string() } else { c.to_string() };
    Cow::Owned(text.chars().map(escaped).collect())
}

/// Whether it is a control character or changes the direction of the text around it.
fn needs_escape(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{2028}' | '\u{2029}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        assert!(matches!(escape_controls("Pilots of 〚GH〛 ü"), Cow::Borrowed(_)));
        assert_eq!(escape_controls("a\u{1b}[31mb\nc\u{9b}d\u{202e}"), "a\\u{1b}[31mb\\nc\\u{9b}d\\u{202e}");
    }
}
