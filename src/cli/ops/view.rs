//! Formats operations for people.

use guildhall_core::operation::{OperationState, Progress};
use serde_json::{Value, json};

use crate::cli::output::{Color, Painter, TableCell, TextTable, fields, text, time, truncate};

/// Maximum length of a note on a line of a terminal.
const MAX_NOTE_CHARS: usize = 80;

/// Formats a list of operations of the API.
pub(super) fn list_value(operations: &[Value]) -> Value {
    json!({ "operations": operations })
}

fn empty_table() -> TextTable {
    TextTable::new(&["ID", "KIND", "GUILD", "STATE", "TRIES", "CREATED", "NOTE"]).with_text_columns(&["NOTE"])
}

/// Formats operations, one a row.
pub(super) fn table(operations: &[Value]) -> TextTable {
    let mut table = empty_table();
    for operation in operations {
        let tries = match &operation["attempts"] {
            Value::Null => "-".to_owned(),
            attempts => format!("{attempts}/{}", text(&operation["max_attempts"])),
        };
        table.row(vec![
            text(&operation["id"]).into(),
            text(&operation["kind"]).into(),
            text(&operation["guild_id"]).into(),
            TableCell::state(text(&operation["state"])),
            tries.into(),
            time(&operation["created_at"]).into(),
            TableCell::tinted(note(operation), Color::Dim),
        ]);
    }
    table
}

/// Returns a short note about an operation.
fn note(operation: &Value) -> String {
    let error = operation["error"]["message"].as_str();
    match (operation["state"].as_str().unwrap_or_default(), error) {
        ("succeeded" | "cancelled", _) | (_, None) => {
            if operation["replayed"] == true {
                return "already submitted".to_owned();
            }
            let waits = &operation["waits_for"];
            if waits.is_null() { outcome(&operation["result"]) } else { waits_for(waits) }
        }
        (_, Some(error)) => error.to_owned(),
    }
}

/// Formats the result of an operation, such as `created role_id 7`.
fn outcome(result: &Value) -> String {
    let Some(fields) = result.as_object() else {
        return if result.is_null() { String::new() } else { result.to_string() };
    };
    let (outcome_text, others): (Vec<_>, Vec<_>) = fields.iter().partition(|(name, _)| *name == "outcome");
    let outcome_text = outcome_text.into_iter().map(|(_, value)| text(value));
    outcome_text
        .chain(others.into_iter().map(|(name, value)| format!("{name} {}", text(value))))
        .collect::<Vec<_>>()
        .join(" ")
}

/// Formats a change of an operation on one line.
pub(super) fn line(operation: &Value, paint: Painter) -> String {
    let state = text(&operation["state"]);
    let at = ["updated_at", "finished_at", "created_at"].into_iter().map(|name| &operation[name]);
    let at = at.into_iter().find(|at| !at.is_null()).map_or_else(|| "-".to_owned(), time);
    let guild = operation["guild_id"].as_str().map_or_else(String::new, |guild| format!("  guild {guild}"));
    let note = note(operation);
    let note = match (note.as_str(), paint.width()) {
        ("", _) => note,
        (note, None) => format!("  {note}"),
        (note, Some(_)) => format!("  {}", truncate(note, MAX_NOTE_CHARS)),
    };
    format!(
        "{at}  {}  {}{}  {}{}",
        paint.tint(&text(&operation["id"]), Color::None),
        paint.tint(&text(&operation["kind"]), Color::None),
        paint.tint(&guild, Color::Dim),
        paint.tint(&state, Color::of_state(&state)),
        paint.tint(&note, Color::Dim),
    )
}

/// Formats all details of one operation.
pub(super) fn details(operation: &Value, paint: Painter) -> String {
    let at = |name: &str| -> TableCell { time(&operation[name]).into() };
    let plain = |name: &str| -> TableCell { text(&operation[name]).into() };
    let tries = format!("{} of {}", text(&operation["attempts"]), text(&operation["max_attempts"]));
    let mut pairs = vec![
        ("id", plain("id")),
        ("kind", plain("kind")),
        ("guild", plain("guild_id")),
        ("state", TableCell::state(text(&operation["state"]))),
        ("payload", operation["payload"].to_string().into()),
        ("tries", tries.into()),
        ("created", at("created_at")),
        ("due", at("eligible_at")),
    ];
    let optional = [
        ("deadline", "deadline_at"),
        ("finished", "finished_at"),
        ("reason", "reason"),
        ("key", "key"),
        ("redrive of", "redrive_of"),
        ("trace", "trace"),
    ];
    for (label, name) in optional.into_iter().filter(|(_, name)| !operation[*name].is_null()) {
        pairs.push((label, if name.ends_with("_at") { at(name) } else { plain(name) }));
    }
    let waits = &operation["waits_for"];
    if !waits.is_null() {
        pairs.push(("waits for", waits_for(waits).into()));
    }
    if operation["parked"] == true {
        pairs.push(("parked", "yes: operations that do not conflict with it may overtake it".into()));
    }
    // Steps of a newer daemon are unknown here: `--output json` prints them.
    let progress = serde_json::from_value(operation["progress"].clone()).unwrap_or_else(|_| Progress::default());
    if !progress.is_empty() {
        pairs.push(("done", progress.to_string().into()));
    }
    let error = &operation["error"];
    if !error.is_null() {
        let status = error["status"].as_u64().map_or_else(String::new, |status| format!(", Discord status {status}"));
        let code = error["code"].as_u64().map_or_else(String::new, |code| format!(", code {code}"));
        let message = format!("{} ({}{status}{code})", text(&error["message"]), text(&error["class"]));
        pairs.push(("error", TableCell::tinted(message, Color::Bad)));
    }
    if !operation["result"].is_null() {
        pairs.push(("result", operation["result"].to_string().into()));
    }
    let mut out = fields(&pairs, paint);
    out += &history(operation, paint);
    out
}

