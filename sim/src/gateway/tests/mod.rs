//! Tests of the hub: connections, sessions and events together, with time as an argument.

mod property;

use std::time::Duration;

use serde_json::{Value, json};

use super::Hub;
use super::close::Close;
use super::connection::Incoming;
use super::faults::GatewayFault;
use super::frame::Control;
use super::hub::{ConnectionId, Departure, Ending, Outbound};
use super::intents::{GUILD_MEMBERS, GUILD_MESSAGES, GUILDS, MESSAGE_CONTENT};
use crate::config::{BotConfig, GatewayConfig, SimConfig};
use crate::dispatch::{Audience, Dispatch};
use crate::id::Snowflake;
use crate::time::At;
use crate::world::World;

const START: At = At::from_micros(1_700_000_000_000_000);
const URL: &str = "ws://127.0.0.1:1";

/// A hub with its world, and a manual clock.
struct Stage {
    world: World,
    hub: Hub,
    now: At,
}

impl Stage {
    fn new(gateway: &GatewayConfig, guilds: u32) -> Self {
        let config = SimConfig { guilds, ..SimConfig::default() };
        let mut world = World::new(&config, START);
        world.outbox.clear();
        Self { world, hub: Hub::new(gateway), now: START }
    }

    fn bot(&self) -> Snowflake {
        self.world.bots[0].application_id
    }

    fn guild(&self) -> Snowflake {
        self.world.guilds_of(self.bot()).next().unwrap()
    }

    fn pass(&mut self, time: Duration) {
        self.now = self.now.after(time);
    }

    fn open(&mut self) -> ConnectionId {
        self.hub.open(self.now).0
    }

