//! Known types of Discord events.

use super::EventClass;

/// What the `id` of a payload identifies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IdSubject {
    /// The guild.
    Guild,
    /// The channel.
    Channel,
    /// The user.
    User,
    /// Something that events are not routed by.
    Other,
}

/// A type of event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EventType {
    /// Name for handlers.
    pub(super) name: &'static str,
    /// Rank.
    pub(super) class: EventClass,
    /// What `id` identifies.
    pub(super) id_subject: IdSubject,
}

/// Returns what is known about a type; `None` for a type that this version does not know. Interactions have separate
/// names.
///
/// A name is the type in lower case with dots, so that a new type has the same name before and after it is known.
/// Exception: `GUILD_MEMBER_ADD` and similar types have their common names.
pub(super) fn find_event_type(t: &str) -> Option<EventType> {
    use EventClass::{Change, Chatter, Fleeting, Gateway};
    use IdSubject::{Channel, Guild, Other, User};
    let (name, class, id_of) = match t {
        "MESSAGE_CREATE" => ("message.create", Chatter, Other),
        "MESSAGE_UPDATE" => ("message.update", Chatter, Other),
        "MESSAGE_DELETE" => ("message.delete", Chatter, Other),
        "MESSAGE_DELETE_BULK" => ("message.delete.bulk", Chatter, Other),
        "MESSAGE_REACTION_ADD" => ("message.reaction.add", Chatter, Other),
        "MESSAGE_REACTION_REMOVE" => ("message.reaction.remove", Chatter, Other),
        "MESSAGE_REACTION_REMOVE_ALL" => ("message.reaction.remove.all", Chatter, Other),
        "MESSAGE_REACTION_REMOVE_EMOJI" => ("message.reaction.remove.emoji", Chatter, Other),
        "MESSAGE_POLL_VOTE_ADD" => ("message.poll.vote.add", Chatter, Other),
        "MESSAGE_POLL_VOTE_REMOVE" => ("message.poll.vote.remove", Chatter, Other),
        "TYPING_START" => ("typing.start", Fleeting, Other),
        "PRESENCE_UPDATE" => ("presence.update", Fleeting, Other),
        "VOICE_STATE_UPDATE" => ("voice.state.update", Chatter, Other),
        "VOICE_SERVER_UPDATE" => ("voice.server.update", Chatter, Other),
        "VOICE_CHANNEL_EFFECT_SEND" => ("voice.channel.effect.send", Chatter, Other),
        "VOICE_CHANNEL_STATUS_UPDATE" => ("voice.channel.status.update", Chatter, Channel),
        "VOICE_CHANNEL_START_TIME_UPDATE" => ("voice.channel.start.time.update", Chatter, Channel),
        "GUILD_MEMBER_ADD" => ("member.join", Change, Other),
        "GUILD_MEMBER_REMOVE" => ("member.leave", Change, Other),
        "GUILD_MEMBER_UPDATE" => ("member.update", Change, Other),
        "GUILD_MEMBERS_CHUNK" => ("guild.members.chunk", Change, Other),
        "GUILD_ROLE_CREATE" => ("role.create", Change, Other),
        "GUILD_ROLE_UPDATE" => ("role.update", Change, Other),
        "GUILD_ROLE_DELETE" => ("role.delete", Change, Other),
        "GUILD_CREATE" => ("guild.create", Change, Guild),
        "GUILD_UPDATE" => ("guild.update", Change, Guild),
        "GUILD_DELETE" => ("guild.delete", Change, Guild),
        "GUILD_AUDIT_LOG_ENTRY_CREATE" => ("guild.audit.log.entry.create", Change, Other),
        "GUILD_BAN_ADD" => ("guild.ban.add", Change, Other),
        "GUILD_BAN_REMOVE" => ("guild.ban.remove", Change, Other),
        "GUILD_EMOJIS_UPDATE" => ("guild.emojis.update", Change, Other),
        "GUILD_INTEGRATIONS_UPDATE" => ("guild.integrations.update", Change, Other),
        "GUILD_SCHEDULED_EVENT_CREATE" => ("guild.scheduled.event.create", Change, Other),
        "GUILD_SCHEDULED_EVENT_UPDATE" => ("guild.scheduled.event.update", Change, Other),
        "GUILD_SCHEDULED_EVENT_DELETE" => ("guild.scheduled.event.delete", Change, Other),
        "GUILD_SCHEDULED_EVENT_USER_ADD" => ("guild.scheduled.event.user.add", Change, Other),
        "GUILD_SCHEDULED_EVENT_USER_REMOVE" => ("guild.scheduled.event.user.remove", Change, Other),
        "GUILD_SOUNDBOARD_SOUND_CREATE" => ("guild.soundboard.sound.create", Change, Other),
        "GUILD_SOUNDBOARD_SOUND_UPDATE" => ("guild.soundboard.sound.update", Change, Other),
        "GUILD_SOUNDBOARD_SOUND_DELETE" => ("guild.soundboard.sound.delete", Change, Other),
        "GUILD_SOUNDBOARD_SOUNDS_UPDATE" => ("guild.soundboard.sounds.update", Change, Other),
        "GUILD_STICKERS_UPDATE" => ("guild.stickers.update", Change, Other),
        "CHANNEL_CREATE" => ("channel.create", Change, Channel),
        "CHANNEL_UPDATE" => ("channel.update", Change, Channel),
        "CHANNEL_DELETE" => ("channel.delete", Change, Channel),
        "CHANNEL_INFO" => ("channel.info", Change, Other),
        "CHANNEL_PINS_UPDATE" => ("channel.pins.update", Change, Other),
        "THREAD_CREATE" => ("thread.create", Change, Channel),
        "THREAD_UPDATE" => ("thread.update", Change, Channel),
        "THREAD_DELETE" => ("thread.delete", Change, Channel),
        "THREAD_LIST_SYNC" => ("thread.list.sync", Change, Other),
        // The `id` of these is also the thread's.
        "THREAD_MEMBER_UPDATE" => ("thread.member.update", Change, Channel),
        "THREAD_MEMBERS_UPDATE" => ("thread.members.update", Change, Channel),
        "STAGE_INSTANCE_CREATE" => ("stage.instance.create", Change, Other),
        "STAGE_INSTANCE_UPDATE" => ("stage.instance.update", Change, Other),
        "STAGE_INSTANCE_DELETE" => ("stage.instance.delete", Change, Other),
        "INVITE_CREATE" => ("invite.create", Change, Other),
        "INVITE_DELETE" => ("invite.delete", Change, Other),
        "INTEGRATION_CREATE" => ("integration.create", Change, Other),
        "INTEGRATION_UPDATE" => ("integration.update", Change, Other),
        "INTEGRATION_DELETE" => ("integration.delete", Change, Other),
        "WEBHOOKS_UPDATE" => ("webhooks.update", Change, Other),
        "AUTO_MODERATION_RULE_CREATE" => ("auto.moderation.rule.create", Change, Other),
        "AUTO_MODERATION_RULE_UPDATE" => ("auto.moderation.rule.update", Change, Other),
        "AUTO_MODERATION_RULE_DELETE" => ("auto.moderation.rule.delete", Change, Other),
        "AUTO_MODERATION_ACTION_EXECUTION" => ("auto.moderation.action.execution", Change, Other),
        "APPLICATION_COMMAND_PERMISSIONS_UPDATE" => ("application.command.permissions.update", Change, Other),
        "ENTITLEMENT_CREATE" => ("entitlement.create", Change, Other),
        "ENTITLEMENT_UPDATE" => ("entitlement.update", Change, Other),
        "ENTITLEMENT_DELETE" => ("entitlement.delete", Change, Other),
        "SUBSCRIPTION_CREATE" => ("subscription.create", Change, Other),
        "SUBSCRIPTION_UPDATE" => ("subscription.update", Change, Other),
        "SUBSCRIPTION_DELETE" => ("subscription.delete", Change, Other),
        "SOUNDBOARD_SOUNDS" => ("soundboard.sounds", Change, Other),
        "USER_UPDATE" => ("user.update", Change, User),
        "RATE_LIMITED" => ("rate.limited", Change, Other),
        "READY" => ("gateway.ready", Gateway, Other),
        "RESUMED" => ("gateway.resumed", Gateway, Other),
        _ => return None,
    };
    Some(EventType { name, class, id_subject: id_of })
}

