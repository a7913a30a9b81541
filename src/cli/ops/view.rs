//! Formats operations for people.

use guildhall_core::operation::Progress;
use serde_json::{Value, json};

use super::report::{OperationReport, gone_reason};
use crate::{
    api::dto::{OperationInFull, ProgressStep, WaitsFor},
    cli::output::{Color, Painter, TableCell, TextTable, fields, format_time, or_dash, text, truncate},
};

/// Maximum length of a note on a line of a terminal.
const MAX_NOTE_CHARS: usize = 80;

/// Formats a list of operations of the API.
pub(super) fn list_value(operations: impl Into<Value>) -> Value {
    json!({ "operations": operations.into() })
}

fn empty_table() -> TextTable {
    TextTable::new(&["ID", "KIND", "GUILD", "STATE", "TRIES", "CREATED", "NOTE"]).with_text_columns(&["NOTE"])
}

/// Formats operations, one a row.
pub(super) fn table<'a>(operations: impl IntoIterator<Item = &'a OperationReport>) -> TextTable {
    let mut table = empty_table();
    for report in operations {
        let stored = report.stored();
        table.row(vec![
            report.id().into(),
            or_dash(report.kind()).into(),
            or_dash(report.guild_id()).into(),
            TableCell::state(or_dash(report.state())),
            or_dash(stored.map(|stored| format!("{}/{}", stored.attempts, stored.max_attempts))).into(),
            format_time(stored.map(|stored| &stored.created_at)).into(),
            TableCell::tinted(note(report), Color::Dim),
        ]);
    }
    table
}

/// Returns a short note about an operation.
fn note(report: &OperationReport) -> String {
    let (result, waits) = match report {
        OperationReport::NotQueried(_) => return String::new(),
        OperationReport::Gone(id) => return gone_reason(id),
        OperationReport::Accepted(accepted) => (&accepted.result, None),
        OperationReport::Stored(stored) => {
            let operation = &stored.operation;
            match (operation.state.as_ref(), &operation.error) {
                ("succeeded" | "cancelled", _) | (_, None) => (&operation.result, operation.waits_for.as_ref()),
                (_, Some(error)) => return error.message.clone(),
            }
        }
    };
    if report.is_replayed() {
        return "already submitted".to_owned();
    }
    waits.map_or_else(|| outcome(result), waits_for)
}

/// Formats the result of an operation, such as `created role_id 7`. Each kind has a result of its own form.
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
pub(super) fn line(report: &OperationReport, paint: Painter) -> String {
    let state = or_dash(report.state());
    let at = format_time(report.stored().map(|stored| &stored.updated_at));
    let guild = report.guild_id().map_or_else(String::new, |guild| format!("  guild {guild}"));
    let note = note(report);
    let note = match (note.as_str(), paint.width()) {
        ("", _) => note,
        (note, None) => format!("  {note}"),
        (note, Some(_)) => format!("  {}", truncate(note, MAX_NOTE_CHARS)),
    };
    format!(
        "{at}  {}  {}{}  {}{}",
        paint.tint(report.id(), Color::None),
        paint.tint(&or_dash(report.kind()), Color::None),
        paint.tint(&guild, Color::Dim),
        paint.tint(&state, Color::of_state(&state)),
        paint.tint(&note, Color::Dim),
    )
}

/// Formats all details of one operation.
pub(super) fn details(full: &OperationInFull, paint: Painter) -> String {
    let operation = &full.operation;
    let mut pairs: Vec<(&str, TableCell)> = vec![
        ("id", operation.id.to_string().into()),
        ("kind", operation.kind.to_string().into()),
        ("guild", or_dash(operation.guild_id.as_ref()).into()),
        ("state", TableCell::state(operation.state.to_string())),
        ("payload", operation.payload.to_string().into()),
        ("tries", format!("{} of {}", operation.attempts, operation.max_attempts).into()),
        ("created", format_time(&operation.created_at).into()),
        ("due", format_time(&operation.eligible_at).into()),
    ];
    let optional = [
        ("deadline", operation.deadline_at.as_ref().map(format_time)),
        ("finished", operation.finished_at.as_ref().map(format_time)),
        ("reason", operation.reason.clone()),
        ("key", full.key.clone()),
        ("redrive of", operation.redrive_of.as_ref().map(ToString::to_string)),
        ("trace", operation.trace.clone()),
        ("waits for", operation.waits_for.as_ref().map(waits_for)),
    ];
    pairs.extend(optional.into_iter().filter_map(|(label, value)| Some((label, value?.into()))));
    if operation.parked {
        pairs.push(("parked", "yes: operations that do not conflict with it may overtake it".into()));
    }
    let progress = completed_steps(&operation.progress);
    if !progress.is_empty() {
        pairs.push(("done", progress.to_string().into()));
    }
    if let Some(error) = &operation.error {
        let status = error.status.map_or_else(String::new, |status| format!(", Discord status {status}"));
        let code = error.code.map_or_else(String::new, |code| format!(", code {code}"));
        let message = format!("{} ({}{status}{code})", error.message, error.class);
        pairs.push(("error", TableCell::tinted(message, Color::Bad)));
    }
    if !operation.result.is_null() {
        pairs.push(("result", operation.result.to_string().into()));
    }
    let mut out = fields(&pairs, paint);
    out += &history(full, paint);
    out
}

