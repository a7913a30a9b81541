//! Callers, what they may access, and the audit log.
//!
//! ```text
//!  request ──key──▶ KeyStore ──▶ Caller ──▶ service ──AuditRecord──▶ store: change and audit row in one commit
//!                                  └─▶ denied ──AuditRecord──▶ audit log
//! ```

mod audit_record;
mod caller;
mod erasure;
mod role_cache;

pub use audit_record::{AuditAction, AuditFilter, AuditRecord, StoredAuditRecord};
pub use caller::{Caller, DEFAULT_TENANT, default_tenant};
pub use erasure::{DataSubject, ErasureCursor, ErasureStep, ErasureStore};
pub use role_cache::{RoleCache, RoleCacheConfig, RoleRead};
