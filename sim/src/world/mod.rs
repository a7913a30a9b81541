//! The world: guilds, roles, channels, members, messages, interactions. A pure state machine: time is passed in, and
//! events for the gateway are put in the dispatches.
//!
//! Objects are stored in the form of Discord's JSON, so that one type serves the store, REST responses, gateway events
//! and the snapshot.

pub(crate) mod attachment;
pub(crate) mod audit;
pub(crate) mod channel;
pub(crate) mod command;
mod consistency;
pub(crate) mod drive;
pub(crate) mod feed;
pub(crate) mod fire;
pub(crate) mod guild;
pub(crate) mod intents;
pub(crate) mod interaction;
pub(crate) mod lookup;
pub(crate) mod member;
pub(crate) mod message;
pub(crate) mod permissions;
pub(crate) mod reaction;
pub(crate) mod role;
pub(crate) mod summary;
pub(crate) mod user;
pub(crate) mod wire;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use self::attachment::Files;
use self::channel::{Direct, Home};
use self::command::Command;
use self::drive::GuildSpec;
use self::feed::{Feed, Nonces};
use self::guild::Guild;
use self::interaction::{Interactions, Responses};
use self::member::Member;
use self::user::{OwnUser, User};
use crate::config::SimConfig;
use crate::dispatch::Dispatch;
use crate::gateway::SessionStarts;
use crate::id::{Snowflake, SnowflakeGenerator};
use crate::time::At;

/// Members in one GUILD_MEMBERS_CHUNK.
const CHUNK: usize = 1_000;

/// The whole state of the simulated Discord.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct World {
    pub(crate) mint: SnowflakeGenerator,
    pub(crate) rules: Rules,
    pub(crate) bots: Vec<Bot>,
    /// The owner of the bots' applications.
    pub(crate) developer: Arc<User>,
    pub(crate) users: BTreeMap<Snowflake, Arc<User>>,
    pub(crate) guilds: BTreeMap<Snowflake, Guild>,
    guild_ids: GuildIds,
    /// Where each channel belongs, to avoid searches.
    pub(crate) homes: HashMap<Snowflake, Home>,
    pub(crate) directs: BTreeMap<Snowflake, Direct>,
    /// By user: the application and the channel of each direct channel with them.
    directs_of: BTreeMap<Snowflake, Vec<(Snowflake, Snowflake)>>,
    /// Messages by channel; a channel has none until its first message.
    pub(crate) feeds: HashMap<Snowflake, Feed>,
    /// The files of their attachments.
    pub(crate) files: Files,
    pub(crate) nonces: Nonces,
    /// Global commands of all bots.
    pub(crate) commands: Vec<Command>,
    pub(crate) interactions: Interactions,
    pub(crate) responses: Responses,
    pub(crate) session_starts: SessionStarts,
    pub(crate) recommended_shards: u32,
    /// URL of this simulator, such as `http://127.0.0.1:port`, for the URLs of attachments. Not part of a snapshot, as
    /// the following.
    #[serde(skip)]
    http_url: String,
    /// URL of the gateway, such as `ws://127.0.0.1:port`. Not part of a snapshot, which may be restored by another
    /// simulator: the code that restores one sets it.
    #[serde(skip)]
    pub(crate) gateway_url: String,
    /// The public key for signatures of interactions over HTTP, in hexadecimal; set like the URL.
    #[serde(skip)]
    pub(crate) verify_key: String,
    /// Events for the gateway, in the order they happened; drained after every change.
    #[serde(skip)]
    pub(crate) dispatches: Vec<Dispatch>,
}

/// Settings of the handlers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Rules {
    pub(crate) seed: u64,
    pub(crate) interaction_deadline: Duration,
    pub(crate) interaction_token_life: Duration,
    pub(crate) nonce_window: Duration,
    pub(crate) max_messages: usize,
    pub(crate) max_attachment_bytes: usize,
    pub(crate) privileged_intents: bool,
}

