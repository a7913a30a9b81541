//! Feeds: the messages of a channel, its pins, and the events when they change.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::channel::{self, Home};
use super::message::{self, Message, MessageEvent, MessageView, Reference};
use super::reaction::Reaction;
use super::user::User;
use super::{World, intents};
use crate::dispatch::Dispatch;
use crate::id::Snowflake;
use crate::time::At;

/// Maximum number of pins of a channel.
pub(crate) const MAX_PINS: usize = 250;

/// A channel's messages, oldest first.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Feed {
    pub(crate) messages: BTreeMap<Snowflake, Message>,
    /// When each pinned message was pinned.
    pub(crate) pins: BTreeMap<Snowflake, At>,
    /// The reactions of each message that has any, in the order of their first user.
    pub(crate) reactions: BTreeMap<Snowflake, Vec<Reaction>>,
}

impl Feed {
    /// A message that is visible to everyone in the channel.
    pub(crate) fn get(&self, id: Snowflake) -> Option<&Message> {
        self.messages.get(&id).filter(|message| !message.is_ephemeral())
    }

    /// A message of this feed as `viewer` reads it.
    pub(crate) fn view<'a>(&'a self, message: &'a Message, viewer: Snowflake) -> MessageView<'a> {
        let reactions = self.reactions.get(&message.id).into_iter().flatten();
        MessageView { message, reactions: reactions.map(|reaction| reaction.view(viewer)).collect() }
    }

    fn remove(&mut self, id: Snowflake) -> Option<Message> {
        self.pins.remove(&id);
        self.reactions.remove(&id);
        self.messages.remove(&id)
    }
}

/// The messages sent with a nonce, for as long as `enforce_nonce` finds them.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Nonces {
    first: BTreeMap<String, (Snowflake, Snowflake)>,
    expiry: VecDeque<(At, String)>,
}

impl Nonces {
    fn key(author: Snowflake, nonce: &str) -> String {
        format!("{author} {nonce}")
    }

    /// The channel and the id of the message that this author sent with this nonce at most `window` ago.
    pub(crate) fn find(
        &mut self,
        author: Snowflake,
        nonce: &str,
        window: Duration,
        now: At,
    ) -> Option<(Snowflake, Snowflake)> {
        while let Some((at, key)) = self.expiry.front()
            && now.since(*at) >= window
        {
            self.first.remove(key);
            self.expiry.pop_front();
        }
        self.first.get(&Self::key(author, nonce)).copied()
    }

    pub(crate) fn record(&mut self, author: Snowflake, nonce: &str, message: &Message, now: At) {
        let key = Self::key(author, nonce);
        if let std::collections::btree_map::Entry::Vacant(vacant) = self.first.entry(key.clone()) {
            vacant.insert((message.channel_id, message.id));
            self.expiry.push_back((now, key));
        }
    }
}

impl World {
    /// Adds a message to its channel and queues its event. Ephemeral ones are stored without an event.
    pub(crate) fn post(&mut self, message: Message, nonce: Option<&Value>) {
        let (id, channel) = (message.id, message.channel_id);
        self.notify_message("MESSAGE_CREATE", &message, nonce);
        if !message.is_ephemeral() {
            match self.homes.get(&channel) {
                Some(Home::Guild(guild)) => {
                    if let Some(guild_channel) =
                        self.guilds.get_mut(guild).and_then(|guild| guild.channels.get_mut(&channel))
                    {
                        guild_channel.last_message_id = Some(id);
                    }
                }
                Some(Home::Direct(_)) => {
                    if let Some(direct) = self.directs.get_mut(&channel) {
                        direct.last_message_id = Some(id);
                    }
                }
                None => {}
            }
        }
        let feed = self.feeds.entry(channel).or_default();
        feed.messages.insert(id, message);
        if feed.messages.len() > self.rules.max_messages
            && let Some((&oldest, _)) = feed.messages.first_key_value()
            && let Some(removed) = feed.remove(oldest)
        {
            self.remove_files(&removed);
        }
    }

