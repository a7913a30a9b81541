//! Operations from the store to Discord, and what becomes of them.

mod outcomes;
mod schedule;
mod upheaval;
