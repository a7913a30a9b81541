//! The OpenAPI 3.1 description of the API: built from the list of routes that the listener serves, and documented in
//! `routes` and `payloads`.
//!
//! ```text
//!  route list ──▶ assemble ◀── routes (documentation) ◀── payloads, problems, headers, schemas
//!                    └──▶ /openapi.json, /docs, `guildhall openapi`, docs/openapi.json
//! ```
//!
//! A test fails for a route without documentation, for an undocumented response, and for an outdated copy in `docs/`.

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

pub(crate) use page::routes;

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
