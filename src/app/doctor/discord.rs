//! A few calls to Discord, one at a time, and none after the first that says to stop.

use std::time::{Duration, SystemTime};

use guildhall_actors::gate::{CallOutcome, NotSent, RestRequest};
use guildhall_core::{
    lane::Lane,
    response::{Credential, ResponseClass},
};
use http::{HeaderMap, Method, header};
use serde_json::Value;
use tokio::time::{Instant, sleep_until};

use super::{DoctorOptions, Finding};
use crate::{
    app::{
        DiscoveryError,
        command_gate::{CommandGate, CommandGateError},
    },
    discord::rest::{HyperTransport, TransportConfig},
    settings::{SecretValue, Settings},
};

/// The longest that one call may take.
const WITHIN: Duration = Duration::from_secs(10);
/// The shortest time between two calls. A daemon may use the same limits meanwhile.
const PAUSE: Duration = Duration::from_millis(200);

/// The longest limit that is waited for.
const LIMIT_WAIT: Duration = Duration::from_secs(5);

/// Calls Discord as the bot.
pub(super) struct DiscordCaller {
    gate: Option<CommandGate>,
    next: Instant,
    /// Why nothing more is asked.
    stopped: Option<String>,
    date: Option<DateSample>,
}

/// When an answer was made by Discord's clock, and between which times by ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DateSample {
    pub(super) theirs: SystemTime,
    pub(super) asked: SystemTime,
    pub(super) answered: SystemTime,
}

/// Why there is no answer of use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CallFailure {
    /// Discord is not asked any more, and why.
    Stopped(String),
    /// The gate does not let the call out.
    Held(String),
    /// It is not reached.
    Unreachable(String),
    /// It does not know the token.
    Unauthorized,
    /// It wants to be left alone.
    Limited(Option<Duration>),
    /// It says no.
    Refused { status: u16, code: Option<u32>, says: String },
}

impl CallFailure {
    /// What was seen.
    pub(super) fn seen(&self) -> String {
        match self {
            Self::Stopped(why) => format!("Discord was not asked: {why}"),
            Self::Held(why) => format!("the gate held the call back: {why}"),
            Self::Unreachable(why) => format!("Discord does not answer: {why}"),
            Self::Unauthorized => "Discord refused the token (401)".to_owned(),
            Self::Limited(_) => "Discord asks to be left alone (429)".to_owned(),
            Self::Refused { status, code, says } => {
                let code = code.map_or_else(String::new, |code| format!(", code {code}"));
                format!("Discord answered {status}{code}: {says}")
            }
        }
    }

    /// What to do about it.
    pub(super) fn advice(&self) -> String {
        match self {
            Self::Stopped(_) => "see to what stands above first".to_owned(),
            Self::Held(_) => {
                "`guildhall limits` and `guildhall breakers` show what is closed, and until when".to_owned()
            }
            Self::Unreachable(_) => {
                "see that this machine reaches discord.api_url: its network, its name server, what stands between"
                    .to_owned()
            }
            Self::Unauthorized => DiscoveryError::Unauthorized.to_string(),
            Self::Limited(Some(wait)) => format!("try again in {} s", wait.as_secs() + 1),
            Self::Limited(None) => {
                "try again in an hour; something behind this address calls Discord too often".to_owned()
            }
            Self::Refused { .. } => "check discord.api_url, and that the token is the right application's".to_owned(),
        }
    }

    /// Why nothing more should be asked after it.
    fn stops(&self) -> Option<String> {
        match self {
            Self::Held(_) => Some("the gate held a call back".to_owned()),
            Self::Unreachable(_) => Some("it did not answer before".to_owned()),
            Self::Unauthorized => Some("it refused the token".to_owned()),
            Self::Limited(_) => Some("it asked to be left alone".to_owned()),
            Self::Stopped(_) | Self::Refused { .. } => None,
        }
    }
}

impl DiscordCaller {
    /// One that has called nobody yet, and the gate that it calls through.
    pub(super) async fn new(examination: &DoctorOptions<'_>, tell: &mut impl FnMut(Finding)) -> Self {
        const CHECK: &str = "gate";
        let mut caller = Self { gate: None, next: Instant::now(), stopped: None, date: None };
        let mut settings = examination.settings.clone();
        let Some(token) = settings.discord.token.clone() else {
            caller.stopped = Some("there is no token".to_owned());
            return caller;
        };
        settings.rest.connect_timeout = settings.rest.connect_timeout.min(WITHIN);
        settings.rest.request_timeout = settings.rest.request_timeout.min(WITHIN);
        match CommandGate::find(&settings, &token, &examination.daemon).await {
            Ok(gate) => {
                tell(Finding::ok(CHECK, gate.describe()));
                if gate.is_daemon() {
                    caller.date = clock_of(&settings, token).await;
                }
                caller.gate = Some(gate);
            }
            Err(CommandGateError::DaemonRuns { why, .. }) => {
                caller.stopped = Some("a daemon runs, and does not ask for this command".to_owned());
                tell(Finding::skip(CHECK, format!("a daemon runs, and Discord is not asked beside it: {why}")));
            }
            Err(error @ (CommandGateError::Rest(_) | CommandGateError::Store(_))) => {
                caller.stopped = Some(error.to_string());
            }
        }
        caller
    }

