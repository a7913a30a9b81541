//! The API's description, OpenAPI 3.1: made of the list of ways that the listener serves, and told by `ways` and `payloads`.
//!
//! ```text
//!  WAYS ──▶ assemble ◀── ways (what each is for) ◀── payloads, problems, headers, schemas
//!              └──▶ /openapi.json, /docs, `guildhall openapi`, docs/openapi.json
//! ```
//!
//! A way without a description fails a test, and so do an answer that is not described and a copy in `docs/` that is out
//! of date.

mod assemble;
mod common;
mod headers;
mod page;
mod payloads;
mod problems;
mod route_doc;
mod routes;
mod schema;

#[cfg(test)]
mod tests;

use std::sync::LazyLock;

pub(super) use page::routes;

/// The API's description, as OpenAPI 3.1 in JSON: one line, for programs.
static COMPACT: LazyLock<String> = LazyLock::new(|| {
    assemble::document().to_json().expect("invariant: a description is made of text, numbers, lists and objects")
});

/// The API's description, as OpenAPI 3.1 in JSON that people can read.
#[must_use]
pub fn description() -> String {
    let pretty = assemble::document().to_pretty_json();
    pretty.expect("invariant: a description is made of text, numbers, lists and objects") + "\n"
}
