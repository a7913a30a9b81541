//! A position in JSON text. It builds no values: skipped text is only validated.

use std::num::NonZeroU64;

use super::FrameError;
use super::bytes::{find_special_byte, parse_number};
use super::json_string::JsonString;

/// Maximum nesting depth: the same as serde_json's, so that text that passes here can be parsed later.
const MAX_DEPTH: u32 = 127;

/// Syntax error at the cursor. It is small, since every step can return it and hardly any does.
#[derive(Clone, Copy, Debug)]
pub(super) enum SyntaxError {
    TooDeep,
    NoObject,
    NoEnd,
    NoKey,
    NoColon,
    NoValue,
    NoDigit,
    ObjectBroken,
    ArrayBroken,
    StringBroken,
    EscapeBroken,
}

impl SyntaxError {
    /// Adds the position to the error.
    #[cold]
    pub(super) fn with_position(self, at: usize) -> FrameError {
        let expected = match self {
            Self::TooDeep => return FrameError::TooDeep { at },
            Self::NoObject => "an object",
            Self::NoEnd => "the end",
            Self::NoKey => "a key",
            Self::NoColon => "':'",
            Self::NoValue => "a value",
            Self::NoDigit => "a digit",
            Self::ObjectBroken => "',' or '}'",
            Self::ArrayBroken => "',' or ']'",
            Self::StringBroken => "the rest of a string",
            Self::EscapeBroken => "the rest of an escape",
        };
        FrameError::Syntax { expected, at }
    }
}

/// A string, from its opening quote to after its closing one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    from: usize,
    to: usize,
    escaped: bool,
}

/// A value, as far as it is needed.
#[derive(Clone, Copy, Debug)]
pub(super) enum Scalar<'a> {
    /// `null`.
    Null,
    /// An integer that fits.
    Number(u64),
    /// A string.
    Text(JsonString<'a>),
    /// Anything else.
    Other,
}

/// A position in JSON text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor<'a> {
    text: &'a str,
    at: usize,
    depth: u32,
}

impl<'a> Cursor<'a> {
    /// Start of the text.
    pub(super) const fn new(text: &'a str) -> Self {
        Self { text, at: 0, depth: 0 }
    }

    /// Position in bytes.
    pub(super) const fn at(&self) -> usize {
        self.at
    }

    /// Skips white space and returns the next byte, without consuming it.
    #[inline(always)]
    pub(super) fn peek(&mut self) -> Option<u8> {
        loop {
            let byte = self.here()?;
            if !matches!(byte, b' ' | b'\n' | b'\r' | b'\t') {
                return Some(byte);
            }
            self.at += 1;
        }
    }

    /// Checks that only white space follows.
    pub(super) fn expect_end(&mut self) -> Result<(), SyntaxError> {
        if self.peek().is_none() { Ok(()) } else { Err(SyntaxError::NoEnd) }
    }

    /// Enters an object. Returns whether it has fields: if so, a key is next.
    #[inline(always)]
    pub(super) fn enter(&mut self) -> Result<bool, SyntaxError> {
        if self.peek() == Some(b'{') { self.open(b'}') } else { Err(SyntaxError::NoObject) }
    }

    /// Continues after a value in an object. Returns whether another key is next; if not, it has left the object.
    #[inline(always)]
    pub(super) fn next_entry(&mut self) -> Result<bool, SyntaxError> {
        match self.peek() {
            Some(b',') => {
                self.at += 1;
                Ok(true)
            }
            Some(b'}') => {
                self.close();
                Ok(false)
            }
            _ => Err(SyntaxError::ObjectBroken),
        }
    }

    /// Reads a key and its colon. The value is next.
    // Always inlined: returning a span through memory takes longer than finding it.
    #[inline(always)]
    pub(super) fn key(&mut self) -> Result<Span, SyntaxError> {
        if self.peek() != Some(b'"') {
            return Err(SyntaxError::NoKey);
        }
        let key = self.string()?;
        if self.peek() != Some(b':') {
            return Err(SyntaxError::NoColon);
        }
        self.at += 1;
        Ok(key)
    }