/// Formats what it waits for, on one line.
fn waits_for(waits: &Value) -> String {
    let operation = waits["operation"].as_str().map_or_else(String::new, |id| format!(" {id}"));
    let until = if waits["until"].is_null() { String::new() } else { format!(" until {}", time(&waits["until"])) };
    format!("{}{operation}{until}", text(&waits["reason"]))
}

/// Formats its history: its timeline, or else its attempts.
fn history(operation: &Value, paint: Painter) -> String {
    let entries = |name: &str| operation[name].as_array().filter(|list| !list.is_empty());
    if let Some(timeline) = entries("timeline") {
        let mut table = TextTable::new(&["AT", "WHAT", "TRY", "DETAIL"]).with_text_columns(&["DETAIL"]);
        for entry in timeline {
            let event = text(&entry["what"]);
            let tint = Color::of_state(&event);
            let detail = entry["detail"].as_str().unwrap_or_default();
            table.row(vec![
                time(&entry["at"]).into(),
                TableCell::tinted(event, tint),
                text(&entry["attempt"]).into(),
                TableCell::tinted(detail, Color::Dim),
            ]);
        }
        return format!("\n{}", table.print(paint));
    }
    let Some(tries) = entries("tries") else { return String::new() };
    let mut table =
        TextTable::new(&["TRY", "STARTED", "ENDED", "STATUS", "CLASS", "DETAIL"]).with_text_columns(&["DETAIL"]);
    for attempt in tries {
        table.row(vec![
            text(&attempt["n"]).into(),
            time(&attempt["started_at"]).into(),
            time(&attempt["ended_at"]).into(),
            text(&attempt["status"]).into(),
            text(&attempt["class"]).into(),
            TableCell::tinted(attempt["detail"].as_str().unwrap_or_default(), Color::Dim),
        ]);
    }
    format!("\n{}", table.print(paint))
}

/// Whether this state is final.
pub(super) fn is_final(state: &str) -> bool {
    OperationState::from_name(state).is_some_and(OperationState::is_final)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation() -> Value {
        json!({"id": "0198", "kind": "create_role", "guild_id": "7", "state": "dead", "payload": {"name": "Pilots"},
            "attempts": 1, "max_attempts": 3, "created_at": "2026-01-31T12:00:00.123Z",
            "updated_at": "2026-01-31T12:00:01.500Z", "eligible_at": "2026-01-31T12:00:00.123Z", "finished_at": null,
            "error": {"class": "forbidden", "message": "Missing \u{1b}[0mPermissions", "status": 403, "code": 50013},
            "result": null,
            "timeline": [{"at": "2026-01-31T12:00:00.123Z", "what": "accepted"},
                {"at": "2026-01-31T12:00:01.500Z", "what": "dead", "attempt": 1, "detail": "403"}]})
    }

    #[test]
    fn operations_are_rows_and_changes_are_lines() {
        assert_eq!(
            table(&[operation()]).print(Painter::none()),
            "ID    KIND         GUILD  STATE  TRIES  CREATED               NOTE\n\
             0198  create_role  7      dead   1/3    2026-01-31T12:00:00Z  Missing \\u{1b}[0mPermissions\n"
        );
        assert_eq!(
            line(&operation(), Painter::none()),
            "2026-01-31T12:00:01Z  0198  create_role  guild 7  dead  Missing \\u{1b}[0mPermissions"
        );
        let done = json!({"id": "1", "kind": "create_role", "state": "succeeded", "result": {"role_id": "99", "outcome": "created"}});
        assert_eq!(line(&done, Painter::none()), "-  1  create_role  succeeded  created role_id 99");
    }

    #[test]
    fn list_fits_a_terminal_of_80_columns() {
        let mut table = empty_table();
        let cells = [
            "0198c0de-0000-7000-8000-000000000001",
            "update_permissions",
            "1571715189416398849",
            "needs_review",
            "10/20",
            "2026-01-31T12:00:00Z",
            "Discord returned 403 (code 50013): Missing Permissions",
        ];
        table.row(cells.iter().map(|cell| (*cell).into()).collect());
        let printed = table.print(Painter::none().with_width(80));
        assert!(printed.lines().all(|line| line.chars().count() <= 80), "{printed}");
        assert!(cells[..6].iter().all(|cell| printed.contains(cell)), "only the note is shortened: {printed}");
    }

    #[test]
    fn details_end_with_the_history() {
        let whole = details(&operation(), Painter::none());
        assert!(
            whole.contains("error    Missing \\u{1b}[0mPermissions (forbidden, Discord status 403, code 50013)\n"),
            "{whole}"
        );
        assert!(whole.contains("payload  {\"name\":\"Pilots\"}\n") && !whole.contains("finished"), "{whole}");
        assert!(whole.ends_with("2026-01-31T12:00:01Z  dead      1    403\n"), "{whole}");
    }

    #[test]
    fn partial_operation_shows_its_steps() {
        let mut partial = operation();
        assert!(!details(&partial, Painter::none()).contains("done "));
        partial["progress"] = json!([
            {"step": "message_sent", "channel_id": "9", "message_id": "10", "key": "rules"},
            {"step": "role_overwrite_set", "channel_id": "9", "role_id": "7"},
        ]);
        let text = details(&partial, Painter::none());
        let steps = "sent message 10 in channel 9, set the overwrite of role 7 in channel 9\n";
        assert!(text.contains(steps), "{text}");
    }
}
