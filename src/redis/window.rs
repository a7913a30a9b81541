//! The window that processes share in Redis: the arguments of `gate.lua`, and its replies.

use std::{sync::Arc, time::Duration, vec};

use ::redis::Value;
use guildhall_core::{
    limit::shared::{
        JoinRequest, MembershipState, ScriptCall, ScriptCommand, ScriptReply, SharedLimitConfig, Slot, SlotOutcome,
        SlotReport, SyncRequest,
    },
    response::Credential,
};

use super::{RedisCallError, RedisClient, RedisErrorReason, RedisKeys, Script, events::RedisCallRejected};
use crate::events::emit;

/// Text of the script.
pub const GATE: &str = include_str!("gate.lua");

/// Keys of the script, in its order.
const KEY_NAMES: [&str; 9] = ["state", "tokens", "holders", "seats", "live", "limits", "away", "queue", "due"];

/// The script computes with doubles. Longer durations are cut to this, which is 71 years, so that no sum there is
/// rounded.
const MAX_MICROS: u64 = 1 << 51;

/// Maximum length of an epoch's name.
const MAX_EPOCH_LEN: usize = 64;

/// The windows of an application's credentials. Cheap to clone.
#[derive(Clone, Debug)]
pub struct RedisWindow {
    redis: RedisClient,
    inner: Arc<WindowState>,
}

#[derive(Debug)]
struct WindowState {
    script: Script,
    keys: RedisKeys,
    rules: SharedLimitConfig,
    bot: WindowKeys,
    anonymous: WindowKeys,
}

impl RedisWindow {
    /// Creates the windows under these keys. All processes that use them should have the same rules.
    #[must_use]
    pub fn new(redis: RedisClient, keys: &RedisKeys, rules: SharedLimitConfig) -> Self {
        let inner = WindowState {
            script: Script::new("gate", GATE),
            keys: keys.clone(),
            rules,
            bot: WindowKeys::new(keys, WindowScope::Bot),
            anonymous: WindowKeys::new(keys, WindowScope::Anonymous),
        };
        Self { redis, inner: Arc::new(inner) }
    }

    /// Runs a call: one round trip.
    ///
    /// # Errors
    ///
    /// When there is no valid response in time. The call may have taken effect.
    pub async fn call(&self, credential: Credential, call: &ScriptCall) -> Result<ScriptReply, RedisCallError> {
        let WindowState { script, keys, rules, bot, anonymous } = &*self.inner;
        let of_token;
        let window_keys = match WindowScope::of(credential) {
            WindowScope::Bot => bot,
            WindowScope::Anonymous => anonymous,
            token @ WindowScope::Token(_) => {
                of_token = WindowKeys::new(keys, token);
                &of_token
            }
        };
        let response =
            self.redis.run(script, window_keys.keys(), |server| window_keys.arguments(call, rules, server)).await?;
        read_reply(response).map_err(|error| {
            let reason = RedisErrorReason::Error;
            emit(RedisCallRejected { script: script.name(), reason, message: &error.to_string() });
            RedisCallError { reason }
        })
    }
}

/// The calls that a window counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowScope {
    /// Calls with the bot's token.
    Bot,
    /// Calls without a token.
    Anonymous,
    /// Calls with the token of a caller that has this fingerprint.
    Token(u64),
}

impl WindowScope {
    /// The window for calls with this credential.
    #[must_use]
    pub const fn of(credential: Credential) -> Self {
        match credential {
            Credential::Application(_) => Self::Bot,
            Credential::Anonymous => Self::Anonymous,
            Credential::Token(fingerprint) => Self::Token(fingerprint),
        }
    }

    /// Its name in keys and messages.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            Self::Bot => "bot".to_owned(),
            Self::Anonymous => Credential::Anonymous.to_string(),
            Self::Token(fingerprint) => Credential::Token(fingerprint).to_string(),
        }
    }
}

/// The keys of a window, and the channel for pauses that Discord requires.
#[derive(Clone, Debug)]
pub struct WindowKeys {
    scope: WindowScope,
    keys: Vec<String>,
    channel: String,
}

impl WindowKeys {
    /// The keys of this window among those of an application.
    #[must_use]
    pub fn new(keys: &RedisKeys, scope: WindowScope) -> Self {
        let parts = KEY_NAMES.iter().map(|part| keys.of(&format!("{}:{part}", scope.name())));
        Self { scope, keys: parts.collect(), channel: keys.of("news") }
    }

    /// The script's keys.
    #[must_use]
    pub fn keys(&self) -> &[String] {
        &self.keys
    }

