//! Follows operations until they finish: over the stream, or by polling if a daemon has none.

use std::{collections::BTreeMap, time::Duration};

use anyhow::bail;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout_at};

use super::{progress::ProgressReporter, view::is_final};
use crate::{
    cli::duration,
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
/// State of an operation that the daemon does not have.
const GONE: &str = "gone";

/// Operations that are followed.
pub(in crate::cli) struct Follower<'a> {
    client: &'a Client,
    stream: Option<OperationStream>,
    /// Each operation in its last known state, in the order in which they were added.
    operations: Vec<Value>,
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
            if let Some(at) = self.add(json!({ "id": id })) {
                self.to_query.push(at);
            }
        }
    }

    /// Follows an operation that was accepted just before the stream was opened.
    pub(super) fn follow_accepted(&mut self, accepted: Value) {
        if let Some(at) = self.add(accepted).filter(|at| !self.is_finished(*at)) {
            self.to_query.push(at);
        }
    }

    /// Follows an operation that was accepted after the stream was opened.
    pub(in crate::cli) fn follow_submitted(&mut self, accepted: Value) {
        // The stream reports new operations; a replayed one may have been reported before.
        let is_streamed = accepted["replayed"] != true && self.stream.is_some();
        if is_streamed {
            self.add(accepted);
        } else {
            self.follow_accepted(accepted);
        }
    }

    fn add(&mut self, operation: Value) -> Option<usize> {
        let id = operation["id"].as_str()?.to_owned();
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
    pub(super) fn operations(&self) -> Vec<Value> {
        self.operations.clone()
    }

    pub(super) fn all_succeeded(&self) -> bool {
        self.operations.iter().all(|operation| operation["state"] == "succeeded")
    }

    fn is_finished(&self, at: usize) -> bool {
        self.operations[at]["state"].as_str().is_some_and(|state| is_final(state) || state == GONE)
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
                self.check_pause(reporter).await;
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
        let id = |at: &usize| self.operations[*at]["id"].as_str().map(|id| format!(" {id}"));
        let ids: String = match unfinished.len() {
            0..=MAX_SUGGESTED_IDS => unfinished.iter().filter_map(id).collect(),
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

    /// Reports once if the operations wait because their guild or everything is paused. An error is not reported: the stream
    /// or the next poll will.
    async fn check_pause(&mut self, reporter: &ProgressReporter) {
        let Some(at) = self.unfinished().first().copied().filter(|_| self.pause.is_none()) else { return };
        let id = self.operations[at]["id"].as_str().unwrap_or_default().to_owned();
        let Ok(mut shown) = self.client.get(format!("/v1/operations/{}", path_segment(&id))).await else { return };
        let waits_for = shown.body["waits_for"].take();
        self.pause = match waits_for["reason"].as_str() {
            Some("guild_paused") => shown.body["guild_id"].as_str().map(|guild| {
                let guild = escape_controls(guild);
                format!("Guild {guild} is paused; resume it with `guildhall guilds resume {guild}`")
            }),
            Some("all_paused") => {
                Some("Everything is paused; resume it with `guildhall guilds resume --all`".to_owned())
            }
            Some(_) | None => None,
        };
        if let Some(pause) = &self.pause {
            reporter.note(pause);
            self.operations[at]["waits_for"] = waits_for;
        }
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
        let id = self.operations[at]["id"].as_str().unwrap_or_default().to_owned();
        match self.client.get(format!("/v1/operations/{}", path_segment(&id))).await {
            Ok(response) => self.apply_update(response.body, reporter),
            Err(error) if error.is_not_found() => {
                let message = format!("operation {id} does not exist or was removed");
                self.apply_update(json!({"id": id, "state": GONE, "error": {"message": message}}), reporter)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Applies a new state of an operation, if it is followed.
    fn apply_update(&mut self, operation: Value, reporter: &mut ProgressReporter) -> anyhow::Result<()> {
        let Some(at) = operation["id"].as_str().and_then(|id| self.indexes.get(id).copied()) else { return Ok(()) };
        // The stream may report a state that a query has returned already, or an older one.
        if self.is_finished(at) {
            return Ok(());
        }
        let is_new = self.operations[at]["state"] != operation["state"];
        self.operations[at] = operation;
        if is_new { reporter.report(&self.operations[at]) } else { Ok(()) }
    }
}
