//! The way to Discord's REST API: typed calls, through the one gate.

use std::sync::Arc;

use guildhall_actors::rest::{Gate, GateConfig};
use twilight_model::id::Id;

use crate::{
    discord::{
        application_of,
        rest::{Calls, HyperTransport, TransportConfig, TransportConfigError},
    },
    settings::{Settings, Token},
};

/// The way to Discord's REST API.
#[derive(Debug)]
pub struct Rest {
    /// What every call goes through.
    pub gate: Arc<Gate>,
    /// What calls are built with.
    pub calls: Calls,
}

impl Rest {
    /// Starts the gate's actors where the caller runs, which must be an actix `System`.
    pub(super) fn start(settings: &Settings, token: Token) -> Result<Self, TransportConfigError> {
        // A token that does not name its application is a simulator's; any id keeps its calls together.
        let application = application_of(&token).and_then(Id::new_checked).unwrap_or(Id::new(1));
        let transport = HyperTransport::new(TransportConfig::new(settings, token))?;
        let config = GateConfig {
            limits: settings.gate.limits.clone(),
            breakers: settings.gate.breakers,
            invalid: settings.gate.invalid,
            // Only spreads cooldowns between processes.
            seed: u64::from(std::process::id()),
            shared: None,
        };
        Ok(Self { gate: Gate::start(transport, config), calls: Calls::new(application) })
    }
}
