//! The gate through which commands of the command line call Discord.
//!
//! ```text
//!  commands sync, doctor ──▶ a daemon runs, and accepts the key ──▶ its gate, by operations
//!                       └──▶ no daemon runs, or Redis counts for all processes ──▶ its own gate, with the stored state
//!                       └──▶ a daemon runs, and cannot be used ──▶ an error: nothing is sent directly
//! ```

use std::sync::Arc;

use guildhall_actors::gate::{CallOutcome, Rest as GatePort, RestRequest};
use guildhall_actors::lease_guard::LeaseGuard;
use guildhall_actors::ports::{SnapshotFuture, SnapshotStore};
use guildhall_core::{
    lane::Lane,
    response::{Credential, ResponseClass},
    state_key::GATE,
};
use http::Method;
use serde_json::Value;

use super::daemon_gate::DaemonGate;
use crate::daemon::rest_component::{GateState, RestComponent, RestError};
use crate::{
    client::{ApiRequest, Client, ClientError},
    discord::application_id,
    settings::{SecretValue, Settings},
    store::{self, OpenError},
};

/// Calls in any window that a command may send itself: few, since a daemon may be starting.
const OWN_LIMIT: u32 = 5;

/// Why Discord cannot be called.
#[derive(Debug, thiserror::Error)]
pub enum CommandGateError {
    /// Calls to Discord cannot be made.
    #[error(transparent)]
    Rest(#[from] RestError),
    /// It is unknown whether a daemon is running.
    #[error(transparent)]
    Store(#[from] OpenError),
    /// A daemon is running, and does not make calls for this command.
    #[error(
        "a daemon uses {store}, and a direct call to Discord could exceed the rate limit, so nothing was sent; the \
         call through the daemon failed: {reason}"
    )]
    DaemonRunning {
        /// The store of the daemon.
        store: String,
        /// Why the daemon cannot be used, and what to do about it.
        reason: String,
    },
}

/// The gate for one command.
pub(crate) struct CommandGate {
    route: GateRoute,
    credential: Credential,
}

enum GateRoute {
    Daemon(Box<DaemonGate>),
    Own(Box<RestComponent>),
}

/// The state that the last daemon stored, read-only: what a command learns is not worth a write that could conflict
/// with a daemon that is starting.
struct ReadOnlySnapshot(Option<String>);

impl SnapshotStore for ReadOnlySnapshot {
    fn load(&self) -> SnapshotFuture<'_, Option<String>> {
        let stored = self.0.clone();
        Box::pin(async move { Ok(stored) })
    }

    fn save(&self, _: String) -> SnapshotFuture<'_, ()> {
        Box::pin(async { Ok(()) })
    }
}

impl CommandGate {
    /// Finds the gate to call through. Must run within an actix `System`.
    pub(crate) async fn find(
        settings: &Settings,
        token: &SecretValue,
        daemon: &Result<Client, String>,
    ) -> Result<Self, CommandGateError> {
        let application = application_id(token);
        let credential = Credential::Application(application.unwrap_or(1));
        let reason = match daemon {
            Ok(client) => match find_daemon_gate(client, application, credential).await {
                Ok(gate) => return Ok(Self { route: GateRoute::Daemon(Box::new(gate)), credential }),
                Err(reason) => reason,
            },
            Err(reason) => reason.clone(),
        };
        let probe = store::probe_store(&settings.store, &format!("{GATE}{}", application.unwrap_or(1))).await;
        // With Redis, the calls of this process are counted together with the others.
        if settings.redis.url.is_none() && store::is_in_use(&settings.store).await? {
            return Err(CommandGateError::DaemonRunning { store: settings.store.url.to_string(), reason });
        }
        let stored = probe.ok().flatten().and_then(|probe| probe.stored_value);
        let mut settings = settings.clone();
        settings.gate.limits.global = settings.gate.limits.global.min(OWN_LIMIT);
        let state = GateState::Snapshot(Arc::new(ReadOnlySnapshot(stored)));
        let rest = RestComponent::start(&settings, token.clone(), state)?;
        Ok(Self { route: GateRoute::Own(Box::new(rest)), credential })
    }

    /// Describes the route of calls, for people.
    pub(crate) fn describe(&self) -> String {
        match &self.route {
            GateRoute::Daemon(gate) => format!("calls to Discord go through the daemon at {}", gate.api_url()),
            GateRoute::Own(_) => {
                "no daemon is running: Discord is called directly, within the stored limits".to_owned()
            }
        }
    }

    /// Whether calls go through a daemon, which does not pass on headers.
    pub(crate) const fn is_daemon(&self) -> bool {
        matches!(self.route, GateRoute::Daemon(_))
    }

    pub(crate) const fn credential(&self) -> Credential {
        self.credential
    }

    pub(crate) async fn call(&self, request: RestRequest) -> CallOutcome {
        match &self.route {
            GateRoute::Daemon(gate) => gate.call(request).await,
            GateRoute::Own(rest) => rest.gate.call(request).await,
        }
    }

    /// Leaves the group of processes that share the limits.
    pub(crate) async fn leave(&self) {
        match &self.route {
            GateRoute::Daemon(_) => {}
            GateRoute::Own(rest) => rest.leave().await,
        }
    }
}

/// Checks that a daemon is running, accepts the key, and runs this bot.
async fn find_daemon_gate(client: &Client, bot: Option<u64>, credential: Credential) -> Result<DaemonGate, String> {
    let response =
        client.send(&ApiRequest::new(Method::GET, "/v1/operations?limit=1").with_feature("operations")).await;
    match response {
        Ok(_) => {}
        Err(error @ ClientError::Unreachable { .. }) => return Err(error.to_string()),
        Err(error) => return Err(format!("{error}; provide a key of the daemon with --key-file or GUILDHALL_KEY")),
    }
    let gate = DaemonGate::new(client.clone());
    let Some(bot) = bot else { return Ok(gate) };
    let mut request = RestRequest::new(Method::GET, "/users/@me", credential, LeaseGuard::always());
    request.lane = Lane::Interactive;
    let id = match gate.call(request).await {
        CallOutcome::Answered(answered) if answered.class == ResponseClass::Success => {
            let user: Value = serde_json::from_slice(&answered.body).unwrap_or_default();
            user["id"].as_str().and_then(|id| id.parse::<u64>().ok())
        }
        // The command's own calls meet the same failure, and report it better.
        CallOutcome::Answered(_) | CallOutcome::NotSent(_) | CallOutcome::Unknown(_) => return Ok(gate),
    };
    if id == Some(bot) {
        Ok(gate)
    } else {
        Err(format!("the daemon at {} runs another bot; select the right daemon with --api", client.api_url()))
    }
}
