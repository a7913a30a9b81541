//! The API, over real sockets: its routes on services in this process, and its listener in the real program.

#![expect(clippy::unwrap_used, reason = "tests")]

mod edge;
mod fallbacks;
mod interactions;
mod state;
mod v1;