impl Rules {
    /// The flags of every application: the privileged intents that it may request. They are those of an unverified bot
    /// in few guilds.
    pub(crate) const fn application_flags(&self) -> u32 {
        const PRESENCES_LIMITED: u32 = 1 << 13;
        const GUILD_MEMBERS_LIMITED: u32 = 1 << 15;
        const MESSAGE_CONTENT_LIMITED: u32 = 1 << 19;
        if self.privileged_intents { PRESENCES_LIMITED | GUILD_MEMBERS_LIMITED | MESSAGE_CONTENT_LIMITED } else { 0 }
    }
}

/// Ids for guilds: each a millisecond apart, starting a month before the start. The time in a guild's id determines its
/// shard, so guilds created in one instant would otherwise all have the same shard.
#[derive(Debug, Serialize, Deserialize)]
struct GuildIds {
    mint: SnowflakeGenerator,
    next: At,
}

impl GuildIds {
    fn new(now: At) -> Self {
        const MONTH_MICROS: u64 = 30 * 24 * 60 * 60 * 1_000_000;
        Self { mint: SnowflakeGenerator::default(), next: At::from_micros(now.micros().saturating_sub(MONTH_MICROS)) }
    }

    fn next(&mut self) -> Snowflake {
        self.next = self.next.after(Duration::from_millis(1));
        self.mint.generate(self.next)
    }
}

/// A bot that can log in.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Bot {
    pub(crate) token: String,
    pub(crate) application_id: Snowflake,
    pub(crate) user_id: Snowflake,
    pub(crate) name: String,
}

/// The members that a REQUEST_GUILD_MEMBERS requests.
#[derive(Clone, Debug, Default)]
pub(crate) struct MemberQuery {
    /// Members whose name starts with this; empty for all.
    pub(crate) query: String,
    /// Maximum number; 0 for all, only together with an empty query.
    pub(crate) limit: usize,
    pub(crate) user_ids: Vec<Snowflake>,
    pub(crate) nonce: Option<String>,
}

impl World {
    pub(crate) fn new(config: &SimConfig, now: At) -> Self {
        let mut mint = SnowflakeGenerator::default();
        let developer = Arc::new(User { id: mint.generate(now), username: "developer".into(), bot: false });
        let mut users = BTreeMap::from([(developer.id, Arc::clone(&developer))]);
        let bots = config
            .bots
            .iter()
            .map(|bot| {
                let id = Snowflake::from_token(&bot.token).unwrap_or_else(|| mint.generate(now));
                users.insert(id, Arc::new(User { id, username: bot.name.clone(), bot: true }));
                Bot { token: bot.token.clone(), application_id: id, user_id: id, name: bot.name.clone() }
            })
            .collect();
        let gateway = &config.gateway;
        let mut world = Self {
            mint,
            rules: Rules {
                seed: config.seed,
                interaction_deadline: config.interaction_deadline,
                interaction_token_life: config.interaction_token_life,
                nonce_window: config.nonce_window,
                max_messages: config.max_messages,
                max_attachment_bytes: config.max_attachment_bytes,
                privileged_intents: config.gateway.privileged_intents,
            },
            bots,
            developer,
            users,
            guilds: BTreeMap::new(),
            guild_ids: GuildIds::new(now),
            homes: HashMap::new(),
            directs: BTreeMap::new(),
            directs_of: BTreeMap::new(),
            feeds: HashMap::new(),
            files: Files::default(),
            nonces: Nonces::default(),
            commands: Vec::new(),
            interactions: Interactions::default(),
            responses: Responses::default(),
            session_starts: SessionStarts {
                total: gateway.session_starts,
                remaining: gateway.session_starts,
                reset_after: 0,
                max_concurrency: gateway.max_concurrency,
            },
            recommended_shards: gateway.shards,
            http_url: String::new(),
            gateway_url: String::new(),
            verify_key: String::new(),
            dispatches: Vec::new(),
        };
        for number in 1..=config.guilds {
            let spec = GuildSpec {
                name: format!("guild-{number}"),
                members: config.members,
                channels: config.channels,
                ..GuildSpec::default()
            };
            world.create_guild(&spec, now);
        }
        world
    }

