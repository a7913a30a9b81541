//! The one table every setting is declared in.
//!
//! Reading, checking, `config check`, `config template` and the tests of the documentation all walk this table, so a
//! setting cannot exist in one of them and not in another.

/// What a setting may hold, and how text is turned into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A value that is never printed. It also has a `*_file` form that names a file to read it from.
    Secret,
    /// Where Redis is. It may hold a password, so it is treated like a secret, `*_file` form and all.
    RedisUrl,
    /// Headers of HTTP requests. They hold what lets somebody in, so they are treated like a secret, `*_file` form and all.
    Headers,
    /// Where the store is. It may hold a password, so it is treated like a secret, `*_file` form and all.
    StoreUrl,
    /// An absolute URL with one of these schemes. `optional` also takes the empty text, for "none".
    Url { schemes: &'static [&'static str], optional: bool },
    /// A whole number between two others, both included.
    Integer { min: u64, max: u64 },
    /// `true` or `false`.
    Bool,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A short name, of characters that mean nothing anywhere.
    Name,
    /// The path of a file or folder. The empty text stands for "none".
    Path,
    /// A list of names of gateway intents.
    Intents,
    /// Some shards in a row. The empty text stands for all of them.
    ShardRange,
    /// A line of text for people to see, of so many characters at most.
    Line { most: usize },
    /// An address and a port, as numbers.
    Address,
    /// A list of addresses and of networks.
    Networks,
    /// An Ed25519 key in hexadecimal. The empty text stands for none.
    PublicKey,
    /// Named budgets, each as `name=maximum/restored a second`.
    Budgets,
    /// What budgets hold, as `maximum/restored a second`. The empty text stands for none.
    BudgetLimits,
    /// Directives for the log, as `tracing` understands them.
    Filter,
}

/// One setting.
#[derive(Debug)]
pub(crate) struct Key {
    /// `section.name`: in the file `name` under `[section]`, in the environment `GUILDHALL__SECTION__NAME`. A section may have
    /// sections of its own (`api.tls`), which come after all that stands in it alone.
    pub(crate) path: &'static str,
    pub(crate) kind: Kind,
    /// The default, written as in the file. `None` means that there is no value unless somebody gives one.
    pub(crate) default: Option<&'static str>,
    /// What the setting is for.
    pub(crate) help: &'static str,
    /// What may be written, in words.
    pub(crate) allowed: &'static str,
}

