//! Submits operations to the daemon, and records those that it accepted.

use std::collections::{BTreeMap, BTreeSet};

use guildhall_sim::Snowflake;
use serde_json::{Value, json};

use super::{
    DemoError,
    http::{DemoHttpClient, DemoHttpError},
    operation::DemoOperation,
};
use crate::api::dto::{Accepted, AcceptedMany, OperationPage};

/// Maximum number of operations on one page.
const PAGE_SIZE: usize = 100;

/// Client of the daemon's API, with the operations that it has accepted.
#[derive(Debug)]
pub(crate) struct ApiClient {
    http: DemoHttpClient,
    accepted_body: BTreeSet<String>,
    expected: BTreeMap<Snowflake, Vec<DemoOperation>>,
}

/// Counts of the accepted operations by outcome.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OperationCounts {
    pub(crate) succeeded: u64,
    /// Dead, cancelled, or in need of review.
    pub(crate) failed: u64,
    /// Not finished yet.
    pub(crate) pending: u64,
    /// Accepted, but no longer listed.
    pub(crate) missing: u64,
    /// Submitted by handlers instead of the API: those that succeeded.
    pub(crate) from_handlers: u64,
    /// Submitted by handlers: those that have not succeeded, or not yet.
    pub(crate) from_handlers_not_succeeded: u64,
}

impl OperationCounts {
    pub(crate) fn finished(&self) -> u64 {
        self.succeeded + self.failed + self.missing
    }
}

impl ApiClient {
    pub(crate) fn new(http: DemoHttpClient) -> Self {
        Self { http, accepted_body: BTreeSet::new(), expected: BTreeMap::new() }
    }

    pub(crate) fn http(&self) -> &DemoHttpClient {
        &self.http
    }

    /// Number of accepted operations.
    pub(crate) fn accepted_body(&self) -> u64 {
        self.accepted_body.len() as u64
    }

    /// The expected operations of each guild, in the order in which they were accepted.
    pub(crate) fn expected(&self) -> &BTreeMap<Snowflake, Vec<DemoOperation>> {
        &self.expected
    }

    /// Whether the daemon accepts operations.
    pub(crate) async fn is_open(&self) -> bool {
        self.http.get("/v1/operations?limit=1").await.is_ok_and(|response| response.status.is_success())
    }

    /// The sum of a metric over its labels; if `label` is not empty, only of the series that contain it.
    pub(crate) async fn metric(&self, name: &str, label: &str) -> Option<u64> {
        let response = self.http.get("/metrics").await.ok()?;
        sum_metric(&response.text, name, label)
    }

    /// Submits a batch of operations.
    pub(crate) async fn submit_all(&mut self, guild: Snowflake, operations: &[DemoOperation]) -> Result<(), DemoError> {
        for operation in self.submit(guild, operations).await? {
            self.record(&operation);
        }
        self.expected.entry(guild).or_default().extend_from_slice(operations);
        Ok(())
    }

    /// Submits the same batch again, like a caller that did not receive the response. Returns how many the daemon
    /// deduplicated.
    pub(crate) async fn resubmit(&mut self, guild: Snowflake, operations: &[DemoOperation]) -> Result<u64, DemoError> {
        let accepted = self.submit(guild, operations).await?;
        let deduplicated =
            |operation: &&Accepted| operation.replayed && self.accepted_body.contains(operation.id.as_ref());
        let deduplicated = accepted.iter().filter(deduplicated).count() as u64;
        accepted.iter().for_each(|operation| self.record(operation));
        Ok(deduplicated)
    }

    /// Adds operations that handlers are expected to submit.
    pub(crate) fn expect(&mut self, guild: Snowflake, operations: Vec<DemoOperation>) {
        self.expected.entry(guild).or_default().extend(operations);
    }

