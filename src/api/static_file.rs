//! Pages and files that are compiled into the program. They load nothing from other servers.

use actix_web::{
    HttpRequest, HttpResponse,
    http::header::{
        CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, HeaderValue, IF_NONE_MATCH, REFERRER_POLICY,
        X_CONTENT_TYPE_OPTIONS,
    },
    web,
};
use bytes::Bytes;
use sha2::{Digest as _, Sha256};

use super::problem::ProblemType;

/// Content type of pages.
pub(crate) const HTML: &str = "text/html; charset=utf-8";

/// What a page may do: run its own script, use its own style sheet, and call this server. It must not be framed.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; \
    form-action 'none'; frame-ancestors 'none'";

/// A file that is compiled into the program, or made from what is.
pub(crate) struct StaticFile {
    path: String,
    kind: &'static str,
    bytes: Bytes,
    tag: HeaderValue,
}

impl StaticFile {
    /// A file at a path, with a content type.
    pub(crate) fn new(path: impl Into<String>, kind: &'static str, text: impl Into<Bytes>) -> Self {
        let bytes = text.into();
        let tag: String = Sha256::digest(&bytes).iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        let tag = HeaderValue::from_str(&format!("\"{tag}\"")).expect(
            "invariant: hexadecimal digits are valid in a \
            header",
        );
        Self { path: path.into(), kind, bytes, tag }
    }

    /// Its path.
    #[cfg(test)]
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Its content.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Adds it to an app.
    pub(crate) fn serve(&'static self, config: &mut web::ServiceConfig) {
        let answer = move |request: HttpRequest| async move { self.respond(&request) };
        let allow = HeaderValue::from_static("GET, HEAD");
        config.service(
            web::resource(self.path.as_str())
                .route(web::get().to(answer))
                .route(web::head().to(answer))
                .default_service(web::to(move || std::future::ready(ProblemType::not_allowed(allow.clone())))),
        );
    }

    fn respond(&self, request: &HttpRequest) -> HttpResponse {
        let is_known = request.headers().get_all(IF_NONE_MATCH).any(|header| contains_tag(header, &self.tag));
        let mut response = if is_known { HttpResponse::NotModified() } else { HttpResponse::Ok() };
        response
            .insert_header((ETAG, self.tag.clone()))
            // Cached, but revalidated: after an update the old version is not used.
            .insert_header((CACHE_CONTROL, "no-cache"))
            .insert_header((CONTENT_SECURITY_POLICY, POLICY))
            .insert_header((REFERRER_POLICY, "no-referrer"))
            .insert_header((X_CONTENT_TYPE_OPTIONS, "nosniff"));
        if is_known {
            response.finish()
        } else {
            response.insert_header((CONTENT_TYPE, self.kind)).body(self.bytes.clone())
        }
    }
}

/// Whether a list of tags contains this one, or `*`. A proxy may have made it a weak one.
fn contains_tag(header: &HeaderValue, tag: &HeaderValue) -> bool {
    let (Ok(header), Ok(tag)) = (header.to_str(), tag.to_str()) else { return false };
    header.split(',').map(str::trim).any(|header| header == "*" || header.trim_start_matches("W/") == tag)
}
