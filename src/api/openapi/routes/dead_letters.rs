//! List, redrive and discard dead letters.

use serde_json::{Value, json};
use utoipa::openapi::schema::ObjectBuilder;

use super::operations::done_again;
use crate::api::{
    openapi::{
        common::{A_GUILD, A_TIME, AN_OPERATION, ANOTHER, LATER, href, next, operation_id, snowflake, time},
        headers::ResponseHeader,
        route_doc::{RouteDoc, Tag},
        schema::{
            Describe as _, Field, SchemaRef, any_object, closed, count, integer, list, may, must, named, object,
            or_null, text, text_of, truth,
        },
    },
    problem::ProblemType,
};

pub(crate) fn about(method: &str, path: &str) -> Option<RouteDoc> {
    Some(match (method, path) {
        ("GET", "/dead-letters") => list_all(),
        ("POST", "/dead-letters/redrive") => redrive_all(),
        ("POST", "/dead-letters/discard") => discard_all(),
        ("GET", "/dead-letters/{id}") => show(),
        ("DELETE", "/dead-letters/{id}") => discard(),
        ("POST", "/dead-letters/{id}/redrive") => redrive(),
        _ => return None,
    })
}

/// Maximum number of dead letters that one request redrives or discards.
const AT_ONCE: u64 = 1_000;
const REDRIVEN: &str = "Filter by whether another operation redrives it.";

/// The filter for dead letters in request bodies.
fn which(more: impl IntoIterator<Item = Field>) -> ObjectBuilder {
    let limit = integer(1, AT_ONCE).default(Some(AT_ONCE.into())).says(
        "Maximum number of dead letters, the oldest \
        first.",
    );
    let fields = [
        may("guild_id", or_null(snowflake().says("Filter by guild."))),
        may("kind", or_null(named("Kind").says("Filter by kind."))),
        may("class", or_null(named("FailureClass").says("Filter by failure class."))),
        may("limit", or_null(limit)),
        may("reason", or_null(text_of(1, REASON_MOST).says("Filter by text in the error message, case-insensitive."))),
        may("died_after", or_null(time().says("Only those that failed at or after this time."))),
        may("died_before", or_null(time().says("Only those that failed before this time."))),
    ];
    closed(fields.into_iter().chain(more)).says("Filter for dead letters. `{}` selects all.")
}

/// Maximum length of the text to search for, in bytes.
const REASON_MOST: usize = 200;

/// All schemas of this file, by name.
pub(crate) fn schemas() -> Vec<(&'static str, SchemaRef)> {
    let letter = object([
        must("id", operation_id()),
        must("kind", named("Kind")),
        must("guild_id", or_null(snowflake())),
        must("payload", any_object().says("The payload of its kind. Interaction tokens are redacted.")),
        must("reason", or_null(text().says("Reason for Discord's audit log."))),
        must("error", named("Failure").says("Why the operation failed for good.")),
        must("attempts", count().says("Number of attempts.")),
        must("created_at", time()),
        must("died_at", time()),
        must("redrive_of", or_null(operation_id().says("The operation that this one redrove."))),
        must("redriven_as", or_null(operation_id().says("The operation that redrives this one."))),
        must("href", href()),
    ]);
    let pair = object([must("letter", operation_id()), must("operation", operation_id())]);
    let skipped = object([must("letter", operation_id()), must("why", text())]);
    let redriven = object([
        must("redriven", count().says("Number of redriven dead letters.")),
        must("operations", list(pair).says("The redriven dead letters and their new operations.")),
        must("skipped", list(skipped).says("Dead letters that could not be redriven, and the reasons.")),
        must("more", truth().says("Whether more dead letters match.")),
        must(
            "stopped",
            or_null(text().says(
                "Why it stopped early, if it did. Dead letters redriven before stay \
            redriven.",
            )),
        ),
    ]);
    let discarded = object([
        must("discarded", count().says("Number of discarded dead letters.")),
        must("more", truth().says("Whether more dead letters match.")),
    ]);
    vec![
        ("DeadLetter", letter.says("An operation that failed for good.").into()),
        ("DeadLetterPage", object([must("dead_letters", list(named("DeadLetter"))), must("next", next())]).into()),
        ("WhichLetters", which([]).into()),
        ("WhichToDiscard", which([may("redriven", or_null(truth().says(REDRIVEN)))]).into()),
        ("Redriven", redriven.into()),
        ("Discarded", discarded.into()),
    ]
}

