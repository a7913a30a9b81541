//! Names of known events, for patterns, and their ranks.

use crate::event::{EventClass, EventName};

/// Kinds of interactions in names: `interaction.<one of these>.<name>`.
pub(super) const INTERACTIONS: [&str; 5] = ["command", "button", "menu", "modal", "autocomplete"];

/// Names of all known events except interactions.
pub const KNOWN_EVENTS: &[&str] = &[
    "message.create",
    "message.update",
    "message.delete",
    "message.delete.bulk",
    "message.reaction.add",
    "message.reaction.remove",
    "message.reaction.remove.all",
    "message.reaction.remove.emoji",
    "message.poll.vote.add",
    "message.poll.vote.remove",
    "typing.start",
    "presence.update",
    "voice.state.update",
    "voice.server.update",
    "voice.channel.effect.send",
    "voice.channel.status.update",
    "voice.channel.start.time.update",
    "member.join",
    "member.leave",
    "member.update",
    "guild.members.chunk",
    "role.create",
    "role.update",
    "role.delete",
    "guild.create",
    "guild.update",
    "guild.delete",
    "guild.audit.log.entry.create",
    "guild.ban.add",
    "guild.ban.remove",
    "guild.emojis.update",
    "guild.integrations.update",
    "guild.scheduled.event.create",
    "guild.scheduled.event.update",
    "guild.scheduled.event.delete",
    "guild.scheduled.event.user.add",
    "guild.scheduled.event.user.remove",
    "guild.soundboard.sound.create",
    "guild.soundboard.sound.update",
    "guild.soundboard.sound.delete",
    "guild.soundboard.sounds.update",
    "guild.stickers.update",
    "channel.create",
    "channel.update",
    "channel.delete",
    "channel.info",
    "channel.pins.update",
    "thread.create",
    "thread.update",
    "thread.delete",
    "thread.list.sync",
    "thread.member.update",
    "thread.members.update",
    "stage.instance.create",
    "stage.instance.update",
    "stage.instance.delete",
    "invite.create",
    "invite.delete",
    "integration.create",
    "integration.update",
    "integration.delete",
    "webhooks.update",
    "auto.moderation.rule.create",
    "auto.moderation.rule.update",
    "auto.moderation.rule.delete",
    "auto.moderation.action.execution",
    "application.command.permissions.update",
    "entitlement.create",
    "entitlement.update",
    "entitlement.delete",
    "subscription.create",
    "subscription.update",
    "subscription.delete",
    "soundboard.sounds",
    "user.update",
    "rate.limited",
    "gateway.ready",
    "gateway.resumed",
    "gateway.gap",
];

/// An event name from its text.
pub(super) fn event_name(text: &str) -> EventName {
    match KNOWN_EVENTS.iter().find(|name| **name == text) {
        Some(name) => EventName::Known(name),
        None => EventName::Other(text.into()),
    }
}

/// Rank of events with this name.
pub(super) fn class(name: &str) -> EventClass {
    match name.split('.').next().unwrap_or_default() {
        "interaction" => EventClass::Interaction,
        "gateway" => EventClass::Gateway,
        "typing" | "presence" => EventClass::Fleeting,
        "message" | "voice" => EventClass::Chatter,
        _ => EventClass::Change,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Frame, read};
    use crate::time::UnixMs;

    /// Discord's type of the event with this name.
    fn discord_type(name: &str) -> String {
        let name = match name {
            "member.join" => "guild.member.add".to_owned(),
            "member.leave" => "guild.member.remove".to_owned(),
            "gateway.ready" => "ready".to_owned(),
            "gateway.resumed" => "resumed".to_owned(),
            name if name.starts_with("member.") || name.starts_with("role.") => format!("guild.{name}"),
            name => name.to_owned(),
        };
        name.to_uppercase().replace('.', "_")
    }

    #[test]
    fn known_names_match_parsed_frames() {
        // Our own event; Discord does not have it.
        for name in KNOWN_EVENTS.iter().filter(|name| **name != "gateway.gap") {
            let frame = format!(r#"{{"t":"{}","s":1,"op":0,"d":{{}}}}"#, discord_type(name));
            let Frame::Event(event) = read(frame, 0, &"s".into(), UnixMs::new(1)).unwrap() else { panic!("{name}") };
            assert!(matches!(event.name, EventName::Known(known) if known == *name), "{name}: {}", event.name);
            assert_eq!(event.class, class(name), "{name}");
        }
    }
}
