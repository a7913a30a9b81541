//! Shows what handlers would do with an event. Nothing is executed.

use std::collections::BTreeMap;

use guildhall_actors::submission::OperationRequest;
use guildhall_core::event::Event;
use guildhall_core::event::handler::{
    EventHandler, EventHandlers, EventPattern, EventView, HandlerAction, Rule, RuleOutput, body,
};
use guildhall_core::operation::Payload;
use serde::Serialize;
use serde_json::{Value, json};

use super::Sample;

/// Result of a dry run: what the handlers would do with an event.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DryRun {
    /// Type of the event.
    pub event_type: String,
    /// Result for each handler, in the order of the file.
    pub handlers: Vec<HandlerDryRun>,
}

/// Result for one handler.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HandlerDryRun {
    /// Name of the handler.
    pub name: String,
    /// The pattern that matches the event, if one does.
    pub matches: Option<String>,
    /// The condition that is not met, if a pattern matches but the handler does not apply.
    pub unmet: Option<&'static str>,
    /// Whether it is in shadow.
    pub shadow: bool,
    /// What it would do, if it applies to the event.
    pub would: Option<DryRunAction>,
    /// Errors in what it would do.
    pub problems: Vec<String>,
}

/// What a handler would do with an event that it applies to.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DryRunAction {
    /// Output of a rule.
    Do {
        /// Operations that it would submit.
        operations: Vec<Value>,
        /// Response that it would send.
        reply: Option<Value>,
        /// State that it would store.
        set: Vec<Value>,
        /// Cooldown that it would start: its key and duration.
        cooldown: Option<Value>,
    },
    /// A webhook would be called.
    Ask {
        /// URL of the webhook.
        url: String,
        /// Body of the request.
        body: Box<Value>,
    },
    /// The event would be published to the broker.
    Publish {
        /// Body of the message.
        body: Box<Value>,
    },
}

impl DryRun {
    /// Evaluates these handlers.
    #[must_use]
    pub fn run(handlers: &EventHandlers, sample: &Sample) -> Self {
        let view = EventView::new(&sample.event);
        let handlers = handlers.iter().map(|handler| dry_run_handler(handler, &view, &sample.state)).collect();
        Self { event_type: sample.event.name.as_str().to_owned(), handlers }
    }

    /// Whether at least one handler applies to the event, and no handler has errors.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        self.handlers.iter().any(|tried| tried.would.is_some())
            && self.handlers.iter().all(|tried| tried.problems.is_empty())
    }
}

fn dry_run_handler(handler: &EventHandler, view: &EventView<'_>, state: &BTreeMap<String, Value>) -> HandlerDryRun {
    let event = view.event();
    let matches = handler.on.iter().find(|pattern| pattern.matches(event.name.as_str()));
    let mut result = HandlerDryRun {
        name: handler.name.to_string(),
        matches: matches.map(EventPattern::as_str).map(str::to_owned),
        unmet: None,
        shadow: handler.shadow,
        would: None,
        problems: Vec::new(),
    };
    if matches.is_none() {
        return result;
    }
    result.unmet = handler.unmet(view);
    if result.unmet.is_some() {
        return result;
    }
    let needed = match handler.needed_keys(view) {
        Ok(needed) => needed,
        Err(problem) => {
            result.problems.push(problem.to_string());
            return result;
        }
    };
    let state: BTreeMap<String, Value> =
        needed.into_iter().filter_map(|key| state.get(&key).map(|value| (key.clone(), value.clone()))).collect();
    match &handler.action {
        HandlerAction::Rule(rule) => apply_rule(rule, view, &state, &mut result),
        HandlerAction::Webhook(_) | HandlerAction::Broker => {
            // The payload is Discord's; if it is not JSON, it is displayed as a string.
            let body = body(event, &state);
            let body = serde_json::from_str(&body).unwrap_or(Value::String(body));
            let body = Box::new(body);
            result.would = Some(match &handler.action {
                HandlerAction::Webhook(webhook) => DryRunAction::Ask { url: webhook.url.clone(), body },
                HandlerAction::Broker | HandlerAction::Rule(_) => DryRunAction::Publish { body },
            });
            result.problems.extend(handler.cooldown_key(view).err().map(|problem| problem.to_string()));
        }
    }
    result
}

fn apply_rule(rule: &Rule, view: &EventView<'_>, state: &BTreeMap<String, Value>, result: &mut HandlerDryRun) {
    match rule.apply(view, state) {
        Ok(RuleOutput { operations, reply, set, cooldown }) => {
            result.problems = operation_problems(&operations, view.event());
            let millis = |duration: std::time::Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
            let set =
                set.into_iter().map(|(key, value, ttl)| json!({"key": key, "value": value, "for_ms": ttl.map(millis)}));
            let cooldown = cooldown.map(|(key, ttl)| json!({"key": key, "for_ms": millis(ttl)}));
            result.would = Some(DryRunAction::Do { operations, reply, set: set.collect(), cooldown });
        }
        Err(problem) => result.problems.push(problem.to_string()),
    }
}

/// Validates operations after their placeholders were filled in.
fn operation_problems(operations: &[Value], event: &Event) -> Vec<String> {
    let mut problems = Vec::new();
    for (n, operation) in operations.iter().enumerate() {
        let under = |field: &str| if field.is_empty() { format!("do[{n}]") } else { format!("do[{n}].{field}") };
        match OperationRequest::read(operation.clone()) {
            Err(errors) => {
                problems.extend(errors.iter().map(|errors| format!("`{}` {}", under(&errors.field), errors.message)));
            }
            Ok(request) => {
                if let Err(invalid) = Payload::parse(request.kind, &request.payload, event.guild) {
                    problems.extend(invalid.errors.iter().map(|error| {
                        let between = if error.field.is_empty() || error.field.starts_with('[') { "" } else { "." };
                        format!("`{}{between}{}` {}", under("payload"), error.field, error.message)
                    }));
                }
            }
        }
    }
    problems
}
