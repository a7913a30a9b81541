//! What has to be kept of what came of a handler.

use std::collections::BTreeMap;

use guildhall_core::event::Event;
use guildhall_core::event::handler::{Does, Given, Handler, body, trace};

use super::hub::{Hub, Ran};
use super::store::Handled;
use crate::telemetry::emit;
use crate::telemetry::events::{EventBuried, EventHandled, HandlerWould, Outcome};

impl Hub {
    /// What has to be kept of what came of a handler that was not called in vain; nothing if that is nothing.
    pub(super) fn keeps(&self, event: &Event, number: usize, ran: Ran) -> Option<Handled> {
        let handler = self.handler(number);
        let why = match ran {
            Ran::Passed => return None,
            Ran::Gave(given) if handler.shadow => {
                emit(HandlerWould { handler: &handler.name, event, given: &given });
                return None;
            }
            Ran::Gave(given) => {
                emit(EventHandled { meters: self.meters(number), outcome: Outcome::Handled });
                // To repeat it is harmless.
                if given == Given::default() && matches!(handler.does, Does::Rule(_)) {
                    return None;
                }
                match self.handled(event, handler, given) {
                    Ok(handled) => return Some(handled),
                    Err(why) => why,
                }
            }
            Ran::Later { why, .. } | Ran::Never { why } => why,
        };
        Some(self.bury(event, handler, why, 1))
    }

    /// The event is given up for this handler.
    pub(super) fn bury(&self, event: &Event, handler: &Handler, why: String, attempts: u32) -> Handled {
        let trace = trace(&event.origin);
        emit(EventBuried { handler: &handler.name, event: event.name.as_str(), trace, why: &why });
        let mut entry = self.entry(event, handler, body(event, &BTreeMap::new()));
        (entry.dead, entry.attempts) = (Some(why), attempts);
        self.put(entry)
    }
}
