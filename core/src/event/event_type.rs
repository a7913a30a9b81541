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
    Else,
}

/// A type of event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EventType {
    /// Name for handlers.
    pub(super) name: &'static str,
    /// Rank.
    pub(super) class: EventClass,
    /// What `id` identifies.
    pub(super) id_of: IdSubject,
}

/// Returns what is known about a type; `None` for a type that this version does not know. Interactions have separate
/// names.
///
/// A name is the type in lower case with dots, so that a new type has the same name before and after it is known.
/// Exception: `GUILD_MEMBER_ADD` and similar types have their common names.
pub(super) fn dispatch(t: &str) -> Option<EventType> {
    use EventClass::{Change, Chatter, Fleeting, Gateway};
    use IdSubject::{Channel, Else, Guild, User};
    let (name, class, id_of) = match t {
        "MESSAGE_CREATE" => ("message.create", Chatter, Else),
        "MESSAGE_UPDATE" => ("message.update", Chatter, Else),
        "MESSAGE_DELETE" => ("message.delete", Chatter, Else),
        "MESSAGE_DELETE_BULK" => ("message.delete.bulk", Chatter, Else),
        "MESSAGE_REACTION_ADD" => ("message.reaction.add", Chatter, Else),
        "MESSAGE_REACTION_REMOVE" => ("message.reaction.remove", Chatter, Else),
        "MESSAGE_REACTION_REMOVE_ALL" => ("message.reaction.remove.all", Chatter, Else),
        "MESSAGE_REACTION_REMOVE_EMOJI" => ("message.reaction.remove.emoji", Chatter, Else),
        "MESSAGE_POLL_VOTE_ADD" => ("message.poll.vote.add", Chatter, Else),
        "MESSAGE_POLL_VOTE_REMOVE" => ("message.poll.vote.remove", Chatter, Else),
        "TYPING_START" => ("typing.start", Fleeting, Else),
        "PRESENCE_UPDATE" => ("presence.update", Fleeting, Else),
        "VOICE_STATE_UPDATE" => ("voice.state.update", Chatter, Else),
        "VOICE_SERVER_UPDATE" => ("voice.server.update", Chatter, Else),
        "VOICE_CHANNEL_EFFECT_SEND" => ("voice.channel.effect.send", Chatter, Else),
        "VOICE_CHANNEL_STATUS_UPDATE" => ("voice.channel.status.update", Chatter, Channel),
        "VOICE_CHANNEL_START_TIME_UPDATE" => ("voice.channel.start.time.update", Chatter, Channel),
        "GUILD_MEMBER_ADD" => ("member.join", Change, Else),
        "GUILD_MEMBER_REMOVE" => ("member.leave", Change, Else),
        "GUILD_MEMBER_UPDATE" => ("member.update", Change, Else),
        "GUILD_MEMBERS_CHUNK" => ("guild.members.chunk", Change, Else),
        "GUILD_ROLE_CREATE" => ("role.create", Change, Else),
        "GUILD_ROLE_UPDATE" => ("role.update", Change, Else),
        "GUILD_ROLE_DELETE" => ("role.delete", Change, Else),
        "GUILD_CREATE" => ("guild.create", Change, Guild),
        "GUILD_UPDATE" => ("guild.update", Change, Guild),
        "GUILD_DELETE" => ("guild.delete", Change, Guild),
        "GUILD_AUDIT_LOG_ENTRY_CREATE" => ("guild.audit.log.entry.create", Change, Else),
        "GUILD_BAN_ADD" => ("guild.ban.add", Change, Else),
        "GUILD_BAN_REMOVE" => ("guild.ban.remove", Change, Else),
        "GUILD_EMOJIS_UPDATE" => ("guild.emojis.update", Change, Else),
        "GUILD_INTEGRATIONS_UPDATE" => ("guild.integrations.update", Change, Else),
        "GUILD_SCHEDULED_EVENT_CREATE" => ("guild.scheduled.event.create", Change, Else),
        "GUILD_SCHEDULED_EVENT_UPDATE" => ("guild.scheduled.event.update", Change, Else),
        "GUILD_SCHEDULED_EVENT_DELETE" => ("guild.scheduled.event.delete", Change, Else),
        "GUILD_SCHEDULED_EVENT_USER_ADD" => ("guild.scheduled.event.user.add", Change, Else),
        "GUILD_SCHEDULED_EVENT_USER_REMOVE" => ("guild.scheduled.event.user.remove", Change, Else),
        "GUILD_SOUNDBOARD_SOUND_CREATE" => ("guild.soundboard.sound.create", Change, Else),
        "GUILD_SOUNDBOARD_SOUND_UPDATE" => ("guild.soundboard.sound.update", Change, Else),
        "GUILD_SOUNDBOARD_SOUND_DELETE" => ("guild.soundboard.sound.delete", Change, Else),
        "GUILD_SOUNDBOARD_SOUNDS_UPDATE" => ("guild.soundboard.sounds.update", Change, Else),
        "GUILD_STICKERS_UPDATE" => ("guild.stickers.update", Change, Else),
        "CHANNEL_CREATE" => ("channel.create", Change, Channel),
        "CHANNEL_UPDATE" => ("channel.update", Change, Channel),
        "CHANNEL_DELETE" => ("channel.delete", Change, Channel),
        "CHANNEL_INFO" => ("channel.info", Change, Else),
        "CHANNEL_PINS_UPDATE" => ("channel.pins.update", Change, Else),
        "THREAD_CREATE" => ("thread.create", Change, Channel),
        "THREAD_UPDATE" => ("thread.update", Change, Channel),
        "THREAD_DELETE" => ("thread.delete", Change, Channel),
        "THREAD_LIST_SYNC" => ("thread.list.sync", Change, Else),
        // The `id` of these is also the thread's.
        "THREAD_MEMBER_UPDATE" => ("thread.member.update", Change, Channel),
        "THREAD_MEMBERS_UPDATE" => ("thread.members.update", Change, Channel),
        "STAGE_INSTANCE_CREATE" => ("stage.instance.create", Change, Else),
        "STAGE_INSTANCE_UPDATE" => ("stage.instance.update", Change, Else),
        "STAGE_INSTANCE_DELETE" => ("stage.instance.delete", Change, Else),
        "INVITE_CREATE" => ("invite.create", Change, Else),
        "INVITE_DELETE" => ("invite.delete", Change, Else),
        "INTEGRATION_CREATE" => ("integration.create", Change, Else),
        "INTEGRATION_UPDATE" => ("integration.update", Change, Else),
        "INTEGRATION_DELETE" => ("integration.delete", Change, Else),
        "WEBHOOKS_UPDATE" => ("webhooks.update", Change, Else),
        "AUTO_MODERATION_RULE_CREATE" => ("auto.moderation.rule.create", Change, Else),
        "AUTO_MODERATION_RULE_UPDATE" => ("auto.moderation.rule.update", Change, Else),
        "AUTO_MODERATION_RULE_DELETE" => ("auto.moderation.rule.delete", Change, Else),
        "AUTO_MODERATION_ACTION_EXECUTION" => ("auto.moderation.action.execution", Change, Else),
        "APPLICATION_COMMAND_PERMISSIONS_UPDATE" => ("application.command.permissions.update", Change, Else),
        "ENTITLEMENT_CREATE" => ("entitlement.create", Change, Else),
        "ENTITLEMENT_UPDATE" => ("entitlement.update", Change, Else),
        "ENTITLEMENT_DELETE" => ("entitlement.delete", Change, Else),
        "SUBSCRIPTION_CREATE" => ("subscription.create", Change, Else),
        "SUBSCRIPTION_UPDATE" => ("subscription.update", Change, Else),
        "SUBSCRIPTION_DELETE" => ("subscription.delete", Change, Else),
        "SOUNDBOARD_SOUNDS" => ("soundboard.sounds", Change, Else),
        "USER_UPDATE" => ("user.update", Change, User),
        "RATE_LIMITED" => ("rate.limited", Change, Else),
        "READY" => ("gateway.ready", Gateway, Else),
        "RESUMED" => ("gateway.resumed", Gateway, Else),
        _ => return None,
    };
    Some(EventType { name, class, id_of })
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
    fn every_type_has_the_name_that_it_would_have_if_it_were_new_unless_people_call_it_otherwise() {
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
                other => EventName::newer(other).as_str().to_owned(),
            };
            assert_eq!(dispatch(t).expect(t).name, expected);
        }
        assert_eq!(dispatch("SOME_NEW_EVENT"), None);
    }

    #[test]
    fn every_type_ranks_by_what_it_is_about() {
        for t in TYPES.split_whitespace() {
            let expected = match t.split('_').next().expect("every type has a first word") {
                "TYPING" | "PRESENCE" => EventClass::Fleeting,
                "MESSAGE" | "VOICE" => EventClass::Chatter,
                "READY" | "RESUMED" => EventClass::Gateway,
                _ => EventClass::Change,
            };
            assert_eq!(dispatch(t).expect(t).class, expected, "{t}");
        }
    }
}
