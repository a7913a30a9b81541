//! The table that declares every setting.
//!
//! Parsing, validation, `config check`, `config template` and the tests of the documentation all iterate over this
//! table, so a setting cannot exist in one of them and not in another.

/// Type of a setting, and how text is parsed into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A value that is never printed. It also has a `*_file` form that names a file to read it from.
    Secret,
    /// URL of Redis. It may contain a password, so it is treated like a secret, including the `*_file` form.
    RedisUrl,
    /// Headers of HTTP requests. They contain credentials, so they are treated like a secret, including the `*_file`
    /// form.
    Headers,
    /// URL of the store. It may contain a password, so it is treated like a secret, including the `*_file` form.
    StoreUrl,
    /// An absolute URL with one of these schemes. With `optional`, the empty text means "none".
    Url { schemes: &'static [&'static str], optional: bool },
    /// An integer from `min` to `max`, both included.
    Integer { min: u64, max: u64 },
    /// `true` or `false`.
    Bool,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A short name, of characters without a special meaning in URLs, paths or keys.
    Name,
    /// The path of a file or folder. The empty text means "none".
    Path,
    /// A list of names of gateway intents.
    Intents,
    /// A range of consecutive shards. The empty text means all of them.
    ShardRange,
    /// A line of text for display, with at most `max_chars` characters.
    Line { max_chars: usize },
    /// A numeric IP address and a port.
    Address,
    /// A list of IP addresses and networks.
    Networks,
    /// An Ed25519 key in hexadecimal. The empty text means "none".
    PublicKey,
    /// Named budgets, each as `name=maximum/restored a second`.
    Budgets,
    /// Limits of a budget, as `maximum/restored a second`. The empty text means "none".
    BudgetLimits,
    /// Log filter directives, in the syntax of `tracing`.
    Filter,
}

/// Declaration of a setting.
#[derive(Debug)]
pub(crate) struct Key {
    /// `section.name`: in the file `name` under `[section]`, in the environment `GUILDHALL__SECTION__NAME`. A section
    /// may have subsections (`api.tls`), which come after the settings of the section itself.
    pub(crate) path: &'static str,
    pub(crate) kind: Kind,
    /// The default, written as in the file. `None`: the setting has no value unless it is set.
    pub(crate) default: Option<&'static str>,
    /// Description of the setting.
    pub(crate) help: &'static str,
    /// Description of the permitted values.
    pub(crate) allowed: &'static str,
}

/// Settings that a reload applies to a running process; the others need a restart. `docs/configuration.md` marks them.
const RELOADABLE: &[&str] = &[
    "discord.token",
    "handlers.file",
    "handlers.shadow",
    "api.tls.cert_file",
    "api.tls.key_file",
    "api.policies.heavy_per_second",
    "api.policies.heavy_burst",
    "api.policies.light_per_second",
    "api.policies.light_burst",
    "api.policies.failed_per_second",
    "api.policies.failed_burst",
    "log.filter",
];

