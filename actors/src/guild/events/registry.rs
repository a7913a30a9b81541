//! Handlers of this process: the current ones, and those of earlier configurations that still have events.
//!
//! ```text
//!  numbers   0   1   2 │ 3   4   5   6 │ …          a reload adds a block and makes it current
//!            first set   │ second set      │            events keep the numbers that they were routed with
//! ```
//!
//! A number means the same handler as long as the process runs. An event in progress finishes with the handler that it
//! was routed to, and a reload does not stop anything.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use guildhall_core::event::handler::{EventHandler, EventHandlers};

use crate::ports::WebhookClient;
use crate::telemetry::events::HandlerMeters;

/// Maximum number of handlers of a process over all reloads.
const MAX_HANDLERS: usize = 16_384;

/// All current and former handlers.
pub(crate) struct HandlerRegistry {
    /// Filled from the front. A filled slot never changes.
    slots: Box<[OnceLock<Box<HandlerSlot>>]>,
    current: RwLock<Arc<CurrentHandlers>>,
    /// How often the current set was replaced.
    generation: AtomicU64,
}

/// A handler in a set.
pub(crate) struct HandlerSlot {
    /// The set of the handler, and its index in it.
    handlers: EventHandlers,
    index: usize,
    pub(crate) meters: HandlerMeters,
    /// Client for its webhook.
    pub(crate) brain: Arc<dyn WebhookClient>,
    /// The first number of a handler with this name. Inbox entries for the name are queued under it.
    queue: usize,
}

impl HandlerSlot {
    pub(crate) fn handler(&self) -> &EventHandler {
        self.handlers.get(self.index).expect("invariant: a slot refers to a handler of its set")
    }
}

/// The handlers for new events.
struct CurrentHandlers {
    handlers: EventHandlers,
    /// Number of the first handler.
    base: usize,
    numbers: HashMap<Arc<str>, usize>,
    /// Queue of each current or former name.
    queues: HashMap<Arc<str>, usize>,
}

/// The handlers were replaced so often that there are no free slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the handlers of this process were replaced too often; restart it to use the new ones")]
pub struct TooManyHandlers;

impl HandlerRegistry {
    pub(crate) fn new(handlers: EventHandlers, brain: &Arc<dyn WebhookClient>) -> Self {
        let capacity = MAX_HANDLERS.max(4 * handlers.len());
        let empty = CurrentHandlers {
            handlers: EventHandlers::default(),
            base: 0,
            numbers: HashMap::new(),
            queues: HashMap::new(),
        };
        let registry = Self {
            slots: (0..capacity).map(|_| OnceLock::new()).collect(),
            current: RwLock::new(Arc::new(empty)),
            generation: AtomicU64::new(0),
        };
        registry.replace(handlers, brain).expect("invariant: there is room for the first handlers");
        registry
    }

    /// Sets the handlers for new events.
    pub(crate) fn replace(
        &self,
        handlers: EventHandlers,
        brain: &Arc<dyn WebhookClient>,
    ) -> Result<(), TooManyHandlers> {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        let base = current.base + current.handlers.len();
        let slots = self.slots.get(base..base + handlers.len()).ok_or(TooManyHandlers)?;
        let mut next = CurrentHandlers { handlers, base, numbers: HashMap::new(), queues: current.queues.clone() };
        for (index, (handler, slot)) in next.handlers.iter().zip(slots).enumerate() {
            let name = &handler.name;
            let queue = *next.queues.entry(Arc::clone(name)).or_insert(base + index);
            next.numbers.insert(Arc::clone(name), base + index);
            let (handlers, brain) = (next.handlers.clone(), Arc::clone(brain));
            let filled = HandlerSlot { handlers, index, meters: HandlerMeters::new(name), brain, queue };
            let is_new = slot.set(Box::new(filled)).is_ok();
            debug_assert!(is_new, "numbers are assigned once");
        }
        *current = Arc::new(next);
        self.generation.fetch_add(1, Ordering::Release);
        Ok(())
    }

    fn current(&self) -> Arc<CurrentHandlers> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Changes whenever the current handlers change.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// The handler with this number.
    pub(crate) fn slot(&self, number: usize) -> &HandlerSlot {
        let slot = self.slots.get(number).and_then(OnceLock::get);
        slot.expect("invariant: numbers come from the handlers themselves")
    }

    pub(crate) fn handler(&self, number: usize) -> &EventHandler {
        self.slot(number).handler()
    }

    pub(crate) fn meters(&self, number: usize) -> &HandlerMeters {
        &self.slot(number).meters
    }

    /// Numbers of the current handlers for events with this name, in order.
    pub(crate) fn matching(&self, name: &str) -> Vec<usize> {
        let current = self.current();
        current.handlers.matching(name).into_iter().map(|index| current.base + index).collect()
    }

    /// Number of the current handler with this name.
    pub(crate) fn number(&self, name: &str) -> Option<usize> {
        self.current().numbers.get(name).copied()
    }

    /// Queue of all handlers with the same name as this one.
    pub(crate) fn queue(&self, number: usize) -> usize {
        self.slot(number).queue
    }

    /// Queue of all handlers that ever had this name.
    pub(crate) fn queue_named(&self, name: &str) -> Option<usize> {
        self.current().queues.get(name).copied()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::ports::{WebhookBody, WebhookCall, WebhookCallError, WebhookCallFuture};

    struct FailingWebhook;

    fn failing_webhook() -> Arc<dyn WebhookClient> {
        Arc::new(FailingWebhook)
    }

    impl WebhookClient for FailingWebhook {
        fn call(&self, _: WebhookCall, _: WebhookBody) -> WebhookCallFuture<'_> {
            Box::pin(async { Err(WebhookCallError::Permanent { reason: "deaf".to_owned() }) })
        }
    }

    fn handlers(names: &[&str], on: &str) -> EventHandlers {
        let all: Vec<_> = names.iter().map(|name| json!({ "name": name, "on": [on], "do": [] })).collect();
        EventHandlers::parse(&json!({ "handlers": all })).unwrap()
    }

    #[test]
    fn numbers_keep_their_meaning_over_reloads() {
        let registry = HandlerRegistry::new(handlers(&["a", "b"], "message.create"), &failing_webhook());
        let (before, generation) = (registry.matching("message.create"), registry.generation());
        assert_eq!((before.clone(), registry.number("b")), (vec![0, 1], Some(1)));
        registry.replace(handlers(&["b", "c"], "guild.create"), &failing_webhook()).unwrap();
        assert_ne!(registry.generation(), generation);
        assert_eq!((registry.number("a"), registry.number("b"), registry.number("c")), (None, Some(2), Some(3)));
        assert_eq!((registry.matching("message.create"), registry.matching("guild.create")), (vec![], vec![2, 3]));
        let names: Vec<_> = before.iter().map(|number| &*registry.slot(*number).handler().name).collect();
        assert_eq!(names, ["a", "b"]);
        // Entries for a name have one queue, whichever definition they were routed to.
        assert_eq!((registry.queue(1), registry.queue(2), registry.queue_named("a")), (1, 1, Some(0)));
    }

    #[test]
    fn reloads_are_refused_when_there_is_no_room() {
        let registry = HandlerRegistry::new(handlers(&["a"], "guild.create"), &failing_webhook());
        let two = handlers(&["a", "b"], "guild.create");
        let refused = std::iter::repeat_with(|| registry.replace(two.clone(), &failing_webhook())).find(Result::is_err);
        assert_eq!(refused, Some(Err(TooManyHandlers)));
        assert!(registry.number("b").is_some(), "the last accepted set is in use");
    }
}
