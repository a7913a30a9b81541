//! Guildhall: a daemon between a Discord bot's brain (the bot's own code) and Discord.
//!
//! ```text
//!  Discord gateway ──ws──▶ discord::ShardSet ─ShardEvent─▶ daemon::Daemon ──▶ api::Readiness ◀── GET /readyz
//!                                 │
//!                                 └──▶ events ──▶ log (stderr), metrics ◀──────────────────── GET /metrics
//! ```
//!
//! Layers; each uses only layers to its left: [`settings`] → `net`, [`clock`] → [`broker`], [`client`], [`commands`], [`discord`], `otel`,
//! [`redis`](mod@redis), [`store`], [`webhook`] → [`handlers`] → [`api`] → `egress` → [`daemon`], `demo` → [`doctor`] → [`cli`] →
//! `main`. All layers may use [`events`], [`metrics`], [`process`] and [`logging`].

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod api;
pub mod broker;
pub mod cli;
pub mod client;
pub mod clock;
pub mod commands;
pub mod daemon;
#[cfg(feature = "simulator")]
pub mod demo;
pub mod discord;
pub mod doctor;
pub(crate) mod egress;
mod error_chain;
pub mod events;
pub mod handlers;
pub mod logging;
pub mod metrics;
mod net;
#[cfg(feature = "otel")]
pub mod otel;
mod private_files;
pub mod process;
mod random;
pub mod redis;
pub mod settings;
pub mod store;
mod terminal_text;
pub mod webhook;