    /// Says goodbye to the processes that share the limits.
    pub(super) async fn leave(&self) {
        if let Some(gate) = &self.gate {
            gate.leave().await;
        }
    }

    /// What the clocks showed at the first answer that had a date.
    pub(super) const fn date(&self) -> Option<DateSample> {
        self.date
    }

    /// Why nothing more is asked.
    pub(super) fn stopped(&self) -> Option<&str> {
        self.stopped.as_deref()
    }

    /// What is at a path. A short limit, as whoever looks twice in a row meets it, is waited for once.
    pub(super) async fn get(&mut self, path: &str) -> Result<Value, CallFailure> {
        let mut read = self.ask(path).await;
        if let Err(CallFailure::Limited(Some(wait))) = &read
            && *wait <= LIMIT_WAIT
        {
            self.next = Instant::now() + *wait + PAUSE;
            read = self.ask(path).await;
        }
        if let Err(trouble) = &read
            && self.stopped.is_none()
        {
            self.stopped = trouble.stops();
        }
        read
    }

    async fn ask(&mut self, path: &str) -> Result<Value, CallFailure> {
        if let Some(why) = &self.stopped {
            return Err(CallFailure::Stopped(why.clone()));
        }
        let Some(gate) = &self.gate else { return Err(CallFailure::Stopped("there is no way to it".to_owned())) };
        sleep_until(self.next).await;
        let asked = SentAt(SystemTime::now());
        let mut request = RestRequest::new(Method::GET, path, gate.credential());
        request.lane = Lane::Interactive;
        request.max_wait = WITHIN;
        let outcome = gate.call(request).await;
        self.next = Instant::now() + PAUSE;
        if let CallOutcome::Answered(answered) = &outcome {
            self.date = self.date.or(asked.dated(&answered.headers));
        }
        read(outcome)
    }
}

/// When something was asked.
struct SentAt(SystemTime);

impl SentAt {
    fn dated(&self, headers: &HeaderMap) -> Option<DateSample> {
        let theirs = headers.get(header::DATE).and_then(|date| date.to_str().ok());
        let theirs = theirs.and_then(|date| httpdate::parse_http_date(date).ok())?;
        Some(DateSample { theirs, asked: self.0, answered: SystemTime::now() })
    }
}

/// What Discord's clock shows. One call without the token, which is part of no bot's limit: a daemon passes on no headers.
async fn clock_of(settings: &Settings, token: SecretValue) -> Option<DateSample> {
    let transport = HyperTransport::new(TransportConfig::new(settings, token)).ok()?;
    let asked = SentAt(SystemTime::now());
    let received = transport.exchange(RestRequest::new(Method::GET, "/gateway", Credential::Anonymous)).await.ok()?;
    asked.dated(&received.headers)
}

fn read(outcome: CallOutcome) -> Result<Value, CallFailure> {
    let received = match outcome {
        CallOutcome::Answered(answered) => answered,
        CallOutcome::NotSent(NotSent { reason: "unreachable", why, .. }) => return Err(CallFailure::Unreachable(why)),
        CallOutcome::NotSent(not_sent) => return Err(CallFailure::Held(not_sent.why)),
        CallOutcome::Unknown(unknown) => return Err(CallFailure::Unreachable(unknown.to_string())),
    };
    let body = serde_json::from_slice::<Value>(&received.body);
    let refused = |says: &str| CallFailure::Refused {
        status: received.status.as_u16(),
        code: received.code,
        says: crate::terminal_text::plain(says).into_owned(),
    };
    match received.class {
        ResponseClass::Success => body.map_err(|_| refused("this is none of Discord's answers")),
        ResponseClass::Unauthorized => Err(CallFailure::Unauthorized),
        ResponseClass::RateLimited { retry_after, .. } => Err(CallFailure::Limited(Some(retry_after))),
        ResponseClass::Blocked { retry_after } => Err(CallFailure::Limited(retry_after)),
        ResponseClass::ServerError => {
            Err(CallFailure::Unreachable(format!("it answered {}", received.status.as_u16())))
        }
        ResponseClass::InteractionEnded
        | ResponseClass::Forbidden
        | ResponseClass::NotFound
        | ResponseClass::Rejected => {
            Err(refused(body.as_ref().ok().and_then(|body| body["message"].as_str()).unwrap_or("it does not say why")))
        }
    }
}
