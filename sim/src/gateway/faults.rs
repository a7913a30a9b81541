//! Injected faults of the gateway.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize};

use super::close::Close;
use super::frame::Control;
use super::gateway_state::{ConnectionId, Ending, GatewayState};
use super::session::SessionKey;
use crate::time::At;

/// Event types that may be muted at the same time; Discord has fewer.
const MAX_MUTED: usize = 1_000;

/// A fault of the gateway. If `shard` is omitted, every shard is affected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum GatewayFault {
    /// Closes connections; their sessions can be resumed.
    Disconnect {
        /// The shard whose connections are closed.
        #[serde(default)]
        shard: Option<u32>,
        /// The close code.
        #[serde(default = "default_code", deserialize_with = "legal_code")]
        code: u16,
        /// Cuts the TCP connection instead, without a close frame.
        #[serde(default)]
        cut: bool,
        /// For this time, new connections of any shard get no HELLO, so that events are missed. Of any shard, because a
        /// connection names its shard only later.
        #[serde(default)]
        hold_ms: u64,
    },
    /// Leaves connections open, but neither responds nor sends on them, until their clients disconnect.
    Zombie {
        /// The shard whose connections become silent.
        #[serde(default)]
        shard: Option<u32>,
    },
    /// Requests that clients reconnect (op 7).
    Reconnect {
        /// The affected shard.
        #[serde(default)]
        shard: Option<u32>,
    },
    /// Notifies clients that their session is invalid (op 9).
    InvalidSession {
        /// The affected shard.
        #[serde(default)]
        shard: Option<u32>,
        /// Whether it may be resumed; if not, it is lost.
        resumable: bool,
    },
    /// Responds to the next RESUMEs with op 9, and ends their sessions.
    DeadResume {
        /// How many of them.
        #[serde(default = "one")]
        count: u32,
    },
    /// Drops every event of one type; it gets no sequence number.
    Mute {
        /// The type of the event, such as `MESSAGE_CREATE`.
        #[serde(deserialize_with = "event_name")]
        event: String,
    },
    /// Ends a `mute`.
    Unmute {
        /// The type of the event; without one, all types.
        #[serde(default)]
        event: Option<String>,
    },
    /// Requests a heartbeat at once (op 1).
    HeartbeatRequest {
        /// The affected shard.
        #[serde(default)]
        shard: Option<u32>,
    },
    /// Skips sequence numbers, as if events had been lost permanently.
    SkipSequence {
        /// The affected shard.
        #[serde(default)]
        shard: Option<u32>,
        /// How many numbers are skipped.
        count: u64,
    },
}

fn default_code() -> u16 {
    4000
}

fn one() -> u32 {
    1
}

fn legal_code<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u16, D::Error> {
    let code = u16::deserialize(deserializer)?;
    if Close::is_legal(code) {
        Ok(code)
    } else {
        Err(serde::de::Error::custom(format!("{code} is not valid in a close frame; use one from 3000 to 4999")))
    }
}

fn event_name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let name = String::deserialize(deserializer)?;
    let is_name = (1..=64).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_');
    if is_name {
        Ok(name)
    } else {
        Err(serde::de::Error::custom("`event` must be an event type, such as MESSAGE_CREATE"))
    }
}

/// The faults that stay active until they are used up or cleared.
#[derive(Debug, Default)]
pub(crate) struct ActiveFaults {
    muted: BTreeSet<String>,
    dead_resumes: u32,
    hold_until: At,
}

impl ActiveFaults {
    pub(crate) fn is_muted(&self, event: &str) -> bool {
        !self.muted.is_empty() && self.muted.contains(event)
    }

    /// Whether the current RESUME must fail.
    pub(crate) fn take_dead_resume(&mut self) -> bool {
        let fails = self.dead_resumes > 0;
        self.dead_resumes -= u32::from(fails);
        fails
    }

    /// When a connection that opens now gets its HELLO.
    pub(crate) fn hello_at(&self, now: At) -> At {
        self.hold_until.max(now)
    }
}

impl GatewayState {
    /// Whether one more fault of this kind may be added.
    pub(crate) fn has_room_for(&self, fault: &GatewayFault) -> bool {
        !matches!(fault, GatewayFault::Mute { .. }) || self.faults.muted.len() < MAX_MUTED
    }

