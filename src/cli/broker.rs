//! `guildhall broker`: checks and declares exchanges and queues of RabbitMQ, and manages its dead letters.

use std::{path::PathBuf, process::ExitCode};

use clap::{ArgGroup, Subcommand};
use serde_json::json;

use super::{
    confirm::{ConfirmArgs, Count},
    output::{Color, Format, Output, Painter, TableCell, TextTable, or_dash},
    setting_flags::{self, SettingFlags},
};
use crate::{
    broker::{self, BrokerProbe, DeadLetterAction, DeadLetterSelection, DeadMessage},
    daemon,
    settings::{BrokerSettings, BrokerUrl},
};

/// Maximum number of dead letters in one command.
const MAX_LETTERS: u64 = 10_000;

#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// Output format
    #[arg(short, long, global = true, value_enum, default_value_t = Format::Table)]
    output: Format,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Check the connection, the exchanges and the queues; changes nothing
    Check,
    /// Declare exchanges and queues that do not exist, and compare those that do
    Declare,
    /// List, redrive and discard dead letters of the broker
    Dlq {
        #[command(subcommand)]
        command: DlqCommand,
    },
}

#[derive(Debug, Subcommand)]
enum DlqCommand {
    /// List dead letters
    List {
        /// Maximum number of dead letters
        #[arg(long, value_name = "COUNT", default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=MAX_LETTERS))]
        limit: u64,
    },
    /// Deliver dead letters again to the queues in which they died
    Redrive {
        #[command(flatten)]
        chosen: Selection,
        #[command(flatten)]
        confirm: ConfirmArgs,
    },
    /// Delete dead letters
    Discard {
        #[command(flatten)]
        chosen: Selection,
        #[command(flatten)]
        confirm: ConfirmArgs,
    },
}

/// Selects dead letters by the id of their event, or all of them.
#[derive(clap::Args, Clone, Debug)]
#[command(group = ArgGroup::new("choice").args(["ids", "all"]).required(true))]
struct Selection {
    /// Event IDs of the dead letters
    #[arg(value_name = "ID")]
    ids: Vec<String>,
    /// Select all dead letters
    #[arg(long)]
    all: bool,
    /// Maximum number of dead letters with --all
    #[arg(long, value_name = "COUNT", requires = "all", default_value_t = MAX_LETTERS, value_parser = clap::value_parser!(u64).range(1..=MAX_LETTERS))]
    limit: u64,
}

impl Selection {
    fn limit(&self) -> usize {
        usize::try_from(self.limit).unwrap_or(usize::MAX)
    }

    /// Those among these dead letters that are selected.
    fn matching(&self, letters: Vec<DeadMessage>) -> Vec<DeadMessage> {
        letters.into_iter().filter(|letter| self.all || self.ids.contains(&letter.id)).take(self.limit()).collect()
    }

    fn selection(self) -> DeadLetterSelection {
        let limit = self.limit();
        if self.all { DeadLetterSelection::All { limit } } else { DeadLetterSelection::Ids(self.ids) }
    }
}

