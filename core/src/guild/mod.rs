//! The order inside a guild: one operation at a time, in the order accepted.
//!
//! ```text
//!  loaded ─▶ [ 4 parked | 5 behind 4 | 6 | 7 | 8 … ] ─next─▶ Run(6)
//!                 ▲ held alone for long     ▲ shares nothing with 4 and 5
//! ```

mod entry;
mod line;

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;

pub use entry::{Entry, HeldBack, Meets, Phase};
pub use line::{Line, LineConfig, Step};
