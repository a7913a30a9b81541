//! A string in JSON text, not decoded.

use std::borrow::Cow;
use std::fmt;

/// A string in JSON text, with quotes and escapes. It may be a secret: debug output has only its length.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct JsonString<'a> {
    quoted: &'a str,
    escaped: bool,
}

impl<'a> JsonString<'a> {
    /// Creates it from a text in quotes that may have escapes.
    pub(super) const fn new(quoted: &'a str, escaped: bool) -> Self {
        Self { quoted, escaped }
    }

    /// The decoded string; `None` if it contains half of a surrogate pair, which is not valid text.
    #[must_use]
    #[inline]
    pub fn text(self) -> Option<Cow<'a, str>> {
        if self.escaped {
            serde_json::from_str(self.quoted).ok().map(Cow::Owned)
        } else {
            Some(Cow::Borrowed(&self.quoted[1..self.quoted.len() - 1]))
        }
    }
}

impl fmt::Debug for JsonString<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.quoted.len())
    }
}