/// The completed steps. Steps of a newer daemon are unknown here: `--output json` prints them.
fn completed_steps(steps: &[ProgressStep]) -> Progress {
    serde_json::to_value(steps).and_then(serde_json::from_value).unwrap_or_default()
}

/// Formats what it waits for, on one line.
fn waits_for(waits: &WaitsFor) -> String {
    let operation = waits.operation.as_ref().map_or_else(String::new, |id| format!(" {id}"));
    let until = waits.until.as_ref().map_or_else(String::new, |until| format!(" until {}", format_time(until)));
    format!("{}{operation}{until}", waits.reason)
}

/// Formats its history: its timeline, or else its attempts.
fn history(full: &OperationInFull, paint: Painter) -> String {
    if !full.timeline.is_empty() {
        let mut table = TextTable::new(&["AT", "WHAT", "TRY", "DETAIL"]).with_text_columns(&["DETAIL"]);
        for entry in &full.timeline {
            let event = entry.what.as_ref();
            table.row(vec![
                format_time(&entry.at).into(),
                TableCell::tinted(event, Color::of_state(event)),
                or_dash(entry.attempt).into(),
                TableCell::tinted(entry.detail.as_deref().unwrap_or_default(), Color::Dim),
            ]);
        }
        return format!("\n{}", table.print(paint));
    }
    if full.tries.is_empty() {
        return String::new();
    }
    let mut table =
        TextTable::new(&["TRY", "STARTED", "ENDED", "STATUS", "CLASS", "DETAIL"]).with_text_columns(&["DETAIL"]);
    for attempt in &full.tries {
        table.row(vec![
            attempt.n.to_string().into(),
            format_time(&attempt.started_at).into(),
            format_time(&attempt.ended_at).into(),
            or_dash(attempt.status).into(),
            attempt.class.as_str().into(),
            TableCell::tinted(attempt.detail.as_deref().unwrap_or_default(), Color::Dim),
        ]);
    }
    format!("\n{}", table.print(paint))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::output::read;

    fn operation() -> Value {
        json!({"id": "0198", "kind": "create_role", "guild_id": "7", "state": "dead", "payload": {"name": "Pilots"},
            "seq": 1, "lane": "operation", "reason": null, "attempts": 1, "max_attempts": 3, "delays": 0, "parked": false,
            "created_at": "2026-01-31T12:00:00.123Z", "updated_at": "2026-01-31T12:00:01.500Z",
            "eligible_at": "2026-01-31T12:00:00.123Z", "deadline_at": null, "finished_at": null,
            "waits_for": null, "progress": [], "trace": null, "redrive_of": null, "href": "/v1/operations/0198",
            "error": {"class": "forbidden", "message": "Missing \u{1b}[0mPermissions", "status": 403, "code": 50013},
            "result": null, "key": null, "tries": [],
            "timeline": [{"at": "2026-01-31T12:00:00.123Z", "what": "accepted"},
                {"at": "2026-01-31T12:00:01.500Z", "what": "dead", "attempt": 1, "detail": "403"}]})
    }

    fn report(value: &Value) -> OperationReport {
        read(value).unwrap()
    }

    #[test]
    fn operations_are_rows_and_changes_are_lines() {
        assert_eq!(
            table(&[report(&operation())]).print(Painter::none()),
            "ID    KIND         GUILD  STATE  TRIES  CREATED               NOTE\n\
             0198  create_role  7      dead   1/3    2026-01-31T12:00:00Z  Missing \\u{1b}[0mPermissions\n"
        );
        assert_eq!(
            line(&report(&operation()), Painter::none()),
            "2026-01-31T12:00:01Z  0198  create_role  guild 7  dead  Missing \\u{1b}[0mPermissions"
        );
        let mut accepted = json!({"id": "1", "kind": "create_role", "guild_id": null, "state": "succeeded", "eligible_at": null,
            "result": {"role_id": "99", "outcome": "created"}, "replayed": false, "href": "/v1/operations/1"});
        let done = report(&accepted);
        assert_eq!(line(&done, Painter::none()), "-  1  create_role  succeeded  created role_id 99");
        assert!(done.is_finished() && done.has_succeeded());
        accepted["replayed"] = true.into();
        assert_eq!(line(&report(&accepted), Painter::none()), "-  1  create_role  succeeded  already submitted");
    }

    #[test]
    fn operations_that_the_daemon_does_not_have_are_gone() {
        let gone = OperationReport::Gone("0198".to_owned());
        assert_eq!(line(&gone, Painter::none()), "-  0198  -  gone  operation 0198 does not exist or was removed");
        assert!(gone.is_finished() && !gone.has_succeeded());
        let not_queried = OperationReport::NotQueried("0198".to_owned());
        assert_eq!(
            table(&[not_queried]).print(Painter::none()).lines().nth(1),
            Some("0198  -     -      -      -      -")
        );
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
        let whole = details(&read(&operation()).unwrap(), Painter::none());
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
        assert!(!details(&read(&partial).unwrap(), Painter::none()).contains("done "));
        partial["progress"] = json!([
            {"step": "message_sent", "channel_id": "9", "message_id": "10", "key": "rules"},
            {"step": "role_overwrite_set", "channel_id": "9", "role_id": "7"},
        ]);
        let text = details(&read(&partial).unwrap(), Painter::none());
        let steps = "sent message 10 in channel 9, set the overwrite of role 7 in channel 9\n";
        assert!(text.contains(steps), "{text}");
    }
}
