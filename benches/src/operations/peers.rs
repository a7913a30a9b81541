//! The queues that Guildhall is compared with.

use anyhow::Context as _;

use crate::peers;

/// A peer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Peer {
    /// graphile-worker, with one named queue per guild.
    Graphile,
    /// pg-boss, with one queue that keeps the jobs of each key in order.
    PgBoss,
}

/// Load of a peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Jobs {
    pub(crate) guilds: u32,
    pub(crate) per_guild: u32,
    pub(crate) workers: u32,
}

/// Result of a peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerResult {
    pub(crate) per_s: f64,
    pub(crate) order_violations: u64,
}

impl Peer {
    /// Name, also in the figures.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Graphile => "graphile",
            Self::PgBoss => "pgboss",
        }
    }

    /// Name of the npm package.
    const fn package(self) -> &'static str {
        match self {
            Self::Graphile => "graphile-worker",
            Self::PgBoss => "pg-boss",
        }
    }

    /// Runs jobs in a separate database. `None` if the peer is not installed.
    pub(crate) fn measure(self, url: &str, jobs: Jobs) -> anyhow::Result<Option<PeerResult>> {
        if !peers::is_installed(self.package()) {
            return Ok(None);
        }
        let Jobs { guilds, per_guild, workers } = jobs;
        let numbers = [guilds, per_guild, workers].map(|number| number.to_string());
        let figures = peers::run_script(self.name(), std::iter::once(url.to_owned()).chain(numbers))?;
        let per_s = figures["per_s"].as_f64().context("a peer reported no rate")?;
        let order_violations = figures["order_violations"].as_u64().context("a peer reported no order violations")?;
        Ok(Some(PeerResult { per_s, order_violations }))
    }
}
