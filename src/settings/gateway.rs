//! What the gateway connection asks for: the typed settings.

use std::{fmt, ops::Range, str::FromStr, time::Duration};

use twilight_model::gateway::{
    Intents,
    payload::outgoing::update_presence::UpdatePresencePayload,
    presence::{Activity, ActivityType, MinimalActivity, Status},
};

use super::{error::SettingsProblem, of, resolve::Effective, source::SettingOrigin, take, value::Value};

/// What the gateway connection asks for.
#[derive(Clone, Debug)]
pub struct GatewaySettings {
    /// How many shards there are; 0 leaves it to Discord.
    pub shards: u32,
    /// Which of them this process runs; `None` means all of them.
    pub shard_range: Option<ShardRange>,
    /// On how many threads they run.
    pub threads: usize,
    /// How many of them may identify within 5 seconds; 0 leaves that to the gateway.
    pub max_concurrency: u16,
    /// The least time between two that share a place among those.
    pub identify_spacing: Duration,
    /// How many sessions may be started within a day, if Discord is not asked.
    pub identifies_a_day: u32,
    /// Which events Discord sends.
    pub intents: Intents,
    /// What the bot is shown as.
    pub presence: UpdatePresencePayload,
    /// How many events a shard keeps while there is no room for them.
    pub buffer_events: usize,
    /// How many bytes of them.
    pub buffer_bytes: usize,
    /// The longest first wait before a shard connects again.
    pub reconnect_base: Duration,
    /// The longest wait of all.
    pub reconnect_cap: Duration,
    /// How long a connection may take to be made and greeted.
    pub hello_timeout: Duration,
}

/// Some shards in a row, both ends included; at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardRange {
    first: u32,
    last: u32,
}

impl ShardRange {
    /// All of so many shards; of none, one.
    #[must_use]
    pub const fn all(shards: u32) -> Self {
        Self { first: 0, last: shards.saturating_sub(1) }
    }

    /// Their numbers.
    pub fn numbers(self) -> impl ExactSizeIterator<Item = u32> + Clone {
        // A range of `u32` has no exact size where pointers are small; these bounds fit anywhere.
        (self.first as usize..self.last as usize + 1).map(|number| u32::try_from(number).unwrap_or(u32::MAX))
    }

    /// The same, as a range that ends before its end.
    #[must_use]
    pub const fn range(self) -> Range<u32> {
        self.first..self.last + 1
    }

    /// How many there are.
    #[must_use]
    pub const fn count(self) -> u32 {
        self.last - self.first + 1
    }

    /// Whether it is one of them.
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

/// Some text names no shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShardRangeError {
    /// It is no two numbers.
    #[error("is not two numbers of shards with a `-` between them")]
    Form,
    /// They are the wrong way round.
    #[error("ends with shard {last}, before shard {first} with which it starts")]
    Reversed {
        /// The first one.
        first: u32,
        /// The last one.
        last: u32,
    },
}

impl FromStr for ShardRange {
    type Err = ShardRangeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = |text: &str| {
            let text = text.trim();
            let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            plain.then(|| text.parse().ok()).flatten().filter(|number| *number < SHARDS_MOST)
        };
        let (first, last) = text.split_once('-').ok_or(ShardRangeError::Form)?;
        let (Some(first), Some(last)) = (number(first), number(last)) else { return Err(ShardRangeError::Form) };
        if first <= last { Ok(Self { first, last }) } else { Err(ShardRangeError::Reversed { first, last }) }
    }
}

/// The most shards there may be.
const SHARDS_MOST: u32 = 16_000;

pub(super) fn typed(effective: &[Effective]) -> GatewaySettings {
    let narrow = "invariant: the schema's bounds fit the type";
    GatewaySettings {
        shards: take!(effective, "gateway.shards", Integer).try_into().expect(narrow),
        shard_range: take!(effective, "gateway.shard_range", ShardRange),
        threads: take!(effective, "gateway.threads", Integer).try_into().expect(narrow),
        max_concurrency: take!(effective, "gateway.max_concurrency", Integer).try_into().expect(narrow),
        identify_spacing: Duration::from_millis(take!(effective, "gateway.identify_spacing_ms", Integer)),
        identifies_a_day: take!(effective, "gateway.identifies_a_day", Integer).try_into().expect(narrow),
        intents: take!(effective, "gateway.intents", Intents),
        presence: presence(
            &take!(effective, "gateway.presence_status", Text),
            &take!(effective, "gateway.activity_type", Text),
            take!(effective, "gateway.activity_name", Text),
        ),
        buffer_events: take!(effective, "gateway.buffer_events", Integer).try_into().expect(narrow),
        buffer_bytes: take!(effective, "gateway.buffer_bytes", Integer).try_into().expect(narrow),
        reconnect_base: Duration::from_millis(take!(effective, "gateway.reconnect_base_ms", Integer)),
        reconnect_cap: Duration::from_millis(take!(effective, "gateway.reconnect_cap_ms", Integer)),
        hello_timeout: Duration::from_millis(take!(effective, "gateway.hello_timeout_ms", Integer)),
    }
}