    /// Removes all messages of a channel that was deleted.
    pub(crate) fn remove_feed(&mut self, channel: Snowflake) {
        let Some(feed) = self.feeds.remove(&channel) else { return };
        feed.messages.values().for_each(|message| self.remove_files(message));
    }

    /// Adds the system message about a new pin.
    pub(crate) fn post_pin_notice(&mut self, channel: Snowflake, pinned: Snowflake, by: &Arc<User>, now: At) {
        let guild_id = self.homes.get(&channel).and_then(|home| home.guild());
        let mut notice = Message::new(self.mint.generate(now), channel, Arc::clone(by), String::new(), now);
        notice.kind = message::PINNED;
        notice.message_reference = Some(Reference { kind: 0, message_id: pinned, channel_id: channel, guild_id });
        self.post(notice, None);
    }

    /// Queues an event for a changed message, with its current content.
    pub(crate) fn notify_message_update(&mut self, channel: Snowflake, id: Snowflake) {
        let Some(message) = self.feeds.get(&channel).and_then(|feed| feed.messages.get(&id)).cloned() else { return };
        self.notify_message("MESSAGE_UPDATE", &message, None);
    }

    fn notify_message(&mut self, name: &'static str, message: &Message, nonce: Option<&Value>) {
        if message.is_ephemeral() {
            return;
        }
        if let Some(dispatch) = self.message_event(name, message, nonce) {
            self.dispatches.push(dispatch);
        }
    }

    fn message_event(&self, name: &'static str, message: &Message, nonce: Option<&Value>) -> Option<Dispatch> {
        match *self.homes.get(&message.channel_id)? {
            Home::Guild(guild_id) => {
                let guild = self.guilds.get(&guild_id)?;
                let event = MessageEvent {
                    message,
                    guild_id: Some(guild_id),
                    member: guild.members.get(&message.author.id).map(|member| &member.data),
                    channel_type: Some(guild.channels.get(&message.channel_id)?.kind),
                    nonce,
                };
                Some(Dispatch::guild(name, guild_id, intents::GUILD_MESSAGES, &event))
            }
            Home::Direct(application) => {
                let event =
                    MessageEvent { message, guild_id: None, member: None, channel_type: Some(channel::DIRECT), nonce };
                Some(Dispatch::application(name, application, intents::DIRECT_MESSAGES, &event))
            }
        }
    }

    /// Queues an event of a channel; `guild_id` is added for a channel of a guild.
    pub(crate) fn notify_channel(
        &mut self,
        name: &'static str,
        channel: Snowflake,
        (in_guild, in_direct): (u64, u64),
        mut data: Map<String, Value>,
    ) {
        let Some(home) = self.homes.get(&channel) else { return };
        data.insert("channel_id".into(), json!(channel));
        self.dispatches.push(match *home {
            Home::Guild(guild) => {
                data.insert("guild_id".into(), json!(guild));
                Dispatch::guild(name, guild, in_guild, &data)
            }
            Home::Direct(application) => Dispatch::application(name, application, in_direct, &data),
        });
    }

    /// Removes messages and queues one event: for a single message or for several.
    pub(crate) fn delete_messages(&mut self, channel: Snowflake, ids: &[Snowflake]) -> Vec<Message> {
        const READERS: (u64, u64) = (intents::GUILD_MESSAGES, intents::DIRECT_MESSAGES);
        let Some(feed) = self.feeds.get_mut(&channel) else { return Vec::new() };
        let deleted: Vec<Message> = ids.iter().filter_map(|id| feed.remove(*id)).collect();
        deleted.iter().for_each(|message| self.remove_files(message));
        let visible: Vec<Snowflake> =
            deleted.iter().filter(|message| !message.is_ephemeral()).map(|message| message.id).collect();
        match visible.as_slice() {
            [] => {}
            [id] => self.notify_channel("MESSAGE_DELETE", channel, READERS, Map::from_iter([("id".into(), json!(id))])),
            ids => {
                self.notify_channel(
                    "MESSAGE_DELETE_BULK",
                    channel,
                    READERS,
                    Map::from_iter([("ids".into(), json!(ids))]),
                );
            }
        }
        deleted
    }
}
