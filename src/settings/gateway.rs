//! Settings of the gateway.

use std::{fmt, ops::Range, str::FromStr, time::Duration};

use twilight_model::gateway::{
    Intents,
    payload::outgoing::update_presence::UpdatePresencePayload,
    presence::{Activity, ActivityType, MinimalActivity, Status},
};

use super::{
    declare::settings,
    kind::{self, Choice, Integer, List, Optional, Text, ValueError},
    schema::nearest_of,
};

settings! {
    /// Settings of the gateway.
    #[derive(Clone, Debug)]
    pub struct GatewaySettings in "gateway" {
        /// Number of shards that the guilds are divided over. 0: as many as Discord recommends, or one if
        /// `discord.gateway_url` is set. Discord requires one for every 2,500 guilds.
        pub shards: u32 = Integer(0..=16_000), 0;
        /// Shards that this process runs, both ends included, such as 0-3; `gateway.shards` is the total number. Empty:
        /// all of them. See docs/gateway.md.
        pub shard_range: Option<ShardRange> = Optional(SHARD_RANGE), "";
        /// Number of threads that run shards. They do nothing else; one thread reads hundreds of thousands of events a
        /// second.
        pub threads: usize = Integer(1..=256), 1;
        /// How many shards may identify within 5 seconds, if `discord.gateway_url` is set; otherwise Discord's value is
        /// used. Use only what Discord granted the bot (`session_start_limit.max_concurrency`). 0: no limit, for a
        /// gateway proxy that spaces them itself.
        pub max_concurrency: u16 = Integer(0..=256), 1;
        /// Minimum time between two shards that identify one after the other, in milliseconds: Discord's 5 seconds plus
        /// network latency.
        pub identify_spacing as "identify_spacing_ms": Duration = Integer(0..=600_000), 5250;
        /// How many sessions may be started within a day, over all processes, if `discord.gateway_url` is set; otherwise
        /// Discord's value is used. Discord resets the token of a bot that exceeds it.
        pub identifies_a_day: u32 = Integer(1..=1_000_000), 1000;
        /// Which events Discord sends. `guild_members`, `guild_presences` and `message_content` are privileged: enable
        /// them in Discord's developer portal before you add them here.
        pub intents: Intents = INTENTS, ["guilds", "guild_moderation", "guild_messages", "direct_messages"];
        /// Online status of the bot.
        let presence_status: Status = Choice(STATUSES), "online";
        /// Type of the activity that `gateway.activity_name` names. `custom` displays only the name.
        let activity_type: ActivityType = Choice(ACTIVITY_TYPES), "playing";
        /// What the bot plays, listens to, watches or competes in. Empty: no activity is displayed.
        let activity_name: String = LINE, "";
        /// Status and activity of the bot.
        pub presence: UpdatePresencePayload => presence(presence_status, activity_type, activity_name);
        /// How many events a shard buffers while they arrive faster than they are handled. When the buffer is full,
        /// typing and presence events are dropped; if that is not enough, the shard disconnects, and resumes when there
        /// is room.
        pub buffer_events: usize = Integer(1..=1_000_000), 4096;
        /// How many bytes of events a shard buffers.
        pub buffer_bytes: usize = Integer(1..=1_073_741_824), 16777216;
        /// Maximum delay before a shard reconnects for the first time after a failed connection, in milliseconds. It
        /// doubles with each further failure; the actual delay is random, up to this maximum.
        pub reconnect_base as "reconnect_base_ms": Duration = Integer(1..=600_000), 1000;
        /// Upper limit of this delay, in milliseconds.
        pub reconnect_cap as "reconnect_cap_ms": Duration = Integer(1..=3_600_000), 30000;
        /// How long the gateway may take to send its hello, and then to start the session, in milliseconds. After that
        /// the shard reconnects.
        pub hello_timeout as "hello_timeout_ms": Duration = Integer(1..=600_000), 20000;
        /// How many guilds are stored by id and name, for `GET /v1/guilds` and `guildhall guilds list`. Further ones are
        /// listed only once an operation names them, without a name. 0: none are stored.
        pub max_guilds: usize = Integer(0..=1_000_000), 100_000;
    }
}

const SHARD_RANGE: Text<ShardRange> =
    Text::new(kind::from_text, "two numbers separated by `-`, each less than gateway.shards");

const INTENTS: List<Intents> = List {
    parse: intents,
    display: |intents| intent_names(*intents),
    allowed: "names of gateway intents (separated by commas in the environment), such as guilds, guild_members",
};

fn intents(names: &[&str]) -> Result<Intents, ValueError> {
    let intent = |name: &&str| {
        Intents::from_name(&name.to_uppercase()).ok_or_else(|| {
            let guess = nearest_of(name, intent_names(Intents::all()).into_iter())
                .map_or_else(String::new, |near| format!(" (did you mean `{near}`?)"));
            ValueError::Message(format!("has {name:?}, which is not an intent{guess}"))
        })
    };
    names.iter().map(intent).collect()
}

/// Returns the names of intents, as the settings write them.
fn intent_names(intents: Intents) -> Vec<String> {
    intents.iter_names().map(|(name, _)| name.to_lowercase()).collect()
}

