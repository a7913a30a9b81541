//! Typed settings of the shared Redis, and the constraints between them.

use std::{path::PathBuf, time::Duration};

use guildhall_core::limit::shared::LimitFallback;

use super::{
    error::SettingsProblem, of, redis_url::RedisUrl, resolve::Effective, source::SettingOrigin, take, value::Value,
};

/// Maximum delay of a process that shares its limit, in addition to the configured times.
const SLACK: Duration = Duration::from_secs(30);

/// The Redis that the processes of one bot share.
#[derive(Clone, Debug)]
pub struct RedisSettings {
    /// URL of Redis; `None` means that this process works alone.
    pub url: Option<RedisUrl>,
    /// PEM file of the certificate authorities that are trusted for the server; `None` means the public ones.
    pub ca_file: Option<PathBuf>,
    /// How long a call may take in total.
    pub timeout: Duration,
    /// What happens while Redis is unreachable.
    pub on_loss: LimitFallback,
    /// Interval of heartbeats; less than half of `silence`.
    pub heartbeat: Duration,
    /// A process without a heartbeat for this long is detached.
    pub silence: Duration,
    /// How long after it was detached a process's share returns to the others.
    pub forget: Duration,
    /// How long a process without Redis uses its share.
    pub share_for: Duration,
    /// How long an empty Redis waits for processes that knew each other.
    pub newcomer: Duration,
    /// How far ahead calls are booked; less than a second.
    pub horizon: Duration,
    /// How long a call of a dead process may still be in flight to Discord.
    pub guard: Duration,
    /// Folder of the lock files of the processes on one machine; `None` means a folder in the system's temporary
    /// folder.
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

/// Checks constraints between settings that are each valid.
pub(super) fn check(effective: &[Effective]) -> Vec<SettingsProblem> {
    let checks = [check_heartbeat, check_share_return, check_newcomer_delay];
    checks.into_iter().filter_map(|check| check(effective)).collect()
}

/// If one heartbeat is lost, the next one must still arrive in time.
fn check_heartbeat(effective: &[Effective]) -> Option<SettingsProblem> {
    let heartbeat = Number::find(effective, "redis.heartbeat_ms")?;
    let silence = Number::find(effective, "redis.silence_ms")?;
    if heartbeat.value.saturating_mul(2) < silence.value {
        return None;
    }
    let message = format!(
        "is {}, which is not less than half of redis.silence_ms ({}): a single lost heartbeat would detach a process; \
         lower redis.heartbeat_ms or raise redis.silence_ms",
        heartbeat.value, silence.value
    );
    problem(message, &[&heartbeat, &silence])
}

/// A share must not return to the others while its process may still use it.
fn check_share_return(effective: &[Effective]) -> Option<SettingsProblem> {
    let forget = Number::find(effective, "redis.forget_ms")?;
    let share_for = Number::find(effective, "redis.share_for_ms")?;
    let silence = Number::find(effective, "redis.silence_ms")?;
    let slack = u64::try_from(SLACK.as_millis()).unwrap_or(u64::MAX);
    let used = share_for.value.saturating_add(silence.value).saturating_add(slack);
    if used < forget.value {
        return None;
    }
    let message = format!(
        "is {}, which is not more than redis.share_for_ms ({}), redis.silence_ms ({}) and {} s together: a share would \
         return to the others while a process without Redis still uses it; raise redis.forget_ms or lower \
         redis.share_for_ms",
        forget.value,
        share_for.value,
        silence.value,
        SLACK.as_secs()
    );
    problem(message, &[&forget, &share_for, &silence])
}

/// Existing processes must have had the time to send a heartbeat.
fn check_newcomer_delay(effective: &[Effective]) -> Option<SettingsProblem> {
    let newcomer = Number::find(effective, "redis.newcomer_ms")?;
    let heartbeat = Number::find(effective, "redis.heartbeat_ms")?;
    let timeout = Number::find(effective, "redis.timeout_ms")?;
    if newcomer.value > heartbeat.value.saturating_add(timeout.value) {
        return None;
    }
    let message = format!(
        "is {}, which is not more than redis.heartbeat_ms ({}) and redis.timeout_ms ({}) together: new processes could \
         take the whole limit before existing ones send a heartbeat; raise redis.newcomer_ms",
        newcomer.value, heartbeat.value, timeout.value
    );
    problem(message, &[&newcomer, &heartbeat, &timeout])
}

struct Number<'a> {
    path: &'static str,
    value: u64,
    origin: &'a SettingOrigin,
}

impl<'a> Number<'a> {
    /// Returns `None` if the setting itself is invalid, which is reported elsewhere.
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

/// Reports the problem for the first of the settings, with the origin of the first one that is not a default.
fn problem(message: String, settings: &[&Number<'_>]) -> Option<SettingsProblem> {
    let set = settings.iter().find(|setting| *setting.origin != SettingOrigin::Default);
    let origin = set.map(|setting| setting.origin.clone());
    settings.first().map(|first| SettingsProblem { key: first.path.to_owned(), origin, message })
}