    /// Content of a string; `None` if it has escapes.
    #[inline(always)]
    pub(super) fn unescaped(&self, span: Span) -> Option<&'a [u8]> {
        (!span.escaped).then(|| &self.text.as_bytes()[span.from + 1..span.to - 1])
    }

    /// Reads a string.
    #[inline(always)]
    pub(super) fn json_string(&self, span: Span) -> JsonString<'a> {
        JsonString::new(&self.text[span.from..span.to], span.escaped)
    }

    /// Reads an id: digits, as a string or as a number. Any other value is skipped.
    #[inline]
    pub(super) fn id(&mut self) -> Result<Option<NonZeroU64>, SyntaxError> {
        let id = if self.peek() == Some(b'"') {
            let span = self.string()?;
            match self.unescaped(span) {
                Some(digits) => parse_number(digits),
                None => self.json_string(span).text().and_then(|text| parse_number(text.as_bytes())),
            }
        } else if let Scalar::Number(id) = self.scalar()? {
            Some(id)
        } else {
            None
        };
        Ok(id.and_then(NonZeroU64::new))
    }

    /// Reads an integer or a string. Any other value is skipped.
    #[inline]
    pub(super) fn scalar(&mut self) -> Result<Scalar<'a>, SyntaxError> {
        match self.peek() {
            Some(b'"') => {
                let span = self.string()?;
                Ok(Scalar::Text(self.json_string(span)))
            }
            Some(b'0'..=b'9') => {
                let from = self.at;
                self.number()?;
                // A number with a fraction or an exponent, or one that does not fit, is not an integer.
                Ok(self.text[from..self.at].parse().map_or(Scalar::Other, Scalar::Number))
            }
            Some(b'n') => self.literal(*b"null").map(|()| Scalar::Null),
            _ => self.skip().map(|()| Scalar::Other),
        }
    }

    /// Skips any value.
    #[inline(always)]
    pub(super) fn skip(&mut self) -> Result<(), SyntaxError> {
        match self.peek() {
            Some(b'"') => self.string().map(|_| ()),
            Some(b'n') => self.literal(*b"null"),
            Some(_) | None => {
                // Works on a copy, so that only the copy has to be in memory.
                let mut cursor = *self;
                let skipped = cursor.skip_any();
                *self = cursor;
                skipped
            }
        }
    }

    /// Skips any value. The enclosing objects and arrays are a bit stack, so that deep nesting costs no stack space.
    fn skip_any(&mut self) -> Result<(), SyntaxError> {
        let floor = self.depth;
        // The lowest bit is the innermost: 1 for an object, 0 for an array.
        let mut enclosing = 0_u128;
        loop {
            match self.peek() {
                Some(b'"') => {
                    self.string()?;
                }
                Some(b'-' | b'0'..=b'9') => self.number()?,
                Some(b'{') => {
                    if self.open(b'}')? {
                        enclosing = enclosing << 1 | 1;
                        self.key()?;
                        continue;
                    }
                }
                Some(b'[') => {
                    if self.open(b']')? {
                        enclosing <<= 1;
                        continue;
                    }
                }
                Some(b't') => self.literal(*b"true")?,
                Some(b'f') => self.literal(*b"false")?,
                Some(b'n') => self.literal(*b"null")?,
                _ => return Err(SyntaxError::NoValue),
            }
            // A value has ended, and so may have those that enclose it.
            loop {
                if self.depth == floor {
                    return Ok(());
                }
                match (self.peek(), enclosing & 1 == 1) {
                    (Some(b','), true) => {
                        self.at += 1;
                        self.key()?;
                        break;
                    }
                    (Some(b','), false) => {
                        self.at += 1;
                        break;
                    }
                    (Some(b'}'), true) | (Some(b']'), false) => {
                        self.close();
                        enclosing >>= 1;
                    }
                    (_, true) => return Err(SyntaxError::ObjectBroken),
                    (_, false) => return Err(SyntaxError::ArrayBroken),
                }
            }
        }
    }

    #[inline(always)]
    fn here(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    /// Enters an object or array. Returns whether it has content; if not, it has left it again.
    #[inline(always)]
    fn open(&mut self, closing: u8) -> Result<bool, SyntaxError> {
        if self.depth == MAX_DEPTH {
            return Err(SyntaxError::TooDeep);
        }
        self.at += 1;
        self.depth += 1;
        let empty = self.peek() == Some(closing);
        if empty {
            self.close();
        }
        Ok(!empty)
    }

    #[inline(always)]
    fn close(&mut self) {
        self.at += 1;
        self.depth -= 1;
    }

    #[inline(always)]
    fn literal<const LEN: usize>(&mut self, literal: [u8; LEN]) -> Result<(), SyntaxError> {
        if self.text.as_bytes().get(self.at..).and_then(|rest| rest.first_chunk()) != Some(&literal) {
            return Err(SyntaxError::NoValue);
        }
        self.at += LEN;
        Ok(())
    }

    fn number(&mut self) -> Result<(), SyntaxError> {
        if self.here() == Some(b'-') {
            self.at += 1;
        }
        if self.here() == Some(b'0') {
            self.at += 1;
        } else {
            self.digits()?;
        }
        if self.here() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if let Some(b'e' | b'E') = self.here() {
            self.at += 1;
            if let Some(b'+' | b'-') = self.here() {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(())
    }

    fn digits(&mut self) -> Result<(), SyntaxError> {
        let from = self.at;
        while let Some(b'0'..=b'9') = self.here() {
            self.at += 1;
        }
        if self.at == from { Err(SyntaxError::NoDigit) } else { Ok(()) }
    }

    /// Reads a string; the cursor is at its opening quote.
    #[inline(always)]
    fn string(&mut self) -> Result<Span, SyntaxError> {
        let from = self.at;
        self.at = find_special_byte(self.text.as_bytes(), from + 1);
        let escaped = self.here() != Some(b'"');
        if escaped {
            let mut cursor = *self;
            let rest = cursor.rest_of_string();
            *self = cursor;
            rest?;
        }
        self.at += 1;
        Ok(Span { from, to: self.at, escaped })
    }

    /// Reads the rest of a string with escapes, up to its closing quote. Most strings have none.
    #[cold]
    #[inline(never)]
    fn rest_of_string(&mut self) -> Result<(), SyntaxError> {
        loop {
            match self.here() {
                Some(b'"') => return Ok(()),
                Some(b'\\') => self.escape()?,
                _ => return Err(SyntaxError::StringBroken),
            }
            self.at = find_special_byte(self.text.as_bytes(), self.at);
        }
    }

    /// Reads an escape. Whether surrogates come in pairs is checked by the reader of the string.
    fn escape(&mut self) -> Result<(), SyntaxError> {
        self.at += 1;
        match self.here() {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => self.at += 1,
            Some(b'u') => {
                self.at += 1;
                for _ in 0..4 {
                    if !self.here().is_some_and(|byte| byte.is_ascii_hexdigit()) {
                        return Err(SyntaxError::EscapeBroken);
                    }
                    self.at += 1;
                }
            }
            _ => return Err(SyntaxError::EscapeBroken),
        }
        Ok(())
    }
}
