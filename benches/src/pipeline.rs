//! The whole pipeline before a simulator: breaker, token bucket and the real transport.

use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use guildhall::discord::rest::{HyperTransport, TransportConfig};
use guildhall::settings::SecretValue;
use guildhall_actors::gate::{CallOutcome, Gate, Rest as _, RestRequest, RestResponse};
use guildhall_core::response::Credential;
use guildhall_sim::{Fault, FaultAction, SimHandle, Stage};
use http::Method;

/// The token of the simulator's first bot.
pub(crate) const TOKEN: &str = "sim-bot-token";

/// A call may wait this long for its turn: longer than any benchmark lets it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// The real transport, to the API at this address.
pub(crate) fn transport(api_url: String) -> anyhow::Result<HyperTransport> {
    Ok(HyperTransport::new(TransportConfig {
        api_url,
        token: SecretValue::new(TOKEN),
        connect_timeout: Duration::from_secs(5),
        request_timeout: Duration::from_secs(15),
        max_response_bytes: 8 << 20,
        pool_idle: Duration::from_secs(30),
        traceparent: false,
    })?)
}

/// The simulator's bot, as calls are made.
pub(crate) fn bot(sim: &SimHandle) -> anyhow::Result<Credential> {
    let application = sim.application(TOKEN).context("the simulator does not know its own bot")?;
    Ok(Credential::Application(application.get()))
}

/// A read that waits as long as it must.
pub(crate) fn read(path: String, credential: Credential) -> RestRequest {
    let mut request = RestRequest::new(Method::GET, path, credential);
    request.max_wait = PATIENCE;
    request
}

/// Makes a call that must succeed.
pub(crate) async fn call(gate: &Gate, request: RestRequest) -> anyhow::Result<RestResponse> {
    match gate.call(request).await {
        CallOutcome::Answered(answer) => {
            ensure!(
                answer.status.is_success(),
                "answered {}: {}",
                answer.status,
                String::from_utf8_lossy(&answer.body)
            );
            Ok(answer)
        }
        CallOutcome::NotSent(refused) => bail!(refused),
        CallOutcome::Unknown(unknown) => bail!(unknown),
    }
}

/// Holds every call up on its way in and on its way back, each time so long and up to so much longer.
pub(crate) fn delay(sim: &SimHandle, fixed_ms: u64, jitter_ms: u64) -> anyhow::Result<()> {
    for at in [Stage::Arrival, Stage::Answer] {
        let action = FaultAction::Latency { fixed_ms, jitter_ms, at };
        sim.add_fault(Fault { route: "*".into(), action, probability: 1.0, count: None, skip: 0 })?;
    }
    Ok(())
}