    /// The script's arguments for a call, on this server.
    #[must_use]
    pub fn arguments(&self, call: &ScriptCall, rules: &SharedLimitConfig, server: &str) -> Vec<Vec<u8>> {
        let mut arguments = WindowArguments::default();
        arguments.text(match &call.command {
            ScriptCommand::Probe => "probe",
            ScriptCommand::Join(_) => "join",
            ScriptCommand::Sync(_) => "sync",
            ScriptCommand::Leave(_) => "leave",
        });
        arguments.text(&call.member).text(format!("{:x}", call.incarnation)).number(call.not_after).text(server);
        arguments.text(&self.channel).text(self.scope.name()).rules(rules);
        match &call.command {
            ScriptCommand::Probe => {}
            ScriptCommand::Join(join) => arguments.join(join),
            ScriptCommand::Sync(sync) | ScriptCommand::Leave(sync) => arguments.sync(sync),
        }
        arguments.0
    }
}

#[derive(Default)]
struct WindowArguments(Vec<Vec<u8>>);

impl WindowArguments {
    fn text(&mut self, text: impl AsRef<str>) -> &mut Self {
        self.0.push(text.as_ref().into());
        self
    }

    fn number(&mut self, number: impl Into<u64>) -> &mut Self {
        self.text(number.into().to_string())
    }

    fn micros(&mut self, duration: Duration) -> &mut Self {
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        self.number(micros.min(MAX_MICROS))
    }

    /// A token or a booking: text that sorts like its number.
    fn numbered(&mut self, number: u64) -> &mut Self {
        self.text(format!("{number:016}"))
    }

    fn rules(&mut self, rules: &SharedLimitConfig) {
        self.number(rules.limit).micros(rules.window).micros(rules.silence).micros(rules.forget).micros(rules.newcomer);
        self.micros(rules.gather_time())
            .micros(rules.horizon)
            .micros(rules.grace)
            .micros(rules.guard)
            .micros(rules.hold());
        self.number(rules.burst).micros(rules.retry);
    }

    fn join(&mut self, join: &JoinRequest) {
        self.text(&join.epoch).text(&join.renew).number(join.held).number(join.uses_share);
        self.number(join.in_flight)
            .number(join.cooling)
            .number(join.unreported)
            .micros(join.ready_in)
            .micros(join.block);
        self.micros(join.global_block);
    }

    fn sync(&mut self, sync: &SyncRequest) {
        self.text(&sync.epoch)
            .number(sync.held)
            .number(sync.uses_share)
            .number(sync.requested_slots)
            .number(sync.urgent);
        self.micros(sync.block).text(sync.reports.len().to_string()).text(sync.dead.len().to_string());
        for SlotReport { token, booking, outcome: how } in &sync.reports {
            self.numbered(*token).numbered(*booking);
            match how {
                SlotOutcome::Answered(ago) => self.micros(*ago),
                SlotOutcome::Unused => self.text(""),
            };
        }
        for dead in &sync.dead {
            self.text(dead);
        }
    }
}

/// A reply that the script never gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unexpected response of the script; check that all processes run the same version")]
pub struct InvalidReply;

/// Parses a reply of the script.
///
/// # Errors
///
/// When it is malformed.
pub fn read_reply(response: Value) -> Result<ScriptReply, InvalidReply> {
    let Value::Array(parts) = response else { return Err(InvalidReply) };
    let mut parts = ReplyReader(parts.into_iter());
    let (kind, now) = (parts.text()?, parts.number()?);
    let reply = match kind.as_str() {
        "stale" => ScriptReply::Stale { now },
        "status" => ScriptReply::Status { now, epoch: parts.epoch_or_empty()? },
        "rejoin" => ScriptReply::Rejoin { now, replaced: parts.flag()? },
        "done" => ScriptReply::Done(parts.state(now)?),
        _ => return Err(InvalidReply),
    };
    if parts.0.len() == 0 { Ok(reply) } else { Err(InvalidReply) }
}

struct ReplyReader(vec::IntoIter<Value>);

impl ReplyReader {
    fn text(&mut self) -> Result<String, InvalidReply> {
        match self.0.next() {
            Some(Value::BulkString(bytes)) => String::from_utf8(bytes).map_err(|_| InvalidReply),
            Some(_) | None => Err(InvalidReply),
        }
    }

    fn integer(&mut self) -> Result<i64, InvalidReply> {
        match self.0.next() {
            Some(Value::Int(number)) => Ok(number),
            Some(_) | None => Err(InvalidReply),
        }
    }

    fn number(&mut self) -> Result<u64, InvalidReply> {
        u64::try_from(self.integer()?).map_err(|_| InvalidReply)
    }

    fn count(&mut self) -> Result<u32, InvalidReply> {
        u32::try_from(self.integer()?).map_err(|_| InvalidReply)
    }

