//! A place in JSON text, and the ways to go on from there. Nothing is built: what is passed over is only checked.

use super::Malformed;
use super::word::Word;

/// How many values may lie within each other: as many as serde_json reads, so that what passes here can be read later.
const MOST_DEEP: u32 = 127;

/// What is passed over.
#[derive(Clone, Copy, Debug)]
pub(super) enum Scalar<'a> {
    /// `null`.
    Null,
    /// A whole number that has room.
    Number(u64),
    /// A string.
    Text(Word<'a>),
    /// Anything else.
    Other,
}

/// A place in JSON text.
#[derive(Debug)]
pub(super) struct Cursor<'a> {
    text: &'a str,
    at: usize,
    depth: u32,
}

impl<'a> Cursor<'a> {
    /// The beginning of the text.
    pub(super) const fn new(text: &'a str) -> Self {
        Self { text, at: 0, depth: 0 }
    }

    /// How many bytes lie before it.
    pub(super) const fn at(&self) -> usize {
        self.at
    }

    /// The next byte that is not a space, which it then stands at.
    #[inline]
    pub(super) fn peek(&mut self) -> Option<u8> {
        loop {
            let byte = self.here()?;
            if !matches!(byte, b' ' | b'\n' | b'\r' | b'\t') {
                return Some(byte);
            }
            self.at += 1;
        }
    }

    /// Nothing may follow but spaces.
    pub(super) fn end(&mut self) -> Result<(), Malformed> {
        match self.peek() {
            None => Ok(()),
            Some(_) => Err(self.expected("the end")),
        }
    }

    /// Enters an object. Says whether there is anything in it: if so, a key is next.
    #[inline]
    pub(super) fn enter(&mut self) -> Result<bool, Malformed> {
        self.open(b'{', "an object", b'}')
    }

    /// Goes on in an object, past a value. Says whether another key is next; if not, it has left the object.
    #[inline]
    pub(super) fn goes_on(&mut self) -> Result<bool, Malformed> {
        match self.peek() {
            Some(b',') => {
                self.at += 1;
                Ok(true)
            }
            Some(b'}') => {
                self.close();
                Ok(false)
            }
            _ => Err(self.expected("',' or '}'")),
        }
    }