#[cfg(test)]
mod tests {
    use super::super::EventName;
    use super::*;

    /// Every dispatch that Discord documents, or that a client library knows.
    const TYPES: &str = "\
        APPLICATION_COMMAND_PERMISSIONS_UPDATE AUTO_MODERATION_ACTION_EXECUTION AUTO_MODERATION_RULE_CREATE \
        AUTO_MODERATION_RULE_DELETE AUTO_MODERATION_RULE_UPDATE CHANNEL_CREATE CHANNEL_DELETE CHANNEL_INFO \
        CHANNEL_PINS_UPDATE CHANNEL_UPDATE ENTITLEMENT_CREATE ENTITLEMENT_DELETE ENTITLEMENT_UPDATE \
        GUILD_AUDIT_LOG_ENTRY_CREATE GUILD_BAN_ADD GUILD_BAN_REMOVE GUILD_CREATE GUILD_DELETE GUILD_EMOJIS_UPDATE \
        GUILD_INTEGRATIONS_UPDATE GUILD_MEMBERS_CHUNK GUILD_MEMBER_ADD GUILD_MEMBER_REMOVE GUILD_MEMBER_UPDATE \
        GUILD_ROLE_CREATE GUILD_ROLE_DELETE GUILD_ROLE_UPDATE GUILD_SCHEDULED_EVENT_CREATE \
        GUILD_SCHEDULED_EVENT_DELETE GUILD_SCHEDULED_EVENT_UPDATE GUILD_SCHEDULED_EVENT_USER_ADD \
        GUILD_SCHEDULED_EVENT_USER_REMOVE GUILD_SOUNDBOARD_SOUNDS_UPDATE GUILD_SOUNDBOARD_SOUND_CREATE \
        GUILD_SOUNDBOARD_SOUND_DELETE GUILD_SOUNDBOARD_SOUND_UPDATE GUILD_STICKERS_UPDATE GUILD_UPDATE \
        INTEGRATION_CREATE INTEGRATION_DELETE INTEGRATION_UPDATE INVITE_CREATE INVITE_DELETE MESSAGE_CREATE \
        MESSAGE_DELETE MESSAGE_DELETE_BULK MESSAGE_POLL_VOTE_ADD MESSAGE_POLL_VOTE_REMOVE MESSAGE_REACTION_ADD \
        MESSAGE_REACTION_REMOVE MESSAGE_REACTION_REMOVE_ALL MESSAGE_REACTION_REMOVE_EMOJI MESSAGE_UPDATE \
        PRESENCE_UPDATE RATE_LIMITED READY RESUMED SOUNDBOARD_SOUNDS STAGE_INSTANCE_CREATE STAGE_INSTANCE_DELETE \
        STAGE_INSTANCE_UPDATE SUBSCRIPTION_CREATE SUBSCRIPTION_DELETE SUBSCRIPTION_UPDATE THREAD_CREATE \
        THREAD_DELETE THREAD_LIST_SYNC THREAD_MEMBERS_UPDATE THREAD_MEMBER_UPDATE THREAD_UPDATE TYPING_START \
        USER_UPDATE VOICE_CHANNEL_EFFECT_SEND VOICE_CHANNEL_START_TIME_UPDATE VOICE_CHANNEL_STATUS_UPDATE \
        VOICE_SERVER_UPDATE VOICE_STATE_UPDATE WEBHOOKS_UPDATE";

