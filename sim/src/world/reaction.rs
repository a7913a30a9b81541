//! Reactions to messages, and their events.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::channel::Home;
use super::drive::DriveError;
use super::{World, intents};
use crate::id::Snowflake;

/// Maximum number of different reactions to a message.
pub(crate) const MAX_REACTIONS: usize = 20;

/// Maximum length of an emoji, in characters: the longest sequences have about ten.
const MAX_EMOJI: usize = 32;

/// An emoji: a Unicode one, or a custom one with its id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Emoji {
    pub(crate) id: Option<Snowflake>,
    pub(crate) name: String,
}

impl Emoji {
    /// Parses `🔥`, or `name:id` for a custom one, of which any is accepted; `None` if it is neither.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        if let Some((name, id)) = text.rsplit_once(':') {
            let name = name.strip_prefix("a:").unwrap_or(name);
            let is_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
            let valid = (1..=MAX_EMOJI).contains(&name.len()) && name.chars().all(is_name);
            return Some(Self { id: Some(id.parse().ok().filter(|_| valid)?), name: name.to_owned() });
        }
        // Without a table of emojis: they all contain a symbol, and no ASCII letter or space.
        let is_symbol = |letter: char| letter >= '\u{2000}' || matches!(letter, '©' | '®');
        let is_text = |letter: char| letter.is_ascii_alphabetic() || letter.is_whitespace() || letter.is_control();
        let valid = text.chars().count() <= MAX_EMOJI && text.chars().any(is_symbol) && !text.chars().any(is_text);
        valid.then(|| Self { id: None, name: text.to_owned() })
    }

    /// Whether both are the same: custom ones are compared by id.
    fn is_same(&self, other: &Self) -> bool {
        self.id == other.id && (self.id.is_some() || self.name == other.name)
    }

    /// The emoji as a path has it.
    pub(crate) fn path_text(&self) -> String {
        self.id.map_or_else(|| self.name.clone(), |id| format!("{}:{id}", self.name))
    }
}

/// The users who reacted to a message with one emoji; at least one.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Reaction {
    pub(crate) emoji: Emoji,
    pub(crate) users: BTreeSet<Snowflake>,
}

/// A reaction as a user sees it; its JSON is Discord's reaction object.
#[derive(Debug, Serialize)]
pub(crate) struct ReactionView<'a> {
    emoji: &'a Emoji,
    count: usize,
    count_details: CountDetails,
    burst_colors: [String; 0],
    me: bool,
    me_burst: bool,
}

#[derive(Debug, Serialize)]
struct CountDetails {
    burst: usize,
    normal: usize,
}

impl Reaction {
    pub(crate) fn view(&self, viewer: Snowflake) -> ReactionView<'_> {
        ReactionView {
            emoji: &self.emoji,
            count: self.users.len(),
            count_details: CountDetails { burst: 0, normal: self.users.len() },
            burst_colors: [],
            me: self.users.contains(&viewer),
            me_burst: false,
        }
    }
}

/// The reaction with this emoji, if there is one.
pub(crate) fn find<'a>(reactions: &'a [Reaction], emoji: &Emoji) -> Option<&'a Reaction> {
    reactions.iter().find(|reaction| reaction.emoji.is_same(emoji))
}

/// Whether a change of reactions had an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReactionChange {
    Changed,
    /// The reaction existed already, or did not exist.
    Unchanged,
    /// The message has the maximum number of different reactions.
    TooMany,
}

/// Intents of the events, in guilds and in direct messages.
const READERS: (u64, u64) = (intents::GUILD_MESSAGE_REACTIONS, intents::DIRECT_MESSAGE_REACTIONS);

impl World {
    /// The reactions to a message, in the order of their first user.
    pub(crate) fn reactions(&self, channel: Snowflake, message: Snowflake) -> &[Reaction] {
        self.feeds.get(&channel).and_then(|feed| feed.reactions.get(&message)).map_or(&[], Vec::as_slice)
    }

    /// A user reacts to a message, which must exist.
    pub(crate) fn add_reaction(
        &mut self,
        channel: Snowflake,
        message: Snowflake,
        user: Snowflake,
        emoji: &Emoji,
    ) -> ReactionChange {
        let Some(feed) = self.feeds.get_mut(&channel) else { return ReactionChange::Unchanged };
        let Some(author) = feed.messages.get(&message).map(|message| message.author.id) else {
            return ReactionChange::Unchanged;
        };
        let reactions = feed.reactions.entry(message).or_default();
        match reactions.iter().position(|reaction| reaction.emoji.is_same(emoji)) {
            Some(index) => {
                if !reactions[index].users.insert(user) {
                    return ReactionChange::Unchanged;
                }
            }
            None if reactions.len() >= MAX_REACTIONS => return ReactionChange::TooMany,
            None => reactions.push(Reaction { emoji: emoji.clone(), users: BTreeSet::from([user]) }),
        }
        let mut event = reaction_event(message, user, emoji);
        event.insert("message_author_id".into(), json!(author));
        event.insert("burst_colors".into(), json!([]));
        if let Some(Home::Guild(guild)) = self.homes.get(&channel)
            && let Some(member) = self.guilds.get(guild).and_then(|guild| guild.members.get(&user))
        {
            event.insert("member".into(), json!(member));
        }
        self.notify_channel("MESSAGE_REACTION_ADD", channel, READERS, event);
        ReactionChange::Changed
    }

