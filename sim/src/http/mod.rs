//! The HTTP server: accepts connections and routes each request to the part of the simulator that handles it.

mod admit;
mod body;
mod files;
mod form;
mod response;
mod rest;
mod server;
mod upgrade;

pub(crate) use body::{BodyError, read as read_body};
pub(crate) use rest::handle_at;
pub(crate) use server::{HttpResponse, json, serve};
