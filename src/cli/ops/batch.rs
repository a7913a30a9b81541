//! Submits the operations of a file in several requests, one after the other.

use std::path::Path;

use anyhow::bail;
use http::StatusCode;
use serde_json::{Map, Value, json};

use crate::{
    cli::input_file,
    client::{ApiRequest, ApiResponse, Client, ClientError, part},
};

/// Maximum number of operations in one request.
const REQUEST_MOST: usize = 1_000;
/// Maximum of older daemons.
const OLDER_MOST: usize = 100;
/// Maximum size of a request with several operations, in bytes; slightly less than any daemon accepts.
const BYTES_MOST: usize = 900 * 1024;
/// Maximum number of errors that are reported at once.
const TOLD: usize = 50;

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
    let listed = listed(value, guild).map_err(|problems| wrong(path, &problems))?;
    if listed.is_empty() {
        bail!("no operations in {}", path.display());
    }
    let mut problems = Vec::new();
    let mut asked = Vec::with_capacity(listed.len());
    for (index, (guild, one)) in listed.into_iter().enumerate() {
        match one_of(one, guild, &format!("{key}-{index}")) {
            Ok((guild, body)) => asked.push(BatchOperation { index, guild, body }),
            Err(problem) => problems.push(format!("operations[{index}]{problem}")),
        }
    }
    if problems.is_empty() { Ok(asked) } else { Err(wrong(path, &problems)) }
}

fn wrong(path: &Path, problems: &[String]) -> anyhow::Error {
    let things = if problems.len() == 1 { "error" } else { "errors" };
    let mut says = format!("{} {things} in the operations of {}:", problems.len(), path.display());
    for problem in problems.iter().take(TOLD) {
        says += &format!("\n  {}", crate::terminal_text::plain(problem));
    }
    anyhow::anyhow!(says)
}

/// Parses a list of operations, an object with such a list, or a single operation. Returns each with its default guild.
fn listed(value: Value, guild: Option<&str>) -> Result<Vec<(Option<String>, Value)>, Vec<String>> {
    let own = |guild: Option<&str>| guild.map(str::to_owned);
    match value {
        Value::Array(list) => Ok(list.into_iter().map(|one| (own(guild), one)).collect()),
        Value::Object(mut object) if object.contains_key("operations") => {
            let named = object.remove("guild_id").map(|named| id(&named)).transpose();
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

fn one_of(value: Value, guild: Option<String>, key: &str) -> Result<(Option<String>, Value), String> {
    let Value::Object(mut fields) = value else { return Err(" must be an object with kind and payload".to_owned()) };
    let named = fields.remove("guild_id").map(|named| id(&named).map_err(|problem| format!(".guild_id {problem}")));
    let guild = named.transpose()?.or(guild);
    fields.entry("key").or_insert_with(|| key.into());
    Ok((guild, fields.into()))
}

/// Parses a guild ID: a string, or a number, since YAML parses it as one.
fn id(value: &Value) -> Result<String, String> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Number(number) if number.is_u64() => Ok(number.to_string()),
        _ => Err("must be a guild ID".to_owned()),
    }
}

/// Sends the requests, one after the other.
pub(super) struct BatchSender<'a> {
    client: &'a Client,
    most: usize,
}

impl<'a> BatchSender<'a> {
    pub(super) const fn new(client: &'a Client) -> Self {
        Self { client, most: REQUEST_MOST }
    }

    /// Sends all operations; calls `accepted` for each accepted one. On an error, those before it are accepted.
    pub(super) async fn send(
        &mut self,
        asked: Vec<BatchOperation>,
        accepted: &mut Vec<(usize, Value)>,
    ) -> Result<(), ClientError> {
        let mut queue = by_guild(asked);
        queue.reverse();
        while let Some(mut group) = queue.pop() {
            let rest = group.split_off(cut(&group, self.most));
            if !rest.is_empty() {
                queue.push(rest);
            }
            match self.request(&group).await {
                Ok(answered) => accepted.extend(taken(&group, answered)),
                Err(fault) if group.len() > 1 && is_too_much(&fault, group.len()) => {
                    self.most = if group.len() > OLDER_MOST { OLDER_MOST } else { group.len() / 2 };
                    // Later operations of the guild must stay behind it.
                    if let Some(behind) = queue.pop_if(|next| next[0].guild == group[0].guild) {
                        group.extend(behind);
                    }
                    queue.push(group);
                }
                Err(fault) => return Err(placed(fault, &group)),
            }
        }
        Ok(())
    }

    async fn request(&self, group: &[BatchOperation]) -> Result<ApiResponse, ClientError> {
        let operations: Vec<&Value> = group.iter().map(|asked| &asked.body).collect();
        let ask = ApiRequest::post(path(group[0].guild.as_deref())).with(json!({ "operations": operations }));
        self.client.send(&ask.repeatable()).await
    }
}

/// Path for submissions to a guild, or without a guild.
pub(super) fn path(guild: Option<&str>) -> String {
    guild.map_or_else(|| "/v1/operations".to_owned(), |guild| format!("/v1/guilds/{}/operations", part(guild)))
}

/// Groups operations by guild, in their order.
fn by_guild(asked: Vec<BatchOperation>) -> Vec<Vec<BatchOperation>> {
    let mut groups: Vec<Vec<BatchOperation>> = Vec::new();
    let mut places = std::collections::HashMap::new();
    for one in asked {
        let place = *places.entry(one.guild.clone()).or_insert_with(|| {
            groups.push(Vec::new());
            groups.len() - 1
        });
        groups[place].push(one);
    }
    groups
}