fn a_letter() -> Value {
    json!({
        "id": AN_OPERATION, "kind": "create_role", "guild_id": A_GUILD, "payload": {"name": "Pilots"}, "reason": null,
        "error": {"class": "forbidden", "message": "Missing Permissions", "status": 403, "code": 50013}, "attempts": 1,
        "created_at": A_TIME, "died_at": LATER, "redrive_of": null, "redriven_as": null,
        "href": format!("/v1/dead-letters/{AN_OPERATION}"),
    })
}

fn list_all() -> RouteDoc {
    RouteDoc::new(Tag::DeadLetters, "list_dead_letters", "List dead letters")
        .says("The newest first; only those that are visible to the key.")
        .query("guild_id", snowflake(), "Filter by guild.")
        .query("kind", named("Kind"), "Filter by kind.")
        .query("class", named("FailureClass"), "Filter by failure class.")
        .query("redriven", truth(), REDRIVEN)
        .query("reason", text_of(1, REASON_MOST), "Filter by text in the error message, case-insensitive.")
        .query("died_after", time(), "Only those that failed at or after this time.")
        .query("died_before", time(), "Only those that failed before this time.")
        .paged()
        .answers(
            200,
            "A page of dead letters.",
            named("DeadLetterPage"),
            [("page", json!({"dead_letters": [a_letter()], "next": null}))],
        )
}

fn show() -> RouteDoc {
    RouteDoc::new(Tag::DeadLetters, "show_dead_letter", "Show a dead letter")
        .says("A dead letter has the id of its operation, and is stored for seven days.")
        .path("id", operation_id(), "The dead letter.")
        .answers(200, "The dead letter.", named("DeadLetter"), [("letter", a_letter())])
}

fn redrive() -> RouteDoc {
    RouteDoc::new(Tag::DeadLetters, "redrive_dead_letter", "Redrive a dead letter")
        .says(
            "Submits the operation again as a new one, at the end of its queue. A dead letter can be redriven only \
            once. Requires the same scopes as submitting the operation.",
        )
        .path("id", operation_id(), "The dead letter.")
        .answers(202, "The operation was submitted again.", named("DoneAgain"), [("new operation", done_again())])
        .with(ResponseHeader::Location)
        .refuses(ProblemType::AlreadyRedriven)
        .refuses(ProblemType::InvalidOperation)
        .refuses(ProblemType::QueueFull)
        .refuses(ProblemType::ShareFull)
        .refuses(ProblemType::StoreFull)
}

fn redrive_all() -> RouteDoc {
    let redriven = json!({
        "redriven": 1, "operations": [{"letter": AN_OPERATION, "operation": ANOTHER}], "skipped": [], "more": false,
        "stopped": null,
    });
    let none = json!({"redriven": 0, "operations": [], "skipped": [], "more": false, "stopped": null});
    RouteDoc::new(Tag::DeadLetters, "redrive_dead_letters", "Redrive all matching dead letters")
        .says(
            "Those that are not redriven yet, the oldest first. Dead letters that the key could not submit are \
            skipped.",
        )
        .takes(
            named("WhichLetters"),
            [("all with the class forbidden", json!({"class": "forbidden"})), ("all", json!({}))],
        )
        .answers(202, "Some dead letters were redriven.", named("Redriven"), [("redriven", redriven)])
        .answers(200, "No dead letter was redriven.", named("Redriven"), [("none", none)])
}

fn discard_all() -> RouteDoc {
    RouteDoc::new(Tag::DeadLetters, "discard_dead_letters", "Discard all matching dead letters")
        .takes(named("WhichToDiscard"), [("all of one kind", json!({"kind": "send_dm", "limit": 100}))])
        .answers(
            200,
            "The dead letters were discarded.",
            named("Discarded"),
            [("discarded", json!({"discarded": 3, "more": false}))],
        )
}

fn discard() -> RouteDoc {
    RouteDoc::new(Tag::DeadLetters, "discard_dead_letter", "Discard a dead letter")
        .path("id", operation_id(), "The dead letter.")
        .answers_nothing(204, "The dead letter was discarded.")
}
