//! Typed settings of the gateway.

use std::{fmt, ops::Range, str::FromStr, time::Duration};

use twilight_model::gateway::{
    Intents,
    payload::outgoing::update_presence::UpdatePresencePayload,
    presence::{Activity, ActivityType, MinimalActivity, Status},
};

use super::{error::SettingsProblem, of, resolve::Effective, source::SettingOrigin, take, value::Value};

/// Settings of the gateway.
#[derive(Clone, Debug)]
pub struct GatewaySettings {
    /// Total number of shards; 0 uses Discord's recommendation.
    pub shards: u32,
    /// Shards that this process runs; `None` means all of them.
    pub shard_range: Option<ShardRange>,
    /// Number of threads that run shards.
    pub threads: usize,
    /// How many shards may identify within 5 seconds; 0 means no limit.
    pub max_concurrency: u16,
    /// Minimum time between two identifies with the same rate limit key.
    pub identify_spacing: Duration,
    /// How many sessions may be started within a day, if Discord's value is not used.
    pub identifies_a_day: u32,
    /// Which events Discord sends.
    pub intents: Intents,
    /// Status and activity of the bot.
    pub presence: UpdatePresencePayload,
    /// Maximum number of buffered events of a shard.
    pub buffer_events: usize,
    /// Maximum number of buffered bytes of a shard.
    pub buffer_bytes: usize,
    /// Maximum delay before the first reconnect.
    pub reconnect_base: Duration,
    /// Upper limit of the reconnect delay.
    pub reconnect_cap: Duration,
    /// How long a connection may take until its hello arrives.
    pub hello_timeout: Duration,
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
        // Clients display the state of a custom activity; it needs a name nevertheless.
        let state = (kind == ActivityType::Custom).then(|| name.clone());
        vec![Activity { state, ..Activity::from(MinimalActivity { kind, name, url: None }) }]
    };
    UpdatePresencePayload { activities, afk: false, since: None, status }
}

/// Checks constraints between settings of the gateway.
pub(super) fn check(effective: &[Effective]) -> Vec<SettingsProblem> {
    [check_shard_range(effective), check_reconnect_delays(effective)].into_iter().flatten().collect()
}

/// Finds a setting. It is missing if it is invalid, which is reported elsewhere.
fn find<'a>(effective: &'a [Effective], path: &str) -> Option<&'a Effective> {
    effective.iter().find(|setting| setting.key.path == path)
}

fn check_shard_range(effective: &[Effective]) -> Option<SettingsProblem> {
    let setting = find(effective, "gateway.shard_range")?;
    let Some(Value::ShardRange(Some(range))) = &setting.value else { return None };
    let Some(Value::Integer(shards)) = &find(effective, "gateway.shards")?.value else { return None };
    let message = if *shards == 0 {
        format!(
            "is {range}, a part of the shards, but the total number is not set; set gateway.shards to the same number \
             in every process"
        )
    } else if u64::from(range.last) >= *shards {
        format!(
            "is {range}, but with gateway.shards = {shards} the last shard is {}; raise gateway.shards in every \
             process, or end the range earlier",
            shards - 1
        )
    } else {
        return None;
    };
    Some(SettingsProblem { key: setting.key.path.to_owned(), origin: Some(setting.origin.clone()), message })
}

fn check_reconnect_delays(effective: &[Effective]) -> Option<SettingsProblem> {
    let (base, cap) = (find(effective, "gateway.reconnect_base_ms")?, find(effective, "gateway.reconnect_cap_ms")?);
    let (Some(Value::Integer(first)), Some(Value::Integer(max_ms))) = (&base.value, &cap.value) else { return None };
    (first > max_ms).then(|| SettingsProblem {
        key: base.key.path.to_owned(),
        origin: [base, cap]
            .into_iter()
            .map(|setting| &setting.origin)
            .find(|at| **at != SettingOrigin::Default)
            .cloned(),
        message: format!(
            "is {first}, which is more than gateway.reconnect_cap_ms ({max_ms}), the maximum delay; lower \
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
        let json = serde_json::to_value(presence("dnd", "watching", "the gate".to_owned())).unwrap();
        assert_eq!((&json["status"], &json["afk"]), (&"dnd".into(), &false.into()));
        assert_eq!((&json["activities"][0]["type"], &json["activities"][0]["name"]), (&3.into(), &"the gate".into()));
        let custom = serde_json::to_value(presence("online", "custom", "hello".to_owned())).unwrap();
        assert_eq!((&custom["activities"][0]["type"], &custom["activities"][0]["state"]), (&4.into(), &"hello".into()));
        let nothing = serde_json::to_value(presence("online", "playing", String::new())).unwrap();
        assert_eq!(nothing["activities"], serde_json::json!([]));
    }
}
