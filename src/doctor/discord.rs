//! Calls Discord a few times, one call at a time, and makes no more calls after a failure that concerns all of them.

use std::time::{Duration, SystemTime};

use guildhall_actors::{
    gate::{CallOutcome, NotSent, RestRequest},
    lease_guard::LeaseGuard,
    wall_clock::unix_now,
};
use guildhall_core::{
    lane::Lane,
    response::{Credential, ResponseClass},
};
use http::{HeaderMap, Method, header};
use serde_json::Value;
use tokio::time::{Instant, sleep_until};

use super::{DoctorOptions, Finding};
use crate::daemon::command_gate::{CommandGate, CommandGateError};
use crate::daemon::discovery::DiscoveryError;
use crate::discord::rest::{HyperTransport, TransportConfig};
use crate::settings::{BotTokenError, SecretValue, Settings};

/// Maximum duration of one call.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Minimum time between two calls. A daemon may use the same limits at the same time.
const CALL_INTERVAL: Duration = Duration::from_millis(200);

/// A longer rate limit is not waited for.
const MAX_LIMIT_WAIT: Duration = Duration::from_secs(5);

/// Calls Discord as the bot.
pub(crate) struct DiscordCaller {
    gate: Option<CommandGate>,
    next: Instant,
    /// Why no more calls are made.
    stopped: Option<String>,
    date: Option<DateSample>,
}

/// The time of a response by Discord's clock, and the times by our clock between which it was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DateSample {
    pub(crate) discord_time: SystemTime,
    pub(crate) sent_at: SystemTime,
    pub(crate) received_at: SystemTime,
}

/// Why a call returned no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CallFailure {
    /// No more calls are made, for this reason.
    Stopped(String),
    /// The gate did not send the call.
    NotSent(String),
    /// Discord is unavailable.
    Unreachable(String),
    /// Discord refused the token.
    Unauthorized,
    /// Discord rate limited the call.
    Limited(Option<Duration>),
    /// Discord rejected the call.
    Refused { status: u16, code: Option<u32>, message: String },
}

impl CallFailure {
    /// What failed, and why.
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Stopped(reason) => format!("Discord was not called: {reason}"),
            Self::NotSent(reason) => format!("the gate did not send the call: {reason}"),
            Self::Unreachable(reason) => format!("Discord is unavailable: {reason}"),
            Self::Unauthorized => "Discord refused the token (401)".to_owned(),
            Self::Limited(_) => "Discord rate limited the call (429)".to_owned(),
            Self::Refused { status, code, message } => {
                let code = code.map_or_else(String::new, |code| format!(", code {code}"));
                format!("Discord returned {status}{code}: {message}")
            }
        }
    }

    /// What to do about it.
    pub(crate) fn advice(&self) -> String {
        match self {
            Self::Stopped(_) => "fix the failures above first".to_owned(),
            Self::NotSent(_) => {
                "run `guildhall limits` and `guildhall breakers` to see what is closed, and until when".to_owned()
            }
            Self::Unreachable(_) => {
                "check that this machine can reach discord.api_url: network, DNS, proxies and firewalls".to_owned()
            }
            Self::Unauthorized => DiscoveryError::Unauthorized.to_string(),
            Self::Limited(Some(wait)) => format!("try again in {} s", wait.as_secs() + 1),
            Self::Limited(None) => {
                "try again in an hour; a program that uses this IP address calls Discord too often".to_owned()
            }
            Self::Refused { .. } => {
                "check discord.api_url, and that the token belongs to the right application".to_owned()
            }
        }
    }

    /// Why no more calls should be made after this failure.
    fn stop_reason(&self) -> Option<String> {
        match self {
            Self::NotSent(_) => Some("the gate did not send an earlier call".to_owned()),
            Self::Unreachable(_) => Some("Discord was unavailable in an earlier call".to_owned()),
            Self::Unauthorized => Some("Discord refused the token".to_owned()),
            Self::Limited(_) => Some("Discord rate limited an earlier call".to_owned()),
            Self::Stopped(_) | Self::Refused { .. } => None,
        }
    }
}

impl DiscordCaller {
    /// A caller that has made no call yet. Chooses the gate to call through.
    pub(crate) async fn new(options: &DoctorOptions<'_>, report: &mut impl FnMut(Finding)) -> Self {
        const CHECK: &str = "gate";
        let mut caller = Self { gate: None, next: Instant::now(), stopped: None, date: None };
        let mut settings = options.settings.clone();
        let token = match settings.discord.bot_token() {
            Ok(token) => token,
            Err(BotTokenError::Missing) => {
                caller.stopped = Some("discord.token is not set".to_owned());
                return caller;
            }
            Err(BotTokenError::OfSimulator { .. }) => {
                caller.stopped = Some("discord.token is a simulator's, and is not sent to Discord".to_owned());
                return caller;
            }
        };
        settings.rest.connect_timeout = settings.rest.connect_timeout.min(CALL_TIMEOUT);
        settings.rest.request_timeout = settings.rest.request_timeout.min(CALL_TIMEOUT);
        match CommandGate::find(&settings, &token, &options.daemon).await {
            Ok(gate) => {
                report(Finding::ok(CHECK, gate.describe()));
                if gate.is_daemon() {
                    caller.date = read_discord_clock(&settings, token).await;
                }
                caller.gate = Some(gate);
            }
            Err(CommandGateError::DaemonRunning { reason, .. }) => {
                caller.stopped = Some("a daemon is running, and does not accept calls from this command".to_owned());
                report(Finding::skip(
                    CHECK,
                    format!("a daemon is running, so Discord is not called directly: {reason}"),
                ));
            }
            Err(error @ (CommandGateError::Rest(_) | CommandGateError::Store(_))) => {
                caller.stopped = Some(error.to_string());
            }
        }
        caller
    }

