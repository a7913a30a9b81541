//! Who asks, what they may see, and what is kept of what they did.
//!
//! ```text
//!  request ──key──▶ KeyStore ──▶ Caller ──▶ desk ──noting(Note)──▶ store: the change and its note, in one commit
//!                                  └─▶ refused ──Note──▶ AuditLog
//! ```

mod caller;
mod erasure;
mod note;
mod role_cache;
mod store;

pub use caller::{Caller, DEFAULT_TENANT, default_tenant};
pub use erasure::{DataSubject, Erased, ErasureCursor, ErasureStore};
pub use note::{Action, AuditFilter, AuditRow, Note};
pub use role_cache::{RoleCache, RoleCacheConfig, RoleRead};
pub use store::{Added, GeneratedAdminKey, Key, KeyFilter, KeyStore, NewKey, Revoked, Rotated};