    fn send(&mut self, id: ConnectionId, frame: &Value) {
        self.hub.frame(&self.world, id, Incoming::Text(&frame.to_string()), URL, self.now);
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
        self.hub.take(&self.world, id, room, &mut out, self.now);
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

    fn say(&mut self, content: &str) {
        let guild = self.guild();
        let message = json!({"guild_id": guild, "author": {"id": "9"}, "content": content, "mentions": []});
        let dispatch = Dispatch::guild("MESSAGE_CREATE", guild, GUILD_MESSAGES, &message);
        self.hub.dispatch(&self.world, &dispatch, self.now);
    }

    fn ending(&mut self, id: ConnectionId) -> Option<Ending> {
        self.take(id, 0).ending
    }
}

fn quick() -> GatewayConfig {
    GatewayConfig { identify_window: Duration::ZERO, sends_per_minute: 10_000, ..GatewayConfig::default() }
}

fn closed(close: Close) -> Option<Ending> {
    Some(Ending::Close(close))
}

#[test]
fn a_reader_too_far_behind_loses_its_session() {
    let mut stage = Stage::new(&GatewayConfig { replay_events: 4, ..quick() }, 1);
    let (id, session) = stage.log_in(GUILD_MESSAGES);
    for _ in 0..5 {
        stage.say("hi");
    }
    assert_eq!(stage.ending(id), closed(Close::SLOW_READER));
    let score = stage.hub.score();
    assert_eq!((score.slow_readers, score.sessions_ended), (1, 1));
    let id = stage.open();
    stage.resume(id, &session, 1);
    assert!(stage.take(id, 10).controls.contains(&Control::InvalidSession { resumable: false }));
}

#[test]
fn a_session_outlives_its_connection_for_its_life_and_no_longer() {
    let mut stage = Stage::new(&quick(), 1);
    let life = quick().session_life;
    let (id, session) = stage.log_in(GUILD_MESSAGES);
    stage.hub.leave(id, Departure::Lost, stage.now);
    stage.say("missed");
    stage.pass(life - Duration::from_secs(1));
    let id = stage.open();
    stage.resume(id, &session, 1);
    let read: Vec<_> = stage.take_all(id).into_iter().map(|(sequence, name, _)| (sequence, name)).collect();
    assert_eq!(read, [(2, "MESSAGE_CREATE"), (3, "RESUMED")]);

    stage.hub.leave(id, Departure::ClosedByClient(4000), stage.now);
    stage.pass(life);
    let id = stage.open();
    stage.resume(id, &session, 3);
    assert!(stage.take(id, 10).controls.contains(&Control::InvalidSession { resumable: false }));
    assert_eq!(stage.hub.score().sessions_ended, 1);
}

#[test]
fn a_client_that_closes_with_1000_or_1001_ends_its_session() {
    let mut stage = Stage::new(&quick(), 1);
    for (code, ended) in [(4000, 0), (1000, 1), (1001, 2), (4200, 2)] {
        let (id, _) = stage.log_in(GUILD_MESSAGES);
        stage.hub.leave(id, Departure::ClosedByClient(code), stage.now);
        assert_eq!(stage.hub.score().sessions_ended, ended, "after {code}");
    }
}

#[test]
fn a_client_that_closes_after_the_gateway_did_keeps_its_session() {
    let mut stage = Stage::new(&quick(), 1);
    let (id, _) = stage.log_in(GUILD_MESSAGES);
    stage.hub.fault(GatewayFault::Disconnect { shard: None, code: 4000, cut: false, hold_ms: 0 }, stage.now);
    stage.hub.leave(id, Departure::ClosedByClient(1000), stage.now);
    assert_eq!(stage.hub.score().sessions_ended, 0);
}

#[test]
fn intents_decide_what_a_session_is_sent() {
    let mut stage = Stage::new(&quick(), 2);
    let (guilds, _) = stage.log_in(GUILDS);
    let (messages, _) = stage.log_in(GUILD_MESSAGES);
    let (content, _) = stage.log_in(GUILD_MESSAGES | MESSAGE_CONTENT);
    assert_eq!(stage.hub.score().events_by_type["GUILD_CREATE"], 2, "only for the one with the GUILDS intent");
    stage.say("hi");
    assert_eq!(stage.take_all(guilds), []);
    assert_eq!(stage.take_all(messages)[0].2["content"], "");
    assert_eq!(stage.take_all(content)[0].2["content"], "hi");
    assert_eq!(stage.hub.score().duplicate_shards, 2);
}

#[test]
fn direct_events_reach_the_first_shard_only() {
    let mut stage = Stage::new(&quick(), 1);
    let token = stage.world.bots[0].token.clone();
    let shards = [0, 1].map(|shard| {
        let id = stage.open();
        stage.send(id, &json!({"op": 2, "d": {"token": token, "intents": 0, "shard": [shard, 2]}}));
        stage.take_all(id);
        id
    });
    let dispatch = Dispatch::application("MESSAGE_CREATE", stage.bot(), 0, &json!({"content": "psst"}));
    stage.hub.dispatch(&stage.world, &dispatch, stage.now);
    assert_eq!(stage.take_all(shards[0]).len(), 1);
    assert_eq!(stage.take_all(shards[1]).len(), 0);
}

#[test]
fn an_event_reaches_the_bots_it_is_for_and_no_others() {
    let bots = ["one", "two"].map(|token| BotConfig { token: token.into(), name: token.into() }).to_vec();
    let mut stage = Stage::new(&quick(), 1);
    stage.world = World::new(&SimConfig { bots, ..SimConfig::default() }, START);
    let (first, _) = stage.log_in(GUILD_MESSAGES);
    let second = stage.open();
    stage.send(second, &json!({"op": 2, "d": {"token": "Bot two", "intents": GUILD_MESSAGES}}));
    stage.take_all(second);
    stage.say("to both");
    let (guild, application) = (stage.guild(), stage.world.bots[1].application_id);
    let mut command = Dispatch::guild("INTERACTION_CREATE", guild, 0, &json!({"application_id": application}));
    command.audience = Audience::Member { application, guild };
    stage.hub.dispatch(&stage.world, &command, stage.now);
    assert_eq!(stage.take_all(first).len(), 1);
    assert_eq!(stage.take_all(second).len(), 2);
}

#[test]
fn a_start_past_the_days_allowance_ends_every_session_of_the_bot() {
    let mut stage = Stage::new(&GatewayConfig { session_starts: 2, ..quick() }, 1);
    let (first, session) = stage.log_in(GUILDS);
    let (second, _) = stage.log_in(GUILDS);
    assert_eq!(stage.hub.session_starts(stage.bot(), stage.now).remaining, 0);
    let third = stage.open();
    stage.identify(third, GUILDS);
    for id in [first, second, third] {
        assert_eq!(stage.ending(id), closed(Close::TOKEN_RESET));
    }
    assert!(stage.hub.is_token_reset(stage.bot()));
    let fourth = stage.open();
    stage.identify(fourth, GUILDS);
    assert_eq!(stage.ending(fourth), closed(Close::AUTHENTICATION_FAILED));
    let fifth = stage.open();
    stage.resume(fifth, &session, 1);
    assert_eq!(stage.ending(fifth), closed(Close::AUTHENTICATION_FAILED));
    let score = stage.hub.score();
    assert_eq!((score.token_resets, score.sessions_ended), (1, 2));
}

#[test]
fn a_resume_takes_the_session_from_the_connection_that_has_it() {
    let mut stage = Stage::new(&quick(), 1);
    let (first, session) = stage.log_in(GUILD_MESSAGES);
    stage.say("one");
    stage.take_all(first);
    let second = stage.open();
    stage.resume(second, &session, 1);
    assert_eq!(stage.ending(first), closed(Close::TAKEN_OVER));
    assert_eq!(stage.take_all(second).len(), 2);
    stage.hub.leave(first, Departure::Ended, stage.now);
    stage.say("two");
    assert_eq!(stage.take_all(second).len(), 1);
}

#[test]
fn a_resume_that_spoils_a_session_closes_the_connection_that_had_it() {
    let mut stage = Stage::new(&quick(), 1);
    let (first, session) = stage.log_in(GUILD_MESSAGES);
    stage.hub.fault(GatewayFault::DeadResume { count: 1 }, stage.now);
    let second = stage.open();
    stage.resume(second, &session, 1);
    assert_eq!(stage.ending(first), closed(Close::TAKEN_OVER));
    assert!(stage.take(second, 10).controls.contains(&Control::InvalidSession { resumable: false }));
    assert_eq!(stage.hub.faults(stage.now), []);
}

#[test]
fn a_resume_from_what_was_never_sent_is_an_invalid_sequence() {
    let mut stage = Stage::new(&quick(), 1);
    let (_, session) = stage.log_in(GUILD_MESSAGES);
    let id = stage.open();
    stage.resume(id, &session, 2);
    assert_eq!(stage.ending(id), closed(Close::INVALID_SEQUENCE));
}

#[test]
fn guilds_are_encoded_only_as_they_are_read_and_before_any_news_of_them() {
    let mut stage = Stage::new(&quick(), 500);
    let id = stage.open();
    stage.identify(id, GUILDS | GUILD_MESSAGES);
    stage.take(id, 1);
    assert!(stage.hub.score().events_total < 50);
    let last = stage.world.guilds_of(stage.bot()).last().unwrap();
    let message = json!({"guild_id": last, "author": {"id": "9"}, "content": "hi"});
    let news = Dispatch::guild("MESSAGE_CREATE", last, GUILD_MESSAGES, &message);
    stage.hub.dispatch(&stage.world, &news, stage.now);
    let read = stage.take_all(id);
    let created = read.iter().position(|(_, name, data)| *name == "GUILD_CREATE" && data["id"] == json!(last)).unwrap();
    assert_eq!(read[created + 1].1, "MESSAGE_CREATE");
    assert_eq!(read.iter().filter(|(_, name, _)| *name == "GUILD_CREATE").count(), 500);
}

#[test]
fn there_is_room_for_as_many_events_as_the_hub_says_though_they_bring_their_guilds_along() {
    let mut stage = Stage::new(&GatewayConfig { replay_events: 10, ..quick() }, 6);
    let id = stage.open();
    stage.identify(id, GUILDS | GUILD_MESSAGES);
    for guild in stage.world.guilds_of(stage.bot()).collect::<Vec<_>>() {
        if stage.hub.room() > Some(0) {
            let news = Dispatch::guild("MESSAGE_CREATE", guild, GUILD_MESSAGES, &json!({}));
            stage.hub.dispatch_verbatim(&stage.world, &news, stage.now);
        }
    }
    assert_eq!(stage.hub.score().slow_readers, 0);
    assert!(stage.hub.score().events_by_type["MESSAGE_CREATE"] >= 3);
}

#[test]
fn a_connection_held_by_a_fault_is_greeted_when_the_hold_ends() {
    let mut stage = Stage::new(&quick(), 1);
    stage.hub.fault(GatewayFault::Disconnect { shard: None, code: 4000, cut: false, hold_ms: 1_000 }, stage.now);
    let id = stage.open();
    let out = stage.take(id, 10);
    assert_eq!(out.controls, []);
    assert_eq!(out.due, START.after(Duration::from_secs(1)));
    stage.pass(Duration::from_secs(1));
    assert_eq!(stage.take(id, 10).controls, [Control::Hello(quick().heartbeat_interval)]);
}

#[test]
fn a_connection_without_heartbeats_is_closed_and_its_session_is_over() {
    let mut stage = Stage::new(&quick(), 1);
    let (id, _) = stage.log_in(GUILD_MESSAGES);
    let due = stage.take(id, 10).due;
    stage.now = due;
    assert_eq!(stage.ending(id), closed(Close::TIMED_OUT));
    let score = stage.hub.score();
    assert_eq!((score.heartbeat_timeouts, score.sessions_ended), (1, 1));
}

#[test]
fn a_zombie_neither_hears_nor_speaks() {
    let mut stage = Stage::new(&quick(), 1);
    let (id, session) = stage.log_in(GUILD_MESSAGES);
    stage.hub.fault(GatewayFault::Zombie { shard: None }, stage.now);
    assert_eq!(stage.hub.faults(stage.now), [GatewayFault::Zombie { shard: Some(0) }]);
    stage.say("unheard");
    stage.send(id, &json!({"op": 1, "d": 1}));
    stage.pass(Duration::from_secs(600));
    let out = stage.take(id, 10);
    assert!(out.controls.is_empty() && out.events.is_empty() && out.ending.is_none());
    stage.hub.leave(id, Departure::Lost, stage.now);
    let id = stage.open();
    stage.resume(id, &session, 1);
    assert_eq!(stage.take_all(id).len(), 2);
    assert_eq!(stage.hub.faults(stage.now), []);
}

#[test]
fn a_shard_of_more_than_2500_guilds_is_told_to_shard() {
    let mut stage = Stage::new(&quick(), 2_501);
    let id = stage.open();
    stage.identify(id, GUILDS);
    assert_eq!(stage.ending(id), closed(Close::SHARDING_REQUIRED));
}

#[test]
fn all_members_are_listed_once_in_a_while_and_only_with_the_intent() {
    let mut stage = Stage::new(&quick(), 1);
    let (id, _) = stage.log_in(GUILD_MEMBERS);
    let request = json!({"op": 8, "d": {"guild_id": stage.guild(), "query": "", "limit": 0, "nonce": "n"}});
    stage.send(id, &request);
    stage.take_all(id);
    stage.send(id, &request);
    let limited = stage.take_all(id);
    assert_eq!(limited.len(), 1);
    assert_eq!(limited[0].1, "RATE_LIMITED");
    assert_eq!(limited[0].2["opcode"], 8);
    assert_eq!(limited[0].2["retry_after"], 30.0);
    assert_eq!(limited[0].2["meta"], json!({"guild_id": stage.guild(), "nonce": "n"}));

    let (id, _) = stage.log_in(GUILDS);
    stage.send(id, &request);
    assert_eq!(stage.take_all(id), []);
}

#[test]
fn a_score_reset_counts_from_zero_and_keeps_what_is_open() {
    let mut stage = Stage::new(&quick(), 1);
    stage.log_in(GUILD_MESSAGES);
    stage.hub.reset_score();
    let score = stage.hub.score();
    assert_eq!((score.identifies, score.connections, score.connections_most), (0, 1, 1));
    assert_eq!(score.sessions.len(), 1);
}
