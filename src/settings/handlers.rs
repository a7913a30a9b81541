//! Settings of event handlers and interactions.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use guildhall_core::event::handler::DeferMode;

use super::{
    declare::settings,
    kind::{self, Bool, Choice, Integer, Optional, Text, ValueError},
    public_key::PublicKey,
};

settings! {
    /// Settings of event handlers.
    #[derive(Clone, Debug)]
    pub struct HandlerSettings in "handlers" {
        /// TOML file of the event handlers, see docs/handlers.md. Empty: no handlers.
        #[reloadable]
        pub file: Option<PathBuf> = kind::path("the path of a readable file"), "";
        /// Whether all handlers run in shadow: what they would do is recorded, and nothing is done.
        #[reloadable]
        pub shadow: bool = Bool, false;
        /// How long a webhook may take to respond, in milliseconds, unless its handler sets another timeout.
        pub timeout as "timeout_ms": Duration = Integer(1..=600_000), 10000;
        /// An event whose handler takes longer, in milliseconds, is moved to the inbox, so that its shard does not wait.
        pub slow as "slow_ms": Duration = Integer(1..=600_000), 2000;
        /// Maximum number of events in the inbox. When it is full, shards wait.
        pub max_inbox_events as "inbox_most": u64 = Integer(1..=100_000_000), 100000;
        /// Maximum number of attempts of a handler with an event before the event becomes a dead event.
        pub attempts: u32 = Integer(1..=1_000), 10;
        /// Delay before the first retry of a handler, in milliseconds. Doubles with each failure.
        pub backoff_base as "backoff_base_ms": Duration = Integer(1..=3_600_000), 1000;
        /// Maximum delay between two attempts of a handler, in milliseconds.
        pub backoff_cap as "backoff_cap_ms": Duration = Integer(1..=86_400_000), 300000;
    }

    /// Defaults for interactions whose handler does not set them, and the endpoint for posted interactions.
    #[derive(Clone, Debug)]
    pub struct InteractionSettings in "interactions" {
        /// How interactions are answered whose handler does not set it. `auto`: they are deferred at once, so that the
        /// response has 15 minutes. `never`: the handler must respond in time.
        pub defer: DeferMode = Choice(&[("auto", DeferMode::Auto), ("never", DeferMode::Never)]), "auto";
        /// Whether only the user of an interaction sees the response, unless the handler sets it.
        pub ephemeral: bool = Bool, false;
        /// How long a handler may take for an interaction that is not deferred, in milliseconds. Discord waits for 3000.
        pub timeout as "within_ms": Duration = Integer(1..=2_900), 2500;
        /// The application's public key, from the General Information page of Discord's developer portal: interactions
        /// that Discord posts are accepted on `interactions.bind` if they are signed with it. Empty: none are accepted;
        /// they arrive over the gateway.
        pub public_key: Option<PublicKey> = Optional(PUBLIC_KEY), "";
        /// IP address and port that interactions posted by Discord are accepted on; a proxy in front of it must terminate
        /// TLS. Port 0 selects a free port.
        pub bind: SocketAddr = kind::address("an IP address and a port, such as 127.0.0.1:8082"), "127.0.0.1:8082";
        /// Maximum difference between the time of a posted interaction's signature and the current time, in
        /// milliseconds.
        pub replay_window as "replay_window_ms": Duration = Integer(1_000..=3_600_000), 300000;
        /// Texts that users see if an interaction gets no response.
        pub fallback: FallbackSettings;
    }
}

settings! {
    /// Texts for interactions that get no response from their handler.
    #[derive(Clone, Debug)]
    pub struct FallbackSettings in "interactions.fallback" {
        /// Text while the handler's `cooldown` applies. Empty: none.
        pub cooldown: Option<String> = Optional(MESSAGE), "Please wait a moment before you do this again.";
        /// Text if the handler failed, its response is invalid, or Discord rejects it. Empty: none.
        pub failed: Option<String> = Optional(MESSAGE), "Something went wrong. Please try again later.";
        /// Text if the webhook cannot be called: it is unreachable, responds with an error, or its breaker is open.
        /// Empty: none.
        pub unavailable: Option<String> = Optional(MESSAGE), "This is not available at the moment. Please try again later.";
        /// Time from an interaction until `unavailable` is sent, in milliseconds, while the webhook is called again.
        pub unavailable_after as "unavailable_after_ms": Duration = Integer(0..=840_000), 30000;
        /// Text if there is no response and no failure: the handler is slow, or has no reply. Empty: none.
        pub unanswered: Option<String> = Optional(MESSAGE), "There is no response yet. Please try again later.";
        /// Time from an interaction until `unanswered` is sent, in milliseconds. Discord accepts a response for 900000.
        pub unanswered_after as "unanswered_after_ms": Duration = Integer(1_000..=840_000), 300000;
    }
}

/// The content of a message.
const MESSAGE: Text<String> = Text::new(message, "a text of at most 2000 characters");

fn message(text: &str) -> Result<String, ValueError> {
    if text.chars().count() <= 2_000 { Ok(text.to_owned()) } else { Err(ValueError::NotAllowed) }
}

const PUBLIC_KEY: Text<PublicKey> = Text::new(kind::from_text, "64 hexadecimal digits");
