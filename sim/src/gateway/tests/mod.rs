//! Tests of the gateway state: connections, sessions and events together, with time as an argument.

mod property;

use std::time::Duration;

use serde_json::{Value, json};

use super::GatewayState;
use super::close::Close;
use super::faults::GatewayFault;
use super::frame::Control;
use super::gateway_state::{ConnectionId, DisconnectReason, Ending, Outbound};
use super::intents::{GUILD_MEMBERS, GUILD_MESSAGES, GUILDS, MESSAGE_CONTENT};
use crate::config::{BotConfig, GatewayConfig, SimConfig};
use crate::dispatch::{Audience, Dispatch};
use crate::id::Snowflake;
use crate::time::At;
use crate::world::World;

const START: At = At::from_micros(1_700_000_000_000_000);
const URL: &str = "ws://127.0.0.1:1";

/// A gateway state with its world, and a manual clock.
struct GatewayFixture {
    world: World,
    gateway: GatewayState,
    now: At,
}

impl GatewayFixture {
    fn new(gateway: &GatewayConfig, guilds: u32) -> Self {
        let config = SimConfig { guilds, ..SimConfig::default() };
        let mut world = World::new(&config, START);
        world.dispatches.clear();
        Self { world, gateway: GatewayState::new(gateway), now: START }
    }

    fn bot(&self) -> Snowflake {
        self.world.bots[0].application_id
    }

    fn guild(&self) -> Snowflake {
        self.world.guilds_of(self.bot()).next().unwrap()
    }

    fn advance(&mut self, time: Duration) {
        self.now = self.now.after(time);
    }

    fn open(&mut self) -> ConnectionId {
        self.gateway.open(self.now).0
    }

    fn send(&mut self, id: ConnectionId, frame: &Value) {
        self.gateway.handle_frame(&self.world, id, frame.to_string().as_bytes(), URL, self.now);
    }

    fn identify(&mut self, id: ConnectionId, intents: u64) {
        let token = self.world.bots[0].token.clone();
        self.send(id, &json!({"op": 2, "d": {"token": token, "intents": intents}}));
    }

    fn resume(&mut self, id: ConnectionId, session: &str, sequence: u64) {
        let token = self.world.bots[0].token.clone();
        self.send(id, &json!({"op": 6, "d": {"token": token, "session_id": session, "seq": sequence}}));
    }

    fn take(&mut self, id: ConnectionId, room: usize) -> Outbound {
        let mut out = Outbound::default();
        self.gateway.take_outbound(&self.world, id, room, &mut out, self.now);
        out
    }

    /// Takes all waiting events, batch by batch.
    fn take_all(&mut self, id: ConnectionId) -> Vec<(u64, &'static str, Value)> {
        let mut all = Vec::new();
        loop {
            let out = self.take(id, 10);
            if out.events.is_empty() {
                return all;
            }
            let read = |data: &[u8]| serde_json::from_slice(data).unwrap();
            all.extend(out.events.iter().map(|(sequence, event)| (*sequence, event.name, read(&event.data))));
        }
    }

    /// Opens a connection, identifies, and reads READY and what follows; returns the session id too.
    fn log_in(&mut self, intents: u64) -> (ConnectionId, String) {
        let id = self.open();
        self.identify(id, intents);
        let ready = self.take_all(id).swap_remove(0);
        assert_eq!((ready.0, ready.1), (1, "READY"));
        (id, ready.2["session_id"].as_str().unwrap().to_owned())
    }

    fn dispatch_message(&mut self, content: &str) {
        let guild = self.guild();
        let message = json!({"guild_id": guild, "author": {"id": "9"}, "content": content, "mentions": []});
        let dispatch = Dispatch::guild("MESSAGE_CREATE", guild, GUILD_MESSAGES, &message);
        self.gateway.dispatch(&self.world, &dispatch, self.now);
    }

    fn ending(&mut self, id: ConnectionId) -> Option<Ending> {
        self.take(id, 0).ending
    }
}

fn fast_config() -> GatewayConfig {
    GatewayConfig { identify_window: Duration::ZERO, sends_per_minute: 10_000, ..GatewayConfig::default() }
}

fn close_ending(close: Close) -> Option<Ending> {
    Some(Ending::Close(close))
}

#[test]
fn reader_too_far_behind_loses_its_session() {
    let mut fixture = GatewayFixture::new(&GatewayConfig { replay_events: 4, ..fast_config() }, 1);
    let (id, session) = fixture.log_in(GUILD_MESSAGES);
    for _ in 0..5 {
        fixture.dispatch_message("hi");
    }
    assert_eq!(fixture.ending(id), close_ending(Close::SLOW_READER));
    let score = fixture.gateway.score();
    assert_eq!((score.slow_readers, score.sessions_ended), (1, 1));
    let id = fixture.open();
    fixture.resume(id, &session, 1);
    assert!(fixture.take(id, 10).controls.contains(&Control::InvalidSession { resumable: false }));
}