/// All settings, in the order in which they are displayed.
pub(crate) const SCHEMA: &[Key] = &[
    Key {
        path: "discord.token",
        kind: Kind::Secret,
        default: None,
        help: "The bot's token, without a leading `Bot `. Do not store it in this file: use the environment or \
            `token_file`.",
        allowed: "letters, digits, `.`, `_` and `-`",
    },
    Key {
        path: "discord.api_url",
        kind: Kind::Url { schemes: &["https", "http"], optional: false },
        default: Some("\"https://discord.com/api/v10\""),
        help: "URL of Discord's REST API.",
        allowed: "an http or https URL without user name, password, query or fragment",
    },
    Key {
        path: "discord.gateway_url",
        kind: Kind::Url { schemes: &["wss", "ws"], optional: true },
        default: Some("\"\""),
        help: "URL of the gateway. Empty: the one that `GET /gateway/bot` returns.",
        allowed: "a ws or wss URL without user name, password, query or fragment, or empty",
    },
    Key {
        path: "gateway.shards",
        kind: Kind::Integer { min: 0, max: 16_000 },
        default: Some("0"),
        help: "Number of shards that the guilds are divided over. 0: as many as Discord recommends, or one if \
            `gateway_url` is set. Discord requires one for every 2,500 guilds.",
        allowed: "a whole number from 0 to 16000",
    },
    Key {
        path: "gateway.shard_range",
        kind: Kind::ShardRange,
        default: Some("\"\""),
        help: "Shards that this process runs, both ends included, such as 0-3; `shards` is the total number. Empty: \
            all of them.",
        allowed: "two numbers separated by `-`, each less than gateway.shards, or empty",
    },
    Key {
        path: "gateway.threads",
        kind: Kind::Integer { min: 1, max: 256 },
        default: Some("1"),
        help: "Number of threads that run shards. They do nothing else; one thread reads hundreds of thousands of \
            events a second.",
        allowed: "a whole number from 1 to 256",
    },
    Key {
        path: "gateway.max_concurrency",
        kind: Kind::Integer { min: 0, max: 256 },
        default: Some("1"),
        help: "How many shards may identify within 5 seconds, if `gateway_url` is set; otherwise Discord's value is \
            used. Use only what Discord granted the bot (`session_start_limit.max_concurrency`). 0: no limit, for a \
            gateway proxy that spaces them itself.",
        allowed: "a whole number from 0 to 256",
    },
    Key {
        path: "gateway.identify_spacing_ms",
        kind: Kind::Integer { min: 0, max: 600_000 },
        default: Some("5250"),
        help: "Minimum time between two shards that identify one after the other, in milliseconds: Discord's 5 seconds \
            plus network latency.",
        allowed: "a whole number from 0 to 600000",
    },
    Key {
        path: "gateway.identifies_a_day",
        kind: Kind::Integer { min: 1, max: 1_000_000 },
        default: Some("1000"),
        help: "How many sessions may be started within a day, over all processes, if `gateway_url` is set; otherwise \
            Discord's value is used. Discord resets the token of a bot that exceeds it.",
        allowed: "a whole number from 1 to 1000000",
    },
    Key {
        path: "gateway.intents",
        kind: Kind::Intents,
        default: Some("[\"guilds\", \"guild_moderation\", \"guild_messages\", \"direct_messages\"]"),
        help: "Which events Discord sends. `guild_members`, `guild_presences` and `message_content` are privileged: \
            enable them in Discord's developer portal before you add them here.",
        allowed: "names of gateway intents (separated by commas in the environment), such as guilds, guild_members",
    },
    Key {
        path: "gateway.presence_status",
        kind: Kind::Choice(&["online", "idle", "dnd", "invisible"]),
        default: Some("\"online\""),
        help: "Online status of the bot.",
        allowed: "online, idle, dnd or invisible",
    },
    Key {
        path: "gateway.activity_type",
        kind: Kind::Choice(&["playing", "listening", "watching", "competing", "custom"]),
        default: Some("\"playing\""),
        help: "Type of the activity that `activity_name` names. `custom` displays only the name.",
        allowed: "playing, listening, watching, competing or custom",
    },
    Key {
        path: "gateway.activity_name",
        kind: Kind::Line { max_chars: 128 },
        default: Some("\"\""),
        help: "What the bot plays, listens to, watches or competes in. Empty: no activity is displayed.",
        allowed: "a line of at most 128 characters",
    },
    Key {
        path: "gateway.buffer_events",
        kind: Kind::Integer { min: 1, max: 1_000_000 },
        default: Some("4096"),
        help: "How many events a shard buffers while they arrive faster than they are handled. When the buffer is \
            full, typing and presence events are dropped; if that is not enough, the shard disconnects, and resumes \
            when there is room.",
        allowed: "a whole number from 1 to 1000000",
    },
    Key {
        path: "gateway.buffer_bytes",
        kind: Kind::Integer { min: 1, max: 1_073_741_824 },
        default: Some("16777216"),
        help: "How many bytes of events a shard buffers.",
        allowed: "a whole number from 1 to 1073741824",
    },
    Key {
        path: "gateway.reconnect_base_ms",
        kind: Kind::Integer { min: 1, max: 600_000 },
        default: Some("1000"),
        help: "Maximum delay before a shard reconnects for the first time after a failed connection, in milliseconds. \
            It doubles with each further failure; the actual delay is random, up to this maximum.",
        allowed: "a whole number from 1 to 600000",
    },
    Key {
        path: "gateway.reconnect_cap_ms",
        kind: Kind::Integer { min: 1, max: 3_600_000 },
        default: Some("30000"),
        help: "Upper limit of this delay, in milliseconds.",
        allowed: "a whole number from 1 to 3600000",
    },
    Key {
        path: "gateway.hello_timeout_ms",
        kind: Kind::Integer { min: 1, max: 600_000 },
        default: Some("20000"),
        help: "How long the gateway may take to send its hello, and then to start the session, in milliseconds. After \
            that the shard reconnects.",
        allowed: "a whole number from 1 to 600000",
    },
    Key {
        path: "rest.connect_timeout_ms",
        kind: Kind::Integer { min: 1, max: 600_000 },
        default: Some("3000"),
        help: "How long a REST call may wait for a connection to Discord, including TLS, in milliseconds. A call \
            without a connection was never sent.",
        allowed: "a whole number from 1 to 600000",
    },
    Key {
        path: "rest.request_timeout_ms",
        kind: Kind::Integer { min: 1, max: 600_000 },
        default: Some("15000"),
        help: "How long a REST call may take in total, in milliseconds. After that the outcome of the call is \
            unknown.",
        allowed: "a whole number from 1 to 600000",
    },
    Key {
        path: "rest.max_response_bytes",
        kind: Kind::Integer { min: 1_024, max: 1_073_741_824 },
        default: Some("16777216"),
        help: "Maximum size of the response to a REST call, in bytes.",
        allowed: "a whole number from 1024 to 1073741824",
    },
    Key {
        path: "rest.pool_idle_ms",
        kind: Kind::Integer { min: 1, max: 3_600_000 },
        default: Some("30000"),
        help: "How long an unused connection to Discord's REST API stays open, in milliseconds.",
        allowed: "a whole number from 1 to 3600000",
    },
    Key {
        path: "rest.traceparent",
        kind: Kind::Bool,
        default: Some("false"),
        help: "Whether REST calls have the header traceparent, for a proxy between Guildhall and Discord that records \
            traces. Discord itself ignores it.",
        allowed: "true or false",
    },
    Key {
        path: "limits.global",
        kind: Kind::Integer { min: 1, max: 10_000 },
        default: Some("50"),
        help: "Calls to Discord in any second, for each credential. Raise it only if Discord granted the bot more.",
        allowed: "a whole number from 1 to 10000",
    },
    Key {
        path: "limits.margin_ms",
        kind: Kind::Integer { min: 0, max: 10_000 },
        default: Some("10"),
        help: "Added to the global window, for differences between clocks, in milliseconds.",
        allowed: "a whole number from 0 to 10000",
    },
    Key {
        path: "limits.settling_ms",
        kind: Kind::Integer { min: 0, max: 60_000 },
        default: Some("500"),
        help: "How much longer than a window a new process makes no call, in milliseconds: calls of the previous \
            process may still be in flight.",
        allowed: "a whole number from 0 to 60000",
    },
    Key {
        path: "limits.interactions_exempt",
        kind: Kind::Bool,
        default: Some("true"),
        help: "Whether interaction endpoints are exempt from the global limit, as they are at Discord.",
        allowed: "true or false",
    },
    Key {
        path: "limits.max_waiting",
        kind: Kind::Integer { min: 1, max: 1_000_000 },
        default: Some("10000"),
        help: "Maximum number of calls that wait for a permit. More are rejected with the time of a retry.",
        allowed: "a whole number from 1 to 1000000",
    },
    Key {
        path: "limits.max_buckets",
        kind: Kind::Integer { min: 16, max: 10_000_000 },
        default: Some("100000"),
        help: "Maximum number of rate limit buckets in memory. Idle ones are removed first.",
        allowed: "a whole number from 16 to 10000000",
    },
    Key {
        path: "breaker.failures_in_row",
        kind: Kind::Integer { min: 1, max: 1000 },
        default: Some("5"),
        help: "Consecutive failures after which a breaker opens.",
        allowed: "a whole number from 1 to 1000",
    },
    Key {
        path: "breaker.window_ms",
        kind: Kind::Integer { min: 100, max: 3_600_000 },
        default: Some("30000"),
        help: "Time window for a breaker's percentages of failed and slow calls, in milliseconds.",
        allowed: "a whole number from 100 to 3600000",
    },
    Key {
        path: "breaker.min_calls",
        kind: Kind::Integer { min: 1, max: 100_000 },
        default: Some("20"),
        help: "Minimum number of calls within that window before a percentage can open a breaker.",
        allowed: "a whole number from 1 to 100000",
    },
    Key {
        path: "breaker.failure_percent",
        kind: Kind::Integer { min: 1, max: 100 },
        default: Some("50"),
        help: "Percentage of failed calls that opens a breaker.",
        allowed: "a whole number from 1 to 100",
    },
    Key {
        path: "breaker.slow_call_ms",
        kind: Kind::Integer { min: 1, max: 600_000 },
        default: Some("5000"),
        help: "A call that takes longer is slow, in milliseconds.",
        allowed: "a whole number from 1 to 600000",
    },
    Key {
        path: "breaker.slow_percent",
        kind: Kind::Integer { min: 1, max: 100 },
        default: Some("80"),
        help: "Percentage of slow calls that opens a breaker.",
        allowed: "a whole number from 1 to 100",
    },
    Key {
        path: "breaker.cooldown_ms",
        kind: Kind::Integer { min: 1, max: 3_600_000 },
        default: Some("30000"),
        help: "How long a breaker stays open before it permits probes, in milliseconds. Doubles with each failed \
            attempt.",
        allowed: "a whole number from 1 to 3600000",
    },
    Key {
        path: "breaker.max_cooldown_ms",
        kind: Kind::Integer { min: 1, max: 86_400_000 },
        default: Some("300000"),
        help: "Maximum time that a breaker stays open before it permits probes, in milliseconds.",
        allowed: "a whole number from 1 to 86400000",
    },
    Key {
        path: "invalid_requests.limit",
        kind: Kind::Integer { min: 1, max: 10_000 },
        default: Some("10000"),
        help: "Invalid requests (401, 403, 429) in ten minutes that the thresholds are percentages of. Discord bans at \
            10,000.",
        allowed: "a whole number from 1 to 10000",
    },
    Key {
        path: "invalid_requests.share",
        kind: Kind::Integer { min: 1, max: 100 },
        default: Some("25"),
        help: "Maximum share of `invalid_requests.limit` that one API key, tenant or guild may use, in percent. A hard \
            limit: beyond it, only its own calls wait. The admin key and handlers are limited by guild only.",
        allowed: "a whole number from 1 to 100",
    },
    Key {
        path: "redis.url",
        kind: Kind::RedisUrl,
        default: None,
        help: "URL of the Redis that the processes of one bot share. Without it, a process works alone. With \
            sentinels: redis+sentinel://host:26379,host:26379/service. For a cluster, name any node. If it contains a \
            password, do not store it in this file: use the environment or `url_file`.",
        allowed: "redis://[user:password@]host[:port][/db], or the same with rediss:// (TLS), redis+sentinel:// or \
                  rediss+sentinel://",
    },
    Key {
        path: "redis.ca_file",
        kind: Kind::Path,
        default: Some("\"\""),
        help: "PEM file of the certificate authorities that are trusted for a rediss:// server. Empty: the public \
            ones.",
        allowed: "the path of a file, or empty",
    },
    Key {
        path: "redis.timeout_ms",
        kind: Kind::Integer { min: 1, max: 10_000 },
        default: Some("250"),
        help: "How long a call to Redis may take in total, in milliseconds. After that Redis counts as unreachable.",
        allowed: "a whole number from 1 to 10000",
    },
    Key {
        path: "redis.on_loss",
        kind: Kind::Choice(&["share", "closed", "open"]),
        default: Some("\"share\""),
        help: "What happens while Redis is unreachable. `share`: each process uses its share of the limit. `closed`: \
            nothing is sent. `open`: each process uses the whole limit, so the limit may be exceeded.",
        allowed: "share, closed or open",
    },
    Key {
        path: "redis.heartbeat_ms",
        kind: Kind::Integer { min: 10, max: 60_000 },
        default: Some("1000"),
        help: "Interval of the heartbeats of a process, in milliseconds. Less than half of `silence_ms`.",
        allowed: "a whole number from 10 to 60000",
    },
    Key {
        path: "redis.silence_ms",
        kind: Kind::Integer { min: 100, max: 600_000 },
        default: Some("3000"),
        help: "A process without a heartbeat for this long, in milliseconds, is detached: its share is withheld from \
            the others, since it may still be using it.",
        allowed: "a whole number from 100 to 600000",
    },
    Key {
        path: "redis.forget_ms",
        kind: Kind::Integer { min: 1_000, max: 86_400_000 },
        default: Some("600000"),
        help: "How long after it was detached a process's share returns to the others, in milliseconds. More than \
            `share_for_ms`, `silence_ms` and 30 seconds together.",
        allowed: "a whole number from 1000 to 86400000",
    },
    Key {
        path: "redis.share_for_ms",
        kind: Kind::Integer { min: 0, max: 86_400_000 },
        default: Some("540000"),
        help: "How long a process without Redis uses its share, in milliseconds.",
        allowed: "a whole number from 0 to 86400000",
    },
    Key {
        path: "redis.newcomer_ms",
        kind: Kind::Integer { min: 0, max: 600_000 },
        default: Some("3000"),
        help: "How long an empty Redis waits for processes that knew each other, in milliseconds, before it divides \
            the whole limit among those that are present.",
        allowed: "a whole number from 0 to 600000",
    },
    Key {
        path: "redis.horizon_ms",
        kind: Kind::Integer { min: 1, max: 999 },
        default: Some("400"),
        help: "How far ahead calls are booked, in milliseconds.",
        allowed: "a whole number from 1 to 999",
    },
    Key {
        path: "redis.guard_ms",
        kind: Kind::Integer { min: 0, max: 60_000 },
        default: Some("1000"),
        help: "How long a call of a dead or disconnected process may still be in flight to Discord, in milliseconds.",
        allowed: "a whole number from 0 to 60000",
    },
    Key {
        path: "redis.seat_dir",
        kind: Kind::Path,
        default: Some("\"\""),
        help: "Folder of the lock files of the processes on one machine, so that the next process detects that the \
            previous one has ended. Empty: a folder in the system's temporary folder.",
        allowed: "the path of a folder, or empty",
    },
    Key {
        path: "operations.max_attempts",
        kind: Kind::Integer { min: 1, max: 100 },
        default: Some("3"),
        help: "Maximum number of attempts of an operation before it becomes a dead letter. Waiting for a limit or a \
            breaker does not count as an attempt.",
        allowed: "a whole number from 1 to 100",
    },
    Key {
        path: "operations.backoff_base_ms",
        kind: Kind::Integer { min: 1, max: 600_000 },
        default: Some("1000"),
        help: "Delay before the first retry of an operation, in milliseconds; doubles with each further failure.",
        allowed: "a whole number from 1 to 600000",
    },
    Key {
        path: "operations.backoff_cap_ms",
        kind: Kind::Integer { min: 1, max: 3_600_000 },
        default: Some("20000"),
        help: "Maximum delay between two attempts, in milliseconds.",
        allowed: "a whole number from 1 to 3600000",
    },
    Key {
        path: "operations.park_after_ms",
        kind: Kind::Integer { min: 0, max: 86_400_000 },
        default: Some("60000"),
        help: "An operation delayed for longer than this, in milliseconds, is parked: operations of its guild that \
            share no object with it may overtake it.",
        allowed: "a whole number from 0 to 86400000",
    },
    Key {
        path: "operations.max_wait_ms",
        kind: Kind::Integer { min: 1, max: 600_000 },
        default: Some("5000"),
        help: "How long an operation waits for a permit of Discord's limits before it is delayed, in milliseconds.",
        allowed: "a whole number from 1 to 600000",
    },
    Key {
        path: "operations.settle_ms",
        kind: Kind::Integer { min: 0, max: 600_000 },
        default: Some("0"),
        help: "How long an operation with an unknown outcome waits before Discord is checked for it, in milliseconds. \
            0: `rest.request_timeout_ms`, so that no call of it can still be in flight. A value below \
            `rest.request_timeout_ms` is rejected.",
        allowed: "a whole number from 0 to 600000",
    },
    Key {
        path: "operations.check_timeout_ms",
        kind: Kind::Integer { min: 1_000, max: 604_800_000 },
        default: Some("86400000"),
        help: "How long an operation with an unknown outcome stays `reconciling` while Discord cannot be checked (a \
            breaker is open), in milliseconds. After that it is `needs_review`.",
        allowed: "a whole number from 1000 to 604800000",
    },
    Key {
        path: "operations.max_running",
        kind: Kind::Integer { min: 0, max: 100_000 },
        default: Some("0"),
        help: "Maximum number of operations in progress, over all guilds. 0: only Discord's limits apply.",
        allowed: "a whole number from 0 to 100000",
    },
    Key {
        path: "operations.per_second",
        kind: Kind::Integer { min: 0, max: 100_000 },
        default: Some("0"),
        help: "Maximum number of operations that start in a second, over all guilds. 0: only Discord's limits apply.",
        allowed: "a whole number from 0 to 100000",
    },
    Key {
        path: "operations.active_guilds",
        kind: Kind::Integer { min: 1, max: 1_000_000 },
        default: Some("2000"),
        help: "Maximum number of guild queues in memory. The others wait in the store.",
        allowed: "a whole number from 1 to 1000000",
    },
    Key {
        path: "operations.idle_ms",
        kind: Kind::Integer { min: 1, max: 86_400_000 },
        default: Some("300000"),
        help: "How long the queue of an idle guild stays in memory, in milliseconds.",
        allowed: "a whole number from 1 to 86400000",
    },
    Key {
        path: "operations.poll_ms",
        kind: Kind::Integer { min: 10, max: 600_000 },
        default: Some("1000"),
        help: "How often the store is polled for due queues, in addition to notifications, in milliseconds.",
        allowed: "a whole number from 10 to 600000",
    },
    Key {
        path: "operations.role_max_age_ms",
        kind: Kind::Integer { min: 0, max: 600_000 },
        default: Some("10000"),
        help: "How long the permissions of a guild's roles are cached, in milliseconds. They decide whether an \
            operation needs the scope danger. Gateway events of the guild invalidate them sooner; 0 reads them for \
            each operation.",
        allowed: "a whole number from 0 to 600000",
    },
    Key {
        path: "operations.heartbeat_ms",
        kind: Kind::Integer { min: 10, max: 600_000 },
        default: Some("5000"),
        help: "Interval of the heartbeats of a process that shares a PostgreSQL with others, in milliseconds.",
        allowed: "a whole number from 10 to 600000",
    },
    Key {
        path: "operations.lease_ms",
        kind: Kind::Integer { min: 50, max: 3_600_000 },
        default: Some("10000"),
        help: "How long after its last heartbeat a process counts as alive, in milliseconds. After that, others take \
            over its guilds, and it sends nothing for them any more.",
        allowed: "a whole number from 50 to 3600000",
    },
    Key {
        path: "operations.lease_margin_ms",
        kind: Kind::Integer { min: 0, max: 600_000 },
        default: Some("2000"),
        help: "How long before the end of its lease a process stops sending, in milliseconds.",
        allowed: "a whole number from 0 to 600000",
    },
    Key {
        path: "operations.sweep_every_ms",
        kind: Kind::Integer { min: 10, max: 86_400_000 },
        default: Some("10000"),
        help: "How often expired data is removed, in milliseconds.",
        allowed: "a whole number from 10 to 86400000",
    },
    Key {
        path: "retention.completed_ms",
        kind: Kind::Integer { min: 0, max: 31_536_000_000 },
        default: Some("3600000"),
        help: "How long succeeded and cancelled operations are stored, in milliseconds.",
        allowed: "a whole number from 0 to 31536000000",
    },
    Key {
        path: "retention.failed_ms",
        kind: Kind::Integer { min: 0, max: 31_536_000_000 },
        default: Some("86400000"),
        help: "How long failed operations are stored, in milliseconds. Their dead letters are stored longer.",
        allowed: "a whole number from 0 to 31536000000",
    },
    Key {
        path: "retention.dead_letters_ms",
        kind: Kind::Integer { min: 0, max: 31_536_000_000 },
        default: Some("604800000"),
        help: "How long dead letters and operations that need review are stored, in milliseconds.",
        allowed: "a whole number from 0 to 31536000000",
    },
    Key {
        path: "retention.idempotency_ms",
        kind: Kind::Integer { min: 0, max: 31_536_000_000 },
        default: Some("86400000"),
        help: "How long an idempotency key is stored after its operation has finished, in milliseconds.",
        allowed: "a whole number from 0 to 31536000000",
    },
    Key {
        path: "retention.audit_ms",
        kind: Kind::Integer { min: 0, max: 315_360_000_000 },
        default: Some("7776000000"),
        help: "How long audit rows and expired or revoked keys are stored, in milliseconds.",
        allowed: "a whole number from 0 to 315360000000",
    },
    Key {
        path: "retention.audit_max_per_key",
        kind: Kind::Integer { min: 0, max: 1_000_000_000 },
        default: Some("1000000"),
        help: "Maximum number of audit rows of one key, including the operator's. Beyond it, the oldest rows of that \
            key are removed before `audit_ms` has passed. 0: no limit.",
        allowed: "a whole number from 0 to 1000000000",
    },
    Key {
        path: "retention.budget_spend_ms",
        kind: Kind::Integer { min: 3_600_000, max: 31_536_000_000 },
        default: Some("604800000"),
        help: "How long the hourly spend of each named budget is stored, in milliseconds.",
        allowed: "a whole number from 3600000 to 31536000000",
    },
    Key {
        path: "handlers.file",
        kind: Kind::Path,
        default: Some("\"\""),
        help: "TOML file of the event handlers, see docs/handlers.md. Empty: no handlers.",
        allowed: "the path of a readable file, or empty",
    },
    Key {
        path: "handlers.shadow",
        kind: Kind::Bool,
        default: Some("false"),
        help: "Whether all handlers run in shadow: what they would do is recorded, and nothing is done.",
        allowed: "true or false",
    },
    Key {
        path: "handlers.timeout_ms",
        kind: Kind::Integer { min: 1, max: 600_000 },
        default: Some("10000"),
        help: "How long a webhook may take to respond, in milliseconds, unless its handler sets another timeout.",
        allowed: "a whole number from 1 to 600000",
    },
    Key {
        path: "handlers.slow_ms",
        kind: Kind::Integer { min: 1, max: 600_000 },
        default: Some("2000"),
        help: "An event whose handler takes longer, in milliseconds, is moved to the inbox, so that its shard does not \
            wait.",
        allowed: "a whole number from 1 to 600000",
    },
    Key {
        path: "handlers.inbox_most",
        kind: Kind::Integer { min: 1, max: 100_000_000 },
        default: Some("100000"),
        help: "Maximum number of events in the inbox. When it is full, shards wait.",
        allowed: "a whole number from 1 to 100000000",
    },
    Key {
        path: "handlers.attempts",
        kind: Kind::Integer { min: 1, max: 1_000 },
        default: Some("10"),
        help: "Maximum number of attempts of a handler with an event before the event becomes a dead event.",
        allowed: "a whole number from 1 to 1000",
    },
    Key {
        path: "handlers.backoff_base_ms",
        kind: Kind::Integer { min: 1, max: 3_600_000 },
        default: Some("1000"),
        help: "Delay before the first retry of a handler, in milliseconds. Doubles with each failure.",
        allowed: "a whole number from 1 to 3600000",
    },
    Key {
        path: "handlers.backoff_cap_ms",
        kind: Kind::Integer { min: 1, max: 86_400_000 },
        default: Some("300000"),
        help: "Maximum delay between two attempts of a handler, in milliseconds.",
        allowed: "a whole number from 1 to 86400000",
    },
    Key {
        path: "interactions.defer",
        kind: Kind::Choice(&["auto", "never"]),
        default: Some("\"auto\""),
        help: "How interactions are answered whose handler does not set it. `auto`: they are deferred at once, so that \
            the response has 15 minutes. `never`: the handler must respond in time.",
        allowed: "auto or never",
    },
    Key {
        path: "interactions.ephemeral",
        kind: Kind::Bool,
        default: Some("false"),
        help: "Whether only the user of an interaction sees the response, unless the handler sets it.",
        allowed: "true or false",
    },
    Key {
        path: "interactions.within_ms",
        kind: Kind::Integer { min: 1, max: 2_900 },
        default: Some("2500"),
        help: "How long a handler may take for an interaction that is not deferred, in milliseconds. Discord waits for \
            3000.",
        allowed: "a whole number from 1 to 2900",
    },
    Key {
        path: "interactions.public_key",
        kind: Kind::PublicKey,
        default: Some("\"\""),
        help: "The application's public key, from the General Information page of Discord's developer portal: \
            interactions that Discord posts are accepted on `interactions.bind` if they are signed with it. Empty: \
            none are accepted; they arrive over the gateway.",
        allowed: "64 hexadecimal digits, or empty",
    },
    Key {
        path: "interactions.bind",
        kind: Kind::Address,
        default: Some("\"127.0.0.1:8082\""),
        help: "IP address and port that interactions posted by Discord are accepted on; a proxy in front of it must \
            terminate TLS. Port 0 selects a free port.",
        allowed: "an IP address and a port, such as 127.0.0.1:8082",
    },
    Key {
        path: "interactions.replay_window_ms",
        kind: Kind::Integer { min: 1_000, max: 3_600_000 },
        default: Some("300000"),
        help: "Maximum difference between the time of a posted interaction's signature and the current time, in \
            milliseconds.",
        allowed: "a whole number from 1000 to 3600000",
    },
    Key {
        path: "budgets.named",
        kind: Kind::Budgets,
        default: Some("[]"),
        help: "Budgets of other upstreams that a bot's brain calls, each as a name, its maximum, and how much is \
            restored a second, such as shop=1000/50. Values that an upstream reports replace these. See \
            docs/budgets.md.",
        allowed: "`name=maximum/restored a second` (separated by commas in the environment), such as shop=1000/50, \
            rpc=300/0.5",
    },
    Key {
        path: "budgets.others",
        kind: Kind::BudgetLimits,
        default: Some("\"\""),
        help: "Maximum, and how much is restored a second, of budgets that are used and not named above. Empty: there \
            are no others.",
        allowed: "`maximum/restored a second`, such as 1000/50, or empty",
    },
    Key {
        path: "budgets.most",
        kind: Kind::Integer { min: 1, max: 1_000 },
        default: Some("100"),
        help: "Maximum number of budgets.",
        allowed: "a whole number from 1 to 1000",
    },
    Key {
        path: "budgets.longest_wait_ms",
        kind: Kind::Integer { min: 0, max: 86_400_000 },
        default: Some("60000"),
        help: "How far ahead a use of a budget may be booked, in milliseconds, even if the caller would wait longer.",
        allowed: "a whole number from 0 to 86400000",
    },
    Key {
        path: "egress.ip_group",
        kind: Kind::Name,
        default: Some("\"default\""),
        help: "Processes that reach Discord from one address share a budget of invalid requests. Give processes behind \
            another address another name.",
        allowed: "1 to 64 letters, digits, `.`, `_` and `-`",
    },
    Key {
        path: "store.url",
        kind: Kind::StoreUrl,
        default: Some("\"sqlite:data/guildhall.db\""),
        help: "URL of the store of operations and all other state: an SQLite file, or a PostgreSQL database. If it \
            contains a password, do not store it in this file: use the environment or `url_file`.",
        allowed: "sqlite:PATH or postgres://user:password@host:port/database, with ?sslmode=verify-full for TLS",
    },
    Key {
        path: "store.direct_url",
        kind: Kind::StoreUrl,
        default: None,
        help: "URL of PostgreSQL itself, if `store.url` is a PgBouncer in transaction mode: for migrations, and for \
            immediate notifications of other processes' changes. The PgBouncer needs `server_reset_query = DEALLOCATE \
            ALL` and `server_reset_query_always = 1`.",
        allowed: "postgres://user:password@host:port/database, with ?sslmode=verify-full for TLS",
    },
    Key {
        path: "store.instance",
        kind: Kind::Name,
        default: Some("\"auto\""),
        help: "Display name of this process where several share a PostgreSQL. `auto`: its host and process id.",
        allowed: "1 to 64 letters, digits, `.`, `_` and `-`",
    },
    Key {
        path: "store.migrate",
        kind: Kind::Bool,
        default: Some("true"),
        help: "Whether `serve` migrates an older store. If not, run `guildhall migrate up`.",
        allowed: "true or false",
    },
    Key {
        path: "store.row_security",
        kind: Kind::Choice(&["auto", "required", "off"]),
        default: Some("\"auto\""),
        help: "Whether PostgreSQL row-level security restricts callers of the API to the rows of their tenant. `auto`: \
            if the role for it exists or can be created. `required`: the process does not start without it. `off`: \
            never. SQLite does not support it.",
        allowed: "auto, required or off",
    },
    Key {
        path: "store.api_role",
        kind: Kind::Name,
        default: Some("\"guildhall_api\""),
        help: "PostgreSQL role for requests of callers with a tenant. It owns nothing and cannot log in.",
        allowed: "1 to 64 letters, digits, `.`, `_` and `-`",
    },
    Key {
        path: "store.timeout_ms",
        kind: Kind::Integer { min: 10, max: 600_000 },
        default: Some("5000"),
        help: "How long a call to the store may take in total, in milliseconds. After that the store counts as \
            unavailable.",
        allowed: "a whole number from 10 to 600000",
    },
    Key {
        path: "store.lock_wait_ms",
        kind: Kind::Integer { min: 0, max: 600_000 },
        default: Some("10000"),
        help: "How long a starting process waits for another one that migrates the same PostgreSQL, in milliseconds.",
        allowed: "a whole number from 0 to 600000",
    },
    Key {
        path: "store.read_connections",
        kind: Kind::Integer { min: 1, max: 1_000 },
        default: Some("4"),
        help: "Number of connections that read from the store. One more connection writes.",
        allowed: "a whole number from 1 to 1000",
    },
    Key {
        path: "store.max_waiting",
        kind: Kind::Integer { min: 1, max: 1_000_000 },
        default: Some("10000"),
        help: "Maximum number of writes that wait for the store. More are rejected as unavailable.",
        allowed: "a whole number from 1 to 1000000",
    },
    Key {
        path: "store.max_queued_per_guild",
        kind: Kind::Integer { min: 1, max: 1_000_000_000 },
        default: Some("100000"),
        help: "Maximum number of queued operations of one guild. More are rejected.",
        allowed: "a whole number from 1 to 1000000000",
    },
    Key {
        path: "store.max_queued_per_key",
        kind: Kind::Integer { min: 0, max: 1_000_000_000 },
        default: Some("50000"),
        help: "Maximum number of unfinished operations of one API key. More are rejected with 429. 0: no limit.",
        allowed: "a whole number from 0 to 1000000000",
    },
    Key {
        path: "store.max_bytes_per_key",
        kind: Kind::Integer { min: 0, max: 17_592_186_040_320 },
        default: Some("1073741824"),
        help: "Maximum number of bytes stored for one API key: its operations until they are removed, dead letters and \
            idempotency keys. More are rejected with 429. With SQLite at most a 16th of `max_bytes`. 0: no other \
            limit.",
        allowed: "a whole number from 0 to 17592186040320",
    },
    Key {
        path: "store.max_queued_per_tenant",
        kind: Kind::Integer { min: 0, max: 1_000_000_000 },
        default: Some("200000"),
        help: "Maximum number of unfinished operations of all API keys of one tenant. More are rejected with 429. 0: \
            no limit.",
        allowed: "a whole number from 0 to 1000000000",
    },
    Key {
        path: "store.max_bytes_per_tenant",
        kind: Kind::Integer { min: 0, max: 17_592_186_040_320 },
        default: Some("4294967296"),
        help: "Maximum number of bytes stored for all API keys of one tenant. More are rejected with 429. With SQLite \
            at most an 8th of `max_bytes`. 0: no other limit.",
        allowed: "a whole number from 0 to 17592186040320",
    },
    Key {
        path: "store.max_queued_operator",
        kind: Kind::Integer { min: 0, max: 1_000_000_000 },
        default: Some("1000000"),
        help: "Maximum number of unfinished operations of the operator's key, and of each handler. They do not count \
            towards a tenant. 0: no limit.",
        allowed: "a whole number from 0 to 1000000000",
    },
    Key {
        path: "store.max_bytes_operator",
        kind: Kind::Integer { min: 0, max: 17_592_186_040_320 },
        default: Some("8589934592"),
        help: "Maximum number of bytes stored for the operator's key, and for each handler. With SQLite at most a \
            quarter of `max_bytes`. 0: no other limit.",
        allowed: "a whole number from 0 to 17592186040320",
    },
    Key {
        path: "store.max_bytes",
        kind: Kind::Integer { min: 0, max: 17_592_186_040_320 },
        default: Some("0"),
        help: "Maximum size of the SQLite file, in bytes. New operations are rejected with 507 when half of it is \
            used, so that outcomes can still be written. 0: derived at start from the free space of its disk, see \
            docs/store.md.",
        allowed: "a whole number from 0 to 17592186040320",
    },
    Key {
        path: "api.bind",
        kind: Kind::Address,
        default: Some("\"127.0.0.1:8080\""),
        help: "IP address and port of health, metrics and the API. Port 0 selects a free port.",
        allowed: "an IP address and a port, such as 127.0.0.1:8080 or [::1]:8080",
    },
    Key {
        path: "api.admin_key",
        kind: Kind::Secret,
        default: None,
        help: "The admin key of the API under /v1. If it is not set, `serve` generates one and stores it in a file, \
            but only if `api.bind` is a loopback address; for any other address it must be set. Do not store it in \
            this file: use the environment or `admin_key_file`.",
        allowed: "16 or more letters, digits, `.`, `_` and `-`",
    },
    Key {
        path: "api.allow_plaintext",
        kind: Kind::Bool,
        default: Some("false"),
        help: "Whether `api.bind` may be an address that other machines can reach without TLS (`api.tls`). Keys can \
            then be read in transit: use it only behind a proxy that terminates TLS, or in a network without other \
            users.",
        allowed: "true or false",
    },
    Key {
        path: "api.trusted_proxies",
        kind: Kind::Networks,
        default: Some("[]"),
        help: "Trusted proxies, whose header with the client's address is used, so that callers without a valid key \
            are told apart behind them. Empty: the address of the connection is used.",
        allowed: "addresses and networks (separated by commas in the environment), such as 10.0.0.0/8, ::1",
    },
    Key {
        path: "api.forwarded_header",
        kind: Kind::Choice(&["x-forwarded-for", "forwarded"]),
        default: Some("\"x-forwarded-for\""),
        help: "The header in which those proxies send the client's address. It is read from the right, up to the first \
            address that is not a trusted proxy.",
        allowed: "x-forwarded-for or forwarded",
    },
    Key {
        path: "api.max_connections",
        kind: Kind::Integer { min: 1, max: 100_000 },
        default: Some("1024"),
        help: "Maximum number of connections. More are rejected with a response and closed; a few more may request \
            health and metrics.",
        allowed: "a whole number from 1 to 100000",
    },
    Key {
        path: "api.header_timeout_ms",
        kind: Kind::Integer { min: 1, max: 600_000 },
        default: Some("5000"),
        help: "How long the headers of a request may take to arrive, and a TLS handshake, in milliseconds.",
        allowed: "a whole number from 1 to 600000",
    },
    Key {
        path: "api.body_timeout_ms",
        kind: Kind::Integer { min: 1, max: 600_000 },
        default: Some("10000"),
        help: "How long a request's body may take to arrive, in milliseconds.",
        allowed: "a whole number from 1 to 600000",
    },
    Key {
        path: "api.write_timeout_ms",
        kind: Kind::Integer { min: 1, max: 600_000 },
        default: Some("10000"),
        help: "How long a client may read nothing of its response, in milliseconds, before the connection is closed.",
        allowed: "a whole number from 1 to 600000",
    },
    Key {
        path: "api.keep_alive_ms",
        kind: Kind::Integer { min: 1, max: 3_600_000 },
        default: Some("15000"),
        help: "How long an idle connection stays open for the next request, in milliseconds.",
        allowed: "a whole number from 1 to 3600000",
    },
    Key {
        path: "api.max_body_bytes",
        kind: Kind::Integer { min: 1_024, max: 67_108_864 },
        default: Some("8388608"),
        help: "Maximum size of the body of a submission, in bytes. For other bodies it applies as well, but at most \
            1048576.",
        allowed: "a whole number from 1024 to 67108864",
    },
    Key {
        path: "api.max_streams",
        kind: Kind::Integer { min: 1, max: 10_000 },
        default: Some("64"),
        help: "Maximum number of open operation streams. A key may have at most a quarter of them.",
        allowed: "a whole number from 1 to 10000",
    },
    Key {
        path: "api.stream_stall_ms",
        kind: Kind::Integer { min: 100, max: 600_000 },
        default: Some("10000"),
        help: "How long the client of a stream may take to read pending data, in milliseconds, before the stream is \
            closed.",
        allowed: "a whole number from 100 to 600000",
    },
    Key {
        path: "api.max_waiters",
        kind: Kind::Integer { min: 1, max: 10_000 },
        default: Some("256"),
        help: "Maximum number of requests that wait for the end of their operations (`Prefer: wait`). Others get their \
            response without waiting.",
        allowed: "a whole number from 1 to 10000",
    },
    Key {
        path: "api.tls.cert_file",
        kind: Kind::Path,
        default: Some("\"\""),
        help: "PEM file of the API's certificate and its intermediate certificates. With `key_file`, the API uses TLS. \
            Both files are checked every few seconds and reloaded when they change. Empty: no TLS.",
        allowed: "the path of a file, or empty",
    },
    Key {
        path: "api.tls.key_file",
        kind: Kind::Path,
        default: Some("\"\""),
        help: "PEM file of the certificate's private key, not encrypted.",
        allowed: "the path of a file, or empty",
    },
    Key {
        path: "api.policies.heavy_per_second",
        kind: Kind::Integer { min: 0, max: 100_000 },
        default: Some("200"),
        help: "Operations a second that each key may submit on average. A request costs one for each operation, and at \
            least one for each 8 KiB of its body. Bulk redrives and discards of dead letters count here, too. 0: no \
            limit.",
        allowed: "a whole number from 0 to 100000",
    },
    Key {
        path: "api.policies.heavy_burst",
        kind: Kind::Integer { min: 1, max: 1_000_000 },
        default: Some("2000"),
        help: "Operations that a key may submit in a burst. A request that exceeds the rest is accepted; later \
            requests wait longer.",
        allowed: "a whole number from 1 to 1000000",
    },
    Key {
        path: "api.policies.heavy_max_wait_ms",
        kind: Kind::Integer { min: 0, max: 3_600_000 },
        default: Some("60000"),
        help: "Operations submitted beyond that are accepted and postponed until they are within the rate. If that \
            takes longer than this, in milliseconds, they are rejected.",
        allowed: "a whole number from 0 to 3600000",
    },
    Key {
        path: "api.policies.light_per_second",
        kind: Kind::Integer { min: 0, max: 100_000 },
        default: Some("100"),
        help: "Other requests a second that each key may make on average. More are rejected. 0: no limit.",
        allowed: "a whole number from 0 to 100000",
    },
    Key {
        path: "api.policies.light_burst",
        kind: Kind::Integer { min: 1, max: 1_000_000 },
        default: Some("300"),
        help: "Other requests that a key may make in a burst.",
        allowed: "a whole number from 1 to 1000000",
    },
    Key {
        path: "api.policies.failed_per_second",
        kind: Kind::Integer { min: 0, max: 100_000 },
        default: Some("10"),
        help: "Requests a second with no key or an invalid one that each address may make on average. 0: no limit.",
        allowed: "a whole number from 0 to 100000",
    },
    Key {
        path: "api.policies.failed_burst",
        kind: Kind::Integer { min: 1, max: 1_000_000 },
        default: Some("200"),
        help: "Such requests that an address may make in a burst.",
        allowed: "a whole number from 1 to 1000000",
    },
    Key {
        path: "api.policies.max_tracked",
        kind: Kind::Integer { min: 1, max: 10_000_000 },
        default: Some("10000"),
        help: "Maximum number of keys, and of addresses, that are counted individually. Further ones share one count.",
        allowed: "a whole number from 1 to 10000000",
    },
    Key {
        path: "api.policies.shared",
        kind: Kind::Bool,
        default: Some("true"),
        help: "Whether processes that share a Redis (`redis.url`) count a key's requests together. Without Redis, or \
            while it is unreachable, each process counts alone.",
        allowed: "true or false",
    },
    Key {
        path: "log.format",
        kind: Kind::Choice(&["auto", "pretty", "json"]),
        default: Some("\"auto\""),
        help: "Format of log lines. `auto`: pretty on a terminal, else JSON. They are written to standard error.",
        allowed: "auto, pretty or json",
    },
    Key {
        path: "log.filter",
        kind: Kind::Filter,
        default: Some("\"info\""),
        help: "Which log lines are written: a level, or directives such as `info,twilight_gateway=debug`.",
        allowed: "a level (error, warn, info, debug, trace) or `target=level` directives, separated by commas",
    },
    Key {
        path: "telemetry.otlp_endpoint",
        kind: Kind::Url { schemes: &["https", "http"], optional: true },
        default: Some("\"\""),
        help: "URL of an OpenTelemetry collector that traces are exported to, by OTLP over HTTP; /v1/traces is added. \
            Empty: no export. Needs a program that was built with the feature `otel`.",
        allowed: "an http or https URL without user name, password, query or fragment, or empty",
    },
    Key {
        path: "telemetry.otlp_headers",
        kind: Kind::Headers,
        default: None,
        help: "Headers of requests to the collector, such as authorization=Bearer abc.",
        allowed: "name=value, separated by commas",
    },
    Key {
        path: "telemetry.otlp_timeout_ms",
        kind: Kind::Integer { min: 1, max: 600_000 },
        default: Some("10000"),
        help: "How long a request to the collector may take, in milliseconds.",
        allowed: "a whole number from 1 to 600000",
    },
    Key {
        path: "telemetry.otlp_queue",
        kind: Kind::Integer { min: 1, max: 1_000_000 },
        default: Some("4096"),
        help: "Maximum number of spans that wait for the collector. More are dropped and counted.",
        allowed: "a whole number from 1 to 1000000",
    },
    Key {
        path: "telemetry.service_name",
        kind: Kind::Name,
        default: Some("\"guildhall\""),
        help: "Name of this service at the collector.",
        allowed: "1 to 64 letters, digits, `.`, `_` and `-`",
    },
    Key {
        path: "shutdown.timeout_ms",
        kind: Kind::Integer { min: 1, max: 600_000 },
        default: Some("10000"),
        help: "How long a shutdown may take, in milliseconds. After that the process exits with code 1.",
        allowed: "a whole number from 1 to 600000",
    },
    Key {
        path: "shutdown.delay_ms",
        kind: Kind::Integer { min: 0, max: 600_000 },
        default: Some("0"),
        help: "How long the API still accepts new requests after a shutdown has started and `/readyz` reports it, in \
            milliseconds, for load balancers that need time to notice. Less than `timeout_ms`, which includes it.",
        allowed: "a whole number from 0 to 600000",
    },
];

