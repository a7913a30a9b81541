//! List, redrive and discard dead letters.

use serde_json::{Value, json};
use utoipa::openapi::schema::ObjectBuilder;

use super::operations::a_redriven_operation;
use crate::api::{
    openapi::{
        common::{A_GUILD, A_TIME, AN_OPERATION, ANOTHER_OPERATION, LATER, href, next, operation_id, snowflake, time},
        headers::ResponseHeader,
        route_doc::{RouteDoc, Tag},
        schema::{
            Describe as _, Field, SchemaRef, any_object, boolean, closed, count, integer, list, object, optional,
            or_null, required, schema_ref, text, text_of,
        },
    },
    problem::ProblemType,
};

pub(crate) fn doc_for(method: &str, path: &str) -> Option<RouteDoc> {
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
const MAX_BULK: u64 = 1_000;
const REDRIVEN: &str = "Filter by whether another operation redrives it.";

/// The filter for dead letters in request bodies.
fn filter_schema(more: impl IntoIterator<Item = Field>) -> ObjectBuilder {
    let limit = integer(1, MAX_BULK).default(Some(MAX_BULK.into())).describe(
        "Maximum number of dead letters, the oldest \
        first.",
    );
    let fields = [
        optional("guild_id", or_null(snowflake().describe("Filter by guild."))),
        optional("kind", or_null(schema_ref("Kind").describe("Filter by kind."))),
        optional("class", or_null(schema_ref("FailureClass").describe("Filter by failure class."))),
        optional("limit", or_null(limit)),
        optional(
            "reason",
            or_null(text_of(1, MAX_REASON_LEN).describe("Filter by text in the error message, case-insensitive.")),
        ),
        optional("died_after", or_null(time().describe("Only those that failed at or after this time."))),
        optional("died_before", or_null(time().describe("Only those that failed before this time."))),
    ];
    closed(fields.into_iter().chain(more)).describe("Filter for dead letters. `{}` selects all.")
}

/// Maximum length of the text to search for, in bytes.
const MAX_REASON_LEN: usize = 200;

/// All schemas of this file, by name.
pub(crate) fn schemas() -> Vec<(&'static str, SchemaRef)> {
    let letter = object([
        required("id", operation_id()),
        required("kind", schema_ref("Kind")),
        required("guild_id", or_null(snowflake())),
        required("payload", any_object().describe("The payload of its kind. Interaction tokens are redacted.")),
        required("reason", or_null(text().describe("Reason for Discord's audit log."))),
        required("error", schema_ref("Failure").describe("Why the operation failed for good.")),
        required("attempts", count().describe("Number of attempts.")),
        required("created_at", time()),
        required("died_at", time()),
        required("redrive_of", or_null(operation_id().describe("The operation that this one redrove."))),
        required("redriven_as", or_null(operation_id().describe("The operation that redrives this one."))),
        required("href", href()),
    ]);
    let pair = object([required("letter", operation_id()), required("operation", operation_id())]);
    let skipped = object([required("letter", operation_id()), required("why", text())]);
    let redriven = object([
        required("redriven", count().describe("Number of redriven dead letters.")),
        required("operations", list(pair).describe("The redriven dead letters and their new operations.")),
        required("skipped", list(skipped).describe("Dead letters that could not be redriven, and the reasons.")),
        required("more", boolean().describe("Whether more dead letters match.")),
        required(
            "stopped",
            or_null(text().describe(
                "Why it stopped early, if it did. Dead letters redriven before stay \
            redriven.",
            )),
        ),
    ]);
    let discarded = object([
        required("discarded", count().describe("Number of discarded dead letters.")),
        required("more", boolean().describe("Whether more dead letters match.")),
    ]);
    vec![
        ("DeadLetter", letter.describe("An operation that failed for good.").into()),
        (
            "DeadLetterPage",
            object([required("dead_letters", list(schema_ref("DeadLetter"))), required("next", next())]).into(),
        ),
        ("WhichLetters", filter_schema([]).into()),
        ("WhichToDiscard", filter_schema([optional("redriven", or_null(boolean().describe(REDRIVEN)))]).into()),
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
        .description("The newest first; only those that are visible to the key.")
        .query("guild_id", snowflake(), "Filter by guild.")
        .query("kind", schema_ref("Kind"), "Filter by kind.")
        .query("class", schema_ref("FailureClass"), "Filter by failure class.")
        .query("redriven", boolean(), REDRIVEN)
        .query("reason", text_of(1, MAX_REASON_LEN), "Filter by text in the error message, case-insensitive.")
        .query("died_after", time(), "Only those that failed at or after this time.")
        .query("died_before", time(), "Only those that failed before this time.")
        .with_paging()
        .responses(
            200,
            "A page of dead letters.",
            schema_ref("DeadLetterPage"),
            [("page", json!({"dead_letters": [a_letter()], "next": null}))],
        )
}

fn show() -> RouteDoc {
    RouteDoc::new(Tag::DeadLetters, "show_dead_letter", "Show a dead letter")
        .description("A dead letter has the id of its operation, and is stored for seven days.")
        .path("id", operation_id(), "The dead letter.")
        .responses(200, "The dead letter.", schema_ref("DeadLetter"), [("letter", a_letter())])
}

fn redrive() -> RouteDoc {
    RouteDoc::new(Tag::DeadLetters, "redrive_dead_letter", "Redrive a dead letter")
        .description(
            "Submits the operation again as a new one, at the end of its queue. A dead letter can be redriven only \
            once. Requires the same scopes as submitting the operation.",
        )
        .path("id", operation_id(), "The dead letter.")
        .responses(
            202,
            "The operation was submitted again.",
            schema_ref("DoneAgain"),
            [("new operation", a_redriven_operation())],
        )
        .with_header(ResponseHeader::Location)
        .problem(ProblemType::AlreadyRedriven)
        .problem(ProblemType::InvalidOperation)
        .problem(ProblemType::QueueFull)
        .problem(ProblemType::ShareFull)
        .problem(ProblemType::StoreFull)
}

fn redrive_all() -> RouteDoc {
    let redriven = json!({
        "redriven": 1, "operations": [{"letter": AN_OPERATION, "operation": ANOTHER_OPERATION}], "skipped": [], "more": false,
        "stopped": null,
    });
    let none = json!({"redriven": 0, "operations": [], "skipped": [], "more": false, "stopped": null});
    RouteDoc::new(Tag::DeadLetters, "redrive_dead_letters", "Redrive all matching dead letters")
        .description(
            "Those that are not redriven yet, the oldest first. Dead letters that the key could not submit are \
            skipped.",
        )
        .required_body(
            schema_ref("WhichLetters"),
            [("all with the class forbidden", json!({"class": "forbidden"})), ("all", json!({}))],
        )
        .responses(202, "Some dead letters were redriven.", schema_ref("Redriven"), [("redriven", redriven)])
        .responses(200, "No dead letter was redriven.", schema_ref("Redriven"), [("none", none)])
}

fn discard_all() -> RouteDoc {
    RouteDoc::new(Tag::DeadLetters, "discard_dead_letters", "Discard all matching dead letters")
        .required_body(schema_ref("WhichToDiscard"), [("all of one kind", json!({"kind": "send_dm", "limit": 100}))])
        .responses(
            200,
            "The dead letters were discarded.",
            schema_ref("Discarded"),
            [("discarded", json!({"discarded": 3, "more": false}))],
        )
}

fn discard() -> RouteDoc {
    RouteDoc::new(Tag::DeadLetters, "discard_dead_letter", "Discard a dead letter")
        .path("id", operation_id(), "The dead letter.")
        .empty_response(204, "The dead letter was discarded.")
}
