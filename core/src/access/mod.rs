//! Who may do what.
//!
//! ```text
//!  gh_<id>_<secret> ──KeyText::read──▶ its id, for finding its Grant
//!  ["operations:write", "guild:42"] ──Grant::read──▶ Grant ──may(scope)──────▶ yes | no
//!                                                     ├───refuses(payload)──▶ what it lacks
//!                                                     └───Bounds::of────────▶ whose channels its operations may name
//!  Payload ──Effect::of──▶ Effect ──▶ Danger: why it needs the scope `danger`, at acceptance and again at dispatch
//! ```

mod bounds;
mod danger;
mod effect;
mod grant;
mod guild_roles;
mod key;
mod request_calls;
mod request_effect;
mod scope;
mod scope_set;

pub use bounds::{Bounds, Owner, no_such};
pub use danger::Danger;
pub use effect::{AssignedRoles, Denials, PermissionEffect, RoleGuild, UnknownRole};
pub use grant::{Grant, GrantError, GuildSet, MissingAccess};
pub use guild_roles::{GuildRoles, RolePermissions};
pub use key::{KeyId, ParseKeyIdError, ParsedKey};
pub use scope::Scope;
pub use scope_set::ScopeSet;