fn presence(status: &str, kind: &str, name: String) -> UpdatePresencePayload {
    let status = match status {
        "idle" => Status::Idle,
        "dnd" => Status::DoNotDisturb,
        "invisible" => Status::Invisible,
        _ => Status::Online,
    };
    let kind = match kind {
        "listening" => ActivityType::Listening,
        "watching" => ActivityType::Watching,
        "competing" => ActivityType::Competing,
        "custom" => ActivityType::Custom,
        _ => ActivityType::Playing,
    };
    let activities = if name.is_empty() {
        Vec::new()
    } else {
        // Of a custom one people see the state; it has to have a name all the same.
        let state = (kind == ActivityType::Custom).then(|| name.clone());
        vec![Activity { state, ..Activity::from(MinimalActivity { kind, name, url: None }) }]
    };
    UpdatePresencePayload { activities, afk: false, since: None, status }
}

/// What settings of the gateway say together.
pub(super) fn check(effective: &[Effective]) -> Vec<SettingsProblem> {
    [range_without_shards(effective), base_past_cap(effective)].into_iter().flatten().collect()
}

/// Where a setting is wrong itself, that is already said.
fn found<'a>(effective: &'a [Effective], path: &str) -> Option<&'a Effective> {
    effective.iter().find(|setting| setting.key.path == path)
}

fn range_without_shards(effective: &[Effective]) -> Option<SettingsProblem> {
    let setting = found(effective, "gateway.shard_range")?;
    let Some(Value::ShardRange(Some(range))) = &setting.value else { return None };
    let Some(Value::Integer(shards)) = &found(effective, "gateway.shards")?.value else { return None };
    let says = if *shards == 0 {
        format!(
            "is {range}, a part of the shards, and nobody says how many there are in all; set gateway.shards to the same \
             number in every process"
        )
    } else if u64::from(range.last) >= *shards {
        format!(
            "is {range}, and with gateway.shards = {shards} the last one is {}; raise gateway.shards in every process, or \
             end the range earlier",
            shards - 1
        )
    } else {
        return None;
    };
    Some(SettingsProblem { key: setting.key.path.to_owned(), origin: Some(setting.origin.clone()), says })
}

fn base_past_cap(effective: &[Effective]) -> Option<SettingsProblem> {
    let (base, cap) = (found(effective, "gateway.reconnect_base_ms")?, found(effective, "gateway.reconnect_cap_ms")?);
    let (Some(Value::Integer(first)), Some(Value::Integer(most))) = (&base.value, &cap.value) else { return None };
    (first > most).then(|| SettingsProblem {
        key: base.key.path.to_owned(),
        origin: [base, cap]
            .into_iter()
            .map(|setting| &setting.origin)
            .find(|at| **at != SettingOrigin::Default)
            .cloned(),
        says: format!(
            "is {first}, which is more than gateway.reconnect_cap_ms ({most}), the longest wait; lower \
             gateway.reconnect_base_ms or raise gateway.reconnect_cap_ms"
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_two_numbers_in_order() {
        let range: ShardRange = "4-7".parse().unwrap();
        assert_eq!((range.numbers().collect::<Vec<_>>(), range.count()), (vec![4, 5, 6, 7], 4));
        assert_eq!(range.range(), 4..8);
        assert_eq!([3, 4, 7, 8].map(|shard| range.contains(shard)), [false, true, true, false]);
        assert_eq!((ShardRange::all(1).to_string(), ShardRange::all(3).to_string()), ("0-0".into(), "0-2".into()));
        for wrong in ["", "4", "-", "4-", "-4", "a-b", "1-2-3", "+1-2", "1-99999999999", "0-16000"] {
            assert_eq!(wrong.parse::<ShardRange>(), Err(ShardRangeError::Form), "{wrong}");
        }
        assert_eq!("7-4".parse::<ShardRange>(), Err(ShardRangeError::Reversed { first: 7, last: 4 }));
    }

    #[test]
    fn what_the_bot_is_shown_as_is_what_discord_takes() {
        let shown = serde_json::to_value(presence("dnd", "watching", "the gate".to_owned())).unwrap();
        assert_eq!((&shown["status"], &shown["afk"]), (&"dnd".into(), &false.into()));
        assert_eq!((&shown["activities"][0]["type"], &shown["activities"][0]["name"]), (&3.into(), &"the gate".into()));
        let custom = serde_json::to_value(presence("online", "custom", "hello".to_owned())).unwrap();
        assert_eq!((&custom["activities"][0]["type"], &custom["activities"][0]["state"]), (&4.into(), &"hello".into()));
        let nothing = serde_json::to_value(presence("online", "playing", String::new())).unwrap();
        assert_eq!(nothing["activities"], serde_json::json!([]));
    }
}
