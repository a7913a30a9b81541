//! Operations from the store to Discord, and what becomes of them.

mod delayed;
mod handover;
mod outcomes;
mod schedule;
mod upheaval;
