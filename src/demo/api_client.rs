//! Submits operations to the daemon, and records those that it accepted.

use std::collections::{BTreeMap, BTreeSet};

use guildhall_sim::Snowflake;
use serde_json::{Value, json};

use super::{
    DemoError,
    http::{DemoHttpError, DemoResponse, HttpClient},
    operation::DemoOperation,
};

/// Maximum number of operations on one page.
const PAGE: usize = 100;

/// Client of the daemon's API, with the operations that it has accepted.
#[derive(Debug)]
pub(crate) struct ApiClient {
    http: HttpClient,
    accepted: BTreeSet<String>,
    asked: BTreeMap<Snowflake, Vec<DemoOperation>>,
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
    pub(crate) given: u64,
    /// Submitted by handlers: those that have not succeeded, or not yet.
    pub(crate) given_undone: u64,
}

impl OperationCounts {
    pub(crate) fn settled(&self) -> u64 {
        self.succeeded + self.failed + self.missing
    }
}

impl ApiClient {
    pub(crate) fn new(http: HttpClient) -> Self {
        Self { http, accepted: BTreeSet::new(), asked: BTreeMap::new() }
    }

    pub(crate) fn http(&self) -> &HttpClient {
        &self.http
    }

    /// Number of accepted operations.
    pub(crate) fn accepted(&self) -> u64 {
        self.accepted.len() as u64
    }

    /// The expected operations of each guild, in the order in which they were accepted.
    pub(crate) fn asked(&self) -> &BTreeMap<Snowflake, Vec<DemoOperation>> {
        &self.asked
    }

    /// Whether the daemon accepts operations.
    pub(crate) async fn is_open(&self) -> bool {
        self.http.get("/v1/operations?limit=1").await.is_ok_and(|answer| answer.status.is_success())
    }

    /// The sum of a metric over its labels; if `label` is not empty, only of the series that contain it.
    pub(crate) async fn metric(&self, name: &str, label: &str) -> Option<u64> {
        let answer = self.http.get("/metrics").await.ok()?;
        sum(&answer.text, name, label)
    }

    /// Submits a batch of operations.
    pub(crate) async fn ask_all(&mut self, guild: Snowflake, tasks: &[DemoOperation]) -> Result<(), DemoError> {
        for answer in self.submit(guild, tasks).await? {
            self.note(&answer);
        }
        self.asked.entry(guild).or_default().extend_from_slice(tasks);
        Ok(())
    }

    /// Submits the same batch again, like a caller that did not receive the response. Returns how many the daemon
    /// deduplicated.
    pub(crate) async fn ask_again(&mut self, guild: Snowflake, tasks: &[DemoOperation]) -> Result<u64, DemoError> {
        let answers = self.submit(guild, tasks).await?;
        let known = |answer: &&Value| answer["replayed"] == true && self.accepted.contains(id(answer));
        let known = answers.iter().filter(known).count() as u64;
        answers.iter().for_each(|answer| self.note(answer));
        Ok(known)
    }

    /// Adds operations that handlers are expected to submit.
    pub(crate) fn expect(&mut self, guild: Snowflake, tasks: Vec<DemoOperation>) {
        self.asked.entry(guild).or_default().extend(tasks);
    }

    async fn submit(&self, guild: Snowflake, tasks: &[DemoOperation]) -> Result<Vec<Value>, DemoError> {
        let all: Vec<Value> = tasks.iter().map(DemoOperation::in_batch).collect();
        let answer = self.http.post(&place(guild), None, &json!({"operations": all})).await?;
        let mut answer = accepted(&answer, "a batch of operations")?;
        match answer["operations"].take() {
            Value::Array(answers) => Ok(answers),
            _ => Ok(Vec::new()),
        }
    }

    fn note(&mut self, answer: &Value) {
        self.accepted.insert(id(answer).to_owned());
    }

    /// Counts all accepted operations by their state in the API.
    pub(crate) async fn standing(&self) -> Result<OperationCounts, DemoHttpError> {
        let mut states = BTreeMap::new();
        let mut next = String::new();
        loop {
            let page = self.http.get(&format!("/v1/operations?limit={PAGE}{next}")).await?.json();
            for operation in page["operations"].as_array().into_iter().flatten() {
                states.insert(id(operation).to_owned(), operation["state"].as_str().unwrap_or_default().to_owned());
            }
            match page["next"].as_str() {
                Some(cursor) => next = format!("&cursor={cursor}"),
                None => return Ok(tally(&self.accepted, &states)),
            }
        }
    }
}

fn place(guild: Snowflake) -> String {
    format!("/v1/guilds/{guild}/operations")
}

fn id(operation: &Value) -> &str {
    operation["id"].as_str().unwrap_or_default()
}

fn accepted(answer: &DemoResponse, what: &str) -> Result<Value, DemoError> {
    if answer.status.is_success() {
        return Ok(answer.json());
    }
    Err(DemoError::Refused { what: what.to_owned(), status: answer.status.as_u16(), says: answer.text.clone() })
}

fn tally(accepted: &BTreeSet<String>, states: &BTreeMap<String, String>) -> OperationCounts {
    let mut standing = OperationCounts::default();
    for id in accepted {
        let count = match states.get(id).map(String::as_str) {
            Some("succeeded") => &mut standing.succeeded,
            Some("dead" | "cancelled" | "needs_review") => &mut standing.failed,
            Some(_) => &mut standing.pending,
            None => &mut standing.missing,
        };
        *count += 1;
    }
    let given: Vec<&String> = states.iter().filter(|(id, _)| !accepted.contains(*id)).map(|(_, state)| state).collect();
    standing.given = given.iter().filter(|state| **state == "succeeded").count() as u64;
    standing.given_undone = given.len() as u64 - standing.given;
    standing
}

fn sum(metrics: &str, name: &str, label: &str) -> Option<u64> {
    let lines = metrics.lines().filter_map(|line| line.strip_prefix(name));
    let of_it = lines.filter(|rest| rest.starts_with(['{', ' ']) && rest.contains(label));
    let values = of_it.filter_map(|rest| rest.rsplit(' ').next()?.parse::<u64>().ok());
    values.fold(None, |sum: Option<u64>, value| Some(sum.unwrap_or(0) + value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_accepted_and_is_not_there_is_missing() {
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
        let standing = tally(&accepted, &states);
        assert_eq!(
            standing,
            OperationCounts { succeeded: 1, failed: 2, pending: 1, missing: 1, given: 1, given_undone: 1 }
        );
        assert_eq!(standing.settled(), 4);
    }

    #[test]
    fn a_metric_is_summed_over_its_labels_and_no_others() {
        let text = "# HELP a_total of a\na_total{k=\"x\"} 2\na_total{k=\"y\"} 3\na_totals 9\nb 4\n";
        assert_eq!((sum(text, "a_total", ""), sum(text, "a_total", "\"y\"")), (Some(5), Some(3)));
        assert_eq!((sum(text, "b", ""), sum(text, "c", "")), (Some(4), None));
    }
}
