//! Close codes of connections.

/// A close code and its reason, as sent to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Close {
    pub(crate) code: u16,
    pub(crate) reason: &'static str,
}

impl Close {
    pub(crate) const SLOW_READER: Self = Self::new(4000, "Too many unsent events in this session; identify again.");
    pub(crate) const TAKEN_OVER: Self = Self::new(4000, "Another connection requested to resume this session.");
    pub(crate) const UNKNOWN_OPCODE: Self = Self::new(4001, "Unknown opcode.");
    pub(crate) const DECODE: Self = Self::new(4002, "Error while decoding payload.");
    pub(crate) const TOO_LONG: Self = Self::new(4002, "Payloads must be at most 4096 bytes.");
    pub(crate) const ENCODING: Self = Self::new(4002, "This gateway supports encoding=json only.");
    pub(crate) const COMPRESSION: Self =
        Self::new(4002, "This gateway supports compress=zlib-stream or no compression.");
    pub(crate) const NOT_AUTHENTICATED: Self = Self::new(4003, "Not authenticated.");
    pub(crate) const AUTHENTICATION_FAILED: Self = Self::new(4004, "Authentication failed.");
    pub(crate) const TOKEN_RESET: Self =
        Self::new(4004, "Too many session starts in a day: the token was reset. Authentication failed.");
    pub(crate) const ALREADY_AUTHENTICATED: Self = Self::new(4005, "Already authenticated.");
    pub(crate) const INVALID_SEQUENCE: Self = Self::new(4007, "Invalid seq.");
    pub(crate) const RATE_LIMITED: Self = Self::new(4008, "Rate limited.");
    pub(crate) const TIMED_OUT: Self = Self::new(4009, "Session timed out: no heartbeat received.");
    pub(crate) const INVALID_SHARD: Self = Self::new(4010, "Invalid shard.");
    pub(crate) const SHARDING_REQUIRED: Self = Self::new(
        4011,
        "Sharding required: a shard may have at most 2500 \
        guilds.",
    );
    pub(crate) const INVALID_VERSION: Self = Self::new(4012, "Invalid API version: this gateway supports v=10.");
    pub(crate) const INVALID_INTENTS: Self = Self::new(4013, "Invalid intent(s).");
    pub(crate) const DISALLOWED_INTENTS: Self = Self::new(4014, "Disallowed intent(s).");

    pub(crate) const fn new(code: u16, reason: &'static str) -> Self {
        Self { code, reason }
    }

    /// Whether this code is valid in a close frame.
    pub(crate) const fn is_legal(code: u16) -> bool {
        matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999)
    }
}