/// Suffix of the name of a secret's file form.
pub(crate) const FILE_SUFFIX: &str = "_file";

/// A setting name, found in the schema.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Named {
    /// The setting itself.
    Value(&'static Key),
    /// The path of a file that contains the secret.
    SecretFile(&'static Key),
}

impl Key {
    /// Whether its value must never be displayed.
    pub(crate) fn is_secret(&self) -> bool {
        matches!(self.kind, Kind::Secret | Kind::RedisUrl | Kind::StoreUrl | Kind::Headers)
    }

    /// Whether a reload applies it to a running process.
    pub(crate) fn reloads(&self) -> bool {
        RELOADABLE.contains(&self.path)
    }

    /// Name of the file form, if the setting is a secret.
    pub(crate) fn file_form(&self) -> Option<String> {
        self.is_secret().then(|| format!("{}{FILE_SUFFIX}", self.path))
    }

    /// The section, and the name in it.
    pub(crate) fn section_and_name(&self) -> (&'static str, &'static str) {
        self.path.rsplit_once('.').expect("invariant: every path in the schema is section.name")
    }
}

/// Returns the environment variable of a dotted path.
pub(crate) fn env_name(path: &str) -> String {
    format!("GUILDHALL__{}", path.to_uppercase().replace('.', "__"))
}

/// Finds a dotted path in the schema.
pub(crate) fn find(path: &str) -> Option<Named> {
    SCHEMA.iter().find_map(|key| {
        if key.path == path {
            Some(Named::Value(key))
        } else if key.file_form().is_some_and(|form| form == path) {
            Some(Named::SecretFile(key))
        } else {
            None
        }
    })
}

/// Whether this is the name of a section or of a section with subsections.
pub(crate) fn is_section(name: &str) -> bool {
    let is_under = |path: &str| path.strip_prefix(name).is_some_and(|rest| rest.starts_with('.'));
    SCHEMA.iter().any(|key| is_under(key.path))
}

/// Returns the known path that is most similar to an unknown one, if any is similar enough.
pub(crate) fn nearest(path: &str) -> Option<String> {
    let names = SCHEMA.iter().flat_map(|key| [Some(key.path.to_owned()), key.file_form()]).flatten();
    nearest_of(path, names)
}

/// Returns the candidate that is most similar to `unknown`, if any is similar enough.
pub(crate) fn nearest_of(unknown: &str, candidates: impl Iterator<Item = String>) -> Option<String> {
    // Jaro-Winkler favours a common prefix, which fits typical typos; below 0.8 a suggestion misleads more than it
    // helps.
    candidates
        .map(|candidate| (strsim::jaro_winkler(unknown, &candidate), candidate))
        .filter(|(similarity, _)| *similarity >= 0.8)
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similar_path_is_suggested_for_a_typo() {
        assert_eq!(nearest("discord.tokn").as_deref(), Some("discord.token"));
        assert_eq!(nearest("gatway.shards").as_deref(), Some("gateway.shards"));
        assert_eq!(nearest("zzz.qqq"), None);
    }

    #[test]
    fn sections_may_nest_and_are_contiguous() {
        for section in ["api", "api.tls", "log"] {
            assert!(is_section(section), "{section}");
        }
        for other in ["ap", "api.bind", "api.tl", "tls", ""] {
            assert!(!is_section(other), "{other}");
        }
        let mut sections: Vec<_> = SCHEMA.iter().map(|key| key.section_and_name().0).collect();
        sections.dedup();
        let begun = sections.len();
        sections.sort_unstable();
        sections.dedup();
        assert_eq!(sections.len(), begun, "a TOML file could not have them in this order");
    }

    #[test]
    fn a_secret_has_a_file_form_and_nothing_else_has() {
        assert!(matches!(find("discord.token_file"), Some(Named::SecretFile(key)) if key.path == "discord.token"));
        assert!(find("api.bind_file").is_none());
    }
}