const STATUSES: &[(&str, Status)] = &[
    ("online", Status::Online),
    ("idle", Status::Idle),
    ("dnd", Status::DoNotDisturb),
    ("invisible", Status::Invisible),
];

const ACTIVITY_TYPES: &[(&str, ActivityType)] = &[
    ("playing", ActivityType::Playing),
    ("listening", ActivityType::Listening),
    ("watching", ActivityType::Watching),
    ("competing", ActivityType::Competing),
    ("custom", ActivityType::Custom),
];

/// A line of text for display.
const LINE: Text<String> = Text::new(
    |text| {
        let fits = text.chars().count() <= 128 && !text.chars().any(char::is_control);
        if fits { Ok(text.to_owned()) } else { Err(ValueError::NotAllowed) }
    },
    "a line of at most 128 characters",
);

fn presence(status: Status, kind: ActivityType, name: String) -> UpdatePresencePayload {
    let activities = if name.is_empty() {
        Vec::new()
    } else {
        // Clients display the state of a custom activity; it needs a name nevertheless.
        let state = (kind == ActivityType::Custom).then(|| name.clone());
        vec![Activity { state, ..Activity::from(MinimalActivity { kind, name, url: None }) }]
    };
    UpdatePresencePayload { activities, afk: false, since: None, status }
}

/// A range of consecutive shards, both ends included; at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardRange {
    first: u32,
    last: u32,
}

impl ShardRange {
    /// Returns the range of all of `shards` shards; for 0 shards, the range of one.
    #[must_use]
    pub const fn all(shards: u32) -> Self {
        Self { first: 0, last: shards.saturating_sub(1) }
    }

    /// Iterates over the shard ids.
    pub fn ids(self) -> impl ExactSizeIterator<Item = u32> + Clone {
        // A range of `u32` is not an `ExactSizeIterator` on small targets; these bounds fit into any `usize`.
        (self.first as usize..self.last as usize + 1).map(|number| u32::try_from(number).unwrap_or(u32::MAX))
    }

    /// Returns the same as a half-open range.
    #[must_use]
    pub const fn range(self) -> Range<u32> {
        self.first..self.last + 1
    }

    /// Number of shards.
    #[must_use]
    pub const fn count(self) -> u32 {
        self.last - self.first + 1
    }

    /// Whether it contains a shard.
    #[must_use]
    pub const fn contains(self, shard: u32) -> bool {
        self.first <= shard && shard <= self.last
    }
}

impl fmt::Display for ShardRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

/// A text is not a shard range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShardRangeError {
    /// It does not consist of two numbers.
    #[error("is not two shard numbers separated by `-`")]
    Form,
    /// The first number is greater than the last.
    #[error("ends with shard {last}, before its first shard {first}")]
    Reversed {
        /// The first shard.
        first: u32,
        /// The last shard.
        last: u32,
    },
}

impl FromStr for ShardRange {
    type Err = ShardRangeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = |text: &str| {
            let text = text.trim();
            let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            plain.then(|| text.parse().ok()).flatten().filter(|number| *number < MAX_SHARDS)
        };
        let (first, last) = text.split_once('-').ok_or(ShardRangeError::Form)?;
        let (Some(first), Some(last)) = (number(first), number(last)) else { return Err(ShardRangeError::Form) };
        if first <= last { Ok(Self { first, last }) } else { Err(ShardRangeError::Reversed { first, last }) }
    }
}

/// Maximum number of shards.
const MAX_SHARDS: u32 = 16_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_two_numbers_in_order() {
        let range: ShardRange = "4-7".parse().unwrap();
        assert_eq!((range.ids().collect::<Vec<_>>(), range.count()), (vec![4, 5, 6, 7], 4));
        assert_eq!(range.range(), 4..8);
        assert_eq!([3, 4, 7, 8].map(|shard| range.contains(shard)), [false, true, true, false]);
        assert_eq!((ShardRange::all(1).to_string(), ShardRange::all(3).to_string()), ("0-0".into(), "0-2".into()));
        for invalid in ["", "4", "-", "4-", "-4", "a-b", "1-2-3", "+1-2", "1-99999999999", "0-16000"] {
            assert_eq!(invalid.parse::<ShardRange>(), Err(ShardRangeError::Form), "{invalid}");
        }
        assert_eq!("7-4".parse::<ShardRange>(), Err(ShardRangeError::Reversed { first: 7, last: 4 }));
    }

    #[test]
    fn presence_has_the_form_that_discord_expects() {
        let json = serde_json::to_value(presence(Status::DoNotDisturb, ActivityType::Watching, "the gate".to_owned()))
            .unwrap();
        assert_eq!((&json["status"], &json["afk"]), (&"dnd".into(), &false.into()));
        assert_eq!((&json["activities"][0]["type"], &json["activities"][0]["name"]), (&3.into(), &"the gate".into()));
        let custom = serde_json::to_value(presence(Status::Online, ActivityType::Custom, "hello".to_owned())).unwrap();
        assert_eq!((&custom["activities"][0]["type"], &custom["activities"][0]["state"]), (&4.into(), &"hello".into()));
        let nothing = serde_json::to_value(presence(Status::Online, ActivityType::Playing, String::new())).unwrap();
        assert_eq!(nothing["activities"], serde_json::json!([]));
    }
}
