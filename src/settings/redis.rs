//! Settings of the shared Redis.

use std::{path::PathBuf, time::Duration};

use guildhall_core::limit::shared::LimitFallback;

use super::{
    declare::settings,
    kind::{self, Choice, Integer, Text, ValueError},
    redis_url::RedisUrl,
};

settings! {
    /// The Redis that the processes of one bot share.
    #[derive(Clone, Debug)]
    pub struct RedisSettings in "redis" {
        /// URL of the Redis that the processes of one bot share. Without it, a process works alone. With sentinels:
        /// redis+sentinel://host:26379,host:26379/service. For a cluster, name any node. If it contains a password, do
        /// not store it in the settings file: use the environment or `redis.url_file`.
        pub url: Option<RedisUrl> = REDIS_URL;
        /// PEM file of the certificate authorities that are trusted for a rediss:// server. Empty: the public ones.
        pub ca_file: Option<PathBuf> = kind::path("the path of a file"), "";
        /// How long a call to Redis may take in total, in milliseconds. After that Redis counts as unreachable.
        pub timeout as "timeout_ms": Duration = Integer(1..=10_000), 250;
        /// What happens while Redis is unreachable. `share`: each process uses its share of the limit. `closed`: nothing
        /// is sent. `open`: each process uses the whole limit, so the limit may be exceeded.
        pub on_loss: LimitFallback = Choice(FALLBACKS), "share";
        /// Interval of the heartbeats of a process, in milliseconds. Less than half of `redis.silence_ms`.
        pub heartbeat as "heartbeat_ms": Duration = Integer(10..=60_000), 1000;
        /// A process without a heartbeat for this long, in milliseconds, is detached: its share is withheld from the
        /// others, since it may still be using it.
        pub silence as "silence_ms": Duration = Integer(100..=600_000), 3000;
        /// How long after it was detached a process's share returns to the others, in milliseconds. More than
        /// `redis.share_for_ms`, `redis.silence_ms` and 30 seconds together.
        pub forget as "forget_ms": Duration = Integer(1_000..=86_400_000), 600000;
        /// How long a process without Redis uses its share, in milliseconds.
        pub share_for as "share_for_ms": Duration = Integer(0..=86_400_000), 540000;
        /// How long an empty Redis waits for processes that knew each other, in milliseconds, before it divides the whole
        /// limit among those that are present.
        pub newcomer as "newcomer_ms": Duration = Integer(0..=600_000), 3000;
        /// How far ahead calls are booked, in milliseconds.
        pub horizon as "horizon_ms": Duration = Integer(1..=999), 400;
        /// How long a call of a dead or disconnected process may still be in flight to Discord, in milliseconds.
        pub guard as "guard_ms": Duration = Integer(0..=60_000), 1000;
        /// Folder of the lock files of the processes on one machine, so that the next process detects that the previous
        /// one has ended. Empty: a folder in the system's temporary folder.
        pub seat_dir: Option<PathBuf> = kind::path("the path of a folder"), "";
    }
}

const FALLBACKS: &[(&str, LimitFallback)] =
    &[("share", LimitFallback::Share), ("closed", LimitFallback::Closed), ("open", LimitFallback::Open)];

/// URL of Redis. It may contain a password, so it is a secret.
const REDIS_URL: Text<RedisUrl> = Text {
    secrets: Some(|url| [&url.username, &url.password].into_iter().flatten().cloned().collect()),
    ..Text::new(
        |text| if text.is_empty() { Err(ValueError::Message("is empty".to_owned())) } else { kind::from_text(text) },
        "redis://[user:password@]host[:port][/db], or the same with rediss:// (TLS), redis+sentinel:// or \
         rediss+sentinel://",
    )
};