    fn flag(&mut self) -> Result<bool, InvalidReply> {
        match self.integer()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(InvalidReply),
        }
    }

    fn micros(&mut self) -> Result<Duration, InvalidReply> {
        self.number().map(Duration::from_micros)
    }

    /// A token or a booking.
    fn numbered(&mut self) -> Result<u64, InvalidReply> {
        let text = self.text()?;
        if !text.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(InvalidReply);
        }
        text.parse().map_err(|_| InvalidReply)
    }

    /// The name of an epoch, which appears in logs and responses: alphanumeric and short.
    fn epoch_or_empty(&mut self) -> Result<String, InvalidReply> {
        let name = self.text()?;
        let is_plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        if is_plain && name.len() <= MAX_EPOCH_LEN { Ok(name) } else { Err(InvalidReply) }
    }

    fn state(&mut self, now: u64) -> Result<MembershipState, InvalidReply> {
        let epoch = self.epoch_or_empty()?;
        if epoch.is_empty() {
            return Err(InvalidReply);
        }
        Ok(MembershipState {
            now,
            epoch,
            share: self.count()?,
            members: self.count()?,
            live: self.count()?,
            pool: self.count()?,
            free: self.count()?,
            blocked: self.micros()?,
            global_block: self.micros()?,
            retry_after: match self.integer()? {
                -1 => None,
                wait => Some(Duration::from_micros(u64::try_from(wait).map_err(|_| InvalidReply)?)),
            },
            slots: self.slots()?,
        })
    }

    fn slots(&mut self) -> Result<Vec<Slot>, InvalidReply> {
        let mut slots = Vec::with_capacity(self.0.len() / 3);
        while self.0.len() > 0 {
            slots.push(Slot { token: self.numbered()?, booking: self.numbered()?, wait: self.micros()? });
        }
        Ok(slots)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    fn done() -> Vec<Value> {
        let numbers = [5, 3, 2, 40, 12, 7, 6, -1].map(Value::Int);
        let slot = [text("0000000000000001"), text("0000000000000052"), Value::Int(250)];
        [text("done"), Value::Int(9), text("8-ff")].into_iter().chain(numbers).chain(slot).collect()
    }

    #[test]
    fn every_kind_of_reply_is_parsed() {
        let read = |parts: Vec<Value>| read_reply(Value::Array(parts)).unwrap();
        assert_eq!(read(vec![text("stale"), Value::Int(9)]), ScriptReply::Stale { now: 9 });
        let status = ScriptReply::Status { now: 9, epoch: "8-ff".to_owned() };
        assert_eq!(read(vec![text("status"), Value::Int(9), text("8-ff")]), status);
        assert_eq!(
            read(vec![text("status"), Value::Int(9), text("")]),
            ScriptReply::Status { now: 9, epoch: String::new() }
        );
        let rejoin = ScriptReply::Rejoin { now: 9, replaced: true };
        assert_eq!(read(vec![text("rejoin"), Value::Int(9), Value::Int(1)]), rejoin);
        let state = MembershipState {
            now: 9,
            epoch: "8-ff".to_owned(),
            share: 5,
            members: 3,
            live: 2,
            pool: 40,
            free: 12,
            blocked: Duration::from_micros(7),
            global_block: Duration::from_micros(6),
            retry_after: None,
            slots: vec![Slot { token: 1, booking: 52, wait: Duration::from_micros(250) }],
        };
        assert_eq!(read(done()), ScriptReply::Done(state));
    }

    #[test]
    fn malformed_replies_are_rejected() {
        for (index, part) in done().iter().enumerate() {
            let mut missing = done();
            missing.remove(index);
            assert_eq!(read_reply(Value::Array(missing)), Err(InvalidReply), "without {index}");
            let invalid = match part {
                Value::Int(_) => [text("1"), Value::Int(-2), Value::Nil],
                _ => [Value::Int(1), text("no such\n"), Value::Nil],
            };
            for other in invalid {
                let mut changed = done();
                changed[index] = other.clone();
                assert_eq!(read_reply(Value::Array(changed)), Err(InvalidReply), "{other:?} at {index}");
            }
        }
        for other in [Value::Nil, Value::Okay, Value::Array(Vec::new()), Value::Array(vec![text("stale")])] {
            assert_eq!(read_reply(other.clone()), Err(InvalidReply), "{other:?}");
        }
        let too_long = vec![text("stale"), Value::Int(1), Value::Int(1)];
        assert_eq!(read_reply(Value::Array(too_long)), Err(InvalidReply));
        let long_name = vec![text("status"), Value::Int(1), text(&"a".repeat(MAX_EPOCH_LEN + 1))];
        assert_eq!(read_reply(Value::Array(long_name)), Err(InvalidReply));
        let nameless = vec![text("done"), Value::Int(9), text("")];
        assert_eq!(read_reply(Value::Array(nameless)), Err(InvalidReply));
    }

    #[test]
    fn long_durations_are_capped_for_the_script() {
        let mut arguments = WindowArguments::default();
        arguments.micros(Duration::MAX).micros(Duration::from_micros(1));
        assert_eq!(arguments.0, [MAX_MICROS.to_string().into_bytes(), b"1".to_vec()]);
    }
}
