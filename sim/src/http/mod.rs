//! The one port: connections, and which part of the simulator each request is for.

mod admit;
mod answer;
mod body;
mod rest;
mod server;
mod upgrade;

pub(crate) use body::{BodyError, read as read_body};
pub(crate) use server::{Answer, json, serve};