    /// Removes a user's reaction.
    pub(crate) fn remove_reaction(
        &mut self,
        channel: Snowflake,
        message: Snowflake,
        user: Snowflake,
        emoji: &Emoji,
    ) -> ReactionChange {
        let is_removed = self.change_reactions(channel, message, |reactions| {
            let found = reactions.iter_mut().find(|reaction| reaction.emoji.is_same(emoji));
            let is_removed = found.is_some_and(|reaction| reaction.users.remove(&user));
            reactions.retain(|reaction| !reaction.users.is_empty());
            is_removed
        });
        if !is_removed {
            return ReactionChange::Unchanged;
        }
        self.notify_channel("MESSAGE_REACTION_REMOVE", channel, READERS, reaction_event(message, user, emoji));
        ReactionChange::Changed
    }

    /// Removes all reactions to a message, or those with one emoji.
    pub(crate) fn clear_reactions(
        &mut self,
        channel: Snowflake,
        message: Snowflake,
        emoji: Option<&Emoji>,
    ) -> ReactionChange {
        let is_removed = self.change_reactions(channel, message, |reactions| {
            let before = reactions.len();
            reactions.retain(|reaction| emoji.is_some_and(|emoji| !reaction.emoji.is_same(emoji)));
            reactions.len() < before
        });
        if !is_removed {
            return ReactionChange::Unchanged;
        }
        let mut event = Map::from_iter([("message_id".to_owned(), json!(message))]);
        let name = match emoji {
            Some(emoji) => {
                event.insert("emoji".into(), json!(emoji));
                "MESSAGE_REACTION_REMOVE_EMOJI"
            }
            None => "MESSAGE_REACTION_REMOVE_ALL",
        };
        self.notify_channel(name, channel, READERS, event);
        ReactionChange::Changed
    }

    fn change_reactions(
        &mut self,
        channel: Snowflake,
        message: Snowflake,
        change: impl FnOnce(&mut Vec<Reaction>) -> bool,
    ) -> bool {
        let Some(feed) = self.feeds.get_mut(&channel) else { return false };
        let Some(reactions) = feed.reactions.get_mut(&message) else { return false };
        let changed = change(reactions);
        if reactions.is_empty() {
            feed.reactions.remove(&message);
        }
        changed
    }

    /// A user reacts to a message, or takes the reaction back; by default the owner of the guild, or the recipient of
    /// the direct messages.
    pub(crate) fn user_reaction(
        &mut self,
        channel: Snowflake,
        message: Snowflake,
        user: Option<Snowflake>,
        emoji: &str,
        remove: bool,
    ) -> Result<(), DriveError> {
        let user = self.user_in(channel, user)?;
        self.feeds.get(&channel).and_then(|feed| feed.get(message)).ok_or(DriveError::NoSuchMessage(message))?;
        let parsed = Emoji::parse(emoji).ok_or_else(|| DriveError::InvalidEmoji(emoji.to_owned()))?;
        let change = if remove {
            self.remove_reaction(channel, message, user.id, &parsed)
        } else {
            self.add_reaction(channel, message, user.id, &parsed)
        };
        match change {
            ReactionChange::Changed | ReactionChange::Unchanged => Ok(()),
            ReactionChange::TooMany => Err(DriveError::TooManyReactions(message)),
        }
    }
}

fn reaction_event(message: Snowflake, user: Snowflake, emoji: &Emoji) -> Map<String, Value> {
    let event = json!({ "user_id": user, "message_id": message, "emoji": emoji, "burst": false, "type": 0 });
    let Value::Object(event) = event else { unreachable!("built as an object") };
    event
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn emojis_are_unicode_or_custom_with_an_id() {
        for text in ["🔥", "👍🏽", "1️⃣", "🏳️‍🌈", "❤", "ℹ️", "🅰️", "©"] {
            assert_eq!(Emoji::parse(text), Some(Emoji { id: None, name: text.into() }));
        }
        let custom = Emoji { id: Some(Snowflake::new(7)), name: "party_1".into() };
        assert_eq!(
            (Emoji::parse("party_1:7"), Emoji::parse("a:party_1:7")),
            (Some(custom.clone()), Some(custom.clone()))
        );
        assert_eq!(custom.path_text(), "party_1:7");
        for text in ["", "x", "fire", "party:x", ":7", "ü", "🔥 🔥", "no-name:7"] {
            assert_eq!(Emoji::parse(text), None, "{text}");
        }
    }
}
