//! Submits the operations of a file in several requests, one after the other.

use std::path::Path;

use anyhow::bail;
use guildhall_actors::submission::MAX_BATCH;
use http::StatusCode;
use serde_json::{Map, Value, json};

use crate::{
    cli::input_file,
    client::{ApiRequest, ApiResponse, Client, ClientError, path_segment},
};

/// Maximum of older daemons.
const MAX_OPERATIONS_OF_OLDER_DAEMONS: usize = 100;
/// Maximum size of a request with several operations, in bytes; slightly less than any daemon accepts.
const MAX_REQUEST_BYTES: usize = 900 * 1024;
/// Maximum number of errors that are reported at once.
const MAX_REPORTED_ERRORS: usize = 50;

/// One operation of a file.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct BatchOperation {
    /// Its index in the file.
    pub(super) index: usize,
    pub(super) guild: Option<String>,
    /// In the format of the API.
    pub(super) body: Value,
}

/// Reads the operations of a file. Operations without a guild belong to `guild`; those without an idempotency key get
/// `key` with their index.
pub(super) fn read(path: &Path, guild: Option<&str>, key: &str) -> anyhow::Result<Vec<BatchOperation>> {
    let value = input_file::read(path)?;
    let listed = list_operations(value, guild).map_err(|problems| file_error(path, &problems))?;
    if listed.is_empty() {
        bail!("no operations in {}", path.display());
    }
    let mut problems = Vec::new();
    let mut operations = Vec::with_capacity(listed.len());
    for (index, (guild, one)) in listed.into_iter().enumerate() {
        match parse_operation(one, guild, &format!("{key}-{index}")) {
            Ok((guild, body)) => operations.push(BatchOperation { index, guild, body }),
            Err(problem) => problems.push(format!("operations[{index}]{problem}")),
        }
    }
    if problems.is_empty() { Ok(operations) } else { Err(file_error(path, &problems)) }
}

fn file_error(path: &Path, problems: &[String]) -> anyhow::Error {
    let noun = if problems.len() == 1 { "error" } else { "errors" };
    let mut message = format!("{} {noun} in the operations of {}:", problems.len(), path.display());
    for problem in problems.iter().take(MAX_REPORTED_ERRORS) {
        message += &format!("\n  {}", crate::terminal_text::escape_controls(problem));
    }
    anyhow::anyhow!(message)
}

/// Parses a list of operations, an object with such a list, or a single operation. Returns each with its default guild.
fn list_operations(value: Value, guild: Option<&str>) -> Result<Vec<(Option<String>, Value)>, Vec<String>> {
    let own = |guild: Option<&str>| guild.map(str::to_owned);
    match value {
        Value::Array(list) => Ok(list.into_iter().map(|one| (own(guild), one)).collect()),
        Value::Object(mut object) if object.contains_key("operations") => {
            let named = object.remove("guild_id").map(|named| parse_guild_id(&named)).transpose();
            let list = object.remove("operations").unwrap_or_default();
            let mut problems: Vec<_> =
                object.keys().map(|other| format!("{other} is unknown; expected operations and guild_id")).collect();
            problems.extend(named.as_ref().err().map(|problem| format!("guild_id {problem}")));
            match (list, named) {
                (Value::Array(list), Ok(named)) if problems.is_empty() => {
                    let guild = named.or_else(|| own(guild));
                    Ok(list.into_iter().map(|one| (guild.clone(), one)).collect())
                }
                (Value::Array(_), _) => Err(problems),
                (_, _) => {
                    problems.push("operations must be a list".to_owned());
                    Err(problems)
                }
            }
        }
        one @ Value::Object(_) => Ok(vec![(own(guild), one)]),
        _ => Err(vec!["must be a list of operations, or an object with a list named operations".to_owned()]),
    }
}

fn parse_operation(value: Value, guild: Option<String>, key: &str) -> Result<(Option<String>, Value), String> {
    let Value::Object(mut fields) = value else { return Err(" must be an object with kind and payload".to_owned()) };
    let named =
        fields.remove("guild_id").map(|named| parse_guild_id(&named).map_err(|problem| format!(".guild_id {problem}")));
    let guild = named.transpose()?.or(guild);
    fields.entry("key").or_insert_with(|| key.into());
    Ok((guild, fields.into()))
}

