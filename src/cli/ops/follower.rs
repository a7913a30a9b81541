//! Follows operations until they finish: over the stream, or by polling if a daemon has none.

use std::{collections::BTreeMap, time::Duration};

use anyhow::bail;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout_at};

use super::{progress::ProgressReporter, view::is_over};
use crate::{
    cli::duration,
    client::{Client, ClientError, OperationStream, StreamItem, part},
};

/// Poll interval without a stream; it grows from the first to the second value.
const LOOKS: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(2));
/// Maximum number of operations in one round of polls, so that the daemon is not overloaded.
const ROUND: usize = 100;
/// State of an operation that the daemon does not have.
const GONE: &str = "gone";

/// Operations that are followed.
pub(in crate::cli) struct Follower<'a> {
    client: &'a Client,
    feed: Option<OperationStream>,
    /// Each operation in its last known state, in the order in which they were added.
    known: Vec<Value>,
    places: BTreeMap<String, usize>,
    /// Indexes of operations to query, since the stream may not report them.
    unseen: Vec<usize>,
}

impl<'a> Follower<'a> {
    /// Opens a stream with these parameters. Operations that are submitted afterwards are not missed.
    pub(in crate::cli) async fn begin(
        client: &'a Client,
        given: &[(&str, Option<String>)],
    ) -> Result<Self, ClientError> {
        let feed = match OperationStream::open(client, given, None).await {
            Ok(feed) => Some(feed),
            Err(ClientError::Unknown { .. }) => None,
            // The limit of streams is reached, or the daemon has only just started.
            Err(fault) if fault.again_after().is_some() => None,
            Err(fault) => return Err(fault),
        };
        Ok(Self { feed, ..Self::idle(client) })
    }

    /// Follows without a stream, by polling only.
    pub(super) fn idle(client: &'a Client) -> Self {
        Self { client, feed: None, known: Vec::new(), places: BTreeMap::new(), unseen: Vec::new() }
    }

    /// Follows operations that existed before the stream was opened.
    pub(in crate::cli) fn look_for(&mut self, ids: impl IntoIterator<Item = String>) {
        for id in ids {
            if let Some(at) = self.add(json!({ "id": id })) {
                self.unseen.push(at);
            }
        }
    }

    /// Follows an operation that was accepted just before the stream was opened.
    pub(super) fn meet(&mut self, accepted: Value) {
        if let Some(at) = self.add(accepted).filter(|at| !self.is_over(*at)) {
            self.unseen.push(at);
        }
    }

    /// Follows an operation that was accepted after the stream was opened.
    pub(in crate::cli) fn expect(&mut self, accepted: Value) {
        // The stream reports new operations; a replayed one may have been reported before.
        let is_told = accepted["replayed"] != true && self.feed.is_some();
        if is_told {
            self.add(accepted);
        } else {
            self.meet(accepted);
        }
    }

    fn add(&mut self, operation: Value) -> Option<usize> {
        let id = operation["id"].as_str()?.to_owned();
        let at = self.known.len();
        if self.places.contains_key(&id) {
            return None;
        }
        self.places.insert(id, at);
        self.known.push(operation);
        Some(at)
    }

    /// Number of operations.
    pub(super) fn count(&self) -> usize {
        self.known.len()
    }

    /// Returns all operations in their last known state.
    pub(super) fn known(&self) -> Vec<Value> {
        self.known.clone()
    }

    pub(super) fn all_succeeded(&self) -> bool {
        self.known.iter().all(|operation| operation["state"] == "succeeded")
    }

    fn is_over(&self, at: usize) -> bool {
        self.known[at]["state"].as_str().is_some_and(|state| is_over(state) || state == GONE)
    }

    fn left(&self) -> Vec<usize> {
        (0..self.known.len()).filter(|at| !self.is_over(*at)).collect()
    }

    /// Waits until all operations have finished, and reports every change.
    pub(super) async fn until_over(&mut self, within: Duration, teller: &mut ProgressReporter) -> anyhow::Result<()> {
        let deadline = Instant::now() + within;
        for at in (0..self.known.len()).filter(|at| self.is_over(*at)) {
            teller.tell(&self.known[at])?;
        }
        let mut left = self.left().len();
        let mut pause = LOOKS.0;
        while left > 0 {
            let Ok(more) = timeout_at(deadline, self.step(teller, &mut pause)).await else {
                bail!(
                    "timed out after {}: {left} of {} operations still pending. They continue in the background; \
                     follow them with `guildhall ops watch`",
                    duration::told(within),
                    self.known.len()
                );
            };
            more?;
            left = self.left().len();
        }
        Ok(())
    }

    /// Queries the operations that need it, then waits for the next change. Cancel-safe.
    async fn step(&mut self, teller: &mut ProgressReporter, pause: &mut Duration) -> anyhow::Result<()> {
        while let Some(at) = self.unseen.last().copied() {
            if !self.is_over(at) {
                self.look(at, teller).await?;
            }
            self.unseen.pop();
        }
        if self.left().is_empty() {
            return Ok(());
        }
        let Some(feed) = &mut self.feed else {
            sleep(*pause).await;
            *pause = (*pause * 3 / 2).min(LOOKS.1);
            let mut round = self.left();
            round.truncate(ROUND);
            // `to_query` is processed from its end.
            round.reverse();
            self.unseen = round;
            return Ok(());
        };
        match feed.next().await? {
            StreamItem::Operation(operation) => self.hear(operation, teller),
            StreamItem::Gap => {
                self.unseen = self.left();
                Ok(())
            }
        }
    }

    async fn look(&mut self, at: usize, teller: &mut ProgressReporter) -> anyhow::Result<()> {
        let id = self.known[at]["id"].as_str().unwrap_or_default().to_owned();
        match self.client.get(format!("/v1/operations/{}", part(&id))).await {
            Ok(answered) => self.hear(answered.body, teller),
            Err(fault) if fault.is_absent() => {
                let says = format!("operation {id} does not exist or was removed");
                self.hear(json!({"id": id, "state": GONE, "error": {"message": says}}), teller)
            }
            Err(fault) => Err(fault.into()),
        }
    }

    /// Applies a new state of an operation, if it is followed.
    fn hear(&mut self, operation: Value, teller: &mut ProgressReporter) -> anyhow::Result<()> {
        let Some(at) = operation["id"].as_str().and_then(|id| self.places.get(id).copied()) else { return Ok(()) };
        // The stream may report a state that a query has returned already, or an older one.
        if self.is_over(at) {
            return Ok(());
        }
        let is_new = self.known[at]["state"] != operation["state"];
        self.known[at] = operation;
        if is_new { teller.tell(&self.known[at]) } else { Ok(()) }
    }
}
