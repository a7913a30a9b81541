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
#[path = "../crash/checker.rs"]
mod checker;
#[allow(dead_code, reason = "the crash tests use it")]
#[path = "../crash/client.rs"]
mod client;
#[allow(dead_code, reason = "the crash tests use it")]
#[path = "../crash/daemon_process.rs"]
mod daemon_process;
#[allow(dead_code, reason = "the crash tests use it")]
#[path = "../crash/fixture.rs"]
mod fixture;
#[allow(dead_code, reason = "the crash tests use it")]
#[path = "../crash/generator.rs"]
mod generator;
#[path = "../support/pgbouncer.rs"]
mod pgbouncer;
#[path = "../support/postgres.rs"]
mod postgres;
#[allow(dead_code, reason = "the crash tests use it")]
#[path = "../crash/test_operation.rs"]
mod test_operation;

mod fleet;
#[cfg(feature = "failpoints")]
#[allow(dead_code, reason = "each binary kills its own parts")]
#[path = "../crash/killed_parts.rs"]
mod killed_parts;
#[cfg(feature = "failpoints")]
#[path = "../crash/part_exit.rs"]
mod part_exit;

mod frozen;
mod limit;
#[cfg(feature = "failpoints")]
mod parts;
mod random;
mod rolling;
mod servers;
mod spread;
mod wakeups;
