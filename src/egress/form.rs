//! The content of a body, as Discord reads it: JSON, or the fields of a form.
//!
//! A body is sent as it came, so it must have one meaning only. What two readers could take for different things is
//! refused: repeated fields, other encodings, and nested form fields.

use std::fmt;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, header};
use memchr::memmem::{self, Finder};
use serde::{
    Deserialize,
    de::{Deserializer, Error as _, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Number, Value};

/// A body whose content cannot be determined.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum FormError {
    #[error("a key of Guildhall needs an uncompressed body: remove Content-Encoding")]
    Encoded,
    #[error("a key of Guildhall needs a body of the type application/json or multipart/form-data")]
    Type,
    #[error("the body is not valid JSON: {0}")]
    Json(String),
    #[error("the multipart body is malformed: {0}")]
    Multipart(&'static str),
    #[error("payload_json and the other fields of the form are too large together")]
    TooLarge,
}

/// Returns the content of a body.
pub(super) fn content(headers: &HeaderMap, body: &[u8]) -> Result<Option<Value>, FormError> {
    if body.is_empty() {
        return check_encoding(headers).map(|()| None);
    }
    let (essence, parameters) = media_type(headers)?;
    if essence.eq_ignore_ascii_case("application/json") {
        if !is_utf8(parameters) {
            return Err(FormError::Type);
        }
        return json(body).map(Some);
    }
    if essence.eq_ignore_ascii_case("multipart/form-data") {
        return multipart(body, boundary(parameters)?).map(Some);
    }
    Err(FormError::Type)
}

fn check_encoding(headers: &HeaderMap) -> Result<(), FormError> {
    let is_encoded = headers.get_all(header::CONTENT_ENCODING).iter().any(|value| value != "identity");
    if is_encoded { Err(FormError::Encoded) } else { Ok(()) }
}

/// The type of a body without encoding, and the parameters of the type.
fn media_type(headers: &HeaderMap) -> Result<(&str, &str), FormError> {
    check_encoding(headers)?;
    let mut types = headers.get_all(header::CONTENT_TYPE).iter();
    let (Some(first), None) = (types.next(), types.next()) else { return Err(FormError::Type) };
    let text = first.to_str().map_err(|_| FormError::Type)?;
    let (essence, parameters) = text.split_once(';').unwrap_or((text, ""));
    Ok((essence.trim(), parameters))
}

/// Whether the parameters of a media type name no other character set than UTF-8.
fn is_utf8(parameters: &str) -> bool {
    parameters.split(';').map(str::trim).filter(|parameter| !parameter.is_empty()).all(|parameter| {
        parameter.split_once('=').is_some_and(|(name, value)| {
            name.trim().eq_ignore_ascii_case("charset") && value.trim().trim_matches('"').eq_ignore_ascii_case("utf-8")
        })
    })
}

fn json(text: &[u8]) -> Result<Value, FormError> {
    serde_json::from_slice::<Unambiguous>(text)
        .map(|Unambiguous(value)| value)
        .map_err(|error| FormError::Json(error.to_string()))
}

/// The boundary between the parts of a form.
fn boundary(parameters: &str) -> Result<&str, FormError> {
    const INVALID: FormError = FormError::Multipart("the Content-Type has no valid boundary");
    let mut found = None;
    for parameter in parameters.split(';') {
        let Some((name, value)) = parameter.split_once('=') else { continue };
        if name.trim().eq_ignore_ascii_case("boundary") {
            let value = value.trim();
            let value = value.strip_prefix('"').and_then(|value| value.strip_suffix('"')).unwrap_or(value);
            if found.replace(value).is_some() {
                return Err(INVALID);
            }
        }
    }
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"'()+_,-./:=?".contains(&byte);
    found.filter(|found| (1..=70).contains(&found.len()) && found.bytes().all(is_plain)).ok_or(INVALID)
}

/// The fields of a form: those of `payload_json`, and the others as strings. Files are left out.
fn multipart(body: &[u8], boundary: &str) -> Result<Value, FormError> {
    let mut reader = FormReader::new(boundary, usize::MAX);
    reader.push(body);
    loop {
        match reader.next()? {
            Step::Release(_) => {}
            Step::Judge => reader.judged(),
            Step::More => break,
        }
    }
    reader.finish()?;
    reader.content()
}

/// Maximum size of the head of a part.
const MAX_PART_HEAD: usize = 16 * 1024;
/// Maximum number of parts of a form.
const MAX_PARTS: usize = 256;

/// Reads a form as it arrives.
///
/// Files may be passed on as they arrive. Everything else is withheld until the whole content that is known then was
/// judged: before the next file, and before the end of the form.
#[derive(Debug)]
pub(super) struct FormReader {
    /// The boundary with the line break before it.
    delimiter: Vec<u8>,
    boundary: Finder<'static>,
    /// What was not released yet.
    buffer: BytesMut,
    /// How much of the buffer was read.
    read: usize,
    position: Position,
    parts: usize,
    max_withheld: usize,
    payload: Option<Value>,
    fields: Map<String, Value>,
    is_judged: bool,
}

/// Where in the form the reader is.
#[derive(Debug)]
enum Position {
    Start,
    /// After a boundary.
    Boundary,
    Head,
    /// In the content of a part, which is searched from this place in the buffer.
    Content(Part, usize),
    /// After the last boundary, and so many bytes of a line break.
    End(usize),
}

/// What is to be done with a form.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// This part of it may be sent.
    Release(Bytes),
    /// Its content is to be judged before more of it may be sent.
    Judge,
    /// More of it must arrive.
    More,
}

