//! IDENTIFY and RESUME: start the session of a connection or attach one to it.

use bytes::Bytes;
use serde_json::{Value, json};

use super::close::Close;
use super::frame::{Control, Event};
use super::gateway_state::{ConnectionId, Ending, GatewayState};
use super::identify::IdentifyDecision;
use super::inbound::{Identify, Resume};
use super::intents;
use super::replay::{Replay, ResumeError};
use super::session::{Session, SessionAttachment, SessionKey, Shard, UnannouncedGuilds};
use crate::id::Snowflake;
use crate::time::At;
use crate::world::{Bot, World};

/// Maximum number of guilds of one shard.
const GUILDS_PER_SHARD: usize = 2_500;

impl GatewayState {
    pub(super) fn identify(&mut self, world: &World, id: ConnectionId, identify: &Identify, url: &str, now: At) {
        self.identify_count += 1;
        self.scores.score.identifies += 1;
        let (bot, shard, intents) = match self.admit(world, identify) {
            Ok(admitted) => admitted,
            Err(close) => return self.end_connection(id, Ending::Close(close), now),
        };
        *self.scores.score.identifies_by_shard.entry(shard.id).or_default() += 1;
        let guilds: Vec<_> =
            world.guilds_of(bot.application_id).filter(|guild| guild.shard(shard.of) == shard.id).collect();
        if guilds.len() > GUILDS_PER_SHARD {
            return self.end_connection(id, Ending::Close(Close::SHARDING_REQUIRED), now);
        }
        match self.budget.identify(bot.application_id, shard.id, now) {
            IdentifyDecision::Start => self.start_session(world, id, bot, shard, intents, guilds, url, now),
            IdentifyDecision::TooSoon => {
                self.scores.score.identify_refusals += 1;
                self.send_control(id, Control::InvalidSession { resumable: false });
            }
            IdentifyDecision::Exhausted => {
                self.scores.score.token_resets += 1;
                self.end_bot(bot.application_id, now);
                self.end_connection(id, Ending::Close(Close::TOKEN_RESET), now);
            }
            IdentifyDecision::TokenReset => self.end_connection(id, Ending::Close(Close::AUTHENTICATION_FAILED), now),
        }
    }

