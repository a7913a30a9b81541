//! A string of JSON text, as it stands there.

use std::borrow::Cow;
use std::fmt;

/// A string of JSON text, quotes and escapes and all. It may be a secret: only its length is ever shown.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct JsonString<'a> {
    quoted: &'a str,
    escaped: bool,
}

impl<'a> JsonString<'a> {
    /// This one, which has quotes around it, and perhaps escapes in it.
    pub(super) const fn new(quoted: &'a str, escaped: bool) -> Self {
        Self { quoted, escaped }
    }

    /// What it says; `None` if it has half of a surrogate pair in it, which no text can say.
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
