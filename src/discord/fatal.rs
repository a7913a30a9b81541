//! Closes after which trying again with the same settings cannot help.

use twilight_model::gateway::CloseCode;

/// Discord ended a shard for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Discord closed shard {shard} with {code}: {}", self.advice())]
pub struct FatalClose {
    /// The shard's number.
    pub shard: u32,
    /// The close code.
    pub code: u16,
}

impl FatalClose {
    /// What it means, and what a person can do about it.
    pub fn advice(&self) -> &'static str {
        match CloseCode::try_from(self.code) {
            Ok(CloseCode::AuthenticationFailed) => {
                "the token is wrong; copy the bot's token from Discord's developer portal into discord.token \
                 (GUILDHALL__DISCORD__TOKEN or GUILDHALL__DISCORD__TOKEN_FILE)"
            }
            Ok(CloseCode::InvalidShard) => "the shard's number is not below the number of shards; check gateway.shards",
            Ok(CloseCode::ShardingRequired) => {
                "the bot is in too many guilds for so few shards; raise gateway.shards (one for every 2,500 guilds)"
            }
            Ok(CloseCode::InvalidApiVersion) => {
                "this gateway no longer speaks API version 10; update Guildhall, or check discord.gateway_url"
            }
            Ok(CloseCode::InvalidIntents) => "the intents are not valid together; check gateway.intents",
            Ok(CloseCode::DisallowedIntents) => {
                "the bot may not use the privileged intents it asks for; enable them for it in Discord's developer \
                 portal (Bot, Privileged Gateway Intents), or take them out of gateway.intents"
            }
            _ => "connecting again with the same settings cannot help",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_close_that_cannot_be_reconnected_has_advice_of_its_own() {
        let other = FatalClose { shard: 0, code: 4999 }.advice();
        for code in [4004, 4010, 4011, 4012, 4013, 4014] {
            assert!(!CloseCode::try_from(code).unwrap().can_reconnect());
            assert_ne!(FatalClose { shard: 0, code }.advice(), other);
        }
    }
}
