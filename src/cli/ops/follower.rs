//! Follows operations until they finish: over the stream, or by polling if a daemon has none.

use std::{collections::BTreeMap, time::Duration};

use anyhow::bail;
use serde_json::Value;
use tokio::time::{Instant, sleep, timeout_at};

use super::{progress::ProgressReporter, report::ReportedOperation};
use crate::{
    api::dto::OperationInFull,
    cli::{duration, output::read},
    client::{Client, ClientError, OperationStream, StreamItem, path_segment},
    terminal_text::escape_controls,
};

/// Poll interval without a stream; it grows from the first to the second value.
const POLL_INTERVALS: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(2));
/// Maximum number of operations in one round of polls, so that the daemon is not overloaded.
const POLL_BATCH_SIZE: usize = 100;
/// When it is checked first, and then how often, whether operations wait because of a pause.
const PAUSE_CHECKS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));
/// Maximum number of ids in a command that is suggested.
const MAX_SUGGESTED_IDS: usize = 5;

/// Operations that are followed.
pub(in crate::cli) struct Follower<'a> {
    client: &'a Client,
    stream: Option<OperationStream>,
    /// Each operation in its last known state, in the order in which they were added.
    operations: Vec<ReportedOperation>,
    indexes: BTreeMap<String, usize>,
    /// Indexes of operations to query, since the stream may not report them.
    to_query: Vec<usize>,
    /// What is paused, and how to resume it; reported once.
    pause: Option<String>,
}

impl<'a> Follower<'a> {
    /// Opens a stream with these parameters. Operations that are submitted afterwards are not missed.
    pub(in crate::cli) async fn open(
        client: &'a Client,
        given: &[(&str, Option<String>)],
    ) -> Result<Self, ClientError> {
        let feed = match OperationStream::open(client, given, None).await {
            Ok(feed) => Some(feed),
            Err(ClientError::Unsupported { .. }) => None,
            // The limit of streams is reached, or the daemon has only just started.
            Err(error) if error.retry_after().is_some() => None,
            Err(error) => return Err(error),
        };
        Ok(Self { stream: feed, ..Self::polling(client) })
    }

    /// Follows without a stream, by polling only.
    pub(super) fn polling(client: &'a Client) -> Self {
        Self {
            client,
            stream: None,
            operations: Vec::new(),
            indexes: BTreeMap::new(),
            to_query: Vec::new(),
            pause: None,
        }
    }

    /// Follows operations that existed before the stream was opened.
    pub(in crate::cli) fn follow_existing(&mut self, ids: impl IntoIterator<Item = String>) {
        for id in ids {
            if let Some(at) = self.add(ReportedOperation::not_queried(id)) {
                self.to_query.push(at);
            }
        }
    }

    /// Follows an operation that was accepted just before the stream was opened.
    pub(super) fn follow_accepted(&mut self, accepted: ReportedOperation) {
        if let Some(at) = self.add(accepted).filter(|at| !self.is_finished(*at)) {
            self.to_query.push(at);
        }
    }

    /// Follows an operation that was accepted after the stream was opened.
    pub(super) fn follow_submitted(&mut self, accepted: ReportedOperation) {
        // The stream reports new operations; a replayed one may have been reported before.
        let is_streamed = !accepted.report.is_replayed() && self.stream.is_some();
        if is_streamed {
            self.add(accepted);
        } else {
            self.follow_accepted(accepted);
        }
    }

    fn add(&mut self, operation: ReportedOperation) -> Option<usize> {
        let id = operation.report.id().to_owned();
        let at = self.operations.len();
        if self.indexes.contains_key(&id) {
            return None;
        }
        self.indexes.insert(id, at);
        self.operations.push(operation);
        Some(at)
    }

    /// Number of operations.
    pub(super) fn count(&self) -> usize {
        self.operations.len()
    }

    /// Returns all operations in their last known state.
    pub(super) fn operations(&self) -> &[ReportedOperation] {
        &self.operations
    }

    pub(super) fn all_succeeded(&self) -> bool {
        self.operations.iter().all(|operation| operation.report.has_succeeded())
    }

    fn is_finished(&self, at: usize) -> bool {
        self.operations[at].report.is_finished()
    }

    fn unfinished(&self) -> Vec<usize> {
        (0..self.operations.len()).filter(|at| !self.is_finished(*at)).collect()
    }

