//! `/openapi.json`, and `/docs`: a page that loads nothing from other servers.

use std::sync::LazyLock;

use actix_web::web;

use super::COMPACT;
use crate::api::{
    runbooks,
    static_file::{HTML, StaticFile},
};

const SCRIPT: &str = "text/javascript; charset=utf-8";

static STATIC_FILES: LazyLock<[StaticFile; 7]> = LazyLock::new(|| {
    [
        StaticFile::new("/openapi.json", "application/json", COMPACT.as_str()),
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
    for file in STATIC_FILES.iter().chain(runbooks::files()) {
        file.serve(config);
    }
}