impl FormReader {
    /// Reads a form with this type, of which at most `max_withheld` bytes are withheld.
    pub(super) fn of(headers: &HeaderMap, max_withheld: usize) -> Result<Self, FormError> {
        let (essence, parameters) = media_type(headers)?;
        if !essence.eq_ignore_ascii_case("multipart/form-data") {
            return Err(FormError::Type);
        }
        Ok(Self::new(boundary(parameters)?, max_withheld))
    }

    fn new(boundary: &str, max_withheld: usize) -> Self {
        let delimiter = format!("\r\n--{boundary}").into_bytes();
        Self {
            boundary: Finder::new(&delimiter[2..]).into_owned(),
            delimiter,
            buffer: BytesMut::new(),
            read: 0,
            position: Position::Start,
            parts: 0,
            max_withheld,
            payload: None,
            fields: Map::new(),
            is_judged: false,
        }
    }

    /// More of the form has arrived.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// How many bytes are withheld.
    pub(super) fn withheld(&self) -> usize {
        self.buffer.len()
    }

    /// The content was judged, as it is known now.
    pub(super) fn judged(&mut self) {
        self.is_judged = true;
    }

    /// The form has ended.
    pub(super) fn finish(&self) -> Result<(), FormError> {
        match self.position {
            // Nothing of it may be withheld then.
            Position::End(0 | 2) if self.buffer.is_empty() => Ok(()),
            Position::Start => Err(FormError::Multipart("it does not start with its boundary")),
            Position::Boundary | Position::Head | Position::Content(..) | Position::End(_) => {
                Err(FormError::Multipart("it has no end"))
            }
        }
    }

    /// The content that is known: that of `payload_json`, and the other fields as strings.
    pub(super) fn content(&self) -> Result<Value, FormError> {
        match (&self.payload, self.fields.is_empty()) {
            (Some(payload), true) => Ok(payload.clone()),
            (None, _) => Ok(Value::Object(self.fields.clone())),
            (Some(Value::Object(payload)), false) => {
                let mut all = payload.clone();
                for (name, value) in &self.fields {
                    if all.insert(name.clone(), value.clone()).is_some() {
                        return Err(FormError::Multipart("a field is both in payload_json and in the form"));
                    }
                }
                Ok(Value::Object(all))
            }
            (Some(_), false) => {
                Err(FormError::Multipart("payload_json is not an object, and the form has other fields"))
            }
        }
    }

    /// What is to be done next.
    pub(super) fn next(&mut self) -> Result<Step, FormError> {
        loop {
            let step = match self.position {
                Position::Start => self.read_start()?,
                Position::Boundary => self.read_after_boundary()?,
                Position::Head => self.read_head()?,
                Position::Content(Part::File, from) => self.read_file(from)?,
                Position::Content(_, from) => self.read_field(from)?,
                Position::End(line_break) => self.read_end(line_break)?,
            };
            match step {
                Some(Step::More) if self.buffer.len() > self.max_withheld => return Err(FormError::TooLarge),
                Some(step) => return Ok(step),
                None => {}
            }
        }
    }