    /// Waits until all operations have finished, and reports every change.
    pub(super) async fn wait_until_finished(
        &mut self,
        timeout: Duration,
        reporter: &mut ProgressReporter,
    ) -> anyhow::Result<()> {
        let deadline = Instant::now() + timeout;
        for at in (0..self.operations.len()).filter(|at| self.is_finished(*at)) {
            reporter.report(&self.operations[at])?;
        }
        let mut remaining = self.unfinished().len();
        let mut pause = POLL_INTERVALS.0;
        let mut check_at = Instant::now() + PAUSE_CHECKS.0;
        while remaining > 0 {
            if Instant::now() >= check_at {
                self.check_pause(reporter).await?;
                check_at = Instant::now() + PAUSE_CHECKS.1;
            }
            match timeout_at(deadline.min(check_at), self.step(reporter, &mut pause)).await {
                Ok(more) => more?,
                Err(_) if Instant::now() < deadline => {}
                Err(_) => bail!("timed out after {}: {}", duration::format_duration(timeout), self.pending_summary()),
            }
            remaining = self.unfinished().len();
        }
        Ok(())
    }

    /// Says which operations continue without this command, and how to follow them.
    pub(in crate::cli) fn pending_summary(&self) -> String {
        let unfinished = self.unfinished();
        let id = |at: &usize| format!(" {}", self.operations[*at].report.id());
        let ids: String = match unfinished.len() {
            0..=MAX_SUGGESTED_IDS => unfinished.iter().map(id).collect(),
            _ => String::new(),
        };
        let pause = self.pause.as_ref().map_or_else(String::new, |pause| format!("{pause}. "));
        format!(
            "{} of {} operations still pending. {pause}They continue in the background; follow them with `guildhall ops \
             watch{ids}`",
            unfinished.len(),
            self.operations.len()
        )
    }

    /// Reports once if the operations wait because their guild or everything is paused. A failed request is not reported: the
    /// stream or the next poll will.
    async fn check_pause(&mut self, reporter: &mut ProgressReporter) -> anyhow::Result<()> {
        let Some(at) = self.unfinished().first().copied().filter(|_| self.pause.is_none()) else { return Ok(()) };
        let path = operation_path(self.operations[at].report.id());
        let Ok(shown) = self.client.get(path).await else { return Ok(()) };
        let OperationInFull { operation, .. } = read(&shown.body)?;
        let reason = operation.waits_for.as_ref().map(|waits| waits.reason.as_ref());
        self.pause = match (reason, &operation.guild_id) {
            (Some("guild_paused"), Some(guild)) => {
                let guild = escape_controls(guild.as_ref());
                Some(format!("Guild {guild} is paused; resume it with `guildhall guilds resume {guild}`"))
            }
            (Some("all_paused"), _) => {
                Some("Everything is paused; resume it with `guildhall guilds resume --all`".to_owned())
            }
            (Some(_) | None, _) => None,
        };
        if let Some(pause) = &self.pause {
            reporter.note(pause);
            self.apply_update(shown.body, reporter)?;
        }
        Ok(())
    }

    /// Queries the operations that need it, then waits for the next change. Cancel-safe.
    async fn step(&mut self, reporter: &mut ProgressReporter, pause: &mut Duration) -> anyhow::Result<()> {
        while let Some(at) = self.to_query.last().copied() {
            if !self.is_finished(at) {
                self.query(at, reporter).await?;
            }
            self.to_query.pop();
        }
        if self.unfinished().is_empty() {
            return Ok(());
        }
        let Some(stream) = &mut self.stream else {
            sleep(*pause).await;
            *pause = (*pause * 3 / 2).min(POLL_INTERVALS.1);
            let mut round = self.unfinished();
            round.truncate(POLL_BATCH_SIZE);
            // `to_query` is processed from its end.
            round.reverse();
            self.to_query = round;
            return Ok(());
        };
        match stream.next().await? {
            StreamItem::Operation(operation) => self.apply_update(operation, reporter),
            StreamItem::Gap => {
                self.to_query = self.unfinished();
                Ok(())
            }
        }
    }

    async fn query(&mut self, at: usize, reporter: &mut ProgressReporter) -> anyhow::Result<()> {
        let id = self.operations[at].report.id().to_owned();
        match self.client.get(operation_path(&id)).await {
            Ok(response) => self.apply_update(response.body, reporter),
            Err(error) if error.is_not_found() => self.replace(ReportedOperation::gone(id), reporter),
            Err(error) => Err(error.into()),
        }
    }

    /// Applies a response about an operation, if it is followed.
    fn apply_update(&mut self, response: Value, reporter: &mut ProgressReporter) -> anyhow::Result<()> {
        self.replace(ReportedOperation::read(response)?, reporter)
    }

    fn replace(&mut self, operation: ReportedOperation, reporter: &mut ProgressReporter) -> anyhow::Result<()> {
        let Some(at) = self.indexes.get(operation.report.id()).copied() else { return Ok(()) };
        // The stream may report a state that a query has returned already, or an older one.
        if self.is_finished(at) {
            return Ok(());
        }
        let is_new = self.operations[at].report.state() != operation.report.state();
        self.operations[at] = operation;
        if is_new { reporter.report(&self.operations[at]) } else { Ok(()) }
    }
}

fn operation_path(id: &str) -> String {
    format!("/v1/operations/{}", path_segment(id))
}
