//! The window that processes share, in a real Redis.

mod members;
mod mirror;
mod pair;
mod random;
mod script;