    fn read_start(&mut self) -> Result<Option<Step>, FormError> {
        let boundary = &self.delimiter[2..];
        let count = self.buffer.len().min(boundary.len());
        if self.buffer[..count] != boundary[..count] {
            return Err(FormError::Multipart("it does not start with its boundary"));
        }
        if count < boundary.len() {
            return Ok(Some(Step::More));
        }
        (self.read, self.position) = (count, Position::Boundary);
        Ok(None)
    }

    fn read_after_boundary(&mut self) -> Result<Option<Step>, FormError> {
        self.position = match self.buffer.get(self.read..self.read + 2) {
            None => return Ok(Some(Step::More)),
            Some(b"--") => Position::End(0),
            Some(b"\r\n") => Position::Head,
            Some(_) => return Err(FormError::Multipart("a boundary is not followed by a line break")),
        };
        self.read += 2;
        Ok(None)
    }

    fn read_head(&mut self) -> Result<Option<Step>, FormError> {
        let unread = &self.buffer[self.read..];
        let Some(end) = memmem::find(&unread[..unread.len().min(MAX_PART_HEAD)], b"\r\n\r\n") else {
            if unread.len() >= MAX_PART_HEAD {
                return Err(FormError::Multipart("the head of a part is too large"));
            }
            return Ok(Some(Step::More));
        };
        self.parts += 1;
        if self.parts > MAX_PARTS {
            return Err(FormError::Multipart("it has too many parts"));
        }
        let part = Part::read(&unread[..end])?;
        // The line break before the content may also be that of an empty content's delimiter.
        self.read += end + 2;
        self.position = Position::Content(part, self.read + 2);
        Ok(None)
    }

    fn read_file(&mut self, from: usize) -> Result<Option<Step>, FormError> {
        if !self.is_judged {
            return Ok(Some(Step::Judge));
        }
        match self.find_boundary(from)? {
            Ok(at) => {
                let released = self.buffer.split_to(at).freeze();
                (self.read, self.position) = (self.delimiter.len(), Position::Boundary);
                Ok((!released.is_empty()).then_some(Step::Release(released)))
            }
            // Two characters before the place from which the search continues tell whether it is a boundary.
            Err(next) if next > 2 => {
                let released = self.buffer.split_to(next - 2).freeze();
                (self.read, self.position) = (0, Position::Content(Part::File, 2));
                Ok(Some(Step::Release(released)))
            }
            Err(_) => Ok(Some(Step::More)),
        }
    }

    fn read_field(&mut self, from: usize) -> Result<Option<Step>, FormError> {
        let malformed = |reason| FormError::Multipart(reason);
        let at = match self.find_boundary(from)? {
            Ok(at) => at,
            Err(next) => {
                if let Position::Content(_, from) = &mut self.position {
                    *from = next;
                }
                return Ok(Some(Step::More));
            }
        };
        let value = self.buffer.get(self.read + 2..at).unwrap_or_default();
        let part = std::mem::replace(&mut self.position, Position::Boundary);
        match part {
            Position::Content(Part::Payload, _) => {
                if self.payload.replace(json(value)?).is_some() {
                    return Err(malformed("payload_json is repeated"));
                }
            }
            Position::Content(Part::Field(name), _) => {
                let text = std::str::from_utf8(value).map_err(|_| malformed("a field is not UTF-8"))?;
                if self.fields.insert(name, Value::from(text)).is_some() {
                    return Err(malformed("a field is repeated"));
                }
            }
            Position::Content(Part::File, _)
            | Position::Start
            | Position::Boundary
            | Position::Head
            | Position::End(_) => {}
        }
        self.is_judged = false;
        self.read = at + self.delimiter.len();
        Ok(None)
    }

