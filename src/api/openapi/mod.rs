//! The OpenAPI 3.1 description of the API, derived from what the listener serves.
//!
//! ```text
//!  route list ──▶ texts and examples beside each handler ─┐
//!     └─────────▶ handler's signature ──▶ fields, dto ────┴▶ assemble ◀── payloads, problems, headers
//!                                                               └──▶ /openapi.json, /docs, `guildhall openapi`, docs/openapi.json
//! ```
//!
//! Tests fail for an undocumented response, and for an outdated copy in `docs/`.

mod assemble;
pub(crate) mod common;
pub(crate) mod headers;
mod outside;
mod page;
mod payloads;
mod problems;
pub(crate) mod route_doc;
pub(crate) mod schema;
pub(crate) mod submission;

#[cfg(test)]
mod tests;

use std::sync::LazyLock;

pub(crate) use page::routes;

/// Text of doc comments: lines are joined to paragraphs.
pub(crate) fn doc_text(lines: &[&str]) -> String {
    let paragraphs = lines.split(|line| line.trim().is_empty());
    let paragraphs = paragraphs.map(|lines| lines.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" "));
    paragraphs.filter(|text| !text.is_empty()).collect::<Vec<_>>().join("\n\n")
}

/// The OpenAPI description as JSON, in one line for programs.
static COMPACT: LazyLock<String> = LazyLock::new(|| {
    assemble::document().to_json().expect("invariant: a description consists of strings, numbers, lists and objects")
});

/// The OpenAPI description as indented JSON.
#[must_use]
pub fn description() -> String {
    let pretty = assemble::document().to_pretty_json();
    pretty.expect("invariant: a description consists of strings, numbers, lists and objects") + "\n"
}