#[test]
fn session_outlives_its_connection_for_its_lifetime() {
    let mut fixture = GatewayFixture::new(&fast_config(), 1);
    let life = fast_config().session_life;
    let (id, session) = fixture.log_in(GUILD_MESSAGES);
    fixture.gateway.remove_connection(id, DisconnectReason::Lost, fixture.now);
    fixture.dispatch_message("missed");
    fixture.advance(life - Duration::from_secs(1));
    let id = fixture.open();
    fixture.resume(id, &session, 1);
    let read: Vec<_> = fixture.take_all(id).into_iter().map(|(sequence, name, _)| (sequence, name)).collect();
    assert_eq!(read, [(2, "MESSAGE_CREATE"), (3, "RESUMED")]);

    fixture.gateway.remove_connection(id, DisconnectReason::ClosedByClient(4000), fixture.now);
    fixture.advance(life);
    let id = fixture.open();
    fixture.resume(id, &session, 3);
    assert!(fixture.take(id, 10).controls.contains(&Control::InvalidSession { resumable: false }));
    assert_eq!(fixture.gateway.score().sessions_ended, 1);
}

#[test]
fn close_with_1000_or_1001_ends_the_session() {
    let mut fixture = GatewayFixture::new(&fast_config(), 1);
    for (code, ended) in [(4000, 0), (1000, 1), (1001, 2), (4200, 2)] {
        let (id, _) = fixture.log_in(GUILD_MESSAGES);
        fixture.gateway.remove_connection(id, DisconnectReason::ClosedByClient(code), fixture.now);
        assert_eq!(fixture.gateway.score().sessions_ended, ended, "after {code}");
    }
}

#[test]
fn client_close_after_the_gateways_keeps_the_session() {
    let mut fixture = GatewayFixture::new(&fast_config(), 1);
    let (id, _) = fixture.log_in(GUILD_MESSAGES);
    fixture
        .gateway
        .apply_fault(GatewayFault::Disconnect { shard: None, code: 4000, cut: false, hold_ms: 0 }, fixture.now);
    fixture.gateway.remove_connection(id, DisconnectReason::ClosedByClient(1000), fixture.now);
    assert_eq!(fixture.gateway.score().sessions_ended, 0);
}

#[test]
fn intents_select_the_events_of_a_session() {
    let mut fixture = GatewayFixture::new(&fast_config(), 2);
    let (guilds, _) = fixture.log_in(GUILDS);
    let (messages, _) = fixture.log_in(GUILD_MESSAGES);
    let (content, _) = fixture.log_in(GUILD_MESSAGES | MESSAGE_CONTENT);
    assert_eq!(fixture.gateway.score().events_by_type["GUILD_CREATE"], 2, "only for the one with the GUILDS intent");
    fixture.dispatch_message("hi");
    assert_eq!(fixture.take_all(guilds), []);
    assert_eq!(fixture.take_all(messages)[0].2["content"], "");
    assert_eq!(fixture.take_all(content)[0].2["content"], "hi");
    assert_eq!(fixture.gateway.score().duplicate_shards, 2);
}

#[test]
fn direct_events_reach_the_first_shard_only() {
    let mut fixture = GatewayFixture::new(&fast_config(), 1);
    let token = fixture.world.bots[0].token.clone();
    let shards = [0, 1].map(|shard| {
        let id = fixture.open();
        fixture.send(id, &json!({"op": 2, "d": {"token": token, "intents": 0, "shard": [shard, 2]}}));
        fixture.take_all(id);
        id
    });
    let dispatch = Dispatch::application("MESSAGE_CREATE", fixture.bot(), 0, &json!({"content": "psst"}));
    fixture.gateway.dispatch(&fixture.world, &dispatch, fixture.now);
    assert_eq!(fixture.take_all(shards[0]).len(), 1);
    assert_eq!(fixture.take_all(shards[1]).len(), 0);
}

#[test]
fn event_reaches_only_its_bots() {
    let bots = ["one", "two"].map(|token| BotConfig { token: token.into(), name: token.into() }).to_vec();
    let mut fixture = GatewayFixture::new(&fast_config(), 1);
    fixture.world = World::new(&SimConfig { bots, ..SimConfig::default() }, START);
    let (first, _) = fixture.log_in(GUILD_MESSAGES);
    let second = fixture.open();
    fixture.send(second, &json!({"op": 2, "d": {"token": "Bot two", "intents": GUILD_MESSAGES}}));
    fixture.take_all(second);
    fixture.dispatch_message("to both");
    let (guild, application) = (fixture.guild(), fixture.world.bots[1].application_id);
    let mut command = Dispatch::guild("INTERACTION_CREATE", guild, 0, &json!({"application_id": application}));
    command.audience = Audience::Member { application, guild };
    fixture.gateway.dispatch(&fixture.world, &command, fixture.now);
    assert_eq!(fixture.take_all(first).len(), 1);
    assert_eq!(fixture.take_all(second).len(), 2);
}

