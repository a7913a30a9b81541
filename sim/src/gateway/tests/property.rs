//! Property test: in any sequence of steps, a client misses no event without notice.

use std::collections::VecDeque;
use std::time::Duration;

use proptest::prelude::*;
use serde_json::Value;

use super::super::faults::GatewayFault;
use super::super::frame::Control;
use super::super::gateway_state::{ConnectionId, DisconnectReason};
use super::super::intents::{GUILD_MESSAGES, GUILDS, MESSAGE_CONTENT};
use super::{GatewayFixture, fast_config};
use crate::config::GatewayConfig;

/// A step of a client or the gateway.
#[derive(Clone, Copy, Debug)]
enum Step {
    Dispatch,
    /// The socket takes at most `room` events; with `lost`, the connection is lost before they arrive.
    Read {
        room: usize,
        lost: bool,
    },
    /// The client reconnects and resumes `back` events before the last one that it read.
    Return {
        back: u64,
    },
    Pass {
        seconds: u64,
    },
    Fault(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => Just(Step::Dispatch),
        4 => (0..6_usize, prop::bool::weighted(0.2)).prop_map(|(room, lost)| Step::Read { room, lost }),
        3 => (0..4_u64).prop_map(|back| Step::Return { back }),
        1 => (0..100_u64).prop_map(|seconds| Step::Pass { seconds }),
        1 => (0..4_usize).prop_map(Step::Fault),
    ]
}

/// A client that stores what it read of its current session.
#[derive(Default)]
struct Reader {
    connection: Option<ConnectionId>,
    session: Option<String>,
    read: Vec<(u64, &'static str, Value)>,
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn client_reads_every_event_once_in_order_or_must_identify(
        bound in 4..20_usize,
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let heartbeat_interval = Duration::from_secs(1_000_000);
        let gateway = GatewayConfig { replay_events: bound, heartbeat_interval, ..fast_config() };
        let gateway = GatewayConfig { session_starts: 10_000, ..gateway };
        let mut fixture = GatewayFixture::new(&gateway, 2);
        let mut reader = Reader::default();
        // Events dispatched since the reader's session started.
        let mut dispatched = VecDeque::new();
        let mut number = 0_u64;
        for step in steps.into_iter().chain([Step::Return { back: 0 }, Step::Read { room: usize::MAX, lost: false }]) {
            match step {
                Step::Dispatch => {
                    number += 1;
                    fixture.dispatch_message(&number.to_string());
                    dispatched.push_back(number.to_string());
                }
                Step::Pass { seconds } => fixture.advance(Duration::from_secs(seconds)),
                Step::Fault(which) => {
                    let fault = [
                        GatewayFault::Disconnect { shard: None, code: 4000, cut: true, hold_ms: 0 },
                        GatewayFault::InvalidSession { shard: None, resumable: true },
                        GatewayFault::InvalidSession { shard: None, resumable: false },
                        GatewayFault::DeadResume { count: 1 },
                    ][which].clone();
                    fixture.gateway.apply_fault(fault, fixture.now);
                }
                Step::Read { room, lost } => {
                    let Some(id) = reader.connection else { continue };
                    let out = fixture.take(id, room);
                    let invalid = out.controls.iter().find_map(|control| match control {
                        Control::InvalidSession { resumable } => Some(*resumable),
                        _ => None,
                    });
                    if lost || out.ending.is_some() || invalid.is_some() {
                        fixture.gateway.remove_connection(id, DisconnectReason::Lost, fixture.now);
                        reader.connection = None;
                    } else {
                        for (sequence, event) in &out.events {
                            prop_assert_eq!(*sequence, reader.read.last().map_or(0, |(last, ..)| *last) + 1);
                            let data: Value = serde_json::from_slice(&event.data).unwrap();
                            if event.name == "READY" {
                                reader.session = Some(data["session_id"].as_str().unwrap().to_owned());
                            }
                            reader.read.push((*sequence, event.name, data));
                        }
                    }
                    // The client must identify again: events up to now are lost, and it knows.
                    if invalid == Some(false) && !lost {
                        reader = Reader::default();
                    }
                }
                Step::Return { back } => {
                    if reader.connection.is_some() {
                        continue;
                    }
                    let id = fixture.open();
                    reader.connection = Some(id);
                    // A client that lost its connection before it read READY knows no session.
                    if let Some(session) = reader.session.clone() {
                        let known = reader.read.len().saturating_sub(usize::try_from(back).unwrap()).max(1);
                        reader.read.truncate(known);
                        fixture.resume(id, &session, reader.read.last().map_or(0, |(last, ..)| *last));
                    } else {
                        reader.read.clear();
                        dispatched.clear();
                        fixture.identify(id, GUILDS | GUILD_MESSAGES | MESSAGE_CONTENT);
                    }
                }
            }
        }
        // A client with a session at the end has read all of it.
        let Some(id) = reader.connection.filter(|_| reader.session.is_some()) else { return Ok(()) };
        for (sequence, name, data) in fixture.take_all(id) {
            prop_assert_eq!(sequence, reader.read.last().map_or(0, |(last, ..)| *last) + 1);
            reader.read.push((sequence, name, data));
        }
        let messages: Vec<_> = reader.read.iter().filter(|(_, name, _)| *name == "MESSAGE_CREATE").collect();
        let contents: Vec<_> = messages.iter().map(|(.., data)| data["content"].as_str().unwrap().to_owned()).collect();
        prop_assert_eq!(contents, Vec::from(dispatched));
        prop_assert_eq!(reader.read.iter().filter(|(_, name, _)| *name == "GUILD_CREATE").count(), 2);
    }
}