/// Parses a guild ID: a string, or a number, since YAML parses it as one.
fn parse_guild_id(value: &Value) -> Result<String, String> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Number(number) if number.is_u64() => Ok(number.to_string()),
        _ => Err("must be a guild ID".to_owned()),
    }
}

/// Sends the requests, one after the other.
pub(super) struct BatchSender<'a> {
    client: &'a Client,
    max_operations: usize,
}

impl<'a> BatchSender<'a> {
    pub(super) const fn new(client: &'a Client) -> Self {
        Self { client, max_operations: MAX_BATCH }
    }

    /// Sends all operations; calls `accepted` for each accepted one. On an error, those before it are accepted.
    pub(super) async fn send(
        &mut self,
        operations: Vec<BatchOperation>,
        accepted: &mut Vec<(usize, Value)>,
    ) -> Result<(), ClientError> {
        let mut queue = group_by_guild(operations);
        queue.reverse();
        while let Some(mut group) = queue.pop() {
            let rest = group.split_off(fitting_count(&group, self.max_operations));
            if !rest.is_empty() {
                queue.push(rest);
            }
            match self.request(&group).await {
                Ok(response) => accepted.extend(accepted_operations(&group, response)),
                Err(error) if group.len() > 1 && is_too_many(&error, group.len()) => {
                    self.max_operations = if group.len() > MAX_OPERATIONS_OF_OLDER_DAEMONS {
                        MAX_OPERATIONS_OF_OLDER_DAEMONS
                    } else {
                        group.len() / 2
                    };
                    // Later operations of the guild must stay behind it.
                    if let Some(behind) = queue.pop_if(|next| next[0].guild == group[0].guild) {
                        group.extend(behind);
                    }
                    queue.push(group);
                }
                Err(error) => return Err(with_file_indexes(error, &group)),
            }
        }
        Ok(())
    }

    async fn request(&self, group: &[BatchOperation]) -> Result<ApiResponse, ClientError> {
        let operations: Vec<&Value> = group.iter().map(|operation| &operation.body).collect();
        let request =
            ApiRequest::post(submit_path(group[0].guild.as_deref())).with_body(json!({ "operations": operations }));
        self.client.send(&request.repeatable()).await
    }
}

/// Path for submissions to a guild, or without a guild.
pub(super) fn submit_path(guild: Option<&str>) -> String {
    guild.map_or_else(|| "/v1/operations".to_owned(), |guild| format!("/v1/guilds/{}/operations", path_segment(guild)))
}

/// Groups operations by guild, in their order.
fn group_by_guild(operations: Vec<BatchOperation>) -> Vec<Vec<BatchOperation>> {
    let mut groups: Vec<Vec<BatchOperation>> = Vec::new();
    let mut indexes = std::collections::HashMap::new();
    for one in operations {
        let index = *indexes.entry(one.guild.clone()).or_insert_with(|| {
            groups.push(Vec::new());
            groups.len() - 1
        });
        groups[index].push(one);
    }
    groups
}

/// Returns how many operations of a group fit into one request: at least one.
fn fitting_count(group: &[BatchOperation], max_operations: usize) -> usize {
    let mut bytes = 0;
    let fits = |one: &&BatchOperation| {
        bytes += one.body.to_string().len() + 1;
        bytes <= MAX_REQUEST_BYTES
    };
    group.iter().take(max_operations).take_while(fits).count().max(1).min(group.len())
}

/// Whether the daemon accepts only fewer at once, and has accepted none.
fn is_too_many(error: &ClientError, count: usize) -> bool {
    let Some(refusal) = error.problem() else { return false };
    let is_count = refusal.status == StatusCode::UNPROCESSABLE_ENTITY
        && count > MAX_OPERATIONS_OF_OLDER_DAEMONS
        && matches!(refusal.errors.as_slice(), [(field, _)] if field == "operations");
    is_count || refusal.status == StatusCode::PAYLOAD_TOO_LARGE
}

/// Returns the accepted operations, each with its index in the file.
fn accepted_operations(group: &[BatchOperation], response: ApiResponse) -> Vec<(usize, Value)> {
    let Value::Object(mut body) = response.body else { return Vec::new() };
    let Some(Value::Array(list)) = body.remove("operations") else { return Vec::new() };
    group.iter().map(|operation| operation.index).zip(list).collect()
}

