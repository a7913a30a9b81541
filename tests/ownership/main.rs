//! Several daemons share the work on one PostgreSQL, and meanwhile they are suspended, resumed, killed and stopped. The
//! simulator's score decides: nothing lost, nothing duplicated, nothing out of order, and never two of them in one
//! guild.
//!
//! ```text
//!            ┌──▶ guildhall serve ──┐
//!  callers ──┼──▶ guildhall serve ──┼──▶ simulator (in this process)
//!     │      └──▶ guildhall serve ──┘         │
//!     │              │ │ │                    │
//!     │        (PgBouncer,) PostgreSQL        │
//!     └── accepted operations ──▶ checker ◀── effects
//! ```
//!
//! `scripts/soak ownership` runs the random events in larger numbers.

#![expect(clippy::unwrap_used, reason = "tests")]

#[allow(dead_code, reason = "the crash tests use it")]
#[path = "../crash/asker.rs"]
mod asker;
#[allow(dead_code, reason = "the crash tests use it")]
#[path = "../crash/caller.rs"]
mod caller;
#[allow(dead_code, reason = "the crash tests use it")]
#[path = "../crash/errand.rs"]
mod errand;
#[allow(dead_code, reason = "the crash tests use it")]
#[path = "../crash/judge.rs"]
mod judge;
#[allow(dead_code, reason = "the crash tests use it")]
#[path = "../crash/life.rs"]
mod life;
#[path = "../support/pgbouncer.rs"]
mod pgbouncer;
#[path = "../support/postgres.rs"]
mod postgres;
#[allow(dead_code, reason = "the crash tests use it")]
#[path = "../crash/stage.rs"]
mod stage;

#[cfg(feature = "failpoints")]
#[path = "../crash/ended.rs"]
mod ended;
mod fleet;
#[cfg(feature = "failpoints")]
#[allow(dead_code, reason = "each binary kills its own parts")]
#[path = "../crash/killed.rs"]
mod killed;

mod frozen;
mod limit;
#[cfg(feature = "failpoints")]
mod parts;
mod random;
mod rolling;
mod servers;
mod spread;
mod wakes;