    fn read_end(&mut self, line_break: usize) -> Result<Option<Step>, FormError> {
        let rest = &self.buffer[self.read..];
        if rest.len() + line_break > 2 || b"\r\n"[line_break..line_break + rest.len()] != *rest {
            return Err(FormError::Multipart("something follows its end"));
        }
        if !self.is_judged {
            return Ok(Some(Step::Judge));
        }
        self.position = Position::End(line_break + rest.len());
        self.read = 0;
        Ok(Some(if self.buffer.is_empty() { Step::More } else { Step::Release(self.buffer.split().freeze()) }))
    }

    /// Searches the delimiter. If it is not there, returns from where to search when more has arrived.
    fn find_boundary(&self, from: usize) -> Result<Result<usize, usize>, FormError> {
        let length = self.delimiter.len() - 2;
        let mut from = from;
        while let Some(found) = self.buffer.get(from..).and_then(|unread| self.boundary.find(unread)) {
            let at = from + found;
            match &self.buffer[at - 2..at] {
                b"\r\n" => return Ok(Ok(at - 2)),
                // A lenient reader takes it for one.
                [_, b'\n' | b'\r'] => {
                    return Err(FormError::Multipart("a boundary follows an incomplete line break"));
                }
                _ => from = at + 1,
            }
        }
        Ok(Err(from.max((self.buffer.len() + 1).saturating_sub(length))))
    }
}

/// A part of a form.
#[derive(Debug, PartialEq, Eq)]
enum Part {
    Payload,
    File,
    Field(String),
}

impl Part {
    /// Reads the head of a part.
    fn read(head: &[u8]) -> Result<Self, FormError> {
        let malformed = |reason| FormError::Multipart(reason);
        let head = std::str::from_utf8(head).map_err(|_| malformed("the head of a part is not UTF-8"))?;
        let mut disposition = None;
        for line in head.split("\r\n") {
            if line.contains(['\r', '\n']) || line.starts_with([' ', '\t']) {
                return Err(malformed("the head of a part has an invalid line break"));
            }
            let (name, value) = line.split_once(':').ok_or(malformed("the head of a part has an invalid line"))?;
            let value = value.trim();
            if name.eq_ignore_ascii_case("content-disposition") {
                if disposition.replace(value).is_some() {
                    return Err(malformed("a part has two Content-Disposition headers"));
                }
            } else if name.eq_ignore_ascii_case("content-type") {
                let parameters = value.split_once(';').map_or("", |(_, parameters)| parameters);
                if parameters.to_ascii_lowercase().contains("charset") && !is_utf8(parameters) {
                    return Err(malformed("a part has another character set than UTF-8"));
                }
            } else if name.eq_ignore_ascii_case("content-length") {
                // Some libraries send it; the boundary counts.
            } else {
                return Err(malformed("a part has an unknown header"));
            }
        }
        let (name, is_file) = disposition_name(disposition.ok_or(malformed("a part has no Content-Disposition"))?)?;
        let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte == b'_';
        match (name.as_str(), is_file) {
            ("payload_json", _) => Ok(Self::Payload),
            (_, true) => Ok(Self::File),
            (text, false) if !text.is_empty() && text.bytes().all(is_plain) => Ok(Self::Field(name)),
            (_, false) => Err(malformed("the name of a field is not plain: use payload_json")),
        }
    }
}

/// The name of a part, and whether it is a file.
fn disposition_name(value: &str) -> Result<(String, bool), FormError> {
    const INVALID: FormError = FormError::Multipart("a part has an invalid Content-Disposition");
    let mut rest = value.strip_prefix("form-data").ok_or(INVALID)?.trim_start();
    let (mut name, mut is_file) = (None, false);
    while !rest.is_empty() {
        rest = rest.strip_prefix(';').ok_or(INVALID)?.trim_start();
        if rest.is_empty() {
            break;
        }
        let (key, after) = rest.split_once('=').ok_or(INVALID)?;
        let (content, after) = match after.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"').ok_or(INVALID)?,
            None => after.split_at(after.find(';').unwrap_or(after.len())),
        };
        match key.trim().to_ascii_lowercase().as_str() {
            // A backslash would make some readers look for the end of the name further on.
            "name" if name.is_none() && !content.contains('\\') => name = Some(content.trim().to_owned()),
            "filename" | "filename*" if !content.is_empty() && !content.ends_with('\\') => is_file = true,
            _ => return Err(INVALID),
        }
        rest = after.trim_start();
    }
    Ok((name.ok_or(INVALID)?, is_file))
}