pub(super) fn run(file: Option<PathBuf>, args: Args) -> anyhow::Result<ExitCode> {
    let settings = setting_flags::load(file, SettingFlags::default())?.settings.broker;
    let Some(url) = settings.url.clone() else {
        anyhow::bail!(
            "broker.url is not set; set GUILDHALL__BROKER__URL to the URL of a RabbitMQ, such as \
             amqp://user:password@host/vhost"
        );
    };
    let out = Output::new(args.output);
    match args.command {
        Command::Check => {
            let probe = daemon::block_on(broker::probe(&settings, &url))??;
            show_queues(&out, &url, &probe)
        }
        Command::Declare => {
            let probe = daemon::block_on(broker::declare(&settings, &url))??;
            show_queues(&out, &url, &probe)
        }
        Command::Dlq { command: DlqCommand::List { limit } } => {
            let limit = usize::try_from(limit).unwrap_or(usize::MAX);
            let (letters, total) = daemon::block_on(broker::list(&settings, &url, limit))??;
            out.show(&json!({ "dead_letters": letters, "total": total }), |paint| {
                format_letters(&letters, total, paint)
            })?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Dlq { command: DlqCommand::Redrive { chosen, confirm } } => {
            change(&out, &settings, &url, DeadLetterAction::Redrive, chosen, confirm)
        }
        Command::Dlq { command: DlqCommand::Discard { chosen, confirm } } => {
            change(&out, &settings, &url, DeadLetterAction::Discard, chosen, confirm)
        }
    }
}

fn change(
    out: &Output,
    settings: &BrokerSettings,
    url: &BrokerUrl,
    action: DeadLetterAction,
    chosen: Selection,
    confirm: ConfirmArgs,
) -> anyhow::Result<ExitCode> {
    let (verb, done) = match action {
        DeadLetterAction::Redrive => ("Redrive", "redriven"),
        DeadLetterAction::Discard => ("Discard", "discarded"),
    };
    if confirm.is_dry_run() || confirm.must_ask() {
        let limit = usize::try_from(MAX_LETTERS).unwrap_or(usize::MAX);
        let (letters, total) = daemon::block_on(broker::list(settings, url, limit))??;
        let is_more = chosen.all && u64::from(total) > MAX_LETTERS && chosen.limit == MAX_LETTERS;
        let matching = chosen.matching(letters);
        let count = Count { number: matching.len(), is_more }.of("dead letter");
        if confirm.is_dry_run() {
            out.show(&json!({ "dead_letters": matching, "dry_run": true }), |paint| {
                format!("{}{count} would be {done}\n", format_letters(&matching, total, paint))
            })?;
            return Ok(ExitCode::SUCCESS);
        }
        if !matching.is_empty() && !confirm.ask(&format!("{verb} {count}?"))? {
            return Ok(ExitCode::FAILURE);
        }
    }
    let named = chosen.ids.len();
    let changed = daemon::block_on(broker::change(settings, url, action, &chosen.selection()))??;
    let count = Count { number: changed.len(), is_more: false }.of("dead letter");
    out.show(&json!({ "dead_letters": changed, "action": done }), |_| format!("{count} {done}\n"))?;
    if changed.len() < named {
        anyhow::bail!(
            "{} of {named} dead letters do not exist; guildhall broker dlq list shows them",
            named - changed.len()
        );
    }
    Ok(ExitCode::SUCCESS)
}

fn show_queues(out: &Output, url: &BrokerUrl, probe: &BrokerProbe) -> anyhow::Result<ExitCode> {
    let queues: Vec<_> = probe
        .queues
        .iter()
        .map(|queue| json!({ "name": queue.name, "messages": queue.messages, "consumers": queue.consumers }))
        .collect();
    let connect_ms = probe.connect_time.as_millis();
    out.show(&json!({ "url": url.to_string(), "queues": queues }), |paint| {
        let mut table = TextTable::new(&["QUEUE", "MESSAGES", "CONSUMERS"]);
        for queue in &probe.queues {
            let tint = if queue.consumers == 0 && queue.messages > 0 { Color::Care } else { Color::None };
            let messages = TableCell::tinted(queue.messages.to_string(), tint);
            table.row(vec![queue.name.as_str().into(), messages, queue.consumers.to_string().into()]);
        }
        format!("{url}: connected in {connect_ms} ms, all exchanges and queues exist\n\n{}", table.print(paint))
    })?;
    Ok(ExitCode::SUCCESS)
}

fn format_letters(letters: &[DeadMessage], total: u32, paint: Painter) -> String {
    if letters.is_empty() {
        return "No dead letters.\n".to_owned();
    }
    let mut table = TextTable::new(&["ID", "EVENT", "GUILD", "REASON", "QUEUE", "DIED", "REDRIVEN"]);
    for letter in letters {
        table.row(vec![
            letter.id.as_str().into(),
            letter.event.as_str().into(),
            or_dash(letter.guild.as_deref()).into(),
            or_dash(letter.reason.as_deref()).into(),
            or_dash(letter.queue.as_deref()).into(),
            or_dash(letter.at.as_deref()).into(),
            letter.redriven.to_string().into(),
        ]);
    }
    let more = usize::try_from(total).unwrap_or(usize::MAX).saturating_sub(letters.len());
    let note = if more > 0 { format!("… and {more} more; use --limit\n") } else { String::new() };
    format!("{}{note}", table.print(paint))
}
