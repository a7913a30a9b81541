//! The one port: connections, and which part of the simulator each request is for.

mod server;
mod upgrade;

pub(crate) use server::serve;
