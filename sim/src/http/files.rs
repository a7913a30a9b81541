//! Serves the files of attachments, as Discord's CDN does: without a token, and without limits.

use bytes::Bytes;
use http::header::{CONTENT_DISPOSITION, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderValue, Method, Response, StatusCode};
use http_body_util::Full;
use percent_encoding::percent_decode_str;

use super::server::{HttpResponse, json};
use crate::state::Shared;
use crate::world::attachment::PATH;

/// Whether a path belongs to the files.
pub(super) fn is_file(path: &str) -> bool {
    path.starts_with(PATH)
}

pub(super) fn handle(shared: &Shared, method: &Method, path: &str) -> HttpResponse {
    if *method != Method::GET {
        return json(StatusCode::METHOD_NOT_ALLOWED, r#"{"message":"405: Method Not Allowed","code":0}"#);
    }
    let parts: Vec<&str> = path.strip_prefix(PATH).unwrap_or_default().split('/').collect();
    let core = shared.lock();
    let file = match parts.as_slice() {
        [channel, id, filename] => channel.parse().ok().zip(id.parse().ok()).and_then(|(channel, id)| {
            let filename = percent_decode_str(filename).decode_utf8_lossy();
            core.world.files.get(id).filter(|file| file.channel == channel && file.filename == filename)
        }),
        _ => None,
    };
    let Some(file) = file else {
        let message =
            r#"{"message":"404: no such attachment; its message is deleted, or newer files took its place","code":0}"#;
        return json(StatusCode::NOT_FOUND, message);
    };
    let header = |text: &str| HeaderValue::from_str(text).ok();
    let kind = file.content_type.as_deref().and_then(header);
    let disposition = header(&format!("attachment; filename=\"{}\"", file.filename));
    let mut answer = Response::new(Full::new(Bytes::clone(&file.content)));
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, kind.unwrap_or(HeaderValue::from_static("application/octet-stream")));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.extend(disposition.map(|disposition| (CONTENT_DISPOSITION, disposition)));
    answer
}