    fn admit<'w>(&self, world: &'w World, identify: &Identify) -> Result<(&'w Bot, Shard, u64), Close> {
        let bot = bot(world, &identify.token).ok_or(Close::AUTHENTICATION_FAILED)?;
        let [shard, shards] = identify.shard.unwrap_or([0, 1]);
        let (Ok(shard), Ok(shards)) = (u32::try_from(shard), u32::try_from(shards)) else {
            return Err(Close::INVALID_SHARD);
        };
        if shard >= shards {
            return Err(Close::INVALID_SHARD);
        }
        let intents = intents::read(&identify.intents, self.config.privileged_intents)?;
        Ok((bot, Shard { id: shard, of: shards }, intents))
    }

    #[expect(clippy::too_many_arguments, reason = "results of the checks, each used once")]
    fn start_session(
        &mut self,
        world: &World,
        id: ConnectionId,
        bot: &Bot,
        shard: Shard,
        intents: u64,
        guilds: Vec<Snowflake>,
        url: &str,
        now: At,
    ) {
        if self.session_index.sessions_of_shard(bot.application_id, shard).next().is_some() {
            self.scores.score.duplicate_shards += 1;
        }
        self.scores.score.sessions_started += 1;
        self.session_count += 1;
        let key = SessionKey(self.session_count);
        let session_id = session_id(self.session_count, now);
        let ready = ready(world, bot.application_id, shard, &guilds, &session_id, url);
        // Without the GUILDS intent, Discord sends nothing about guilds except the list in READY.
        let announced = if intents & intents::GUILDS == 0 { Vec::new() } else { guilds };
        self.by_id.insert(session_id.clone(), key);
        self.session_index.add(bot.application_id, shard, key);
        self.sessions.insert(
            key,
            Session {
                id: session_id,
                application: bot.application_id,
                user: bot.user_id,
                shard,
                intents,
                identify: self.identify_count,
                replay: Replay::new(self.config.replay_events),
                attachment: SessionAttachment::Connection(id),
                unannounced: UnannouncedGuilds::new(announced),
            },
        );
        if let Some(link) = self.connections.get_mut(&id) {
            link.connection.attach_session(key);
        }
        self.queue_event(key, Event { name: "READY", data: ready }, now);
    }

    pub(super) fn resume(&mut self, world: &World, id: ConnectionId, resume: &Resume, now: At) {
        let Some(bot) = bot(world, &resume.token).filter(|bot| !self.is_token_reset(bot.application_id)) else {
            self.scores.score.resumes_refused += 1;
            return self.end_connection(id, Ending::Close(Close::AUTHENTICATION_FAILED), now);
        };
        let key = self.by_id.get(&resume.session_id).copied();
        let session = key.and_then(|key| self.sessions.get_mut(&key).map(|session| (key, session)));
        let Some((key, session)) = session.filter(|(_, session)| session.application == bot.application_id) else {
            return self.refuse_resume(id);
        };
        if self.faults.take_dead_resume() {
            self.close_session(key, Close::TAKEN_OVER, now);
            return self.refuse_resume(id);
        }
        match session.replay.resume(resume.seq) {
            Ok(()) => {}
            Err(ResumeError::Expired) => {
                self.close_session(key, Close::TAKEN_OVER, now);
                return self.refuse_resume(id);
            }
            Err(ResumeError::Ahead) => {
                self.scores.score.resumes_refused += 1;
                self.close_session(key, Close::TAKEN_OVER, now);
                return self.end_connection(id, Ending::Close(Close::INVALID_SEQUENCE), now);
            }
        }
        let previous = std::mem::replace(&mut session.attachment, SessionAttachment::Connection(id));
        if let SessionAttachment::Connection(other) = previous {
            if let Some(link) = self.connections.get_mut(&other) {
                link.connection.detach_session();
            }
            self.end_connection(other, Ending::Close(Close::TAKEN_OVER), now);
        }
        if let Some(link) = self.connections.get_mut(&id) {
            link.connection.attach_session(key);
        }
        self.scores.score.resumes += 1;
        // RESUMED comes after the replayed events and has a sequence number of its own. It is replayed too if the
        // client resumes from an earlier event later, so that numbers have no gap.
        self.queue_event(key, Event { name: "RESUMED", data: Bytes::from_static(br#"{"_trace":[]}"#) }, now);
        self.wake(id);
    }

    fn refuse_resume(&mut self, id: ConnectionId) {
        self.scores.score.resumes_refused += 1;
        self.send_control(id, Control::InvalidSession { resumable: false });
    }

    /// Ends all sessions and connections of a bot.
    fn end_bot(&mut self, application: Snowflake, now: At) {
        for key in self.session_index.sessions_of_bot(application).collect::<Vec<_>>() {
            self.close_session(key, Close::TOKEN_RESET, now);
        }
    }
}

/// The bot with this token, with or without `Bot ` in front.
fn bot<'w>(world: &'w World, token: &str) -> Option<&'w Bot> {
    world.bot_by_token(token.strip_prefix("Bot ").unwrap_or(token))
}

/// 32 hexadecimal digits, unique across runs of the simulator.
fn session_id(number: u64, now: At) -> String {
    format!("{:016x}{number:016x}", now.micros().wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

fn ready(world: &World, application: Snowflake, shard: Shard, guilds: &[Snowflake], session: &str, url: &str) -> Bytes {
    let (user, application) = world.ready_identity(application);
    let guilds: Vec<Value> = guilds.iter().map(|id| json!({ "id": id, "unavailable": true })).collect();
    let ready = json!({
        "v": 10,
        "user_settings": {},
        "user": user,
        "guilds": guilds,
        "session_id": session,
        "resume_gateway_url": url,
        "session_type": "normal",
        "shard": [shard.id, shard.of],
        "application": application,
        "private_channels": [],
        "presences": [],
        "relationships": [],
        "guild_join_requests": [],
        "geo_ordered_rtc_regions": [],
        "auth": {},
        "_trace": [],
    });
    Bytes::from(ready.to_string())
}
