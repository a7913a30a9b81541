//! Bodies that are forms: the JSON of a request, and its files.

use std::convert::Infallible;

use bytes::Bytes;
use futures_util::stream;
use http::HeaderMap;
use http::header::CONTENT_TYPE;
use multer::Multipart;
use serde_json::{Map, Value};

use super::body::BodyError;
use crate::rest::call::Upload;

/// Maximum number of parts: ten files, the JSON, and some form fields.
const MAX_PARTS: usize = 32;

/// Name of a file that has none.
const UNNAMED: &str = "unknown";

/// A body that was read completely.
#[derive(Debug)]
pub(super) struct RequestBody {
    pub(super) json: Bytes,
    pub(super) files: Vec<Upload>,
}

/// Splits a body by its content type. The JSON of a form is in its field `payload_json`, or else its fields other than
/// files are the request's. Any other body is JSON as a whole.
pub(super) async fn split(headers: &HeaderMap, body: Bytes) -> Result<RequestBody, BodyError> {
    let kind = headers.get(CONTENT_TYPE).map_or("", |value| value.to_str().unwrap_or_default());
    if kind.starts_with("application/x-www-form-urlencoded") {
        return Ok(RequestBody { json: urlencoded(body), files: Vec::new() });
    }
    if !kind.starts_with("multipart/") {
        return Ok(RequestBody { json: body, files: Vec::new() });
    }
    let invalid = |error: multer::Error| BodyError::Multipart(error.to_string());
    let boundary = multer::parse_boundary(kind).map_err(invalid)?;
    let mut parts = Multipart::new(stream::iter([Ok::<_, Infallible>(body)]), boundary);
    let (mut json, mut fields, mut files) = (None, Map::new(), Vec::new());
    let mut count = 0;
    while let Some(part) = parts.next_field().await.map_err(invalid)? {
        count += 1;
        if count > MAX_PARTS {
            return Err(BodyError::Multipart(format!("more than {MAX_PARTS} parts")));
        }
        let name = part.name().unwrap_or_default().to_owned();
        let is_file = part.file_name().is_some() || name.starts_with("file");
        let filename = part.file_name().filter(|name| !name.is_empty()).unwrap_or(UNNAMED).to_owned();
        let content_type = part.content_type().map(ToString::to_string);
        let content = part.bytes().await.map_err(invalid)?;
        if name == "payload_json" {
            json = Some(content);
        } else if is_file {
            files.push(Upload { field: name, filename, content_type, content });
        } else {
            fields.insert(name, String::from_utf8_lossy(&content).into_owned().into());
        }
    }
    let json = json.unwrap_or_else(|| Value::Object(fields).to_string().into());
    Ok(RequestBody { json, files })
}

/// The JSON of a form without files. JSON itself is accepted too: curl sends it with this content type.
fn urlencoded(body: Bytes) -> Bytes {
    if body.trim_ascii_start().first().is_none_or(|first| matches!(first, b'{' | b'[')) {
        return body;
    }
    let mut fields = Map::new();
    for (name, value) in form_urlencoded::parse(&body) {
        if name == "payload_json" {
            return value.into_owned().into();
        }
        fields.insert(name.into_owned(), value.into_owned().into());
    }
    Value::Object(fields).to_string().into()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    async fn read(kind: &'static str, body: &str) -> Result<RequestBody, BodyError> {
        let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(kind))]);
        split(&headers, Bytes::copy_from_slice(body.as_bytes())).await
    }

    const KIND: &str = "multipart/form-data; boundary=b";

    #[tokio::test]
    async fn files_and_json_are_read_from_their_parts() {
        let body = "--b\r\nContent-Disposition: form-data; name=\"payload_json\"\r\nContent-Type: application/json\r\n\r\n\
            {\"content\":\"x\"}\r\n--b\r\nContent-Disposition: form-data; name=\"files[0]\"; filename=\"a.txt\"\r\n\
            Content-Type: text/plain\r\n\r\nhello\r\n--b--\r\n";
        let read = read(KIND, body).await.unwrap();
        assert_eq!(read.json, "{\"content\":\"x\"}");
        let file = Upload {
            field: "files[0]".into(),
            filename: "a.txt".into(),
            content_type: Some("text/plain".into()),
            content: Bytes::from_static(b"hello"),
        };
        assert_eq!(read.files, [file]);
    }

    #[tokio::test]
    async fn fields_of_a_form_without_payload_json_are_the_body() {
        let body = "--b\r\nContent-Disposition: form-data; name=\"content\"\r\n\r\nhi\r\n--b--\r\n";
        assert_eq!(read(KIND, body).await.unwrap().json, "{\"content\":\"hi\"}");
    }

    #[tokio::test]
    async fn form_without_files_contains_json_or_fields() {
        const KIND: &str = "application/x-www-form-urlencoded";
        let cases = [
            ("payload_json=%7B%22content%22%3A%22a+b%22%7D", "{\"content\":\"a b\"}"),
            ("content=a%26b", "{\"content\":\"a&b\"}"),
            ("{\"content\":\"x=y\"}", "{\"content\":\"x=y\"}"),
            ("", ""),
        ];
        for (body, json) in cases {
            assert_eq!(read(KIND, body).await.unwrap().json, json);
        }
    }

    #[tokio::test]
    async fn malformed_bodies_are_refused() {
        for (kind, body) in [("multipart/form-data", "x"), (KIND, "--b\r\n"), (KIND, "--b\r\n\r\nno end")] {
            assert!(matches!(read(kind, body).await, Err(BodyError::Multipart(_))), "{kind} {body}");
        }
        let part = "--b\r\nContent-Disposition: form-data; name=\"x\"\r\n\r\n\r\n".repeat(MAX_PARTS + 1);
        assert!(matches!(read(KIND, &format!("{part}--b--\r\n")).await, Err(BodyError::Multipart(_))));
    }
}