    pub(crate) fn bot_by_token(&self, token: &str) -> Option<&Bot> {
        self.bots.iter().find(|bot| bot.token == token)
    }

    pub(crate) fn bot(&self, application: Snowflake) -> Option<&Bot> {
        self.bots.iter().find(|bot| bot.application_id == application)
    }

    /// The guilds that this bot is a member of, oldest first.
    pub(crate) fn guilds_of(&self, application: Snowflake) -> impl Iterator<Item = Snowflake> + '_ {
        let user = self.bot(application).map(|bot| bot.user_id);
        self.guilds
            .values()
            .filter(move |guild| user.is_some_and(|user| guild.members.contains_key(&user)))
            .map(|guild| guild.id)
    }

    /// Whether the bot with this application id is a member of the guild.
    pub(crate) fn has_bot(&self, guild: Snowflake, application: Snowflake) -> bool {
        let guild = self.guilds.get(&guild);
        guild.zip(self.bot(application)).is_some_and(|(guild, bot)| guild.members.contains_key(&bot.user_id))
    }

    /// The `d` of a GUILD_CREATE.
    pub(crate) fn guild_create(&self, guild: Snowflake) -> Option<Bytes> {
        self.guilds.get(&guild).map(|guild| encode(&guild.create_event()))
    }

    /// The `user` and the `application` of READY.
    pub(crate) fn ready_identity(&self, application: Snowflake) -> (Value, Value) {
        let user = self.bot(application).and_then(|bot| self.users.get(&bot.user_id));
        let user = user.map_or(Value::Null, |user| {
            serde_json::to_value(OwnUser::of(user)).expect("invariant: the simulator's own objects are plain JSON")
        });
        (user, json!({ "id": application, "flags": self.rules.application_flags() }))
    }

    /// The `d` of each GUILD_MEMBERS_CHUNK in response to a request.
    pub(crate) fn member_chunks(&self, guild: Snowflake, query: &MemberQuery) -> Vec<Bytes> {
        #[derive(Serialize)]
        struct Chunk<'a> {
            guild_id: Snowflake,
            members: &'a [&'a Member],
            chunk_index: usize,
            chunk_count: usize,
            not_found: &'a [Snowflake],
            #[serde(skip_serializing_if = "Option::is_none")]
            nonce: Option<&'a str>,
        }

        let Some(guild) = self.guilds.get(&guild) else { return Vec::new() };
        let limit = if query.limit == 0 { usize::MAX } else { query.limit };
        let (mut members, mut not_found): (Vec<&Member>, Vec<Snowflake>) = (Vec::new(), Vec::new());
        if query.user_ids.is_empty() {
            let matches = |member: &&Member| query.query.is_empty() || member.matches_name(&query.query);
            members.extend(guild.members.values().filter(matches).take(limit));
        } else {
            for id in &query.user_ids {
                match guild.members.get(id) {
                    Some(member) => members.push(member),
                    None => not_found.push(*id),
                }
            }
        }
        // A request that finds no member gets a response too.
        let chunk_count = members.len().div_ceil(CHUNK).max(1);
        (0..chunk_count)
            .map(|chunk_index| {
                let start = chunk_index * CHUNK;
                encode(&Chunk {
                    guild_id: guild.id,
                    members: &members[start..members.len().min(start + CHUNK)],
                    chunk_index,
                    chunk_count,
                    not_found: if chunk_index == 0 { &not_found } else { &[] },
                    nonce: query.nonce.as_deref(),
                })
            })
            .collect()
    }
}

fn encode(data: &impl Serialize) -> Bytes {
    serde_json::to_vec(data).expect("invariant: the simulator's own objects are plain JSON").into()
}