    #[test]
    fn known_types_follow_the_naming_rule() {
        for t in TYPES.split_whitespace() {
            let expected = match t {
                "GUILD_MEMBER_ADD" => "member.join".to_owned(),
                "GUILD_MEMBER_REMOVE" => "member.leave".to_owned(),
                "GUILD_MEMBER_UPDATE" => "member.update".to_owned(),
                "GUILD_ROLE_CREATE" => "role.create".to_owned(),
                "GUILD_ROLE_UPDATE" => "role.update".to_owned(),
                "GUILD_ROLE_DELETE" => "role.delete".to_owned(),
                "READY" => "gateway.ready".to_owned(),
                "RESUMED" => "gateway.resumed".to_owned(),
                other => EventName::from_unknown_type(other).as_str().to_owned(),
            };
            assert_eq!(find_event_type(t).expect(t).name, expected);
        }
        assert_eq!(find_event_type("SOME_NEW_EVENT"), None);
    }

    #[test]
    fn types_are_ranked_by_subject() {
        for t in TYPES.split_whitespace() {
            let expected = match t.split('_').next().expect("every type has a first word") {
                "TYPING" | "PRESENCE" => EventClass::Fleeting,
                "MESSAGE" | "VOICE" => EventClass::Chatter,
                "READY" | "RESUMED" => EventClass::Gateway,
                _ => EventClass::Change,
            };
            assert_eq!(find_event_type(t).expect(t).class, expected, "{t}");
        }
    }
}
