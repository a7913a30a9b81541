//! `guildhall doctor`: checks everything that a daemon needs.

use std::{num::NonZeroU64, path::PathBuf, process::ExitCode};

use serde_json::{Value, json};

use super::{
    output::{Color, Output, Painter},
    remote::RemoteArgs,
    setting_flags::{self, SettingFlags},
};
use crate::doctor::{CheckStatus, DoctorOptions, Finding};
use crate::settings::SettingsError;
use crate::{daemon, doctor};

/// Width of the column of check names.
const WIDTH: usize = 18;

#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// Guild in which to check the bot's roles; repeat the option for more guilds
    #[arg(long = "guild", value_name = "ID")]
    guilds: Vec<NonZeroU64>,
    /// Number of guilds in which to check the bot's roles if --guild is not given
    #[arg(long = "guilds", value_name = "COUNT", default_value_t = 3, value_parser = clap::value_parser!(u32).range(0..=20))]
    guilds_most: u32,
    #[command(flatten)]
    remote: RemoteArgs,
    #[command(flatten)]
    settings: SettingFlags,
}

pub(super) fn run(file: Option<PathBuf>, args: Args) -> anyhow::Result<ExitCode> {
    let out = args.remote.output();
    let (settings, secret_files) = match setting_flags::load(file, args.settings) {
        Ok(loaded) => (loaded.settings.clone(), loaded.files_with_secrets()),
        Err(error) => return report_invalid_settings(&out, &error),
    };
    let daemon = args.remote.client_with(|| Ok(settings.clone())).map_err(|error| error.to_string());
    let guilds = args.guilds.iter().map(|guild| guild.get()).collect();
    let options = DoctorOptions { settings: &settings, secret_files, daemon, guilds, max_guilds: args.guilds_most };
    let mut findings = Vec::new();
    let mut printed = Ok(());
    daemon::block_on(doctor::examine(&options, |finding| {
        // Printed immediately: some checks take long.
        if out.is_table() && printed.is_ok() {
            printed = out.show(&Value::Null, |paint| format_finding(&finding, paint));
        }
        findings.push(finding);
    }))?;
    printed?;
    report(&out, &findings)
}

fn report_invalid_settings(out: &Output, error: &SettingsError) -> anyhow::Result<ExitCode> {
    let advice = "run `guildhall config check` to see each setting and its source";
    let finding = Finding::fail("settings", error.to_string(), advice);
    if out.is_table() {
        out.show(&Value::Null, |paint| format_finding(&finding, paint))?;
    }
    report(out, &[finding])
}

/// Formats the summary.
fn report(out: &Output, findings: &[Finding]) -> anyhow::Result<ExitCode> {
    let count = |status| findings.iter().filter(|finding| finding.status == status).count();
    let (warn, fail) = (count(CheckStatus::Warn), count(CheckStatus::Fail));
    let value = json!({ "ok": fail == 0, "checks": findings });
    out.show(&value, |_| {
        format!(
            "\n{} passed, {warn} warnings, {fail} failed, {} skipped\n",
            count(CheckStatus::Ok),
            count(CheckStatus::Skip)
        )
    })?;
    Ok(if fail == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn format_finding(finding: &Finding, paint: Painter) -> String {
    let (name, tint) = match finding.status {
        CheckStatus::Ok => ("ok  ", Color::Good),
        CheckStatus::Warn => ("warn", Color::Care),
        CheckStatus::Fail => ("fail", Color::Bad),
        CheckStatus::Skip => ("skip", Color::Dim),
    };
    let lines: Vec<_> = finding.seen.lines().map(|line| paint.tint(line, Color::None)).collect();
    let pad = " ".repeat(WIDTH + 6);
    let mut text = format!("{}  {:WIDTH$}{}\n", paint.tint(name, tint), finding.check, lines.join(&format!("\n{pad}")));
    if let Some(advice) = &finding.advice {
        text += &format!("{pad}{}\n", paint.tint(&format!("→ {advice}"), Color::Dim));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finding_displays_status_and_advice() {
        let finding = Finding::warn("clock", "ours is 5.0 s ahead\nof theirs", "set it");
        assert_eq!(
            format_finding(&finding, Painter::none()),
            "warn  clock             ours is 5.0 s ahead\n                        of theirs\n\
            \u{20}                       → set it\n"
        );
    }
}
