//! Operations from the store to Discord, and their outcomes.

mod faults;
mod gate_release;
mod guild_lifecycle;
mod handover;
mod outcomes;
mod permits;
mod progress;
mod restored;
mod scheduled;
mod unknown_outcome;