    /// Leaves the group of processes that share the limits.
    pub(crate) async fn leave(&self) {
        if let Some(gate) = &self.gate {
            gate.leave().await;
        }
    }

    /// The clocks at the first response that had a date.
    pub(crate) const fn date(&self) -> Option<DateSample> {
        self.date
    }

    /// Why no more calls are made.
    pub(crate) fn stopped(&self) -> Option<&str> {
        self.stopped.as_deref()
    }

    /// Gets a path. Waits once for a short rate limit, which two runs in a row can meet.
    pub(crate) async fn get(&mut self, path: &str) -> Result<Value, CallFailure> {
        let mut result = self.call(path).await;
        if let Err(CallFailure::Limited(Some(wait))) = &result
            && *wait <= MAX_LIMIT_WAIT
        {
            self.next = Instant::now() + *wait + CALL_INTERVAL;
            result = self.call(path).await;
        }
        if let Err(failure) = &result
            && self.stopped.is_none()
        {
            self.stopped = failure.stop_reason();
        }
        result
    }

    async fn call(&mut self, path: &str) -> Result<Value, CallFailure> {
        if let Some(reason) = &self.stopped {
            return Err(CallFailure::Stopped(reason.clone()));
        }
        let Some(gate) = &self.gate else { return Err(CallFailure::Stopped("no gate is available".to_owned())) };
        sleep_until(self.next).await;
        let sent_at = SentAt(system_time());
        let mut request = RestRequest::new(Method::GET, path, gate.credential(), LeaseGuard::always());
        request.lane = Lane::Interactive;
        request.max_wait = CALL_TIMEOUT;
        let outcome = gate.call(request).await;
        self.next = Instant::now() + CALL_INTERVAL;
        if let CallOutcome::Answered(response) = &outcome {
            self.date = self.date.or(sent_at.date_sample(&response.headers));
        }
        parse_outcome(outcome)
    }
}

/// When a request was sent.
struct SentAt(SystemTime);

/// The clock that is compared with Discord's.
fn system_time() -> SystemTime {
    SystemTime::UNIX_EPOCH + unix_now()
}

impl SentAt {
    fn date_sample(&self, headers: &HeaderMap) -> Option<DateSample> {
        let discord_time = headers.get(header::DATE).and_then(|date| date.to_str().ok());
        let discord_time = discord_time.and_then(|date| httpdate::parse_http_date(date).ok())?;
        Some(DateSample { discord_time, sent_at: self.0, received_at: system_time() })
    }
}

/// Reads Discord's clock with one call without the token, which counts towards no bot's limit: a daemon does not pass
/// on headers.
async fn read_discord_clock(settings: &Settings, token: SecretValue) -> Option<DateSample> {
    let transport = HyperTransport::new(TransportConfig::new(settings, token)).ok()?;
    let sent_at = SentAt(system_time());
    let received = transport
        .exchange(RestRequest::new(Method::GET, "/gateway", Credential::Anonymous, LeaseGuard::always()))
        .await
        .ok()?;
    sent_at.date_sample(&received.headers)
}

fn parse_outcome(outcome: CallOutcome) -> Result<Value, CallFailure> {
    let response = match outcome {
        CallOutcome::Answered(response) => response,
        CallOutcome::NotSent(NotSent { reason: "unreachable", message, .. }) => {
            return Err(CallFailure::Unreachable(message));
        }
        CallOutcome::NotSent(not_sent) => return Err(CallFailure::NotSent(not_sent.message)),
        CallOutcome::Unknown(unknown) => return Err(CallFailure::Unreachable(unknown.to_string())),
    };
    let body = serde_json::from_slice::<Value>(&response.body);
    let refused = |message: &str| CallFailure::Refused {
        status: response.status.as_u16(),
        code: response.code,
        message: crate::terminal_text::escape_controls(message).into_owned(),
    };
    match response.class {
        ResponseClass::Success => body.map_err(|_| refused("the response is not JSON")),
        ResponseClass::Unauthorized => Err(CallFailure::Unauthorized),
        ResponseClass::RateLimited { retry_after, .. } => Err(CallFailure::Limited(Some(retry_after))),
        ResponseClass::Blocked { retry_after } => Err(CallFailure::Limited(retry_after)),
        ResponseClass::ServerError => {
            Err(CallFailure::Unreachable(format!("it returned {}", response.status.as_u16())))
        }
        ResponseClass::InteractionEnded
        | ResponseClass::Forbidden
        | ResponseClass::NotFound
        | ResponseClass::WebhookGone
        | ResponseClass::Rejected => {
            Err(refused(body.as_ref().ok().and_then(|body| body["message"].as_str()).unwrap_or("no message")))
        }
    }
}
