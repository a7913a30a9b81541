//! `guildhall handlers check` and `guildhall handlers test`

use std::fmt::Write as _;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Subcommand;
use guildhall_actors::wall_clock::unix_now_ms;
use guildhall_core::event::handler::{EventHandler, EventHandlers, HandlerAction};

use super::setting_flags::{self, SettingFlags};
use crate::handlers::{self, DryRun, DryRunAction, HandlerDryRun, Sample};
use crate::settings::Settings;

#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print the events and the action of each handler, or all errors
    Check {
        #[command(flatten)]
        settings: Box<SettingFlags>,
    },
    /// Print what each handler would do with an event, without doing it
    Test {
        /// File with a gateway frame, or an event in the format sent to webhooks; - for standard input
        #[arg(value_name = "EVENT.JSON")]
        event: PathBuf,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        settings: Box<SettingFlags>,
    },
}

pub(super) fn run(file: Option<PathBuf>, args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        Command::Check { settings } => {
            let (handlers, settings) = load(file, *settings)?;
            io::stdout().write_all(format_handlers(&handlers).as_bytes())?;
            for warning in handlers::warnings(&handlers) {
                writeln!(io::stderr(), "warning: {warning}")?;
            }
            let unreachable = handlers::unreachable(&handlers, settings.gateway.intents);
            for error in &unreachable {
                writeln!(io::stderr(), "error: {error}")?;
            }
            Ok(if unreachable.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        Command::Test { event, json, settings } => {
            let (handlers, _) = load(file, *settings)?;
            let trial = DryRun::run(&handlers, &read_sample(&event)?);
            let text = if json { format!("{:#}\n", serde_json::to_value(&trial)?) } else { format_dry_run(&trial) };
            io::stdout().write_all(text.as_bytes())?;
            Ok(if trial.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
    }
}

fn load(file: Option<PathBuf>, flags: SettingFlags) -> anyhow::Result<(EventHandlers, Settings)> {
    let settings = setting_flags::load(file, flags)?.settings;
    if settings.handlers.file.is_none() {
        anyhow::bail!(
            "no handlers file is configured; set --handlers-file, GUILDHALL__HANDLERS__FILE or handlers.file. \
             docs/handlers.md describes the format"
        );
    }
    Ok((handlers::load(&settings.handlers)?, settings))
}

fn read_sample(path: &Path) -> anyhow::Result<Sample> {
    let mut text = String::new();
    if path == Path::new("-") {
        io::stdin().read_to_string(&mut text).context("cannot read the event from standard input")?;
    } else {
        text = std::fs::read_to_string(path)
            .map_err(|error| anyhow::anyhow!("{} cannot be read: {error}", path.display()))?;
    }
    Sample::parse(&text, unix_now_ms()).map_err(|error| anyhow::anyhow!("{}: {error}", path.display()))
}

/// Lists the events and the action of each handler.
fn format_handlers(handlers: &EventHandlers) -> String {
    if handlers.is_empty() {
        return "This file defines no handlers.\n".to_owned();
    }
    let widest = handlers.iter().map(|handler| handler.name.len()).max().unwrap_or(0);
    let line = |handler: &EventHandler| {
        let on = handler.on.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let does = match &handler.action {
            HandlerAction::Rule(rule) if rule.is_idle() => "does nothing".to_owned(),
            HandlerAction::Rule(_) => "rule".to_owned(),
            HandlerAction::Webhook(webhook) => format!("webhook {}", webhook.url),
            HandlerAction::Broker => "broker".to_owned(),
        };
        let shadow = if handler.shadow { " (shadow)" } else { "" };
        format!("{:widest$}  on {on}: {does}{shadow}\n", handler.name)
    };
    handlers.iter().map(line).collect()
}

/// Formats a dry run for people.
fn format_dry_run(trial: &DryRun) -> String {
    let mut out = format!("{}\n", trial.event_type);
    for tried in &trial.handlers {
        push(&mut out, format_args!("\n{}: {}\n", tried.name, describe_match(tried)));
        if let Some(would) = &tried.would {
            push_action(&mut out, would);
        }
        for problem in &tried.problems {
            push(&mut out, format_args!("  error: {problem}\n"));
        }
    }
    if trial.handlers.iter().all(|tried| tried.matches.is_none() || tried.unmet.is_some()) {
        out.push_str("\nNo handler handles this event.\n");
    }
    out
}

fn describe_match(tried: &HandlerDryRun) -> String {
    let shadow = if tried.shadow { " (shadow)" } else { "" };
    match (&tried.matches, tried.unmet) {
        (None, _) => "does not listen to this event".to_owned(),
        (Some(pattern), Some(unmet)) => format!("listens to `{pattern}`, but the condition `when.{unmet}` is false"),
        (Some(pattern), None) => format!("listens to `{pattern}`, and handles it{shadow}"),
    }
}

fn push_action(out: &mut String, action: &DryRunAction) {
    match action {
        DryRunAction::Do { operations, reply, set, cooldown } => {
            for operation in operations {
                push(out, format_args!("  would submit {operation}\n"));
            }
            if let Some(reply) = reply {
                push(out, format_args!("  would reply {reply}\n"));
            }
            for value in set {
                push(out, format_args!("  would store {value}\n"));
            }
            if let Some(cooldown) = cooldown {
                push(out, format_args!("  would start the cooldown {cooldown}\n"));
            }
            if operations.is_empty() && reply.is_none() && set.is_empty() && cooldown.is_none() {
                out.push_str("  would do nothing\n");
            }
        }
        DryRunAction::Publish { body } => push(out, format_args!("  would publish to the broker\n  {body}\n")),
        DryRunAction::Ask { url, body } => push(out, format_args!("  would POST to {url}\n  {body}\n")),
    }
}

fn push(out: &mut String, text: std::fmt::Arguments<'_>) {
    out.write_fmt(text).expect("invariant: writing to a String cannot fail");
}