/// Replaces the indexes in an error by those of the file.
fn with_file_indexes(mut error: ClientError, group: &[BatchOperation]) -> ClientError {
    if let ClientError::Rejected(refusal) = &mut error {
        refusal.rename_fields(|field| field_in_file(field, group).unwrap_or_else(|| field.to_owned()));
    }
    error
}

fn field_in_file(field: &str, group: &[BatchOperation]) -> Option<String> {
    let (index, rest) = field.strip_prefix("operations[")?.split_once(']')?;
    let operation = group.get(index.parse::<usize>().ok()?)?;
    Some(format!("operations[{}]{rest}", operation.index))
}

/// Fields of one operation from flags.
pub(super) fn build_operation(fields: Vec<(&str, Option<Value>)>) -> Value {
    let fields = fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    Value::Object(fields.collect::<Map<_, _>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, text: &str) -> anyhow::Result<Vec<BatchOperation>> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        read(&path, Some("7"), "run")
    }

    #[test]
    fn file_is_a_list_or_an_object_with_one() {
        let listed = file("a.yaml", "- {kind: a, payload: {x: 1}}\n- {kind: b, guild_id: 8, key: mine}\n").unwrap();
        assert_eq!(listed[0].guild.as_deref(), Some("7"));
        assert_eq!(listed[0].body, json!({"kind": "a", "payload": {"x": 1}, "key": "run-0"}));
        assert_eq!((listed[1].guild.as_deref(), &listed[1].body["key"]), (Some("8"), &json!("mine")));
        let object = file("a.json", r#"{"guild_id": "9", "operations": [{"kind": "a"}]}"#).unwrap();
        assert_eq!(object[0].guild.as_deref(), Some("9"));
        assert_eq!(file("a.json", r#"{"kind": "a", "payload": {}}"#).unwrap().len(), 1);
    }

    #[test]
    fn all_errors_of_a_file_are_reported_at_once() {
        let error_of = |name: &str, text: &str| file(name, text).unwrap_err().to_string();
        let two = error_of("a.yaml", "- 5\n- {kind: a}\n- {kind: a, guild_id: [1]}\n");
        assert!(two.starts_with("2 errors in the operations of "), "{two}");
        assert!(
            two.contains("operations[0] must be an object") && two.contains("operations[2].guild_id must be"),
            "{two}"
        );
        assert!(error_of("a.json", r#"{"operations": 1, "kindd": 2}"#).contains("kindd is unknown"));
        assert!(error_of("a.json", "[]").contains("no operations"));
        assert!(error_of("a.json", "7").contains("must be a list"));
        assert!(error_of("a.json", "{").contains("is not valid JSON"));
    }

    fn operation(index: usize, guild: &str, size: usize) -> BatchOperation {
        BatchOperation { index, guild: Some(guild.to_owned()), body: json!({"x": "y".repeat(size)}) }
    }

    #[test]
    fn requests_are_grouped_by_guild_and_bounded() {
        let groups = group_by_guild(vec![operation(0, "a", 1), operation(1, "b", 1), operation(2, "a", 1)]);
        let indices: Vec<Vec<usize>> = groups.iter().map(|group| group.iter().map(|one| one.index).collect()).collect();
        assert_eq!(indices, [vec![0, 2], vec![1]]);
        let many: Vec<_> = (0..1_500).map(|index| operation(index, "a", 1)).collect();
        assert_eq!((fitting_count(&many, MAX_BATCH), fitting_count(&many[..3], MAX_BATCH)), (1_000, 3));
        let large: Vec<_> = (0..4).map(|index| operation(index, "a", 400 * 1024)).collect();
        assert_eq!(fitting_count(&large, MAX_BATCH), 2);
        assert_eq!(
            fitting_count(&[operation(0, "a", 2_000_000), operation(1, "a", 1)], MAX_BATCH),
            1,
            "a request has at least one \
            operation"
        );
    }

    #[test]
    fn errors_have_the_index_in_the_file() {
        let group = [operation(4, "a", 1), operation(9, "a", 1)];
        assert_eq!(field_in_file("operations[1].payload.name", &group).as_deref(), Some("operations[9].payload.name"));
        assert_eq!(field_in_file("operations[0]", &group).as_deref(), Some("operations[4]"));
        assert_eq!((field_in_file("operations", &group), field_in_file("operations[7]", &group)), (None, None));
    }
}
