//! Operations from the store to Discord, and what becomes of them.

mod faults;
mod gate_release;
mod guild_lifecycle;
mod handover;
mod outcomes;
mod permits;
mod progress;
mod scheduled;
mod unknown_outcome;