    /// A key, and what divides it from its value, which is next.
    #[inline]
    pub(super) fn key(&mut self) -> Result<Word<'a>, Malformed> {
        if self.peek() != Some(b'"') {
            return Err(self.expected("a key"));
        }
        let key = self.string()?;
        if self.peek() != Some(b':') {
            return Err(self.expected("':'"));
        }
        self.at += 1;
        Ok(key)
    }

    /// A value that is of interest only if it is a whole number or a string.
    #[inline]
    pub(super) fn scalar(&mut self) -> Result<Scalar<'a>, Malformed> {
        match self.peek() {
            Some(b'"') => self.string().map(Scalar::Text),
            Some(b'0'..=b'9') => {
                let from = self.at;
                self.number()?;
                // A fraction or an exponent is no whole number, and one that has no room is none either.
                Ok(self.text[from..self.at].parse().map_or(Scalar::Other, Scalar::Number))
            }
            Some(b'n') => self.literal("null").map(|()| Scalar::Null),
            _ => self.skip().map(|()| Scalar::Other),
        }
    }

    /// Any value, whatever is in it. What it is within of is kept as bits, so that deep nesting costs no stack.
    pub(super) fn skip(&mut self) -> Result<(), Malformed> {
        let floor = self.depth;
        // The lowest bit is the innermost: set within an object, clear within an array.
        let mut within = 0_u128;
        loop {
            match self.peek() {
                Some(b'"') => {
                    self.string()?;
                }
                Some(b'-' | b'0'..=b'9') => self.number()?,
                Some(b'{') => {
                    if self.open(b'{', "an object", b'}')? {
                        within = within << 1 | 1;
                        self.key()?;
                        continue;
                    }
                }
                Some(b'[') => {
                    if self.open(b'[', "an array", b']')? {
                        within <<= 1;
                        continue;
                    }
                }
                Some(b't') => self.literal("true")?,
                Some(b'f') => self.literal("false")?,
                Some(b'n') => self.literal("null")?,
                _ => return Err(self.expected("a value")),
            }
            // A value has ended, and with it whatever it was the last of.
            loop {
                if self.depth == floor {
                    return Ok(());
                }
                match (self.peek(), within & 1 == 1) {
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
                        within >>= 1;
                    }
                    (_, true) => return Err(self.expected("',' or '}'")),
                    (_, false) => return Err(self.expected("',' or ']'")),
                }
            }
        }
    }

    #[inline]
    fn here(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    #[cold]
    fn expected(&self, expected: &'static str) -> Malformed {
        Malformed::Syntax { expected, at: self.at }
    }

    /// Goes in. Says whether there is anything in it; if not, it is out again.
    #[inline]
    fn open(&mut self, opening: u8, what: &'static str, closing: u8) -> Result<bool, Malformed> {
        if self.peek() != Some(opening) {
            return Err(self.expected(what));
        }
        if self.depth == MOST_DEEP {
            return Err(Malformed::TooDeep { at: self.at });
        }
        self.at += 1;
        self.depth += 1;
        let empty = self.peek() == Some(closing);
        if empty {
            self.close();
        }
        Ok(!empty)
    }

    #[inline]
    fn close(&mut self) {
        self.at += 1;
        self.depth -= 1;
    }

    fn literal(&mut self, literal: &'static str) -> Result<(), Malformed> {
        if !self.text.as_bytes()[self.at..].starts_with(literal.as_bytes()) {
            return Err(self.expected(literal));
        }
        self.at += literal.len();
        Ok(())
    }

    fn number(&mut self) -> Result<(), Malformed> {
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

    fn digits(&mut self) -> Result<(), Malformed> {
        let from = self.at;
        while let Some(b'0'..=b'9') = self.here() {
            self.at += 1;
        }
        if self.at == from { Err(self.expected("a digit")) } else { Ok(()) }
    }

    /// A string, of which it stands at the opening quote.
    #[inline]
    fn string(&mut self) -> Result<Word<'a>, Malformed> {
        let from = self.at;
        let mut escaped = false;
        self.at += 1;
        loop {
            self.at += plain(&self.text.as_bytes()[self.at..]);
            match self.here() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(Word::new(&self.text[from..self.at], escaped));
                }
                Some(b'\\') => {
                    escaped = true;
                    self.escape()?;
                }
                _ => return Err(self.expected("the rest of a string")),
            }
        }
    }

    /// What a backslash begins. Whether surrogates come in pairs is left to whoever wants the string.
    fn escape(&mut self) -> Result<(), Malformed> {
        self.at += 1;
        match self.here() {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => self.at += 1,
            Some(b'u') => {
                self.at += 1;
                for _ in 0..4 {
                    if !self.here().is_some_and(|byte| byte.is_ascii_hexdigit()) {
                        return Err(self.expected("a hexadecimal digit"));
                    }
                    self.at += 1;
                }
            }
            _ => return Err(self.expected("what a backslash may stand before")),
        }
        Ok(())
    }
}

/// How many bytes there are before the first quote, backslash or control character; eight are looked at together.
#[inline]
fn plain(bytes: &[u8]) -> usize {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x8080_8080_8080_8080;
    // The highest bit of each byte that is less than this; of those above the first one, perhaps wrongly.
    let below = |eight: u64, least: u64| eight.wrapping_sub(ONES * least) & !eight & HIGH;
    let mut passed = 0;
    while let Some(chunk) = bytes[passed..].first_chunk::<8>() {
        let eight = u64::from_le_bytes(*chunk);
        let quote = below(eight ^ (ONES * u64::from(b'"')), 1);
        let backslash = below(eight ^ (ONES * u64::from(b'\\')), 1);
        let found = quote | backslash | below(eight, 0x20);
        if found != 0 {
            return passed + found.trailing_zeros() as usize / 8;
        }
        passed += 8;
    }
    let rest = &bytes[passed..];
    passed + rest.iter().position(|&byte| matches!(byte, b'"' | b'\\' | 0..0x20)).unwrap_or(rest.len())
}