/// A value without repeated fields.
struct Unambiguous(Value);

impl<'de> Deserialize<'de> for Unambiguous {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(UnambiguousVisitor).map(Self)
    }
}

struct UnambiguousVisitor;

impl<'de> Visitor<'de> for UnambiguousVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("a number is out of range"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(Unambiguous(item)) = items.next_element()? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut fields = Map::new();
        while let Some((name, Unambiguous(value))) = entries.next_entry::<String, Unambiguous>()? {
            if fields.contains_key(&name) {
                return Err(A::Error::custom(format_args!("the field {name:?} is repeated")));
            }
            fields.insert(name, value);
        }
        Ok(Value::Object(fields))
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn read(kind: &str, body: &str) -> Result<Option<Value>, FormError> {
        let headers = HeaderMap::from_iter([(header::CONTENT_TYPE, HeaderValue::from_str(kind).unwrap())]);
        content(&headers, body.as_bytes())
    }

    const FORM: &str = "multipart/form-data; boundary=b";

    fn form(parts: &[(&str, &str)]) -> String {
        let parts: String = parts.iter().map(|(head, value)| format!("--b\r\n{head}\r\n\r\n{value}\r\n")).collect();
        parts + "--b--\r\n"
    }

    #[test]
    fn json_has_one_meaning_or_is_refused() {
        let plain = json!({"a": [1, -2, 1.5, "x", null, true], "b": {"a": 1}});
        assert_eq!(read("application/json; charset=UTF-8", &plain.to_string()), Ok(Some(plain)));
        for (kind, body) in [
            ("application/json", r#"{"a":1,"a":2}"#),
            ("application/json", r#"{"x":[{"allow":"0","\u0061llow":"8"}]}"#),
            ("application/json", r#"{"a":1} {"a":2}"#),
            ("application/json", "{\"a\":1}\0"),
            ("application/json; charset=utf-16", "{}"),
            ("application/json; x=y", "{}"),
            ("text/plain", "{}"),
            ("application/x-www-form-urlencoded", "permissions=8"),
            ("application/jsonx", "{}"),
        ] {
            assert!(read(kind, body).is_err(), "{kind} {body}");
        }
        assert_eq!(read("text/plain", ""), Ok(None));
        assert_eq!(content(&HeaderMap::new(), b"{}"), Err(FormError::Type));
        let mut encoded = HeaderMap::from_iter([(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"))]);
        assert_eq!(content(&encoded, b""), Err(FormError::Encoded));
        encoded.insert(header::CONTENT_ENCODING, HeaderValue::from_static("identity"));
        assert_eq!(content(&encoded, b""), Ok(None));
    }

    #[test]
    fn form_gives_its_payload_and_fields_without_files() {
        let payload = "Content-Disposition: form-data; name=\"payload_json\"\r\nContent-Type: application/json";
        let file = "Content-Disposition: form-data; name=\"files[0]\"; filename=\"a.png\"\r\nContent-Type: image/png";
        // The content of a file may contain the boundary, but not after a line break of any kind.
        for content in ["x\r\n--b", "x\n--b\nContent-Disposition: form-data; name=\"payload_json\"\n\n{}", "x\r--b"] {
            let body = form(&[(file, content), (payload, r#"{"content":"hi"}"#)]);
            assert!(read(FORM, &body).is_err(), "{content:?}");
        }
        let body = form(&[(file, "binary --b -- data"), (payload, r#"{"content":"hi"}"#)]);
        assert_eq!(read(FORM, &body), Ok(Some(json!({"content": "hi"}))));
        let field = |name: &str| format!("Content-Disposition: form-data; name=\"{name}\"");
        let sticker = form(&[(&field("name"), "wave"), (&field("permissions"), "8"), (file, "")]);
        assert_eq!(read(FORM, &sticker), Ok(Some(json!({"name": "wave", "permissions": "8"}))));
        let hidden = "content-disposition: form-data; name=payload_json; filename=\"x.txt\"";
        let body = form(&[(hidden, r#"{"permissions":"8"}"#)]);
        assert_eq!(read(FORM, &body), Ok(Some(json!({"permissions": "8"}))), "a payload is one, whatever it is called");
    }

    #[test]
    fn ambiguous_form_is_refused() {
        let field = |name: &str| format!("Content-Disposition: form-data; name=\"{name}\"");
        let payload = field("payload_json");
        for parts in [
            vec![(payload.as_str(), "{}"), (payload.as_str(), r#"{"permissions":"8"}"#)],
            vec![(payload.as_str(), r#"{"name":"a"}"#), (field("name").as_str(), "b")],
            vec![(payload.as_str(), "[]"), (field("name").as_str(), "b")],
            vec![(field("a").as_str(), "1"), (field("a").as_str(), "2")],
            vec![(field("permission_overwrites[0][allow]").as_str(), "8")],
            vec![(field("Permissions").as_str(), "8")],
            vec![("Content-Disposition: form-data; name=\"a\"; name=\"payload_json\"", "{}")],
            vec![("Content-Disposition: form-data; name=\"a\"; filename=\"\"", "{}")],
            vec![("Content-Disposition: form-data; name=\"a\\\"; filename=\"x\"", "{}")],
            vec![("Content-Disposition: attachment; name=\"a\"", "{}")],
            vec![("Content-Type: text/plain", "{}")],
            vec![(
                "Content-Disposition: form-data; name=\"payload_json\"\r\nContent-Transfer-Encoding: base64",
                "e30=",
            )],
            vec![("Content-Disposition: form-data; name=\"a\"\r\nContent-Type: text/plain; charset=utf-7", "8")],
            vec![("Content-Disposition: form-data;\r\n name=\"payload_json\"", "{}")],
        ] {
            let parts: Vec<(&str, &str)> = parts.clone();
            assert!(read(FORM, &form(&parts)).is_err(), "{parts:?}");
        }
        for body in ["", "--b", "--b\n", "preamble\r\n--b--\r\n", "--c--\r\n", "--b--\r\n--b--", "--b\r\nx: y\r\n\r\nz"]
        {
            let expected_empty = body.is_empty();
            assert_eq!(read(FORM, body).is_ok(), expected_empty, "{body:?}");
        }
        for kind in
            ["multipart/form-data", "multipart/form-data; boundary=", "multipart/form-data; boundary=b; boundary=c"]
        {
            assert!(read(kind, &form(&[])).is_err(), "{kind}");
        }
        assert_eq!(read("multipart/form-data; boundary=\"b\"", &form(&[])), Ok(Some(json!({}))));
    }

    const PAYLOAD: &str = "Content-Disposition: form-data; name=\"payload_json\"";
    const FILE: &str = "Content-Disposition: form-data; name=\"files[0]\"; filename=\"a.bin\"";

    /// Reads what has arrived. Returns what was released, and the contents that were judged.
    fn drain(reader: &mut FormReader) -> Result<(Vec<u8>, Vec<Value>), FormError> {
        let (mut released, mut judged) = (Vec::new(), Vec::new());
        loop {
            match reader.next()? {
                Step::Release(bytes) => released.extend_from_slice(&bytes),
                Step::Judge => {
                    judged.push(reader.content()?);
                    reader.judged();
                }
                Step::More => return Ok((released, judged)),
            }
        }
    }

    #[test]
    fn files_pass_and_the_rest_is_withheld_until_it_was_judged() {
        let large = "x".repeat(10_000);
        let body = form(&[(FILE, &large), (PAYLOAD, r#"{"content":"hi"}"#), (FILE, &large)]);
        let payload_at = body.find("payload_json").unwrap();
        let mut reader = FormReader::new("b", 1_000);
        reader.push(&body.as_bytes()[..5_000]);
        let (released, judged) = drain(&mut reader).unwrap();
        assert!(released.len() > 4_900 && judged == [json!({})], "{judged:?}");
        // Up to the middle of the payload.
        reader.push(&body.as_bytes()[5_000..payload_at + 25]);
        let (more, judged) = drain(&mut reader).unwrap();
        let boundary = body[..payload_at].rfind("\r\n--b").unwrap();
        assert_eq!(([released, more].concat(), judged), (body.as_bytes()[..boundary].to_vec(), Vec::new()));
        reader.push(&body.as_bytes()[payload_at + 25..]);
        assert_eq!(reader.next(), Ok(Step::Judge));
        assert_eq!(reader.content(), Ok(json!({"content": "hi"})));
        assert_eq!(reader.next(), Ok(Step::Judge), "nothing passes before it was judged");
        reader.judged();
        let (rest, judged) = drain(&mut reader).unwrap();
        assert!(rest.ends_with(b"--b--\r\n") && judged.is_empty());
        reader.finish().unwrap();
    }

    #[test]
    fn payload_that_is_too_large_is_refused_while_it_arrives() {
        let mut reader = FormReader::new("b", 1_000);
        reader.push(format!("--b\r\n{PAYLOAD}\r\n\r\n\"{}", "x".repeat(2_000)).as_bytes());
        assert_eq!(drain(&mut reader), Err(FormError::TooLarge));
        let mut reader = FormReader::new("b", 1_000_000);
        reader.push(format!("--b\r\n{}", "x".repeat(MAX_PART_HEAD)).as_bytes());
        assert!(matches!(drain(&mut reader), Err(FormError::Multipart(_))));
    }

    proptest! {
        #[test]
        fn form_in_pieces_means_the_same_and_passes_unchanged(
            parts in proptest::collection::vec((0_u8..3, "[a-z\r\n-]{0,30}"), 0..5),
            cuts in proptest::collection::vec(1_usize..40, 1..8),
        ) {
            let heads: Vec<String> = parts.iter().enumerate().map(|(number, (kind, _))| match kind {
                0 => FILE.to_owned(),
                1 => format!("Content-Disposition: form-data; name=\"field{}\"", "_".repeat(number)),
                _ => PAYLOAD.to_owned(),
            }).collect();
            let contents: Vec<String> = parts.iter().map(|(kind, text)| match kind {
                2 => json!({"text": text}).to_string(),
                _ => text.clone(),
            }).collect();
            let parts: Vec<(&str, &str)> = heads.iter().zip(&contents).map(|(head, text)| (head.as_str(), text.as_str())).collect();
            let body = form(&parts);
            let whole = multipart(body.as_bytes(), "b");
            let mut reader = FormReader::new("b", usize::MAX);
            let (mut at, mut sizes, mut released, mut last) = (0, cuts.iter().cycle(), Vec::new(), None);
            let read = loop {
                match drain(&mut reader) {
                    Ok((bytes, judged)) => {
                        released.extend_from_slice(&bytes);
                        last = judged.into_iter().last().or(last);
                    }
                    Err(error) => break Err(error),
                }
                if at == body.len() {
                    break reader.finish().map(|()| last.clone().unwrap());
                }
                let end = (at + sizes.next().unwrap()).min(body.len());
                reader.push(&body.as_bytes()[at..end]);
                at = end;
            };
            // What was judged last is the whole content.
            prop_assert_eq!(&read, &whole);
            if read.is_ok() {
                prop_assert_eq!(released, body.into_bytes());
            }
        }

        #[test]
        fn forms_and_json_never_panic(body in "[-b\\r\\n:;=\"{}a-z ]{0,200}", is_form: bool) {
            let _ = read(if is_form { FORM } else { "application/json" }, &body);
        }

        #[test]
        fn any_file_content_leaves_the_payload_readable(content in proptest::collection::vec(any::<u8>(), 0..400)) {
            prop_assume!(memmem::find(&content, b"--b").is_none());
            let mut body = b"--b\r\nContent-Disposition: form-data; name=\"f\"; filename=\"x\"\r\n\r\n".to_vec();
            body.extend_from_slice(&content);
            body.extend_from_slice(b"\r\n--b\r\nContent-Disposition: form-data; name=\"payload_json\"\r\n\r\n{\"a\":1}\r\n--b--");
            let headers = HeaderMap::from_iter([(header::CONTENT_TYPE, HeaderValue::from_static(FORM))]);
            prop_assert_eq!(super::content(&headers, &body), Ok(Some(json!({"a": 1}))));
        }
    }
}
