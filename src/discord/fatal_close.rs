//! Close codes after which a reconnect with the same settings cannot succeed.

use std::borrow::Cow;

use twilight_model::gateway::{CloseCode, Intents};

/// Intents that Discord grants only to bots whose owner has enabled them.
const PRIVILEGED: Intents = Intents::GUILD_MEMBERS.union(Intents::GUILD_PRESENCES).union(Intents::MESSAGE_CONTENT);

/// Discord closed a shard permanently.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Discord closed shard {shard} with {code}: {}", self.advice())]
pub struct FatalClose {
    /// Shard number.
    pub shard: u32,
    /// Close code.
    pub code: u16,
    /// The requested intents.
    pub intents: Intents,
}

impl FatalClose {
    /// Returns what the code means, and how to fix it.
    pub fn advice(&self) -> Cow<'static, str> {
        let advice = match CloseCode::try_from(self.code) {
            Ok(CloseCode::AuthenticationFailed) => {
                "invalid token; copy the bot token from the Discord developer portal into discord.token \
                 (GUILDHALL__DISCORD__TOKEN or GUILDHALL__DISCORD__TOKEN_FILE)"
            }
            Ok(CloseCode::InvalidShard) => {
                "the shard number is not below the number of shards; check gateway.shards and gateway.shard_range, \
                 which must match in every process"
            }
            Ok(CloseCode::ShardingRequired) => {
                "the bot is in too many guilds for this number of shards; raise gateway.shards (one for every 2,500 \
                 guilds) in every process, or set it to 0 to use the number that Discord recommends"
            }
            Ok(CloseCode::InvalidApiVersion) => {
                "this gateway no longer supports API version 10; update Guildhall, or check discord.gateway_url"
            }
            Ok(CloseCode::InvalidIntents) => return self.intents_advice().into(),
            Ok(CloseCode::DisallowedIntents) => return self.privileges_advice().into(),
            _ => "reconnecting with the same settings cannot succeed",
        };
        advice.into()
    }

    fn intents_advice(&self) -> String {
        format!(
            "invalid combination of intents; check gateway.intents ({}), or update Guildhall if Discord has new ones",
            intent_names(self.intents)
        )
    }

    fn privileges_advice(&self) -> String {
        let privileged = self.intents & PRIVILEGED;
        if privileged.is_empty() {
            return "the bot is not permitted to use one of the requested intents, and none of those in gateway.intents \
                is known to be privileged; enable them for the bot in the Discord developer portal (Bot, Privileged \
                Gateway Intents), or remove new ones from gateway.intents"
                .to_owned();
        }
        format!(
            "the bot is not permitted to use the requested privileged intents ({}); enable them in the Discord \
             developer portal (https://discord.com/developers/applications, the application, Bot, Privileged Gateway \
             Intents), or remove them from gateway.intents",
            intent_names(privileged)
        )
    }
}

fn intent_names(intents: Intents) -> String {
    let names: Vec<_> = intents.iter_names().map(|(name, _)| name.to_lowercase()).collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(code: u16, intents: Intents) -> String {
        FatalClose { shard: 0, code, intents }.advice().into_owned()
    }

    #[test]
    fn every_fatal_close_code_has_specific_advice() {
        let other = close(4999, Intents::GUILDS);
        for code in [4004, 4010, 4011, 4012, 4013, 4014] {
            assert!(!CloseCode::try_from(code).unwrap().can_reconnect());
            assert_ne!(close(code, Intents::GUILDS), other);
        }
    }

    #[test]
    fn privileged_intents_advice_names_them_and_where_to_enable_them() {
        let advice = close(4014, Intents::GUILDS | Intents::GUILD_MEMBERS | Intents::MESSAGE_CONTENT);
        assert!(advice.contains("(guild_members, message_content)"), "{advice}");
        assert!(advice.contains("Privileged Gateway Intents") && advice.contains("from gateway.intents"), "{advice}");
        let advice = close(4013, Intents::GUILDS | Intents::DIRECT_MESSAGES);
        assert!(advice.contains("(guilds, direct_messages)"), "{advice}");
    }
}
