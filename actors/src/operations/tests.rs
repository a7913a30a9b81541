//! Operations from the store to Discord, and what becomes of them.

mod delayed;
mod handover;
mod outcomes;
mod permits;
mod progress;
mod released;
mod schedule;
mod unknown_outcome;
mod upheaval;
