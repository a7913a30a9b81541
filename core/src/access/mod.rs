//! Access control: API keys, scopes, and the permissions that operations give.
//!
//! ```text
//!  gh_<id>_<secret> ──ParsedKey::read──▶ its id, to find its Grant
//!  ["operations:write", "guild:42"] ──Grant::read──▶ Grant ─┬─has_scope(scope)────────▶ yes | no
//!                                                          ├─missing_access(payload)─▶ the missing scope
//!                                                          └─Bounds::of──────────────▶ channels that it may address
//!  Payload ──PermissionEffect::of──▶ Danger: why it needs the scope `danger`, at acceptance and again at dispatch
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

pub use bounds::{Bounds, Owner, not_found_message};
pub use danger::Danger;
pub use effect::{AssignedRoles, Denials, PermissionEffect, RoleGuild, UnknownRole};
pub use grant::{Grant, GrantError, GuildSet, MissingAccess};
pub use guild_roles::{GuildRoles, RolePermissions};
pub use key::{KeyId, ParseKeyIdError, ParsedKey};
pub use scope::Scope;
pub use scope_set::ScopeSet;
