//! Finds handlers that no event of the configured gateway intents can reach.

use guildhall_core::event::handler::{EventHandlers, EventPattern, KNOWN_EVENTS};
use twilight_model::gateway::Intents;

use super::HandlerWarning;
use crate::discord::{PRIVILEGED, intents_for_event};

/// Returns the patterns of handlers whose events Discord does not send with these intents, in the order of the file.
#[must_use]
pub fn unreachable(handlers: &EventHandlers, intents: Intents) -> Vec<HandlerWarning> {
    let mut found = Vec::new();
    for handler in handlers {
        for pattern in &handler.on {
            let needed = missing_intents(pattern, intents);
            if !needed.is_empty() {
                found.push(HandlerWarning::NotDelivered {
                    handler: handler.name.clone(),
                    pattern: pattern.to_string(),
                    advice: advice(needed),
                });
            }
        }
    }
    found
}

/// The intents of which one has to be added so that Discord sends an event that the pattern matches. Empty if it already
/// sends one, or if the pattern matches no known event.
fn missing_intents(pattern: &EventPattern, intents: Intents) -> Intents {
    // Interactions need no intent.
    if pattern.can_match_interactions() {
        return Intents::empty();
    }
    let mut missing = Intents::empty();
    for name in KNOWN_EVENTS.iter().filter(|name| pattern.matches(name)) {
        let needed = intents_for_event(name);
        if needed.is_empty() || needed.intersects(intents) {
            return Intents::empty();
        }
        missing |= needed;
    }
    missing
}

/// The setting to change, and the switches in the developer portal.
fn advice(needed: Intents) -> String {
    let names: Vec<_> = needed.iter_names().map(|(name, _)| format!("`{}`", name.to_lowercase())).collect();
    let mut advice = format!("add {} to gateway.intents (GUILDHALL__GATEWAY__INTENTS)", names.join(" or "));
    for (_, _, switch) in PRIVILEGED.iter().filter(|(intent, _, _)| needed.contains(*intent)) {
        advice.push_str(&format!(", and enable {switch} on the Bot page of Discord's developer portal"));
    }
    advice
}

#[cfg(test)]
mod tests {
    use super::*;

    fn missing(pattern: &str, intents: Intents) -> Intents {
        missing_intents(&EventPattern::parse(pattern).unwrap(), intents)
    }

    #[test]
    fn pattern_needs_one_event_that_is_delivered() {
        let few = Intents::GUILDS | Intents::GUILD_MESSAGES;
        for delivered in [
            "message.create",
            "message.*",
            "message.#",
            "#",
            "*.create",
            "interaction.#",
            "interaction.button.vote",
            "gateway.gap",
            "thread.members.update",
            "entitlement.create",
            "some.new.*",
        ] {
            assert_eq!(missing(delivered, few), Intents::empty(), "{delivered}");
        }
        for (lost, needed) in [
            ("member.join", Intents::GUILD_MEMBERS),
            ("member.#", Intents::GUILD_MEMBERS),
            ("presence.update", Intents::GUILD_PRESENCES),
            ("message.reaction.*", Intents::GUILD_MESSAGE_REACTIONS | Intents::DIRECT_MESSAGE_REACTIONS),
            ("auto.moderation.#", Intents::AUTO_MODERATION_CONFIGURATION | Intents::AUTO_MODERATION_EXECUTION),
        ] {
            assert_eq!(missing(lost, few), needed, "{lost}");
        }
        assert_eq!(missing("typing.start", Intents::DIRECT_MESSAGE_TYPING), Intents::empty());
    }

    #[test]
    fn advice_names_the_setting_and_the_switch_in_the_portal() {
        let text = advice(Intents::GUILD_MEMBERS);
        assert_eq!(
            text,
            "add `guild_members` to gateway.intents (GUILDHALL__GATEWAY__INTENTS), and enable Server Members Intent on \
             the Bot page of Discord's developer portal"
        );
        let text = advice(Intents::GUILD_MESSAGE_TYPING | Intents::DIRECT_MESSAGE_TYPING);
        assert!(text.starts_with("add `guild_message_typing` or `direct_message_typing` to gateway.intents"), "{text}");
        assert!(!text.contains("portal"), "{text}");
    }
}
