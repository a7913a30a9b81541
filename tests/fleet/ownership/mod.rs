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

mod fleet;

mod frozen;
mod limit;
#[cfg(feature = "failpoints")]
mod parts;
mod random;
mod rolling;
mod servers;
mod spread;
mod wakeups;