/// Settings that a reload applies to a running process; the others need a restart. `docs/configuration.md` marks them.
const RELOADED: &[&str] = &[
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

/// Every setting there is, in the order they are shown.
pub(crate) const SCHEMA: &[Key] = &[
    Key {
        path: "discord.token",
        kind: Kind::Secret,
        default: None,
        help: "The bot's token, without a leading `Bot `. Better kept out of this file: use the environment or \
               `token_file`.",
        allowed: "letters, digits, `.`, `_` and `-`",
    },
    Key {
        path: "discord.api_url",
        kind: Kind::Url { schemes: &["https", "http"], optional: false },
        default: Some("\"https://discord.com/api/v10\""),
        help: "Where Discord's REST API is.",
        allowed: "an http or https URL without user name, password, query or fragment",
    },
    Key {
        path: "discord.gateway_url",
        kind: Kind::Url { schemes: &["wss", "ws"], optional: true },
        default: Some("\"\""),
        help: "Where the gateway is. Empty: where `GET /gateway/bot` says.",
        allowed: "a ws or wss URL without user name, password, query or fragment, or nothing",
    },
    Key {
        path: "gateway.shards",
        kind: Kind::Integer { min: 0, max: 16_000 },
        default: Some("0"),
        help: "How many shards to split the guilds over. 0: as many as Discord recommends, or one if `gateway_url` is \
               set. Discord requires one for every 2,500 guilds.",
        allowed: "a whole number from 0 to 16000",
    },
    Key {
        path: "gateway.shard_range",
        kind: Kind::ShardRange,
        default: Some("\"\""),
        help: "Which shards this process runs, both ends included, such as 0-3; `shards` says how many there are in all. \
               Empty: all of them.",
        allowed: "two numbers with a `-` between them, each less than gateway.shards, or nothing",
    },
    Key {
        path: "gateway.threads",
        kind: Kind::Integer { min: 1, max: 256 },
        default: Some("1"),
        help: "On how many threads shards run. They do nothing else there; one reads hundreds of thousands of events a \
               second.",
        allowed: "a whole number from 1 to 256",
    },
    Key {
        path: "gateway.max_concurrency",
        kind: Kind::Integer { min: 0, max: 256 },
        default: Some("1"),
        help: "How many shards may identify within 5 seconds, if `gateway_url` is set; otherwise Discord says it. Only \
               what Discord granted the bot (`session_start_limit.max_concurrency`) is safe. 0: as they come, for a \
               gateway in between that spaces them itself.",
        allowed: "a whole number from 0 to 256",
    },
    Key {
        path: "gateway.identify_spacing_ms",
        kind: Kind::Integer { min: 0, max: 600_000 },
        default: Some("5250"),
        help: "The least time between two shards that identify one after the other, in milliseconds: Discord's 5 seconds, \
               and some for the way.",
        allowed: "a whole number from 0 to 600000",
    },
    Key {
        path: "gateway.identifies_a_day",
        kind: Kind::Integer { min: 1, max: 1_000_000 },
        default: Some("1000"),
        help: "How many sessions may be started within a day, over all processes, if `gateway_url` is set; otherwise \
               Discord says it. Past it Discord resets the token.",
        allowed: "a whole number from 1 to 1000000",
    },
    Key {
        path: "gateway.intents",
        kind: Kind::Intents,
        default: Some("[\"guilds\", \"guild_moderation\", \"guild_messages\", \"direct_messages\"]"),
        help: "Which events Discord sends. `guild_members`, `guild_presences` and `message_content` are privileged: \
               switch them on in Discord's developer portal before naming them here.",
        allowed: "names of gateway intents (a comma between them in the environment), such as guilds, guild_members",
    },
    Key {
        path: "gateway.presence_status",
        kind: Kind::Choice(&["online", "idle", "dnd", "invisible"]),
        default: Some("\"online\""),
        help: "What the bot is shown as.",
        allowed: "online, idle, dnd or invisible",
    },
    Key {
        path: "gateway.activity_type",
        kind: Kind::Choice(&["playing", "listening", "watching", "competing", "custom"]),
        default: Some("\"playing\""),
        help: "What the bot is shown to do, if `activity_name` says with what. `custom` shows the name alone.",
        allowed: "playing, listening, watching, competing or custom",
    },
    Key {
        path: "gateway.activity_name",
        kind: Kind::Line { most: 128 },
        default: Some("\"\""),
        help: "What the bot plays, listens to, watches or competes in. Empty: nothing is shown.",
        allowed: "a line of at most 128 characters",
    },
    Key {
        path: "gateway.buffer_events",
        kind: Kind::Integer { min: 1, max: 1_000_000 },
        default: Some("4096"),
        help: "How many events a shard keeps while they are not handled as fast as they come. When it is full, typing and \
               presence are dropped; when that does not help, the shard leaves, and resumes when there is room.",
        allowed: "a whole number from 1 to 1000000",
    },
    Key {
        path: "gateway.buffer_bytes",
        kind: Kind::Integer { min: 1, max: 1_073_741_824 },
        default: Some("16777216"),
        help: "How many bytes of events a shard keeps then.",
        allowed: "a whole number from 1 to 1073741824",
    },
    Key {
        path: "gateway.reconnect_base_ms",
        kind: Kind::Integer { min: 1, max: 600_000 },
        default: Some("1000"),
        help: "The longest first wait before a shard connects again after a connection that was of no use, in \
               milliseconds. Each further one may be twice as long, and is any time up to that, by chance.",
        allowed: "a whole number from 1 to 600000",
    },
    Key {
        path: "gateway.reconnect_cap_ms",
        kind: Kind::Integer { min: 1, max: 3_600_000 },
        default: Some("30000"),
        help: "The longest such wait of all, in milliseconds.",
        allowed: "a whole number from 1 to 3600000",
    },
    Key {
        path: "gateway.hello_timeout_ms",
        kind: Kind::Integer { min: 1, max: 600_000 },
        default: Some("20000"),
        help: "How long the gateway may take to greet a connection, and then to answer it with its session, in milliseconds. \
               After it another one is made.",
        allowed: "a whole number from 1 to 600000",
    },
    Key {
        path: "rest.connect_timeout_ms",
        kind: Kind::Integer { min: 1, max: 600_000 },
        default: Some("3000"),
        help: "How long a REST call may wait for a connection to Discord, TLS included, in milliseconds. A call that \
               gets none was never sent.",
        allowed: "a whole number from 1 to 600000",
    },
    Key {
        path: "rest.request_timeout_ms",
        kind: Kind::Integer { min: 1, max: 600_000 },
        default: Some("15000"),
        help: "How long a REST call may take in all, in milliseconds. After it nobody knows what came of the call.",
        allowed: "a whole number from 1 to 600000",
    },
    Key {
        path: "rest.max_response_bytes",
        kind: Kind::Integer { min: 1_024, max: 1_073_741_824 },
        default: Some("16777216"),
        help: "The largest answer to a REST call that is read, in bytes.",
        allowed: "a whole number from 1024 to 1073741824",
    },
    Key {
        path: "rest.pool_idle_ms",
        kind: Kind::Integer { min: 1, max: 3_600_000 },
        default: Some("30000"),
        help: "How long an unused connection to Discord's REST API is kept, in milliseconds.",
        allowed: "a whole number from 1 to 3600000",
    },
    Key {
        path: "rest.traceparent",
        kind: Kind::Bool,
        default: Some("false"),
        help: "Whether REST calls carry the header traceparent, for something between Guildhall and Discord that keeps \
               traces. Discord itself has no use for it.",
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
        help: "Added to the global window, for clocks that do not run quite alike, in milliseconds.",
        allowed: "a whole number from 0 to 10000",
    },
    Key {
        path: "limits.settling_ms",
        kind: Kind::Integer { min: 0, max: 60_000 },
        default: Some("500"),
        help: "How much longer than a window a fresh process makes no call, in milliseconds: calls of the one before it \
               may still be on their way.",
        allowed: "a whole number from 0 to 60000",
    },
    Key {
        path: "limits.interactions_exempt",
        kind: Kind::Bool,
        default: Some("true"),
        help: "Whether interaction endpoints are free of the global limit, as they are at Discord.",
        allowed: "true or false",
    },
    Key {
        path: "limits.max_waiting",
        kind: Kind::Integer { min: 1, max: 1_000_000 },
        default: Some("10000"),
        help: "Calls that may wait for their turn at once. More are told when to come again.",
        allowed: "a whole number from 1 to 1000000",
    },
    Key {
        path: "limits.max_buckets",
        kind: Kind::Integer { min: 16, max: 10_000_000 },
        default: Some("100000"),
        help: "Rate limit buckets that are remembered at once. Idle ones are forgotten first.",
        allowed: "a whole number from 16 to 10000000",
    },
    Key {
        path: "breaker.failures_in_row",
        kind: Kind::Integer { min: 1, max: 1000 },
        default: Some("5"),
        help: "Failures in a row after which a breaker opens.",
        allowed: "a whole number from 1 to 1000",
    },
    Key {
        path: "breaker.window_ms",
        kind: Kind::Integer { min: 100, max: 3_600_000 },
        default: Some("30000"),
        help: "How long calls count towards a breaker's shares of failed and slow calls, in milliseconds.",
        allowed: "a whole number from 100 to 3600000",
    },
    Key {
        path: "breaker.min_calls",
        kind: Kind::Integer { min: 1, max: 100_000 },
        default: Some("20"),
        help: "Calls within that time before a share of them can open a breaker.",
        allowed: "a whole number from 1 to 100000",
    },
    Key {
        path: "breaker.failure_percent",
        kind: Kind::Integer { min: 1, max: 100 },
        default: Some("50"),
        help: "Share of failed calls that opens a breaker, in percent.",
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
        help: "Share of slow calls that opens a breaker, in percent.",
        allowed: "a whole number from 1 to 100",
    },
    Key {
        path: "breaker.cooldown_ms",
        kind: Kind::Integer { min: 1, max: 3_600_000 },
        default: Some("30000"),
        help: "How long a breaker stays open before it lets probes through, in milliseconds. Doubles with each failed try.",
        allowed: "a whole number from 1 to 3600000",
    },
    Key {
        path: "breaker.max_cooldown_ms",
        kind: Kind::Integer { min: 1, max: 86_400_000 },
        default: Some("300000"),
        help: "The longest that a breaker stays open before it lets probes through, in milliseconds.",
        allowed: "a whole number from 1 to 86400000",
    },
    Key {
        path: "invalid_requests.limit",
        kind: Kind::Integer { min: 1, max: 10_000 },
        default: Some("10000"),
        help: "Invalid requests (401, 403, 429) in ten minutes that the thresholds are shares of. Discord bans at 10,000.",
        allowed: "a whole number from 1 to 10000",
    },
    Key {
        path: "invalid_requests.share",
        kind: Kind::Integer { min: 1, max: 100 },
        default: Some("25"),
        help: "The most that one API key, tenant or guild may hold of `invalid_requests.limit`, in percent. A hard cap: past it, \
               only its own calls wait. The admin key and handlers are capped by guild only.",
        allowed: "a whole number from 1 to 100",
    },
    Key {
        path: "redis.url",
        kind: Kind::RedisUrl,
        default: None,
        help: "Where processes that share one bot meet. Without it, a process is alone. With sentinels: \
               redis+sentinel://host:26379,host:26379/service. Of a cluster, name any node. If it holds a password, \
               better keep it out of this file: use the environment or `url_file`.",
        allowed: "redis://[user:password@]host[:port][/db], or the same with rediss:// (TLS), redis+sentinel:// or \
                  rediss+sentinel://",
    },
    Key {
        path: "redis.ca_file",
        kind: Kind::Path,
        default: Some("\"\""),
        help: "The authorities that a rediss:// server's certificate has to come from, as PEM. Empty: the public ones.",
        allowed: "the path of a file, or nothing",
    },
    Key {
        path: "redis.timeout_ms",
        kind: Kind::Integer { min: 1, max: 10_000 },
        default: Some("250"),
        help: "How long a call to Redis may take as a whole, in milliseconds. After it Redis counts as lost.",
        allowed: "a whole number from 1 to 10000",
    },
    Key {
        path: "redis.on_loss",
        kind: Kind::Choice(&["share", "closed", "open"]),
        default: Some("\"share\""),
        help: "What happens while Redis cannot be reached. `share`: each process uses its share of the limit. `closed`: \
               nothing is sent. `open`: each process uses the whole limit, which voids the promise that the limit is \
               never passed.",
        allowed: "share, closed or open",
    },
    Key {
        path: "redis.heartbeat_ms",
        kind: Kind::Integer { min: 10, max: 60_000 },
        default: Some("1000"),
        help: "How often a process says that it is there, in milliseconds. Less than half of `silence_ms`.",
        allowed: "a whole number from 10 to 60000",
    },
    Key {
        path: "redis.silence_ms",
        kind: Kind::Integer { min: 100, max: 600_000 },
        default: Some("3000"),
        help: "A process that is silent for so long, in milliseconds, is detached: its share leaves the limit, since it \
               may be using it.",
        allowed: "a whole number from 100 to 600000",
    },
    Key {
        path: "redis.forget_ms",
        kind: Kind::Integer { min: 1_000, max: 86_400_000 },
        default: Some("600000"),
        help: "How long after it was detached a process's share comes back to the others, in milliseconds. More than \
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
        help: "How long an empty Redis waits for processes that knew each other, in milliseconds, before it gives \
               everything to those it sees.",
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
        help: "How long a call of a process that is gone or cut off may still be on its way to Discord, in milliseconds.",
        allowed: "a whole number from 0 to 60000",
    },
    Key {
        path: "redis.seat_dir",
        kind: Kind::Path,
        default: Some("\"\""),
        help: "Where the processes of one machine keep their seats, so that the next one knows that the last is gone. \
               Empty: a folder under the system's temporary folder.",
        allowed: "the path of a folder, or nothing",
    },
    Key {
        path: "operations.max_attempts",
        kind: Kind::Integer { min: 1, max: 100 },
        default: Some("3"),
        help: "How often an operation may be tried before it becomes a dead letter. Waiting for a limit or a \
               breaker uses no try.",
        allowed: "a whole number from 1 to 100",
    },
    Key {
        path: "operations.backoff_base_ms",
        kind: Kind::Integer { min: 1, max: 600_000 },
        default: Some("1000"),
        help: "How long after its first failure an operation is tried again, in milliseconds; each further \
               failure doubles it.",
        allowed: "a whole number from 1 to 600000",
    },
    Key {
        path: "operations.backoff_cap_ms",
        kind: Kind::Integer { min: 1, max: 3_600_000 },
        default: Some("20000"),
        help: "The longest wait between two tries, in milliseconds.",
        allowed: "a whole number from 1 to 3600000",
    },
    Key {
        path: "operations.park_after_ms",
        kind: Kind::Integer { min: 0, max: 86_400_000 },
        default: Some("60000"),
        help: "An operation delayed for longer than this, in milliseconds, is parked: those of its guild that \
               share no object with it may pass.",
        allowed: "a whole number from 0 to 86400000",
    },
    Key {
        path: "operations.max_wait_ms",
        kind: Kind::Integer { min: 1, max: 600_000 },
        default: Some("5000"),
        help: "How long an operation waits for its turn with Discord's limits before it is delayed, in \
               milliseconds.",
        allowed: "a whole number from 1 to 600000",
    },
    Key {
        path: "operations.settle_ms",
        kind: Kind::Integer { min: 0, max: 600_000 },
        default: Some("0"),
        help: "How long an operation whose outcome is unknown waits before it is looked for in Discord, in \
               milliseconds. 0: `rest.request_timeout_ms`, so that no call of it can still be under way. A value \
               below `rest.request_timeout_ms` is refused.",
        allowed: "a whole number from 0 to 600000",
    },
    Key {
        path: "operations.check_timeout_ms",
        kind: Kind::Integer { min: 1_000, max: 604_800_000 },
        default: Some("86400000"),
        help: "How long an operation whose outcome is unknown stays `reconciling` while Discord cannot be asked (a \
               breaker is open), in milliseconds. After that it is `needs_review`.",
        allowed: "a whole number from 1000 to 604800000",
    },
    Key {
        path: "operations.max_running",
        kind: Kind::Integer { min: 0, max: 100_000 },
        default: Some("0"),
        help: "How many operations run at once, over all guilds. 0: no limit but Discord's.",
        allowed: "a whole number from 0 to 100000",
    },
    Key {
        path: "operations.per_second",
        kind: Kind::Integer { min: 0, max: 100_000 },
        default: Some("0"),
        help: "How many operations start in a second, over all guilds. 0: no limit but Discord's.",
        allowed: "a whole number from 0 to 100000",
    },
    Key {
        path: "operations.active_guilds",
        kind: Kind::Integer { min: 1, max: 1_000_000 },
        default: Some("2000"),
        help: "How many guilds' queues are in memory at once. The others wait in the store.",
        allowed: "a whole number from 1 to 1000000",
    },
    Key {
        path: "operations.idle_ms",
        kind: Kind::Integer { min: 1, max: 86_400_000 },
        default: Some("300000"),
        help: "How long a guild with nothing to do stays in memory, in milliseconds.",
        allowed: "a whole number from 1 to 86400000",
    },
    Key {
        path: "operations.poll_ms",
        kind: Kind::Integer { min: 10, max: 600_000 },
        default: Some("1000"),
        help: "How often the store is asked which queues are due, beside being told, in milliseconds.",
        allowed: "a whole number from 10 to 600000",
    },
    Key {
        path: "operations.role_max_age_ms",
        kind: Kind::Integer { min: 0, max: 600_000 },
        default: Some("10000"),
        help: "How long the permissions of a guild's roles are cached after they were read, in milliseconds. They decide \
               whether an operation needs the scope danger. Gateway events of the guild end it sooner; 0 reads them for \
               each operation.",
        allowed: "a whole number from 0 to 600000",
    },
    Key {
        path: "operations.heartbeat_ms",
        kind: Kind::Integer { min: 10, max: 600_000 },
        default: Some("5000"),
        help: "How often a process that shares a PostgreSQL with others says that it lives, in milliseconds.",
        allowed: "a whole number from 10 to 600000",
    },
    Key {
        path: "operations.lease_ms",
        kind: Kind::Integer { min: 50, max: 3_600_000 },
        default: Some("10000"),
        help: "How long after it last said so a process counts as alive, in milliseconds. After that, others take its \
               guilds over, and it sends nothing for them any more.",
        allowed: "a whole number from 50 to 3600000",
    },
    Key {
        path: "operations.lease_margin_ms",
        kind: Kind::Integer { min: 0, max: 600_000 },
        default: Some("2000"),
        help: "How long before the end of its lease a process stops to send, in milliseconds.",
        allowed: "a whole number from 0 to 600000",
    },
    Key {
        path: "operations.sweep_every_ms",
        kind: Kind::Integer { min: 10, max: 86_400_000 },
        default: Some("10000"),
        help: "How often what was kept long enough is removed, in milliseconds.",
        allowed: "a whole number from 10 to 86400000",
    },
    Key {
        path: "retention.completed_ms",
        kind: Kind::Integer { min: 0, max: 31_536_000_000 },
        default: Some("3600000"),
        help: "How long operations that succeeded or were cancelled are kept, in milliseconds.",
        allowed: "a whole number from 0 to 31536000000",
    },
    Key {
        path: "retention.failed_ms",
        kind: Kind::Integer { min: 0, max: 31_536_000_000 },
        default: Some("86400000"),
        help: "How long operations that were given up are kept, in milliseconds. Their dead letters stay longer.",
        allowed: "a whole number from 0 to 31536000000",
    },
    Key {
        path: "retention.dead_letters_ms",
        kind: Kind::Integer { min: 0, max: 31_536_000_000 },
        default: Some("604800000"),
        help: "How long dead letters and operations that need a person are kept, in milliseconds.",
        allowed: "a whole number from 0 to 31536000000",
    },
    Key {
        path: "retention.idempotency_ms",
        kind: Kind::Integer { min: 0, max: 31_536_000_000 },
        default: Some("86400000"),
        help: "How long an idempotency key is remembered once its operation is done, in milliseconds.",
        allowed: "a whole number from 0 to 31536000000",
    },
    Key {
        path: "retention.audit_ms",
        kind: Kind::Integer { min: 0, max: 315_360_000_000 },
        default: Some("7776000000"),
        help: "How long it is kept who changed what, and keys that are over, in milliseconds.",
        allowed: "a whole number from 0 to 315360000000",
    },
    Key {
        path: "retention.audit_max_per_key",
        kind: Kind::Integer { min: 0, max: 1_000_000_000 },
        default: Some("1000000"),
        help: "Audit rows of one key that are stored, the operator's included. Past it the oldest rows of that key are \
               removed before `audit_ms` is over. 0: no bound.",
        allowed: "a whole number from 0 to 1000000000",
    },
    Key {
        path: "retention.budget_spend_ms",
        kind: Kind::Integer { min: 3_600_000, max: 31_536_000_000 },
        default: Some("604800000"),
        help: "How long it is kept what was spent of each named budget in each hour, in milliseconds.",
        allowed: "a whole number from 3600000 to 31536000000",
    },
    Key {
        path: "handlers.file",
        kind: Kind::Path,
        default: Some("\"\""),
        help: "The file that says what is done with events: a TOML file of handlers, see docs/handlers.md. Empty: no \
               handlers.",
        allowed: "the path of a file that can be read, or nothing",
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
        help: "How long a webhook may take to answer, in milliseconds, unless its handler says otherwise.",
        allowed: "a whole number from 1 to 600000",
    },
    Key {
        path: "handlers.slow_ms",
        kind: Kind::Integer { min: 1, max: 600_000 },
        default: Some("2000"),
        help: "An event whose handler takes longer, in milliseconds, goes to the inbox, so that its shard need not wait.",
        allowed: "a whole number from 1 to 600000",
    },
    Key {
        path: "handlers.inbox_most",
        kind: Kind::Integer { min: 1, max: 100_000_000 },
        default: Some("100000"),
        help: "Events that may wait in the inbox at once. When it is full, shards wait.",
        allowed: "a whole number from 1 to 100000000",
    },
    Key {
        path: "handlers.attempts",
        kind: Kind::Integer { min: 1, max: 1_000 },
        default: Some("10"),
        help: "How often a handler is tried with an event before the event becomes a dead letter.",
        allowed: "a whole number from 1 to 1000",
    },
    Key {
        path: "handlers.backoff_base_ms",
        kind: Kind::Integer { min: 1, max: 3_600_000 },
        default: Some("1000"),
        help: "How long after its first failure a handler is tried again, in milliseconds. Doubles with each failure.",
        allowed: "a whole number from 1 to 3600000",
    },
    Key {
        path: "handlers.backoff_cap_ms",
        kind: Kind::Integer { min: 1, max: 86_400_000 },
        default: Some("300000"),
        help: "The longest that a handler waits before it is tried again, in milliseconds.",
        allowed: "a whole number from 1 to 86400000",
    },
    Key {
        path: "interactions.defer",
        kind: Kind::Choice(&["auto", "never"]),
        default: Some("\"auto\""),
        help: "What becomes of interactions whose handler does not say. `auto`: they are deferred at once, so that their \
               answer has 15 minutes. `never`: their handler has to answer in time.",
        allowed: "auto or never",
    },
    Key {
        path: "interactions.ephemeral",
        kind: Kind::Bool,
        default: Some("false"),
        help: "Whether only who asked sees the answer, if the handler does not say.",
        allowed: "true or false",
    },
    Key {
        path: "interactions.within_ms",
        kind: Kind::Integer { min: 1, max: 2_900 },
        default: Some("2500"),
        help: "How long a handler has for an interaction that is not deferred, in milliseconds. Discord waits for 3000.",
        allowed: "a whole number from 1 to 2900",
    },
    Key {
        path: "interactions.public_key",
        kind: Kind::PublicKey,
        default: Some("\"\""),
        help: "The application's public key, from the General Information page of Discord's developer portal: interactions \
               that Discord posts are taken on `interactions.bind` if they are signed with it. Empty takes none; they come \
               over the gateway.",
        allowed: "64 hexadecimal digits, or nothing",
    },
    Key {
        path: "interactions.bind",
        kind: Kind::Address,
        default: Some("\"127.0.0.1:8082\""),
        help: "Where interactions that Discord posts are taken, as IP address and port; something in front of it has to speak \
               TLS. Port 0 takes a free one.",
        allowed: "an IP address and a port, such as 127.0.0.1:8082",
    },
    Key {
        path: "interactions.replay_window_ms",
        kind: Kind::Integer { min: 1_000, max: 3_600_000 },
        default: Some("300000"),
        help: "How far the time of a posted interaction's signature may be from the present one, in milliseconds.",
        allowed: "a whole number from 1000 to 3600000",
    },
    Key {
        path: "budgets.named",
        kind: Kind::Budgets,
        default: Some("[]"),
        help: "Budgets of other upstreams that a bot's brain calls, each as a name, what it holds, and what comes back of that \
               in a second, such as shop=1000/50. What an upstream reports of itself takes their place. See docs/budgets.md.",
        allowed: "`name=maximum/restored a second` (a comma between them in the environment), such as shop=1000/50, rpc=300/0.5",
    },
    Key {
        path: "budgets.others",
        kind: Kind::BudgetLimits,
        default: Some("\"\""),
        help: "What a budget holds that is asked for and is not named above, and what comes back of that in a second. Empty: \
               there are no others.",
        allowed: "`maximum/restored a second`, such as 1000/50, or nothing",
    },
    Key {
        path: "budgets.most",
        kind: Kind::Integer { min: 1, max: 1_000 },
        default: Some("100"),
        help: "How many budgets there may be.",
        allowed: "a whole number from 1 to 1000",
    },
    Key {
        path: "budgets.longest_wait_ms",
        kind: Kind::Integer { min: 0, max: 86_400_000 },
        default: Some("60000"),
        help: "How far ahead a turn in a budget may be booked, in milliseconds, whatever somebody would wait.",
        allowed: "a whole number from 0 to 86400000",
    },
    Key {
        path: "egress.ip_group",
        kind: Kind::Name,
        default: Some("\"default\""),
        help: "Processes that reach Discord from one address share a budget of invalid requests. Give those behind \
               another address another name.",
        allowed: "1 to 64 letters, digits, `.`, `_` and `-`",
    },
    Key {
        path: "store.url",
        kind: Kind::StoreUrl,
        default: Some("\"sqlite:data/guildhall.db\""),
        help: "Where operations and all other state are kept: a file of SQLite, or a database of PostgreSQL. If it \
               holds a password, better keep it out of this file: use the environment or `url_file`.",
        allowed: "sqlite:PATH or postgres://user:password@host:port/database, with ?sslmode=verify-full for TLS",
    },
    Key {
        path: "store.direct_url",
        kind: Kind::StoreUrl,
        default: None,
        help: "PostgreSQL itself, where `store.url` is a PgBouncer in transaction mode: for migrations, and for being told at \
               once what other processes did. The PgBouncer needs `server_reset_query = DEALLOCATE ALL` and \
               `server_reset_query_always = 1`.",
        allowed: "postgres://user:password@host:port/database, with ?sslmode=verify-full for TLS",
    },
    Key {
        path: "store.instance",
        kind: Kind::Name,
        default: Some("\"auto\""),
        help: "What this process is called where several share a PostgreSQL, for people. `auto`: its host and process id.",
        allowed: "1 to 64 letters, digits, `.`, `_` and `-`",
    },
    Key {
        path: "store.migrate",
        kind: Kind::Bool,
        default: Some("true"),
        help: "Whether `serve` brings an older store up to date by itself. Otherwise `guildhall migrate up` does.",
        allowed: "true or false",
    },
    Key {
        path: "store.row_security",
        kind: Kind::Choice(&["auto", "required", "off"]),
        default: Some("\"auto\""),
        help: "Whether PostgreSQL itself keeps callers of the API to the rows of their tenant. `auto`: if the role for it is \
               there or can be made. `required`: without it nothing starts. `off`: never. SQLite has nothing like it.",
        allowed: "auto, required or off",
    },
    Key {
        path: "store.api_role",
        kind: Kind::Name,
        default: Some("\"guildhall_api\""),
        help: "The role of PostgreSQL that what is done for callers with a tenant runs as. It owns nothing and cannot log in.",
        allowed: "1 to 64 letters, digits, `.`, `_` and `-`",
    },
    Key {
        path: "store.timeout_ms",
        kind: Kind::Integer { min: 10, max: 600_000 },
        default: Some("5000"),
        help: "How long a call to the store may take as a whole, in milliseconds. After it the store counts as not \
               available.",
        allowed: "a whole number from 10 to 600000",
    },
    Key {
        path: "store.lock_wait_ms",
        kind: Kind::Integer { min: 0, max: 600_000 },
        default: Some("10000"),
        help: "How long a process that starts waits for another one that migrates the same PostgreSQL, in milliseconds.",
        allowed: "a whole number from 0 to 600000",
    },
    Key {
        path: "store.read_connections",
        kind: Kind::Integer { min: 1, max: 1_000 },
        default: Some("4"),
        help: "How many connections read from the store at once. One more writes.",
        allowed: "a whole number from 1 to 1000",
    },
    Key {
        path: "store.max_waiting",
        kind: Kind::Integer { min: 1, max: 1_000_000 },
        default: Some("10000"),
        help: "Writes that may wait for the store at once. More are told that it is not available.",
        allowed: "a whole number from 1 to 1000000",
    },
    Key {
        path: "store.max_queued_per_guild",
        kind: Kind::Integer { min: 1, max: 1_000_000_000 },
        default: Some("100000"),
        help: "How many operations of one guild may wait to be done. More are refused.",
        allowed: "a whole number from 1 to 1000000000",
    },
    Key {
        path: "store.max_queued_per_key",
        kind: Kind::Integer { min: 0, max: 1_000_000_000 },
        default: Some("50000"),
        help: "Unfinished operations of one API key. More are refused with 429. 0: no bound.",
        allowed: "a whole number from 0 to 1000000000",
    },
    Key {
        path: "store.max_bytes_per_key",
        kind: Kind::Integer { min: 0, max: 17_592_186_040_320 },
        default: Some("1073741824"),
        help: "Bytes stored for one API key: its operations until they are swept, dead letters and idempotency keys. More is \
               refused with 429. With SQLite at most a 16th of `max_bytes`. 0: no other bound.",
        allowed: "a whole number from 0 to 17592186040320",
    },
    Key {
        path: "store.max_queued_per_tenant",
        kind: Kind::Integer { min: 0, max: 1_000_000_000 },
        default: Some("200000"),
        help: "Unfinished operations of all API keys of one tenant. More are refused with 429. 0: no bound.",
        allowed: "a whole number from 0 to 1000000000",
    },
    Key {
        path: "store.max_bytes_per_tenant",
        kind: Kind::Integer { min: 0, max: 17_592_186_040_320 },
        default: Some("4294967296"),
        help: "Bytes stored for all API keys of one tenant. More is refused with 429. With SQLite at most an 8th of `max_bytes`. 0: \
               no other bound.",
        allowed: "a whole number from 0 to 17592186040320",
    },
    Key {
        path: "store.max_queued_operator",
        kind: Kind::Integer { min: 0, max: 1_000_000_000 },
        default: Some("1000000"),
        help: "Unfinished operations of the operator's key, and of each handler. They do not count towards a tenant. 0: no bound.",
        allowed: "a whole number from 0 to 1000000000",
    },
    Key {
        path: "store.max_bytes_operator",
        kind: Kind::Integer { min: 0, max: 17_592_186_040_320 },
        default: Some("8589934592"),
        help: "Bytes stored for the operator's key, and for each handler. With SQLite at most a quarter of `max_bytes`. 0: no other \
               bound.",
        allowed: "a whole number from 0 to 17592186040320",
    },
    Key {
        path: "store.max_bytes",
        kind: Kind::Integer { min: 0, max: 17_592_186_040_320 },
        default: Some("0"),
        help: "How large the SQLite file may grow, in bytes. New operations are refused with 507 when half of it is used, \
               so that outcomes can still be written. 0: derived at start from the free space of its disk, see docs/store.md.",
        allowed: "a whole number from 0 to 17592186040320",
    },
    Key {
        path: "api.bind",
        kind: Kind::Address,
        default: Some("\"127.0.0.1:8080\""),
        help: "Where health, metrics and the API are served. Port 0 takes a free one.",
        allowed: "an IP address and a port, such as 127.0.0.1:8080 or [::1]:8080",
    },
    Key {
        path: "api.admin_key",
        kind: Kind::Secret,
        default: None,
        help: "The key that the API under /v1 asks for. Without one, `serve` makes one and keeps it in a file, but only if \
               `api.bind` is a loopback address; for any other address it must be set. Better kept out of this file: use \
               the environment or `admin_key_file`.",
        allowed: "16 or more letters, digits, `.`, `_` and `-`",
    },
    Key {
        path: "api.allow_plaintext",
        kind: Kind::Bool,
        default: Some("false"),
        help: "Whether `api.bind` may be an address that other machines can reach without TLS (`api.tls`). Keys can then be \
               read on the way: only where something in front of it speaks TLS, or where nobody else is on the network.",
        allowed: "true or false",
    },
    Key {
        path: "api.trusted_proxies",
        kind: Kind::Networks,
        default: Some("[]"),
        help: "Proxies whose word counts on whom they speak for, so that callers without a good key are told apart behind \
               them. Empty: whoever connects is the caller.",
        allowed: "addresses and networks (a comma between them in the environment), such as 10.0.0.0/8, ::1",
    },
    Key {
        path: "api.forwarded_header",
        kind: Kind::Choice(&["x-forwarded-for", "forwarded"]),
        default: Some("\"x-forwarded-for\""),
        help: "The header in which those proxies say so. It is read from the right, up to the first address that is no proxy \
               of these.",
        allowed: "x-forwarded-for or forwarded",
    },
    Key {
        path: "api.max_connections",
        kind: Kind::Integer { min: 1, max: 100_000 },
        default: Some("1024"),
        help: "How many connections are served at once. More are told so and closed; a few more may ask for health and \
               metrics.",
        allowed: "a whole number from 1 to 100000",
    },
    Key {
        path: "api.header_timeout_ms",
        kind: Kind::Integer { min: 1, max: 600_000 },
        default: Some("5000"),
        help: "How long a request may take to arrive up to its body, and a TLS handshake, in milliseconds.",
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
        help: "How long a caller may take nothing of its answer, in milliseconds, before the connection is cut.",
        allowed: "a whole number from 1 to 600000",
    },
    Key {
        path: "api.keep_alive_ms",
        kind: Kind::Integer { min: 1, max: 3_600_000 },
        default: Some("15000"),
        help: "How long a connection is kept for the next request, in milliseconds.",
        allowed: "a whole number from 1 to 3600000",
    },
    Key {
        path: "api.max_body_bytes",
        kind: Kind::Integer { min: 1_024, max: 67_108_864 },
        default: Some("8388608"),
        help: "The largest body of a submission that is read, in bytes. Other bodies may have so many as well, but no more than \
               1048576.",
        allowed: "a whole number from 1024 to 67108864",
    },
    Key {
        path: "api.max_streams",
        kind: Kind::Integer { min: 1, max: 10_000 },
        default: Some("64"),
        help: "How many streams of operations may be open at once. A key has a quarter of them at most.",
        allowed: "a whole number from 1 to 10000",
    },
    Key {
        path: "api.stream_stall_ms",
        kind: Kind::Integer { min: 100, max: 600_000 },
        default: Some("10000"),
        help: "How long the client of a stream may take to read what is ready for it, in milliseconds, before it is cut off.",
        allowed: "a whole number from 100 to 600000",
    },
    Key {
        path: "api.max_waiters",
        kind: Kind::Integer { min: 1, max: 10_000 },
        default: Some("256"),
        help: "How many callers may wait at once for the end of what they submitted (`Prefer: wait`). Others are answered as if \
               they had not asked to.",
        allowed: "a whole number from 1 to 10000",
    },
    Key {
        path: "api.tls.cert_file",
        kind: Kind::Path,
        default: Some("\"\""),
        help: "The certificate that the API shows, and those between it and its authority, as PEM. With `key_file`, the API \
               speaks TLS. Both files are looked at every few seconds and read again when they change. Empty: no TLS.",
        allowed: "the path of a file, or nothing",
    },
    Key {
        path: "api.tls.key_file",
        kind: Kind::Path,
        default: Some("\"\""),
        help: "The private key of that certificate, as PEM, not encrypted.",
        allowed: "the path of a file, or nothing",
    },
    Key {
        path: "api.policies.heavy_per_second",
        kind: Kind::Integer { min: 0, max: 100_000 },
        default: Some("200"),
        help: "How many operations a second each key may submit in the long run. A request costs one for each operation, and \
               at least one for each 8 KiB of its body. Redriving and discarding many dead letters counts here, too. 0: no \
               limit.",
        allowed: "a whole number from 0 to 100000",
    },
    Key {
        path: "api.policies.heavy_burst",
        kind: Kind::Integer { min: 1, max: 1_000_000 },
        default: Some("2000"),
        help: "How many operations at once. A request with more than are left is accepted; those after it wait for longer.",
        allowed: "a whole number from 1 to 1000000",
    },
    Key {
        path: "api.policies.heavy_max_wait_ms",
        kind: Kind::Integer { min: 0, max: 3_600_000 },
        default: Some("60000"),
        help: "Operations submitted beyond that are accepted, and due only when they would not have been too many. If that is \
               further away than this, in milliseconds, they are refused.",
        allowed: "a whole number from 0 to 3600000",
    },
    Key {
        path: "api.policies.light_per_second",
        kind: Kind::Integer { min: 0, max: 100_000 },
        default: Some("100"),
        help: "How many other requests a second each key may make in the long run. More are refused. 0: without a limit.",
        allowed: "a whole number from 0 to 100000",
    },
    Key {
        path: "api.policies.light_burst",
        kind: Kind::Integer { min: 1, max: 1_000_000 },
        default: Some("300"),
        help: "How many of them at once.",
        allowed: "a whole number from 1 to 1000000",
    },
    Key {
        path: "api.policies.failed_per_second",
        kind: Kind::Integer { min: 0, max: 100_000 },
        default: Some("10"),
        help: "How many requests a second each address may make in the long run with no key or a wrong one. 0: without a \
               limit.",
        allowed: "a whole number from 0 to 100000",
    },
    Key {
        path: "api.policies.failed_burst",
        kind: Kind::Integer { min: 1, max: 1_000_000 },
        default: Some("200"),
        help: "How many of them at once.",
        allowed: "a whole number from 1 to 1000000",
    },
    Key {
        path: "api.policies.max_tracked",
        kind: Kind::Integer { min: 1, max: 10_000_000 },
        default: Some("10000"),
        help: "How many keys, and how many addresses, are counted one by one at once. Those who come last share one count.",
        allowed: "a whole number from 1 to 10000000",
    },
    Key {
        path: "api.policies.shared",
        kind: Kind::Bool,
        default: Some("true"),
        help: "Whether processes that share a Redis (`redis.url`) count a key's requests together. Without Redis, or while it \
               is lost, each process counts alone.",
        allowed: "true or false",
    },
    Key {
        path: "log.format",
        kind: Kind::Choice(&["auto", "pretty", "json"]),
        default: Some("\"auto\""),
        help: "How log lines look. `auto`: pretty on a terminal, JSON anywhere else. They go to standard error.",
        allowed: "auto, pretty or json",
    },
    Key {
        path: "log.filter",
        kind: Kind::Filter,
        default: Some("\"info\""),
        help: "Which log lines are written: a level, or directives such as `info,twilight_gateway=debug`.",
        allowed: "a level (error, warn, info, debug, trace) or `target=level` directives with commas between them",
    },
    Key {
        path: "telemetry.otlp_endpoint",
        kind: Kind::Url { schemes: &["https", "http"], optional: true },
        default: Some("\"\""),
        help: "An OpenTelemetry collector that is told of traces, by OTLP over HTTP; /v1/traces is added. Empty: nobody is. \
               Needs a program that was built with the feature `otel`.",
        allowed: "an http or https URL without user name, password, query or fragment, or nothing",
    },
    Key {
        path: "telemetry.otlp_headers",
        kind: Kind::Headers,
        default: None,
        help: "Headers that requests to the collector carry, such as authorization=Bearer abc.",
        allowed: "name=value, with commas between several",
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
        help: "Spans that may wait for the collector. More are dropped, and counted.",
        allowed: "a whole number from 1 to 1000000",
    },
    Key {
        path: "telemetry.service_name",
        kind: Kind::Name,
        default: Some("\"guildhall\""),
        help: "What this service is called at the collector.",
        allowed: "1 to 64 letters, digits, `.`, `_` and `-`",
    },
    Key {
        path: "shutdown.timeout_ms",
        kind: Kind::Integer { min: 1, max: 600_000 },
        default: Some("10000"),
        help: "How long a shutdown may take, in milliseconds, before the process gives up and exits with 1.",
        allowed: "a whole number from 1 to 600000",
    },
    Key {
        path: "shutdown.delay_ms",
        kind: Kind::Integer { min: 0, max: 600_000 },
        default: Some("0"),
        help: "How long the API still takes new requests once a shutdown has begun and `/readyz` says so, in milliseconds, for \
               load balancers that need a while to notice. Less than `timeout_ms`, of which it is a part.",
        allowed: "a whole number from 0 to 600000",
    },
];

/// What a secret's second form, the file that holds it, is called.
pub(crate) const FILE_SUFFIX: &str = "_file";

/// A name somebody wrote, found in the schema.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Named {
    /// The setting itself.
    Value(&'static Key),
    /// The path of a file that holds the secret.
    SecretFile(&'static Key),
}

impl Key {
    /// Whether its value must never be shown.
    pub(crate) fn is_secret(&self) -> bool {
        matches!(self.kind, Kind::Secret | Kind::RedisUrl | Kind::StoreUrl | Kind::Headers)
    }

    /// Whether a reload applies it to a running process.
    pub(crate) fn reloads(&self) -> bool {
        RELOADED.contains(&self.path)
    }

    /// The name of the secret's file form, when the setting is a secret.
    pub(crate) fn file_form(&self) -> Option<String> {
        self.is_secret().then(|| format!("{}{FILE_SUFFIX}", self.path))
    }

    /// The section and the name in it.
    pub(crate) fn section_and_name(&self) -> (&'static str, &'static str) {
        self.path.rsplit_once('.').expect("invariant: every path in the schema is section.name")
    }
}

/// What a dotted path is called in the environment.
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

/// Whether settings stand under this name, or sections of its own.
pub(crate) fn is_section(name: &str) -> bool {
    let stands_under = |path: &str| path.strip_prefix(name).is_some_and(|rest| rest.starts_with('.'));
    SCHEMA.iter().any(|key| stands_under(key.path))
}

/// The known path most like a wrong one, if any is like it at all.
pub(crate) fn nearest(path: &str) -> Option<String> {
    let known = SCHEMA.iter().flat_map(|key| [Some(key.path.to_owned()), key.file_form()]).flatten();
    nearest_of(path, known)
}

/// The candidate most like `wrong`, if any is like it at all.
pub(crate) fn nearest_of(wrong: &str, candidates: impl Iterator<Item = String>) -> Option<String> {
    // Jaro-Winkler favours a common prefix, which is how people mistype; below 0.8 a guess misleads more than it helps.
    candidates
        .map(|candidate| (strsim::jaro_winkler(wrong, &candidate), candidate))
        .filter(|(likeness, _)| *likeness >= 0.8)
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistyped_path_finds_its_neighbour_and_a_strange_one_finds_none() {
        assert_eq!(nearest("discord.tokn").as_deref(), Some("discord.token"));
        assert_eq!(nearest("gatway.shards").as_deref(), Some("gateway.shards"));
        assert_eq!(nearest("zzz.qqq"), None);
    }

    #[test]
    fn a_section_may_have_sections_and_none_begins_twice() {
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
        assert_eq!(sections.len(), begun, "a file could not have them in this order");
    }

    #[test]
    fn a_secret_has_a_file_form_and_nothing_else_has() {
        assert!(matches!(find("discord.token_file"), Some(Named::SecretFile(key)) if key.path == "discord.token"));
        assert!(find("api.bind_file").is_none());
    }
}