#[test]
fn session_start_beyond_the_limit_ends_all_sessions_of_the_bot() {
    let mut fixture = GatewayFixture::new(&GatewayConfig { session_starts: 2, ..fast_config() }, 1);
    let (first, session) = fixture.log_in(GUILDS);
    let (second, _) = fixture.log_in(GUILDS);
    assert_eq!(fixture.gateway.session_starts(fixture.bot(), fixture.now).remaining, 0);
    let third = fixture.open();
    fixture.identify(third, GUILDS);
    for id in [first, second, third] {
        assert_eq!(fixture.ending(id), close_ending(Close::TOKEN_RESET));
    }
    assert!(fixture.gateway.is_token_reset(fixture.bot()));
    let fourth = fixture.open();
    fixture.identify(fourth, GUILDS);
    assert_eq!(fixture.ending(fourth), close_ending(Close::AUTHENTICATION_FAILED));
    let fifth = fixture.open();
    fixture.resume(fifth, &session, 1);
    assert_eq!(fixture.ending(fifth), close_ending(Close::AUTHENTICATION_FAILED));
    let score = fixture.gateway.score();
    assert_eq!((score.token_resets, score.sessions_ended), (1, 2));
}

#[test]
fn resume_takes_the_session_from_its_connection() {
    let mut fixture = GatewayFixture::new(&fast_config(), 1);
    let (first, session) = fixture.log_in(GUILD_MESSAGES);
    fixture.dispatch_message("one");
    fixture.take_all(first);
    let second = fixture.open();
    fixture.resume(second, &session, 1);
    assert_eq!(fixture.ending(first), close_ending(Close::TAKEN_OVER));
    assert_eq!(fixture.take_all(second).len(), 2);
    fixture.gateway.remove_connection(first, DisconnectReason::ClosedByGateway, fixture.now);
    fixture.dispatch_message("two");
    assert_eq!(fixture.take_all(second).len(), 1);
}

#[test]
fn dead_resume_closes_the_sessions_connection() {
    let mut fixture = GatewayFixture::new(&fast_config(), 1);
    let (first, session) = fixture.log_in(GUILD_MESSAGES);
    fixture.gateway.apply_fault(GatewayFault::DeadResume { count: 1 }, fixture.now);
    let second = fixture.open();
    fixture.resume(second, &session, 1);
    assert_eq!(fixture.ending(first), close_ending(Close::TAKEN_OVER));
    assert!(fixture.take(second, 10).controls.contains(&Control::InvalidSession { resumable: false }));
    assert_eq!(fixture.gateway.faults(fixture.now), []);
}

#[test]
fn resume_from_an_unsent_number_is_an_invalid_sequence() {
    let mut fixture = GatewayFixture::new(&fast_config(), 1);
    let (_, session) = fixture.log_in(GUILD_MESSAGES);
    let id = fixture.open();
    fixture.resume(id, &session, 2);
    assert_eq!(fixture.ending(id), close_ending(Close::INVALID_SEQUENCE));
}

#[test]
fn guilds_are_encoded_when_read_and_before_their_events() {
    let mut fixture = GatewayFixture::new(&fast_config(), 500);
    let id = fixture.open();
    fixture.identify(id, GUILDS | GUILD_MESSAGES);
    fixture.take(id, 1);
    assert!(fixture.gateway.score().events_total < 50);
    let last = fixture.world.guilds_of(fixture.bot()).last().unwrap();
    let message = json!({"guild_id": last, "author": {"id": "9"}, "content": "hi"});
    let dispatch = Dispatch::guild("MESSAGE_CREATE", last, GUILD_MESSAGES, &message);
    fixture.gateway.dispatch(&fixture.world, &dispatch, fixture.now);
    let read = fixture.take_all(id);
    let created = read.iter().position(|(_, name, data)| *name == "GUILD_CREATE" && data["id"] == json!(last)).unwrap();
    assert_eq!(read[created + 1].1, "MESSAGE_CREATE");
    assert_eq!(read.iter().filter(|(_, name, _)| *name == "GUILD_CREATE").count(), 500);
}

