//! Dead letters: looking at them, doing them again, throwing them away.

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

pub(super) fn about(method: &str, path: &str) -> Option<RouteDoc> {
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

/// How many one request may do again or throw away.
const AT_ONCE: u64 = 1_000;
const REDRIVEN: &str = "Those that another operation does again, or that none does.";

/// Which letters, as bodies name them.
fn which(more: impl IntoIterator<Item = Field>) -> ObjectBuilder {
    let limit = integer(1, AT_ONCE).default(Some(AT_ONCE.into())).says("How many at most, the oldest first.");
    let fields = [
        may("guild_id", or_null(snowflake().says("Those of this guild."))),
        may("kind", or_null(named("Kind").says("Those of this kind."))),
        may("class", or_null(named("FailureClass").says("Those that failed like this."))),
        may("limit", or_null(limit)),
        may("reason", or_null(text_of(1, REASON_MOST).says("Those whose error says this, in whichever case."))),
        may("died_after", or_null(time().says("Those that were given up after this."))),
        may("died_before", or_null(time().says("Those that were given up before this."))),
    ];
    closed(fields.into_iter().chain(more)).says("Which letters. `{}` names all.")
}

/// The longest text that is looked for, in bytes.
const REASON_MOST: usize = 200;

/// Every schema of this file, by its name.
pub(super) fn schemas() -> Vec<(&'static str, SchemaRef)> {
    let letter = object([
        must("id", operation_id()),
        must("kind", named("Kind")),
        must("guild_id", or_null(snowflake())),
        must("payload", any_object().says("With what, as its kind has it. Tokens of interactions are not shown.")),
        must("reason", or_null(text().says("For Discord's audit log."))),
        must("error", named("Failure").says("Why it was given up.")),
        must("attempts", count().says("How often it was tried.")),
        must("created_at", time()),
        must("died_at", time()),
        must("redrive_of", or_null(operation_id().says("The operation that this one did again."))),
        must("redriven_as", or_null(operation_id().says("The operation that does it again."))),
        must("href", href()),
    ]);
    let pair = object([must("letter", operation_id()), must("operation", operation_id())]);
    let skipped = object([must("letter", operation_id()), must("why", text())]);
    let redriven = object([
        must("redriven", count().says("How many are done again.")),
        must("operations", list(pair).says("Which, and by which operation.")),
        must("skipped", list(skipped).says("Which could not be done again, and why.")),
        must("more", truth().says("Whether there are more that fit.")),
        must("stopped", or_null(text().says("Why it ended early, if it did. What was done by then is done."))),
    ]);
    let discarded = object([
        must("discarded", count().says("How many were thrown away.")),
        must("more", truth().says("Whether there are more that fit.")),
    ]);
    vec![
        ("DeadLetter", letter.says("An operation that was given up.").into()),
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
        .says("The newest first: those that the key may know of.")
        .query("guild_id", snowflake(), "Those of this guild.")
        .query("kind", named("Kind"), "Those of this kind.")
        .query("class", named("FailureClass"), "Those that failed like this.")
        .query("redriven", truth(), REDRIVEN)
        .query("reason", text_of(1, REASON_MOST), "Those whose error says this, in whichever case.")
        .query("died_after", time(), "Those that were given up after this.")
        .query("died_before", time(), "Those that were given up before this.")
        .paged()
        .answers(
            200,
            "A page of them.",
            named("DeadLetterPage"),
            [("page", json!({"dead_letters": [a_letter()], "next": null}))],
        )
}

fn show() -> RouteDoc {
    RouteDoc::new(Tag::DeadLetters, "show_dead_letter", "Show a dead letter")
        .says("A letter goes by its operation's id, and is kept for seven days.")
        .path("id", operation_id(), "The letter.")
        .answers(200, "The letter.", named("DeadLetter"), [("letter", a_letter())])
}

fn redrive() -> RouteDoc {
    RouteDoc::new(Tag::DeadLetters, "redrive_dead_letter", "Do a dead letter again")
        .says("As another operation, from the end of its queue. No letter is done again twice. Needs the scopes that submitting \
             the operation needs.")
        .path("id", operation_id(), "The letter.")
        .answers(202, "It is done again.", named("DoneAgain"), [("another operation", done_again())])
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
    RouteDoc::new(Tag::DeadLetters, "redrive_dead_letters", "Do all dead letters again that fit")
        .says("Those that nothing does again yet, the oldest first. Letters that the key could not submit are skipped.")
        .takes(named("WhichLetters"), [("all that were forbidden", json!({"class": "forbidden"})), ("all", json!({}))])
        .answers(202, "Some are done again.", named("Redriven"), [("redriven", redriven)])
        .answers(200, "There was nothing to be done again.", named("Redriven"), [("none", none)])
}

fn discard_all() -> RouteDoc {
    RouteDoc::new(Tag::DeadLetters, "discard_dead_letters", "Throw all dead letters away that fit")
        .takes(named("WhichToDiscard"), [("all of one kind", json!({"kind": "send_dm", "limit": 100}))])
        .answers(200, "They are gone.", named("Discarded"), [("discarded", json!({"discarded": 3, "more": false}))])
}

fn discard() -> RouteDoc {
    RouteDoc::new(Tag::DeadLetters, "discard_dead_letter", "Throw a dead letter away")
        .path("id", operation_id(), "The letter.")
        .answers_nothing(204, "It is gone.")
}
