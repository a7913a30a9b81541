//! Tests of the simulator over HTTP and its gateway, as its users reach it.

#![expect(clippy::unwrap_used, reason = "tests")]

mod common;
mod control;
mod documentation;
mod faults;
mod files;
mod gateway_protocol;
mod hostile;
mod hostile_input;
mod limits;
mod twilight_gateway;
