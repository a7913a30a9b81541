//! The REST proxy: bots in any language make their calls to Discord through the gate of this process by changing their
//! base URL.
//!
//! ```text
//!  bot ──HTTP──▶ listener ─▶ target, headers ─▶ credentials ─▶ body ─▶ authorize ─▶ gate ──https──▶ Discord
//!      ◀───────  answer: Discord's response, or an own one that looks like Discord's ◀──┘
//! ```
//!
//! `target`, `headers` and `form` decide and do no I/O. What a call may do is decided by the same functions as for
//! operations of the kind `request`.

mod answer;
mod authorize;
mod body;
mod coalesce;
mod compat;
mod connection_table;
mod credentials;
mod events;
mod fair_pool;
mod foreign_tokens;
mod form;
mod gateway_url;
mod headers;
mod held_body;
mod listener;
mod proxy;
mod send_checks;
mod target;
mod unix_socket;
mod upload;
mod write_audit;
mod write_timeout;

pub(crate) use self::listener::{BoundEgress, EgressListener, EgressListenerConfig};
pub(crate) use self::proxy::{Egress, EgressConfig};
pub(crate) use self::unix_socket::SocketError;
pub(crate) use self::unix_socket::{BoundSocket, SocketFile};