    async fn submit(&self, guild: Snowflake, operations: &[DemoOperation]) -> Result<Vec<Accepted>, DemoError> {
        let all: Vec<Value> = operations.iter().map(DemoOperation::in_batch).collect();
        let response = self.http.post(&operations_path(guild), None, &json!({"operations": all})).await?;
        if !response.status.is_success() {
            return Err(DemoError::Refused {
                request: "a batch of operations".to_owned(),
                status: response.status.as_u16(),
                body: response.text,
            });
        }
        let AcceptedMany { operations } = response.read()?;
        Ok(operations)
    }

    fn record(&mut self, operation: &Accepted) {
        self.accepted_body.insert(operation.id.to_string());
    }

    /// Counts all accepted operations by their state in the API.
    pub(crate) async fn count_operations(&self) -> Result<OperationCounts, DemoHttpError> {
        let mut states = BTreeMap::new();
        let mut next = String::new();
        loop {
            let page: OperationPage =
                self.http.get(&format!("/v1/operations?limit={PAGE_SIZE}{next}")).await?.read()?;
            for operation in &page.operations {
                states.insert(operation.id.to_string(), operation.state.to_string());
            }
            match page.next {
                Some(cursor) => next = format!("&cursor={cursor}"),
                None => return Ok(count_states(&self.accepted_body, &states)),
            }
        }
    }
}

fn operations_path(guild: Snowflake) -> String {
    format!("/v1/guilds/{guild}/operations")
}

fn count_states(accepted: &BTreeSet<String>, states: &BTreeMap<String, String>) -> OperationCounts {
    let mut counts = OperationCounts::default();
    for id in accepted {
        let count = match states.get(id).map(String::as_str) {
            Some("succeeded") => &mut counts.succeeded,
            Some("dead" | "cancelled" | "needs_review") => &mut counts.failed,
            Some(_) => &mut counts.pending,
            None => &mut counts.missing,
        };
        *count += 1;
    }
    let by_handlers: Vec<&String> =
        states.iter().filter(|(id, _)| !accepted.contains(*id)).map(|(_, state)| state).collect();
    counts.from_handlers = by_handlers.iter().filter(|state| **state == "succeeded").count() as u64;
    counts.from_handlers_not_succeeded = by_handlers.len() as u64 - counts.from_handlers;
    counts
}

fn sum_metric(metrics: &str, name: &str, label: &str) -> Option<u64> {
    let lines = metrics.lines().filter_map(|line| line.strip_prefix(name));
    let series = lines.filter(|rest| rest.starts_with(['{', ' ']) && rest.contains(label));
    let values = series.filter_map(|rest| rest.rsplit(' ').next()?.parse::<u64>().ok());
    values.fold(None, |sum: Option<u64>, value| Some(sum.unwrap_or(0) + value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepted_operation_that_is_not_listed_is_missing() {
        let accepted = ["a", "b", "c", "d", "e"].map(str::to_owned).into();
        let states = [
            ("a", "succeeded"),
            ("b", "needs_review"),
            ("c", "running"),
            ("d", "dead"),
            ("x", "succeeded"),
            ("y", "queued"),
        ];
        let states = states.map(|(id, state)| (id.to_owned(), state.to_owned())).into();
        let counts = count_states(&accepted, &states);
        assert_eq!(
            counts,
            OperationCounts {
                succeeded: 1,
                failed: 2,
                pending: 1,
                missing: 1,
                from_handlers: 1,
                from_handlers_not_succeeded: 1
            }
        );
        assert_eq!(counts.finished(), 4);
    }

    #[test]
    fn a_metric_is_summed_over_its_labels_and_no_others() {
        let text = "# HELP a_total of a\na_total{k=\"x\"} 2\na_total{k=\"y\"} 3\na_totals 9\nb 4\n";
        assert_eq!((sum_metric(text, "a_total", ""), sum_metric(text, "a_total", "\"y\"")), (Some(5), Some(3)));
        assert_eq!((sum_metric(text, "b", ""), sum_metric(text, "c", "")), (Some(4), None));
    }
}
