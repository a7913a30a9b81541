//! Fixture for tests of handlers: a small world, and calls to it through the route table.

use std::time::Duration;

use bytes::Bytes;
use http::Method;
use serde_json::Value;

use super::call::{Call, Effect, Upload};
use super::{ROUTES, route};
use crate::config::SimConfig;
use crate::dispatch::Dispatch;
use crate::id::Snowflake;
use crate::time::At;
use crate::world::World;

/// A world with one guild, and the ids that tests need most.
pub(crate) struct RestFixture {
    pub(crate) world: World,
    pub(crate) now: At,
    pub(crate) application: Snowflake,
    pub(crate) guild: Snowflake,
    pub(crate) channel: Snowflake,
    /// A member who is neither owner nor bot.
    pub(crate) member: Snowflake,
    pub(crate) hidden: Vec<Snowflake>,
    reason: Option<String>,
    files: Vec<Upload>,
}

/// Response to a call, and its effects.
#[derive(Debug)]
pub(crate) struct TestResponse {
    pub(crate) status: u16,
    pub(crate) json: Value,
    pub(crate) effect: Option<Effect>,
    pub(crate) events: Vec<&'static str>,
    pub(crate) dispatches: Vec<Dispatch>,
}

impl TestResponse {
    pub(crate) fn code(&self) -> u64 {
        assert!(self.status >= 400, "a success has no code: {self:?}");
        self.json["code"].as_u64().unwrap()
    }

    pub(crate) fn id(&self) -> String {
        self.json["id"].as_str().unwrap_or_else(|| panic!("no id in {self:?}")).to_owned()
    }

    /// The data of the first event of this name.
    pub(crate) fn event(&self, name: &str) -> Value {
        let dispatch = self.dispatches.iter().find(|dispatch| dispatch.name == name);
        serde_json::from_slice(&dispatch.unwrap_or_else(|| panic!("no {name} in {:?}", self.events)).data).unwrap()
    }
}

impl RestFixture {
    pub(crate) fn new() -> Self {
        Self::with_config(&SimConfig::default())
    }

    pub(crate) fn with_config(config: &SimConfig) -> Self {
        let now = At::from_micros(1_700_000_000_000_000);
        let mut world = World::new(config, now);
        world.gateway_url = "ws://127.0.0.1:1".into();
        world.set_http_url("http://127.0.0.1:1");
        let guild = world.guilds.values().next().unwrap();
        let member = guild.members.values().find(|member| !member.user.bot && member.user.id != guild.owner).unwrap();
        Self {
            now,
            application: world.bots[0].application_id,
            guild: guild.id,
            channel: *guild.channels.keys().next().unwrap(),
            member: member.user.id,
            hidden: Vec::new(),
            reason: None,
            files: Vec::new(),
            world,
        }
    }

    /// A path below the guild's.
    pub(crate) fn guild_path(&self, rest: &str) -> String {
        format!("/guilds/{}{rest}", self.guild)
    }

    /// A path below the channel's.
    pub(crate) fn channel_path(&self, rest: &str) -> String {
        format!("/channels/{}{rest}", self.channel)
    }

    /// Sets the audit log reason of the next call.
    pub(crate) fn reason(&mut self, reason: &str) -> &mut Self {
        self.reason = Some(reason.to_owned());
        self
    }

    /// Adds a text file to the next call.
    pub(crate) fn file(&mut self, field: &str, filename: &str, content: &'static str) -> &mut Self {
        let content_type = Some("text/plain".to_owned());
        let content = Bytes::from_static(content.as_bytes());
        self.files.push(Upload { field: field.into(), filename: filename.into(), content_type, content });
        self
    }

    pub(crate) fn advance(&mut self, time: Duration) -> &mut Self {
        self.now = self.now.after(time);
        self
    }

    pub(crate) fn get(&mut self, path: &str) -> TestResponse {
        self.call(&Method::GET, path, Value::Null)
    }

    pub(crate) fn post(&mut self, path: &str, body: Value) -> TestResponse {
        self.call(&Method::POST, path, body)
    }

    pub(crate) fn patch(&mut self, path: &str, body: Value) -> TestResponse {
        self.call(&Method::PATCH, path, body)
    }

    pub(crate) fn put(&mut self, path: &str, body: Value) -> TestResponse {
        self.call(&Method::PUT, path, body)
    }

    pub(crate) fn delete(&mut self, path: &str) -> TestResponse {
        self.call(&Method::DELETE, path, Value::Null)
    }

    fn call(&mut self, method: &Method, target: &str, body: Value) -> TestResponse {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let query = query.split('&').filter_map(|pair| pair.split_once('='));
        self.world.dispatches.clear();
        let result = route::find(ROUTES, method, path).and_then(|(route, params)| {
            let caller = (route.auth == route::Auth::Bot).then_some(self.application);
            let call = Call {
                params,
                query: query.map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
                body,
                files: std::mem::take(&mut self.files),
                reason: self.reason.take(),
                caller,
                hidden: self.hidden.clone(),
                now: self.now,
            };
            (route.handler)(&mut self.world, &call)
        });
        let dispatches: Vec<Dispatch> = self.world.dispatches.drain(..).collect();
        let events = dispatches.iter().map(|dispatch| dispatch.name).collect();
        match result {
            Ok(reply) => TestResponse {
                status: reply.status.as_u16(),
                json: serde_json::from_slice(&reply.body).unwrap_or_default(),
                effect: reply.effect,
                events,
                dispatches,
            },
            Err(error) => {
                TestResponse { status: error.status.as_u16(), json: error.body(), effect: None, events, dispatches }
            }
        }
    }
}
