//! `guildhall sim`

use std::{fs, net::SocketAddr, path::PathBuf, process::ExitCode};

use anyhow::Context as _;
use guildhall_sim::{BotConfig, LimitConfig, Sim, SimConfig};

use crate::daemon::signals::{OnHangup, Signals, StopSource};
use crate::settings::{LogFormat, LogSettings, SIMULATOR_TOKEN};
use crate::{daemon, logging};

#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// Address to listen on; port 0 selects a free port
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:0")]
    bind: SocketAddr,
    /// Allow an address that other machines can reach; anyone who can connect can control the simulator
    #[arg(long)]
    allow_public: bool,
    /// Token of a bot; repeat the option for more bots
    #[arg(long, value_name = "TOKEN", default_value = SIMULATOR_TOKEN, value_parser = token)]
    token: Vec<String>,
    /// Number of guilds at start
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(0..=100_000))]
    guilds: u32,
    /// Number of members in each guild, in addition to its owner and the bots
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(0..=100_000))]
    members: u32,
    /// Number of text channels in each guild
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(0..=500))]
    channels: u32,
    /// Number of shards that /gateway/bot recommends
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=16_000))]
    shards: u32,
    /// Number of shards that may identify within five seconds
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=16_000))]
    max_concurrency: u32,
    /// Heartbeat interval that HELLO sends to clients
    #[arg(long, value_name = "MS", default_value_t = 41_250, value_parser = clap::value_parser!(u64).range(10..=600_000))]
    heartbeat_interval_ms: u64,
    /// Seed of the random number generator
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Offset of the simulator's clock from this machine's clock; negative if it is behind
    #[arg(long, value_name = "SECONDS", default_value_t = 0, allow_negative_numbers = true)]
    clock_ahead_s: i64,
    /// Serve HTTPS and secure WebSockets with a generated certificate, and write the certificate that clients must trust
    /// to this file (PEM)
    #[arg(long, value_name = "PATH")]
    tls: Option<PathBuf>,
    /// Refuse REST calls whose User-Agent does not have the form "DiscordBot (url, version)"
    #[arg(long)]
    require_user_agent: bool,
    /// Disable rate limits
    #[arg(long)]
    no_limits: bool,
    /// Send uncompressed text, even to clients that request zlib-stream
    #[arg(long)]
    no_compression: bool,
    /// Log filter, such as info or guildhall_sim=debug
    #[arg(long, value_name = "DIRECTIVES", default_value = "info")]
    log_filter: String,
}

/// Parses a token that a client can send: `Bot ` is put in front of it, so it must not contain a space.
fn token(text: &str) -> Result<String, &'static str> {
    if text.is_empty() || text.contains(|letter: char| !letter.is_ascii_graphic()) {
        return Err("must be printable ASCII without spaces, and without the `Bot ` prefix");
    }
    Ok(text.to_owned())
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    logging::init(&LogSettings { format: LogFormat::Auto, filter: args.log_filter.clone() }, Vec::new())?;
    if !args.bind.ip().to_canonical().is_loopback() && !args.allow_public {
        anyhow::bail!(
            "other machines can reach {}, and anyone who can connect can control the simulator; bind a loopback \
             address such as 127.0.0.1:0, or add --allow-public",
            args.bind
        );
    }
    if let Some(twice) = (1..args.token.len()).find(|at| args.token[..*at].contains(&args.token[*at])) {
        anyhow::bail!("--token {} is given twice; each bot needs its own token", args.token[twice]);
    }
    daemon::raise_open_files();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().thread_name("sim").build()?;
    runtime.block_on(async {
        let mut signals = Signals::listen(StopSource::Signals, OnHangup::Exit)?;
        let (bind, certificate_file) = (args.bind, args.tls.clone());
        let sim = Sim::start(args.into()).await.with_context(|| format!("cannot listen on {bind}"))?;
        if let (Some(file), Some(certificate)) = (&certificate_file, sim.certificate()) {
            fs::write(file, certificate)
                .map_err(|error| anyhow::anyhow!("cannot write the certificate to {}: {error}", file.display()))?;
        }
        // On standard output, so that a program that started it on port 0 can read the port.
        println!("listening on {}", sim.url());
        if let Some(file) = &certificate_file {
            println!("certificate in {}", file.display());
        }
        signals.first().await;
        sim.stop().await;
        Ok(ExitCode::SUCCESS)
    })
}

impl From<Args> for SimConfig {
    fn from(args: Args) -> Self {
        let mut config = Self {
            bind: args.bind,
            seed: args.seed,
            guilds: args.guilds,
            members: args.members,
            channels: args.channels,
            clock_ahead_s: args.clock_ahead_s,
            tls: args.tls.is_some(),
            require_user_agent: args.require_user_agent,
            bots: args.token.into_iter().map(|token| BotConfig { token, ..BotConfig::default() }).collect(),
            ..Self::default()
        };
        config.gateway.shards = args.shards;
        config.gateway.max_concurrency = args.max_concurrency;
        config.gateway.heartbeat_interval = std::time::Duration::from_millis(args.heartbeat_interval_ms);
        config.gateway.compression = !args.no_compression;
        if args.no_limits {
            config.limits = LimitConfig::off();
        }
        config
    }
}
