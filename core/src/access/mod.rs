//! Who may do what.
//!
//! ```text
//!  gh_<id>_<secret> ──KeyText::read──▶ its id, for finding its Grant
//!  ["operations:write", "guild:42"] ──Grant::read──▶ Grant ──may(scope)──────▶ yes | no
//!                                                     ├───refuses(payload)──▶ what it lacks
//!                                                     └───Bounds::of────────▶ whose channels its operations may name
//! ```

mod bounds;
mod danger;
mod grant;
mod key;
mod scope;
mod scope_set;

pub use bounds::{Bounds, Whose, no_such};
pub use danger::dangers;
pub use grant::{Grant, GrantError, Guilds, Lack};
pub use key::{KeyId, KeyIdError, KeyText};
pub use scope::Scope;
pub use scope_set::ScopeSet;