#[test]
fn free_capacity_includes_unannounced_guilds() {
    let mut fixture = GatewayFixture::new(&GatewayConfig { replay_events: 10, ..fast_config() }, 6);
    let id = fixture.open();
    fixture.identify(id, GUILDS | GUILD_MESSAGES);
    for guild in fixture.world.guilds_of(fixture.bot()).collect::<Vec<_>>() {
        if fixture.gateway.free_capacity() > Some(0) {
            let dispatch = Dispatch::guild("MESSAGE_CREATE", guild, GUILD_MESSAGES, &json!({}));
            fixture.gateway.dispatch_verbatim(&fixture.world, &dispatch, fixture.now);
        }
    }
    assert_eq!(fixture.gateway.score().slow_readers, 0);
    assert!(fixture.gateway.score().events_by_type["MESSAGE_CREATE"] >= 3);
}

#[test]
fn held_connection_gets_hello_when_the_hold_ends() {
    let mut fixture = GatewayFixture::new(&fast_config(), 1);
    fixture
        .gateway
        .apply_fault(GatewayFault::Disconnect { shard: None, code: 4000, cut: false, hold_ms: 1_000 }, fixture.now);
    let id = fixture.open();
    let out = fixture.take(id, 10);
    assert_eq!(out.controls, []);
    assert_eq!(out.due, START.after(Duration::from_secs(1)));
    fixture.advance(Duration::from_secs(1));
    assert_eq!(fixture.take(id, 10).controls, [Control::Hello(fast_config().heartbeat_interval)]);
}

#[test]
fn connection_without_heartbeats_is_closed_and_its_session_ended() {
    let mut fixture = GatewayFixture::new(&fast_config(), 1);
    let (id, _) = fixture.log_in(GUILD_MESSAGES);
    let due = fixture.take(id, 10).due;
    fixture.now = due;
    assert_eq!(fixture.ending(id), close_ending(Close::TIMED_OUT));
    let score = fixture.gateway.score();
    assert_eq!((score.heartbeat_timeouts, score.sessions_ended), (1, 1));
}

#[test]
fn zombie_neither_receives_nor_sends() {
    let mut fixture = GatewayFixture::new(&fast_config(), 1);
    let (id, session) = fixture.log_in(GUILD_MESSAGES);
    fixture.gateway.apply_fault(GatewayFault::Zombie { shard: None }, fixture.now);
    assert_eq!(fixture.gateway.faults(fixture.now), [GatewayFault::Zombie { shard: Some(0) }]);
    fixture.dispatch_message("unheard");
    fixture.send(id, &json!({"op": 1, "d": 1}));
    fixture.advance(Duration::from_secs(600));
    let out = fixture.take(id, 10);
    assert!(out.controls.is_empty() && out.events.is_empty() && out.ending.is_none());
    fixture.gateway.remove_connection(id, DisconnectReason::Lost, fixture.now);
    let id = fixture.open();
    fixture.resume(id, &session, 1);
    assert_eq!(fixture.take_all(id).len(), 2);
    assert_eq!(fixture.gateway.faults(fixture.now), []);
}

#[test]
fn shard_of_more_than_2500_guilds_is_refused() {
    let mut fixture = GatewayFixture::new(&fast_config(), 2_501);
    let id = fixture.open();
    fixture.identify(id, GUILDS);
    assert_eq!(fixture.ending(id), close_ending(Close::SHARDING_REQUIRED));
}

#[test]
fn listing_all_members_is_limited_and_needs_the_intent() {
    let mut fixture = GatewayFixture::new(&fast_config(), 1);
    let (id, _) = fixture.log_in(GUILD_MEMBERS);
    let request = json!({"op": 8, "d": {"guild_id": fixture.guild(), "query": "", "limit": 0, "nonce": "n"}});
    fixture.send(id, &request);
    fixture.take_all(id);
    fixture.send(id, &request);
    let limited = fixture.take_all(id);
    assert_eq!(limited.len(), 1);
    assert_eq!(limited[0].1, "RATE_LIMITED");
    assert_eq!(limited[0].2["opcode"], 8);
    assert_eq!(limited[0].2["retry_after"], 30.0);
    assert_eq!(limited[0].2["meta"], json!({"guild_id": fixture.guild(), "nonce": "n"}));

    let (id, _) = fixture.log_in(GUILDS);
    fixture.send(id, &request);
    assert_eq!(fixture.take_all(id), []);
}

#[test]
fn score_reset_keeps_open_connections() {
    let mut fixture = GatewayFixture::new(&fast_config(), 1);
    fixture.log_in(GUILD_MESSAGES);
    fixture.gateway.reset_score();
    let score = fixture.gateway.score();
    assert_eq!((score.identifies, score.connections, score.connections_most), (0, 1, 1));
    assert_eq!(score.sessions.len(), 1);
}
