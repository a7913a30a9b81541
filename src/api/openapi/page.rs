//! `/openapi.json`, and `/docs`: a page that loads nothing from other servers.

use std::sync::LazyLock;

use actix_web::{
    HttpRequest, HttpResponse,
    http::header::{
        CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, HeaderValue, IF_NONE_MATCH, REFERRER_POLICY,
        X_CONTENT_TYPE_OPTIONS,
    },
    web,
};
use sha2::{Digest as _, Sha256};

use super::COMPACT;
use crate::api::problem::ProblemType;

/// What the page may do: run its own script, use its own style sheet, and call this server. It must not be framed.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; \
    form-action 'none'; frame-ancestors 'none'";

/// A file that is compiled into the program.
struct StaticFile {
    path: &'static str,
    kind: &'static str,
    bytes: &'static [u8],
    tag: HeaderValue,
}

impl StaticFile {
    fn new(path: &'static str, kind: &'static str, text: &'static str) -> Self {
        let digest = Sha256::digest(text);
        let tag: String = digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        let tag = HeaderValue::from_str(&format!("\"{tag}\"")).expect(
            "invariant: hexadecimal digits are valid in a \
            header",
        );
        Self { path, kind, bytes: text.as_bytes(), tag }
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
        if is_known { response.finish() } else { response.insert_header((CONTENT_TYPE, self.kind)).body(self.bytes) }
    }
}

/// Whether a list of tags contains this one, or `*`. A proxy may have made it a weak one.
fn contains_tag(header: &HeaderValue, tag: &HeaderValue) -> bool {
    let (Ok(header), Ok(tag)) = (header.to_str(), tag.to_str()) else { return false };
    header.split(',').map(str::trim).any(|header| header == "*" || header.trim_start_matches("W/") == tag)
}

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

static STATIC_FILES: LazyLock<[StaticFile; 7]> = LazyLock::new(|| {
    [
        StaticFile::new("/openapi.json", "application/json", &COMPACT),
        StaticFile::new("/docs", HTML, include_str!("page/page.html")),
        StaticFile::new("/docs/page.css", "text/css; charset=utf-8", include_str!("page/page.css")),
        StaticFile::new("/docs/page.js", SCRIPT, include_str!("page/page.js")),
        StaticFile::new("/docs/elements.js", SCRIPT, include_str!("page/elements.js")),
        StaticFile::new("/docs/schemas.js", SCRIPT, include_str!("page/schemas.js")),
        StaticFile::new("/docs/trial.js", SCRIPT, include_str!("page/trial.js")),
    ]
});

/// Adds all files to an app.
pub(crate) fn routes(config: &mut web::ServiceConfig) {
    for fixed in &*STATIC_FILES {
        let answer = move |request: HttpRequest| async move { fixed.respond(&request) };
        let allow = HeaderValue::from_static("GET, HEAD");
        config.service(
            web::resource(fixed.path)
                .route(web::get().to(answer))
                .route(web::head().to(answer))
                .default_service(web::to(move || std::future::ready(ProblemType::not_allowed(allow.clone())))),
        );
    }
}
