//! Whole shards against a simulated Discord: what it sends arrives whole, in order and once, whatever happens to the
//! connection, to the process, and to whoever listens.
//!
//! ```text
//!  simulator ──ws──▶ Shards (their own threads) ──Told──▶ Ear, which writes down what it hears
//!      └── faults, storms, score ──────────────▶ judge ◀───────────┘
//! ```

#![expect(clippy::unwrap_used, reason = "tests")]

mod budget;
mod ear;
mod faults;
mod pause;
mod restart;
mod stage;
mod store;
