//! Delivers events to the sessions that receive them.

use bytes::Bytes;

use super::close::Close;
use super::frame::Event;
use super::gateway_state::GatewayState;
use super::intents;
use super::replay::Overrun;
use super::session::{Session, SessionAttachment, SessionKey};
use crate::dispatch::{Audience, Dispatch};
use crate::id::Snowflake;
use crate::time::At;
use crate::world::World;

/// GUILD_CREATEs that are encoded before the client has read the earlier ones.
const MAX_GUILDS_AHEAD: usize = 32;

impl GatewayState {
    /// Queues an event for the sessions that receive it.
    pub(crate) fn dispatch(&mut self, world: &World, dispatch: &Dispatch, now: At) {
        self.end_expired(now);
        self.route(world, dispatch, Self::data_for, now);
    }

    /// Queues an event like [`dispatch`](Self::dispatch), but unmodified: for events created in bulk, which have
    /// nothing to hide.
    pub(crate) fn dispatch_verbatim(&mut self, world: &World, dispatch: &Dispatch, now: At) {
        self.route(world, dispatch, |_, dispatch| dispatch.data.clone(), now);
    }

    fn route(&mut self, world: &World, dispatch: &Dispatch, readable: fn(&Session, &Dispatch) -> Bytes, now: At) {
        for key in self.recipients(world, dispatch) {
            let Some(session) = self.sessions.get_mut(&key).filter(|session| session.accepts(dispatch.intents)) else {
                continue;
            };
            let data = readable(session, dispatch);
            // No event of a guild is sent before its GUILD_CREATE.
            if let Audience::Guild(guild) | Audience::Member { guild, .. } = dispatch.audience
                && session.unannounced.remove(guild)
                && !matches!(dispatch.name, "GUILD_CREATE" | "GUILD_DELETE")
            {
                self.announce(world, key, guild, now);
            }
            self.queue_event(key, Event { name: dispatch.name, data }, now);
        }
    }

    fn recipients(&self, world: &World, dispatch: &Dispatch) -> Vec<SessionKey> {
        match dispatch.audience {
            Audience::Guild(guild) => {
                // A bot that leaves is no longer a member when this event is sent.
                let is_leaving = dispatch.name == "GUILD_DELETE";
                self.session_index.sessions_of_guild(guild, |bot| is_leaving || world.has_bot(guild, bot)).collect()
            }
            Audience::Member { application, guild } => self
                .session_index
                .sessions_of_guild(guild, |bot| bot == application && world.has_bot(guild, bot))
                .collect(),
            Audience::Application(bot) => self.session_index.sessions_of_first_shards(bot).collect(),
        }
    }

    /// The data of the event as this session may read it.
    fn data_for(session: &Session, dispatch: &Dispatch) -> Bytes {
        let is_hidden = session.intents & intents::MESSAGE_CONTENT == 0 && intents::contains_message(dispatch.name);
        is_hidden
            .then(|| intents::without_content(&dispatch.data, session.user))
            .flatten()
            .unwrap_or_else(|| dispatch.data.clone())
    }

    /// Queues an event for one session, unless a fault drops it.
    pub(super) fn queue_event(&mut self, key: SessionKey, event: Event, now: At) {
        if self.faults.is_muted(event.name) {
            self.scores.score.events_muted += 1;
            return;
        }
        let Some(session) = self.sessions.get_mut(&key) else { return };
        let name = event.name;
        match session.replay.push(event) {
            Ok(is_first) => {
                self.scores.record_event(name);
                if is_first && let SessionAttachment::Connection(id) = session.attachment {
                    self.wake(id);
                }
            }
            Err(Overrun) => {
                self.scores.score.slow_readers +=
                    u64::from(matches!(session.attachment, SessionAttachment::Connection(_)));
                self.close_session(key, Close::SLOW_READER, now);
            }
        }
    }

    fn announce(&mut self, world: &World, key: SessionKey, guild: Snowflake, now: At) {
        if let Some(data) = world.guild_create(guild) {
            self.queue_event(key, Event { name: "GUILD_CREATE", data }, now);
        }
    }

    /// Encodes some of the guilds that are not announced yet, if the client has read the earlier events.
    pub(super) fn announce_next(&mut self, world: &World, key: SessionKey, now: At) {
        while let Some(session) = self.sessions.get_mut(&key) {
            if session.replay.waiting() >= MAX_GUILDS_AHEAD || session.replay.free_capacity() <= 1 {
                return;
            }
            let Some(guild) = session.unannounced.next() else { return };
            self.announce(world, key, guild, now);
        }
    }
}
