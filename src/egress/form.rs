//! The content of a body, as Discord reads it: JSON, or the fields of a form.
//!
//! A body is sent as it came, so it must have one meaning only. What two readers could take for different things is
//! refused: repeated fields, other encodings, and nested form fields.

use std::fmt;

use http::{HeaderMap, header};
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
}

/// Returns the content of a body.
pub(super) fn content(headers: &HeaderMap, body: &[u8]) -> Result<Option<Value>, FormError> {
    if headers.get_all(header::CONTENT_ENCODING).iter().any(|value| value != "identity") {
        return Err(FormError::Encoded);
    }
    if body.is_empty() {
        return Ok(None);
    }
    let mut types = headers.get_all(header::CONTENT_TYPE).iter();
    let (Some(first), None) = (types.next(), types.next()) else { return Err(FormError::Type) };
    let text = first.to_str().map_err(|_| FormError::Type)?;
    let (essence, parameters) = text.split_once(';').unwrap_or((text, ""));
    let essence = essence.trim();
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
    let delimiter = format!("\r\n--{boundary}");
    let malformed = |reason| FormError::Multipart(reason);
    if has_lenient_boundary(body, &delimiter.as_bytes()[2..]) {
        return Err(malformed("a boundary follows an incomplete line break"));
    }
    let mut rest =
        body.strip_prefix(&delimiter.as_bytes()[2..]).ok_or(malformed("it does not start with its boundary"))?;
    let (mut payload, mut fields) = (None, Map::new());
    loop {
        if let Some(end) = rest.strip_prefix(b"--") {
            if !end.is_empty() && end != b"\r\n" {
                return Err(malformed("something follows its end"));
            }
            break;
        }
        rest = rest.strip_prefix(b"\r\n").ok_or(malformed("a boundary is not followed by a line break"))?;
        let head_end = find(rest, b"\r\n\r\n").ok_or(malformed("a part has no content"))?;
        let part = Part::read(&rest[..head_end])?;
        // The line break before the content may also be that of an empty content's delimiter.
        let content = &rest[head_end + 2..];
        let end = find(content, delimiter.as_bytes()).ok_or(malformed("it has no end"))?;
        let value = content.get(2..end).unwrap_or_default();
        rest = &content[end + delimiter.len()..];
        match part {
            Part::Payload => {
                if payload.replace(json(value)?).is_some() {
                    return Err(malformed("payload_json is repeated"));
                }
            }
            Part::File => {}
            Part::Field(name) => {
                let text = std::str::from_utf8(value).map_err(|_| malformed("a field is not UTF-8"))?;
                if fields.insert(name, Value::from(text)).is_some() {
                    return Err(malformed("a field is repeated"));
                }
            }
        }
    }
    match (payload, fields.is_empty()) {
        (Some(payload), true) => Ok(payload),
        (None, _) => Ok(Value::Object(fields)),
        (Some(Value::Object(mut payload)), false) => {
            for (name, value) in fields {
                if payload.insert(name, value).is_some() {
                    return Err(malformed("a field is both in payload_json and in the form"));
                }
            }
            Ok(Value::Object(payload))
        }
        (Some(_), false) => Err(malformed("payload_json is not an object, and the form has other fields")),
    }
}

/// Whether there is a boundary that only a lenient reader takes for one: after a line break of one character.
fn has_lenient_boundary(body: &[u8], boundary: &[u8]) -> bool {
    body.windows(boundary.len()).enumerate().filter(|(_, window)| *window == boundary).any(|(at, _)| {
        let before = |distance: usize| at.checked_sub(distance).and_then(|at| body.get(at)).copied();
        match before(1) {
            Some(b'\n') => before(2) != Some(b'\r'),
            Some(b'\r') => true,
            _ => false,
        }
    })
}

fn find(text: &[u8], sought: &[u8]) -> Option<usize> {
    text.windows(sought.len()).position(|window| window == sought)
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

    proptest! {
        #[test]
        fn forms_and_json_never_panic(body in "[-b\\r\\n:;=\"{}a-z ]{0,200}", is_form: bool) {
            let _ = read(if is_form { FORM } else { "application/json" }, &body);
        }

        #[test]
        fn any_file_content_leaves_the_payload_readable(content in proptest::collection::vec(any::<u8>(), 0..400)) {
            prop_assume!(find(&content, b"--b").is_none());
            let mut body = b"--b\r\nContent-Disposition: form-data; name=\"f\"; filename=\"x\"\r\n\r\n".to_vec();
            body.extend_from_slice(&content);
            body.extend_from_slice(b"\r\n--b\r\nContent-Disposition: form-data; name=\"payload_json\"\r\n\r\n{\"a\":1}\r\n--b--");
            let headers = HeaderMap::from_iter([(header::CONTENT_TYPE, HeaderValue::from_static(FORM))]);
            prop_assert_eq!(super::content(&headers, &body), Ok(Some(json!({"a": 1}))));
        }
    }
}
