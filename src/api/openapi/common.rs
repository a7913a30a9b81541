//! What payloads, problems and examples have in common.

/// The id of an API key.
pub(crate) const KEY_ID: &str = "^[a-z0-9]{12}$";
/// Printable ASCII, as in idempotency keys.
pub(crate) const PRINTABLE: &str = "^[ -~]+$";
/// A W3C `traceparent`.
pub(crate) const TRACEPARENT: &str = "^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$";

/// A guild in examples.
pub(crate) const A_GUILD: &str = "1571715189416398849";
/// An operation in examples.
pub(crate) const AN_OPERATION: &str = "01890a5d-ac96-774b-bcce-b302099a8057";
/// Another operation in examples.
pub(crate) const ANOTHER_OPERATION: &str = "01890a5d-b1f0-7c2e-9d3a-5f6b7c8d9e0f";
/// A time in examples.
pub(crate) const A_TIME: &str = "2026-03-01T12:00:00.000Z";
/// A slightly later time in examples.
pub(crate) const LATER: &str = "2026-03-01T12:00:01.250Z";
