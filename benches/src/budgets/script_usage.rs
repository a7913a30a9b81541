//! Cost of scripts on the Redis server.

use std::ops::{Add, Sub};

use anyhow::Context as _;

/// How a script is sent to the server.
#[derive(Clone, Copy)]
pub(super) enum ScriptForm {
    /// As its hash (`EVALSHA`).
    Hash,
    /// As its source (`EVAL`), each time.
    Source,
}

/// Calls of scripts, and the time that they took.
#[derive(Clone, Copy, Default)]
pub(super) struct ScriptUsage {
    /// Number of calls.
    pub(super) calls: u64,
    /// Time that the server spent on them, in microseconds.
    pub(super) micros: u64,
}

impl ScriptUsage {
    /// Usage of scripts of this kind so far, from the statistics of the server.
    pub(super) fn query(url: &str, script: ScriptForm) -> anyhow::Result<Self> {
        let mut connection = redis::Client::open(url)?.get_connection()?;
        let stats: String = redis::cmd("INFO").arg("commandstats").query(&mut connection)?;
        let command = match script {
            ScriptForm::Hash => "cmdstat_evalsha:",
            ScriptForm::Source => "cmdstat_eval:",
        };
        let Some(line) = stats.lines().find_map(|line| line.strip_prefix(command)) else {
            return Ok(Self::default());
        };
        let field = |name: &str| {
            let value = line.split(',').find_map(|field| field.strip_prefix(name));
            value.and_then(|value| value.parse().ok()).with_context(|| format!("redis-server does not report {name}"))
        };
        Ok(Self { calls: field("calls=")?, micros: field("usec=")? })
    }
}

impl Add for ScriptUsage {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { calls: self.calls + other.calls, micros: self.micros + other.micros }
    }
}

impl Sub for ScriptUsage {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self { calls: self.calls - earlier.calls, micros: self.micros - earlier.micros }
    }
}