/// Returns how many operations of a group fit into one request: at least one.
fn cut(group: &[BatchOperation], most: usize) -> usize {
    let mut bytes = 0;
    let fits = |one: &&BatchOperation| {
        bytes += one.body.to_string().len() + 1;
        bytes <= BYTES_MOST
    };
    group.iter().take(most).take_while(fits).count().max(1).min(group.len())
}

/// Whether the daemon accepts only fewer at once, and has accepted none.
fn is_too_much(fault: &ClientError, count: usize) -> bool {
    let Some(refusal) = fault.refusal() else { return false };
    let is_count = refusal.status == StatusCode::UNPROCESSABLE_ENTITY
        && count > OLDER_MOST
        && matches!(refusal.errors.as_slice(), [(field, _)] if field == "operations");
    is_count || refusal.status == StatusCode::PAYLOAD_TOO_LARGE
}

/// Returns the accepted operations, each with its index in the file.
fn taken(group: &[BatchOperation], answered: ApiResponse) -> Vec<(usize, Value)> {
    let mut body = answered.body;
    let Value::Array(list) = body["operations"].take() else { return Vec::new() };
    group.iter().map(|asked| asked.index).zip(list).collect()
}

/// Replaces the indexes in an error by those of the file.
fn placed(mut fault: ClientError, group: &[BatchOperation]) -> ClientError {
    if let ClientError::Refused(refusal) = &mut fault {
        refusal.rename(|field| place(field, group).unwrap_or_else(|| field.to_owned()));
    }
    fault
}

fn place(field: &str, group: &[BatchOperation]) -> Option<String> {
    let (index, rest) = field.strip_prefix("operations[")?.split_once(']')?;
    let asked = group.get(index.parse::<usize>().ok()?)?;
    Some(format!("operations[{}]{rest}", asked.index))
}

/// Fields of one operation from flags.
pub(super) fn one(fields: Vec<(&str, Option<Value>)>) -> Value {
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
    fn a_file_is_a_list_or_has_one_and_each_may_have_a_guild_of_its_own() {
        let listed = file("a.yaml", "- {kind: a, payload: {x: 1}}\n- {kind: b, guild_id: 8, key: mine}\n").unwrap();
        assert_eq!(listed[0].guild.as_deref(), Some("7"));
        assert_eq!(listed[0].body, json!({"kind": "a", "payload": {"x": 1}, "key": "run-0"}));
        assert_eq!((listed[1].guild.as_deref(), &listed[1].body["key"]), (Some("8"), &json!("mine")));
        let object = file("a.json", r#"{"guild_id": "9", "operations": [{"kind": "a"}]}"#).unwrap();
        assert_eq!(object[0].guild.as_deref(), Some("9"));
        assert_eq!(file("a.json", r#"{"kind": "a", "payload": {}}"#).unwrap().len(), 1);
    }

    #[test]
    fn everything_wrong_with_a_file_is_told_at_once() {
        let says = |name: &str, text: &str| file(name, text).unwrap_err().to_string();
        let two = says("a.yaml", "- 5\n- {kind: a}\n- {kind: a, guild_id: [1]}\n");
        assert!(two.starts_with("2 errors in the operations of "), "{two}");
        assert!(
            two.contains("operations[0] must be an object") && two.contains("operations[2].guild_id must be"),
            "{two}"
        );
        assert!(says("a.json", r#"{"operations": 1, "kindd": 2}"#).contains("kindd is unknown"));
        assert!(says("a.json", "[]").contains("no operations"));
        assert!(says("a.json", "7").contains("must be a list"));
        assert!(says("a.json", "{").contains("is not valid JSON"));
    }

    fn asked(index: usize, guild: &str, size: usize) -> BatchOperation {
        BatchOperation { index, guild: Some(guild.to_owned()), body: json!({"x": "y".repeat(size)}) }
    }

    #[test]
    fn guilds_stay_apart_and_in_order_and_requests_are_bounded() {
        let groups = by_guild(vec![asked(0, "a", 1), asked(1, "b", 1), asked(2, "a", 1)]);
        let indices: Vec<Vec<usize>> = groups.iter().map(|group| group.iter().map(|one| one.index).collect()).collect();
        assert_eq!(indices, [vec![0, 2], vec![1]]);
        let many: Vec<_> = (0..1_500).map(|index| asked(index, "a", 1)).collect();
        assert_eq!((cut(&many, REQUEST_MOST), cut(&many[..3], REQUEST_MOST)), (1_000, 3));
        let large: Vec<_> = (0..4).map(|index| asked(index, "a", 400 * 1024)).collect();
        assert_eq!(cut(&large, REQUEST_MOST), 2);
        assert_eq!(
            cut(&[asked(0, "a", 2_000_000), asked(1, "a", 1)], REQUEST_MOST),
            1,
            "a request has at least one \
            operation"
        );
    }

    #[test]
    fn mistakes_are_told_by_their_place_in_the_file() {
        let group = [asked(4, "a", 1), asked(9, "a", 1)];
        assert_eq!(place("operations[1].payload.name", &group).as_deref(), Some("operations[9].payload.name"));
        assert_eq!(place("operations[0]", &group).as_deref(), Some("operations[4]"));
        assert_eq!((place("operations", &group), place("operations[7]", &group)), (None, None));
    }
}
