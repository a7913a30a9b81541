//! The whole pipeline in front of a simulator: breaker, token bucket and the real transport.

use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use guildhall::discord::rest::{HyperTransport, TransportConfig};
use guildhall::settings::SecretValue;
use guildhall_actors::gate::{CallOutcome, Gate, Rest as _, RestRequest, RestResponse};
use guildhall_actors::lease_guard::LeaseGuard;
use guildhall_core::response::Credential;
use guildhall_sim::{Fault, FaultAction, SimHandle, Stage};
use http::Method;

/// Token of the simulator's first bot.
pub(crate) const TOKEN: &str = "sim-bot-token";

/// Maximum wait of a call: longer than in any benchmark.
pub(crate) const MAX_WAIT: Duration = Duration::from_secs(120);

/// The real transport to the API at this URL.
pub(crate) fn transport(api_url: String) -> anyhow::Result<HyperTransport> {
    Ok(HyperTransport::new(TransportConfig {
        api_url,
        token: SecretValue::new(TOKEN),
        connect_timeout: Duration::from_secs(5),
        request_timeout: Duration::from_secs(15),
        max_response_bytes: 8 << 20,
        pool_idle: Duration::from_secs(30),
        traceparent: false,
        http2: false,
    })?)
}

/// Credential of the simulator's bot.
pub(crate) fn bot_credential(sim: &SimHandle) -> anyhow::Result<Credential> {
    let application = sim.application(TOKEN).context("the simulator does not know its own bot")?;
    Ok(Credential::Application(application.get()))
}

/// A read with the maximum wait.
pub(crate) fn read_request(path: String, credential: Credential) -> RestRequest {
    let mut request = RestRequest::new(Method::GET, path, credential, LeaseGuard::always());
    request.max_wait = MAX_WAIT;
    request
}

/// Makes a call that must succeed.
pub(crate) async fn call(gate: &Gate, request: RestRequest) -> anyhow::Result<RestResponse> {
    match gate.call(request).await {
        CallOutcome::Answered(response) => {
            ensure!(
                response.status.is_success(),
                "returned {}: {}",
                response.status,
                String::from_utf8_lossy(&response.body)
            );
            Ok(response)
        }
        CallOutcome::NotSent(refused) => bail!(refused),
        CallOutcome::Unknown(unknown) => bail!(unknown),
    }
}

/// Delays every request and every response by a fixed time and a random jitter.
pub(crate) fn add_latency(sim: &SimHandle, fixed_ms: u64, jitter_ms: u64) -> anyhow::Result<()> {
    for at in [Stage::Arrival, Stage::Answer] {
        let action = FaultAction::Latency { fixed_ms, jitter_ms, at };
        sim.add_fault(Fault { route: "*".into(), action, probability: 1.0, count: None, skip: 0 })?;
    }
    Ok(())
}
