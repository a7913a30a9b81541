//! What has to be kept of what came of a handler.

use std::collections::BTreeMap;

use guildhall_core::event::Event;
use guildhall_core::event::handler::{EventHandler, HandlerAction, RuleOutput, body, trace};

use super::context::{EventContext, HandlerOutcome};
use crate::ports::HandlerCommit;
use crate::telemetry::emit;
use crate::telemetry::events::{EventDeadLettered, EventHandled, HandlingOutcome, ShadowHandlerRan};

impl EventContext {
    /// What has to be kept of what came of a handler that was not called in vain; nothing if that is nothing.
    pub(crate) fn keeps(&self, event: &Event, number: usize, ran: HandlerOutcome) -> Option<HandlerCommit> {
        let handler = self.handler(number);
        let why = match ran {
            HandlerOutcome::Passed => return None,
            HandlerOutcome::Gave(given) if handler.shadow => {
                emit(ShadowHandlerRan { handler: &handler.name, event, given: &given });
                return None;
            }
            HandlerOutcome::Gave(given) => {
                emit(EventHandled { meters: self.meters(number), outcome: HandlingOutcome::Handled });
                // To repeat it is harmless.
                if given == RuleOutput::default() && matches!(handler.does, HandlerAction::Rule(_)) {
                    return None;
                }
                match self.handled(event, handler, given) {
                    Ok(handled) => return Some(handled),
                    Err(why) => why,
                }
            }
            HandlerOutcome::Later { why, .. } | HandlerOutcome::Never { why } => why,
        };
        Some(self.bury(event, handler, why, 1))
    }

    /// The event is given up for this handler.
    pub(crate) fn bury(&self, event: &Event, handler: &EventHandler, why: String, attempts: u32) -> HandlerCommit {
        let trace = trace(&event.origin);
        emit(EventDeadLettered { handler: &handler.name, event: event.name.as_str(), trace, why: &why });
        let mut entry = self.entry(event, handler, body(event, &BTreeMap::new()));
        (entry.dead, entry.attempts) = (Some(why), attempts);
        self.put(entry)
    }
}
