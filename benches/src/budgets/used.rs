//! What scripts cost a server.

use std::ops::{Add, Sub};

use anyhow::Context as _;

/// How a script reaches the server.
#[derive(Clone, Copy)]
pub(super) enum Script {
    /// By its hash.
    Known,
    /// As text, every time.
    SentWhole,
}

/// What scripts have used.
#[derive(Clone, Copy, Default)]
pub(super) struct Used {
    /// How often one was called.
    pub(super) calls: u64,
    /// How long the server was busy with them.
    pub(super) micros: u64,
}

impl Used {
    /// What scripts of this kind have used so far, by the server's own count.
    pub(super) fn so_far(url: &str, script: Script) -> anyhow::Result<Self> {
        let mut connection = redis::Client::open(url)?.get_connection()?;
        let stats: String = redis::cmd("INFO").arg("commandstats").query(&mut connection)?;
        let command = match script {
            Script::Known => "cmdstat_evalsha:",
            Script::SentWhole => "cmdstat_eval:",
        };
        let Some(line) = stats.lines().find_map(|line| line.strip_prefix(command)) else {
            return Ok(Self::default());
        };
        let field = |name: &str| {
            let value = line.split(',').find_map(|field| field.strip_prefix(name));
            value.and_then(|value| value.parse().ok()).with_context(|| format!("redis-server does not tell {name}"))
        };
        Ok(Self { calls: field("calls=")?, micros: field("usec=")? })
    }
}

impl Add for Used {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { calls: self.calls + other.calls, micros: self.micros + other.micros }
    }
}

impl Sub for Used {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self { calls: self.calls - earlier.calls, micros: self.micros - earlier.micros }
    }
}
