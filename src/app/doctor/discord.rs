//! A few calls to Discord, one at a time, and none after the first that says to stop.

use std::time::{Duration, SystemTime};

use guildhall_actors::rest::{Received, Request, TransportError};
use guildhall_core::answer::{Class, Credential};
use http::{Method, header};
use serde_json::Value;
use tokio::time::{Instant, sleep_until};

use crate::{
    app::DiscoveryError,
    discord::{
        application_of,
        rest::{HyperTransport, TransportConfig},
    },
    settings::Settings,
};

/// The longest that one call may take.
const WITHIN: Duration = Duration::from_secs(10);
/// The shortest time between two calls. A daemon may use the same limits meanwhile.
const PAUSE: Duration = Duration::from_millis(200);

/// The longest limit that is waited for.
const LIMIT_WAIT: Duration = Duration::from_secs(5);

/// Calls Discord as the bot.
pub(super) struct Caller {
    transport: Option<HyperTransport>,
    credential: Credential,
    next: Instant,
    /// Why nothing more is asked.
    stopped: Option<String>,
    date: Option<Dated>,
}

/// When an answer was made by Discord's clock, and between which times by ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Dated {
    pub(super) theirs: SystemTime,
    pub(super) asked: SystemTime,
    pub(super) answered: SystemTime,
}

/// Why there is no answer of use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// Discord is not asked any more, and why.
    Stopped(String),
    /// It is not reached.
    Unreachable(String),
    /// It does not know the token.
    Unauthorized,
    /// It wants to be left alone.
    Limited(Option<Duration>),
    /// It says no.
    Refused { status: u16, code: Option<u32>, says: String },
}

impl Trouble {
    /// What was seen.
    pub(super) fn seen(&self) -> String {
        match self {
            Self::Stopped(why) => format!("Discord was not asked: {why}"),
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
            Self::Unreachable(_) => Some("it did not answer before".to_owned()),
            Self::Unauthorized => Some("it refused the token".to_owned()),
            Self::Limited(_) => Some("it asked to be left alone".to_owned()),
            Self::Stopped(_) | Self::Refused { .. } => None,
        }
    }
}

impl Caller {
    /// One that has called nobody yet.
    pub(super) fn new(settings: &Settings) -> Self {
        let mut caller = Self {
            transport: None,
            credential: Credential::Anonymous,
            next: Instant::now(),
            stopped: None,
            date: None,
        };
        let Some(token) = settings.discord.token.clone() else {
            caller.stopped = Some("there is no token".to_owned());
            return caller;
        };
        // A token that does not name its application is a simulator's.
        caller.credential = Credential::Application(application_of(&token).unwrap_or(1));
        let mut config = TransportConfig::new(settings, token);
        config.connect_timeout = config.connect_timeout.min(WITHIN);
        config.request_timeout = config.request_timeout.min(WITHIN);
        match HyperTransport::new(config) {
            Ok(transport) => caller.transport = Some(transport),
            Err(error) => caller.stopped = Some(error.to_string()),
        }
        caller
    }

    /// What the clocks showed at the first answer that had a date.
    pub(super) const fn date(&self) -> Option<Dated> {
        self.date
    }

    /// Why nothing more is asked.
    pub(super) fn stopped(&self) -> Option<&str> {
        self.stopped.as_deref()
    }

    /// What is at a path. A short limit, as whoever looks twice in a row meets it, is waited for once.
    pub(super) async fn get(&mut self, path: &str) -> Result<Value, Trouble> {
        let mut read = self.ask(path).await;
        if let Err(Trouble::Limited(Some(wait))) = &read
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

    async fn ask(&mut self, path: &str) -> Result<Value, Trouble> {
        if let Some(why) = &self.stopped {
            return Err(Trouble::Stopped(why.clone()));
        }
        let Some(transport) = &self.transport else { return Err(Trouble::Stopped("there is no way to it".to_owned())) };
        sleep_until(self.next).await;
        let asked = SystemTime::now();
        let received = transport.exchange(Request::new(Method::GET, path, self.credential)).await;
        self.next = Instant::now() + PAUSE;
        if let Ok(received) = &received {
            let theirs = received.headers.get(header::DATE).and_then(|date| date.to_str().ok());
            let theirs = theirs.and_then(|date| httpdate::parse_http_date(date).ok());
            self.date = self.date.or(theirs.map(|theirs| Dated { theirs, asked, answered: SystemTime::now() }));
        }
        read(received)
    }
}

fn read(received: Result<Received, TransportError>) -> Result<Value, Trouble> {
    let received = received.map_err(|error| Trouble::Unreachable(error.to_string()))?;
    let body = serde_json::from_slice::<Value>(&received.body);
    let refused = |says: &str| Trouble::Refused {
        status: received.status.as_u16(),
        code: received.code,
        says: crate::plain::plain(says).into_owned(),
    };
    match received.class {
        Class::Success => body.map_err(|_| refused("this is none of Discord's answers")),
        Class::Unauthorized => Err(Trouble::Unauthorized),
        Class::RateLimited { retry_after, .. } => Err(Trouble::Limited(Some(retry_after))),
        Class::Blocked { retry_after } => Err(Trouble::Limited(retry_after)),
        Class::ServerError => Err(Trouble::Unreachable(format!("it answered {}", received.status.as_u16()))),
        Class::InteractionEnded | Class::Forbidden | Class::NotFound | Class::Rejected => {
            Err(refused(body.as_ref().ok().and_then(|body| body["message"].as_str()).unwrap_or("it does not say why")))
        }
    }
}