    /// Applies a fault; returns the number of connections affected. One that only applies later affects none yet.
    pub(crate) fn apply_fault(&mut self, fault: GatewayFault, now: At) -> u64 {
        match fault {
            GatewayFault::Disconnect { shard, code, cut, hold_ms } => {
                if hold_ms > 0 {
                    self.faults.hold_until = self.faults.hold_until.max(now.after(Duration::from_millis(hold_ms)));
                }
                let code = if Close::is_legal(code) { code } else { default_code() };
                let ending =
                    if cut { Ending::Cut } else { Ending::Close(Close::new(code, "Requested by a gateway fault.")) };
                self.for_each_connection(shard, |gateway, id| gateway.end_connection(id, ending, now))
            }
            GatewayFault::Zombie { shard } => self.for_each_connection(shard, |gateway, id| {
                if let Some(link) = gateway.connections.get_mut(&id) {
                    gateway.scores.score.zombies += u64::from(!link.zombie);
                    link.zombie = true;
                    link.controls.clear();
                    link.wakeup.notify_one();
                }
            }),
            GatewayFault::Reconnect { shard } => {
                self.for_each_connection(shard, |gateway, id| gateway.send_control(id, Control::Reconnect))
            }
            GatewayFault::InvalidSession { shard, resumable } => self.for_each_connection(shard, |gateway, id| {
                let session = gateway.session_of(id);
                gateway.detach_session(id, now);
                if !resumable {
                    session.into_iter().for_each(|key| gateway.end_session(key));
                }
                gateway.send_control(id, Control::InvalidSession { resumable });
            }),
            GatewayFault::HeartbeatRequest { shard } => {
                self.for_each_connection(shard, |gateway, id| gateway.send_control(id, Control::Heartbeat))
            }
            GatewayFault::DeadResume { count } => {
                self.faults.dead_resumes = self.faults.dead_resumes.saturating_add(count);
                0
            }
            GatewayFault::Mute { event } => {
                self.faults.muted.insert(event);
                0
            }
            GatewayFault::Unmute { event: Some(event) } => {
                self.faults.muted.remove(&event);
                0
            }
            GatewayFault::Unmute { event: None } => {
                self.faults.muted.clear();
                0
            }
            GatewayFault::SkipSequence { shard, count } => {
                let affected =
                    self.sessions.values_mut().filter(|session| shard.is_none_or(|id| session.shard.id == id));
                affected.map(|session| session.replay.skip(count)).count() as u64
            }
        }
    }

    /// The active faults.
    pub(crate) fn faults(&self, now: At) -> Vec<GatewayFault> {
        let mut active: Vec<_> =
            self.faults.muted.iter().map(|event| GatewayFault::Mute { event: event.clone() }).collect();
        if self.faults.dead_resumes > 0 {
            active.push(GatewayFault::DeadResume { count: self.faults.dead_resumes });
        }
        let hold = self.faults.hold_until.since(now);
        if !hold.is_zero() {
            let hold_ms = u64::try_from(hold.as_millis()).unwrap_or(u64::MAX);
            active.push(GatewayFault::Disconnect { shard: None, code: default_code(), cut: false, hold_ms });
        }
        let zombies = self.connections.iter().filter(|(_, link)| link.zombie);
        let shards: BTreeSet<u32> =
            zombies.filter_map(|(id, _)| self.sessions.get(&self.session_of(*id)?)).map(|it| it.shard.id).collect();
        active.extend(shards.into_iter().map(|shard| GatewayFault::Zombie { shard: Some(shard) }));
        active
    }

    /// Ends all active faults: zombies continue, held connections get their HELLO.
    pub(crate) fn clear_faults(&mut self, now: At) {
        self.faults = ActiveFaults::default();
        for link in self.connections.values_mut() {
            link.zombie = false;
            link.hello_at = link.hello_at.map(|hello| hello.min(now));
            link.wakeup.notify_one();
        }
    }

    fn session_of(&self, id: ConnectionId) -> Option<SessionKey> {
        self.connections.get(&id)?.connection.session()
    }

    /// Applies a fault to every open connection of a shard, in the order they were opened.
    fn for_each_connection(&mut self, shard: Option<u32>, mut apply: impl FnMut(&mut Self, ConnectionId)) -> u64 {
        let is_affected = |id: &ConnectionId| {
            shard.is_none_or(|shard| {
                let session = self.session_of(*id).and_then(|key| self.sessions.get(&key));
                session.is_some_and(|session| session.shard.id == shard)
            })
        };
        let open = self.connections.iter().filter(|(_, link)| link.ending.is_none());
        let mut affected: Vec<_> = open.map(|(id, _)| *id).filter(is_affected).collect();
        affected.sort_unstable();
        affected.iter().for_each(|id| apply(self, *id));
        affected.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fault_has_defaults_and_rejects_unknown_fields() {
        let read = |fault| serde_json::from_value::<GatewayFault>(fault);
        assert_eq!(
            read(json!({"kind": "disconnect"})).unwrap(),
            GatewayFault::Disconnect { shard: None, code: 4000, cut: false, hold_ms: 0 }
        );
        assert_eq!(read(json!({"kind": "dead_resume"})).unwrap(), GatewayFault::DeadResume { count: 1 });
        assert!(read(json!({"kind": "zombie", "shards": 1})).is_err());
        assert!(read(json!({"kind": "disconnect", "code": 999})).is_err());
        assert!(read(json!({"kind": "disconnect", "code": 1006})).is_err());
        assert!(read(json!({"kind": "skip_sequence"})).is_err());
        assert!(read(json!({"kind": "mute", "event": "MESSAGE_CREATE"})).is_ok());
        for event in ["", "message_create", "MESSAGE CREATE", &"X".repeat(65)] {
            assert!(read(json!({"kind": "mute", "event": event})).is_err(), "{event}");
        }
    }

    #[test]
    fn a_dead_resume_is_used_up() {
        let mut faults = ActiveFaults { dead_resumes: 2, ..ActiveFaults::default() };
        assert_eq!(
            [faults.take_dead_resume(), faults.take_dead_resume(), faults.take_dead_resume()],
            [true, true, false]
        );
    }
}
