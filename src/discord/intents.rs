//! Gateway intents: which of them Discord sends an event for, and which are privileged.

use twilight_model::gateway::Intents;

/// The privileged intents: the bits of the application's flags that allow each, and its name in the developer portal.
pub(crate) const PRIVILEGED: [(Intents, u64, &str); 3] = [
    (Intents::GUILD_PRESENCES, 1 << 12 | 1 << 13, "Presence Intent"),
    (Intents::GUILD_MEMBERS, 1 << 14 | 1 << 15, "Server Members Intent"),
    (Intents::MESSAGE_CONTENT, 1 << 18 | 1 << 19, "Message Content Intent"),
];

/// The intents for which Discord sends the event with this name: any of them is enough. Empty if it is sent in any case.
pub(crate) fn intents_for_event(name: &str) -> Intents {
    match name {
        "guild.create"
        | "guild.update"
        | "guild.delete"
        | "role.create"
        | "role.update"
        | "role.delete"
        | "channel.create"
        | "channel.update"
        | "channel.delete"
        | "thread.create"
        | "thread.update"
        | "thread.delete"
        | "thread.list.sync"
        | "thread.member.update"
        | "stage.instance.create"
        | "stage.instance.update"
        | "stage.instance.delete"
        | "voice.channel.status.update"
        | "voice.channel.start.time.update" => Intents::GUILDS,
        "channel.pins.update" => Intents::GUILDS | Intents::DIRECT_MESSAGES,
        // Without `guild_members` it is sent only if the bot itself was added or removed.
        "thread.members.update" => Intents::GUILDS | Intents::GUILD_MEMBERS,
        "member.join" | "member.leave" | "member.update" => Intents::GUILD_MEMBERS,
        "guild.audit.log.entry.create" | "guild.ban.add" | "guild.ban.remove" => Intents::GUILD_MODERATION,
        "guild.emojis.update"
        | "guild.stickers.update"
        | "guild.soundboard.sound.create"
        | "guild.soundboard.sound.update"
        | "guild.soundboard.sound.delete"
        | "guild.soundboard.sounds.update" => Intents::GUILD_EMOJIS_AND_STICKERS,
        "guild.integrations.update" | "integration.create" | "integration.update" | "integration.delete" => {
            Intents::GUILD_INTEGRATIONS
        }
        "webhooks.update" => Intents::GUILD_WEBHOOKS,
        "invite.create" | "invite.delete" => Intents::GUILD_INVITES,
        "voice.state.update" | "voice.channel.effect.send" => Intents::GUILD_VOICE_STATES,
        "presence.update" => Intents::GUILD_PRESENCES,
        "message.create" | "message.update" | "message.delete" => Intents::GUILD_MESSAGES | Intents::DIRECT_MESSAGES,
        "message.delete.bulk" => Intents::GUILD_MESSAGES,
        "message.reaction.add"
        | "message.reaction.remove"
        | "message.reaction.remove.all"
        | "message.reaction.remove.emoji" => Intents::GUILD_MESSAGE_REACTIONS | Intents::DIRECT_MESSAGE_REACTIONS,
        "message.poll.vote.add" | "message.poll.vote.remove" => {
            Intents::GUILD_MESSAGE_POLLS | Intents::DIRECT_MESSAGE_POLLS
        }
        "typing.start" => Intents::GUILD_MESSAGE_TYPING | Intents::DIRECT_MESSAGE_TYPING,
        "guild.scheduled.event.create"
        | "guild.scheduled.event.update"
        | "guild.scheduled.event.delete"
        | "guild.scheduled.event.user.add"
        | "guild.scheduled.event.user.remove" => Intents::GUILD_SCHEDULED_EVENTS,
        "auto.moderation.rule.create" | "auto.moderation.rule.update" | "auto.moderation.rule.delete" => {
            Intents::AUTO_MODERATION_CONFIGURATION
        }
        "auto.moderation.action.execution" => Intents::AUTO_MODERATION_EXECUTION,
        _ => Intents::empty(),
    }
}

#[cfg(test)]
mod tests {
    use guildhall_core::event::handler::KNOWN_EVENTS;

    use super::*;

    /// Events that Discord sends whatever the intents are, and those of the gateway itself.
    const ALWAYS: &[&str] = &[
        "voice.server.update",
        "guild.members.chunk",
        "channel.info",
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

    #[test]
    fn every_known_event_has_intents_or_needs_none() {
        for name in KNOWN_EVENTS {
            assert_eq!(intents_for_event(name).is_empty(), ALWAYS.contains(name), "{name}");
        }
        assert!(ALWAYS.iter().all(|name| KNOWN_EVENTS.contains(name)));
    }

    #[test]
    fn every_intent_but_message_content_has_an_event() {
        let used: Intents = KNOWN_EVENTS.iter().map(|name| intents_for_event(name)).collect();
        assert_eq!(Intents::all() - used, Intents::MESSAGE_CONTENT);
    }
}
