//! How processes that share one bot meet: the typed settings, and what has to hold between them.

use std::{path::PathBuf, time::Duration};

use guildhall_core::limit::shared::LimitFallback;

use super::{
    error::SettingsProblem, of, redis_url::RedisUrl, resolve::Effective, source::SettingOrigin, take, value::Value,
};

/// What a process that shares its limit may still be late by, beside what is set.
const SLACK: Duration = Duration::from_secs(30);

/// How processes that share one bot meet.
#[derive(Clone, Debug)]
pub struct RedisSettings {
    /// Where; `None` means that this process is alone.
    pub url: Option<RedisUrl>,
    /// The authorities that the server's certificate has to come from; `None` means the public ones.
    pub ca_file: Option<PathBuf>,
    /// How long a call may take as a whole.
    pub timeout: Duration,
    /// What happens while Redis cannot be reached.
    pub on_loss: LimitFallback,
    /// How often a process says that it is there; less than half of `silence`.
    pub heartbeat: Duration,
    /// A process silent for so long is detached.
    pub silence: Duration,
    /// So long after it was detached, a process's share comes back to the others.
    pub forget: Duration,
    /// How long a process without Redis uses its share.
    pub share_for: Duration,
    /// How long an empty Redis waits for processes that knew each other.
    pub newcomer: Duration,
    /// How far ahead calls are booked; less than a second.
    pub horizon: Duration,
    /// How long a call of a process that is gone may still be on its way to Discord.
    pub guard: Duration,
    /// Where the processes of one machine keep their seats; `None` means a folder under the system's temporary folder.
    pub seat_dir: Option<PathBuf>,
}

pub(super) fn typed(effective: &[Effective]) -> RedisSettings {
    RedisSettings {
        url: match &of(effective, "redis.url").value {
            Some(Value::RedisUrl(url)) => Some(url.clone()),
            _ => None,
        },
        ca_file: take!(effective, "redis.ca_file", Path),
        timeout: Duration::from_millis(take!(effective, "redis.timeout_ms", Integer)),
        on_loss: match take!(effective, "redis.on_loss", Text).as_str() {
            "closed" => LimitFallback::Closed,
            "open" => LimitFallback::Open,
            _ => LimitFallback::Share,
        },
        heartbeat: Duration::from_millis(take!(effective, "redis.heartbeat_ms", Integer)),
        silence: Duration::from_millis(take!(effective, "redis.silence_ms", Integer)),
        forget: Duration::from_millis(take!(effective, "redis.forget_ms", Integer)),
        share_for: Duration::from_millis(take!(effective, "redis.share_for_ms", Integer)),
        newcomer: Duration::from_millis(take!(effective, "redis.newcomer_ms", Integer)),
        horizon: Duration::from_millis(take!(effective, "redis.horizon_ms", Integer)),
        guard: Duration::from_millis(take!(effective, "redis.guard_ms", Integer)),
        seat_dir: take!(effective, "redis.seat_dir", Path),
    }
}

/// What is wrong between settings that are each right.
pub(super) fn check(effective: &[Effective]) -> Vec<SettingsProblem> {
    let checks = [heartbeats_in_silence, shares_returned_early, newcomers_before_members];
    checks.into_iter().filter_map(|check| check(effective)).collect()
}

/// With one heartbeat lost, the next one still has to come in time.
fn heartbeats_in_silence(effective: &[Effective]) -> Option<SettingsProblem> {
    let heartbeat = Number::find(effective, "redis.heartbeat_ms")?;
    let silence = Number::find(effective, "redis.silence_ms")?;
    if heartbeat.value.saturating_mul(2) < silence.value {
        return None;
    }
    let says = format!(
        "is {}, which is not less than half of redis.silence_ms ({}): a single lost heartbeat would detach a process; \
         lower redis.heartbeat_ms or raise redis.silence_ms",
        heartbeat.value, silence.value
    );
    problem(says, &[&heartbeat, &silence])
}

/// A share must not be back with the others while its process may still use it.
fn shares_returned_early(effective: &[Effective]) -> Option<SettingsProblem> {
    let forget = Number::find(effective, "redis.forget_ms")?;
    let share_for = Number::find(effective, "redis.share_for_ms")?;
    let silence = Number::find(effective, "redis.silence_ms")?;
    let slack = u64::try_from(SLACK.as_millis()).unwrap_or(u64::MAX);
    let used = share_for.value.saturating_add(silence.value).saturating_add(slack);
    if used < forget.value {
        return None;
    }
    let says = format!(
        "is {}, which is not more than redis.share_for_ms ({}), redis.silence_ms ({}) and {} s together: a share would \
         return to the others while a process without Redis still uses it; raise redis.forget_ms or lower \
         redis.share_for_ms",
        forget.value,
        share_for.value,
        silence.value,
        SLACK.as_secs()
    );
    problem(says, &[&forget, &share_for, &silence])
}

/// Whoever was there before must have had the time to say so.
fn newcomers_before_members(effective: &[Effective]) -> Option<SettingsProblem> {
    let newcomer = Number::find(effective, "redis.newcomer_ms")?;
    let heartbeat = Number::find(effective, "redis.heartbeat_ms")?;
    let timeout = Number::find(effective, "redis.timeout_ms")?;
    if newcomer.value > heartbeat.value.saturating_add(timeout.value) {
        return None;
    }
    let says = format!(
        "is {}, which is not more than redis.heartbeat_ms ({}) and redis.timeout_ms ({}) together: newcomers could take \
         everything before those who were there say so; raise redis.newcomer_ms",
        newcomer.value, heartbeat.value, timeout.value
    );
    problem(says, &[&newcomer, &heartbeat, &timeout])
}

struct Number<'a> {
    path: &'static str,
    value: u64,
    origin: &'a SettingOrigin,
}

impl<'a> Number<'a> {
    /// `None` where the setting is wrong itself: that is already said.
    fn find(effective: &'a [Effective], path: &str) -> Option<Self> {
        let setting = effective.iter().find(|setting| setting.key.path == path)?;
        match &setting.value {
            Some(Value::Integer(value)) => {
                Some(Self { path: setting.key.path, value: *value, origin: &setting.origin })
            }
            _ => None,
        }
    }
}

/// Lays the problem to the first of the settings, at the place of the first that somebody has set.
fn problem(says: String, settings: &[&Number<'_>]) -> Option<SettingsProblem> {
    let set = settings.iter().find(|setting| *setting.origin != SettingOrigin::Default);
    let origin = set.map(|setting| setting.origin.clone());
    settings.first().map(|first| SettingsProblem { key: first.path.to_owned(), origin, says })
}
