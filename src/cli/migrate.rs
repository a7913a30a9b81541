//! `guildhall migrate up`, `guildhall migrate down` and `guildhall migrate status`

use std::{
    io::{self, Write as _},
    path::PathBuf,
    process::ExitCode,
};

use clap::Subcommand;

use super::setting_flags::{self, SettingFlags};
use crate::daemon;
use crate::store::migrate::{Compatibility, MigrationStatus};
use crate::store::{OpenError, migrate};

#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Apply all pending migrations; `serve` also does this unless store.migrate is false
    Up {
        #[command(flatten)]
        settings: Box<SettingFlags>,
    },
    /// Revert the newest migrations and delete their data
    Down {
        /// Number of migrations to revert
        #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
        steps: u32,
        #[command(flatten)]
        settings: Box<SettingFlags>,
    },
    /// List all migrations with their status and the hash of their SQL
    Status {
        #[command(flatten)]
        settings: Box<SettingFlags>,
    },
}

pub(super) fn run(file: Option<PathBuf>, args: &Args) -> anyhow::Result<ExitCode> {
    let (Command::Up { settings } | Command::Down { settings, .. } | Command::Status { settings }) = &args.command;
    let store = setting_flags::load(file, (**settings).clone())?.settings.store;
    let steps: Result<Vec<MigrationStatus>, OpenError> = daemon::block_on(async {
        match &args.command {
            Command::Up { .. } => migrate::up(&store).await,
            Command::Down { steps, .. } => migrate::down(&store, *steps).await,
            Command::Status { .. } => migrate::status(&store).await,
        }
    })?;
    io::stdout().write_all(table(&steps?).as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

fn table(steps: &[MigrationStatus]) -> String {
    let line = |step: &MigrationStatus| {
        let fit = match step.compatibility() {
            Compatibility::Pending => "pending".to_owned(),
            Compatibility::Applied => "applied".to_owned(),
            Compatibility::Changed { .. } => "applied, but its SQL has changed".to_owned(),
            Compatibility::Newer => "applied by a newer version, compatible".to_owned(),
            Compatibility::Incompatible { needs: Some(needs) } => {
                format!("applied by a newer version, needs one that knows migration {needs:04}")
            }
            Compatibility::Incompatible { needs: None } => "applied by a newer version".to_owned(),
        };
        let hash = match (&step.stored_hash, &step.known_hash) {
            (Some(stored), Some(expected)) if stored != expected => format!("store {stored}, this version {expected}"),
            (Some(hash), _) => short(hash),
            (None, Some(_)) if step.applied => "hash not recorded".to_owned(),
            (None, Some(hash)) => short(hash),
            (None, None) => String::new(),
        };
        format!("{}\n", format!("{}  {fit}  {hash}", step.name).trim_end())
    };
    steps.iter().map(line).collect()
}

/// Shortens a hash; long enough to distinguish two.
fn short(hash: &str) -> String {
    hash.chars().take(12).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_shows_hashes_and_both_of_a_changed_migration() {
        let (old, new) = ("a".repeat(64), "b".repeat(64));
        let step = |name: &str, stored: Option<&String>, own_hash: Option<&String>, needs| MigrationStatus {
            name: name.to_owned(),
            applied: name != "0003_c",
            known_hash: own_hash.cloned(),
            stored_hash: stored.cloned(),
            compatible_from: needs,
            newest_known: 16,
        };
        let steps = [
            step("0001_a", Some(&old), Some(&old), Some(1)),
            step("0002_b", Some(&old), Some(&new), Some(2)),
            step("0003_c", None, Some(&new), None),
            step("0004_d", None, Some(&new), None),
            step("0017_e", Some(&old), None, Some(16)),
            step("0018_f", Some(&old), None, Some(18)),
        ];
        let expected = format!(
            "0001_a  applied  aaaaaaaaaaaa\n0002_b  applied, but its SQL has changed  store {old}, this version {new}\n\
             0003_c  pending  bbbbbbbbbbbb\n0004_d  applied  hash not recorded\n\
             0017_e  applied by a newer version, compatible  aaaaaaaaaaaa\n\
             0018_f  applied by a newer version, needs one that knows migration 0018  aaaaaaaaaaaa\n"
        );
        assert_eq!(table(&steps), expected);
    }
}
