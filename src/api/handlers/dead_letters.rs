//! Lists, redrives and discards dead letters.

use actix_web::{HttpRequest, HttpResponse, http::header::LOCATION, web::Json};
use guildhall_actors::access::Caller;
use guildhall_actors::ports::DeadLetterFilter;
use guildhall_core::{
    operation::{OperationId, OperationKind},
    time::UnixMs,
};
use serde_json::{Value, json};

use super::{
    operations::{redriven_example, with_redrive_problems},
    page,
};
use crate::api::{
    cursor,
    dto::{self, DeadLetter, DeadLetterPage, Discarded, Redriven, RetriedOperation},
    errors,
    extract::{App, Body, DeadLetterId, HandlerResult, JsonResult, Path, Query},
    fields::{self, Field as _, fields},
    middleware,
    openapi::{
        common::{A_GUILD, A_TIME, AN_OPERATION, ANOTHER_OPERATION, LATER},
        headers::ResponseHeader,
        route_doc::{RouteDoc, Tag},
    },
};

/// Maximum number of dead letters that one request redrives or discards.
const MAX_BULK: usize = 1_000;

fields! {
    /// The filter that all requests for several dead letters have in common.
    struct LetterFilter {
        /// Filter by guild.
        guild_id: Option<u64> = fields::guild().optional(),
        /// Filter by kind.
        kind: Option<OperationKind> = fields::kind().optional(),
        /// Filter by failure class.
        class: Option<String> = fields::failure_class().optional(),
        /// Filter by text in the error message, case-insensitive.
        reason: Option<String> = fields::text(200).optional(),
        /// Only those that failed at or after this time.
        died_after: Option<UnixMs> = fields::time().optional(),
        /// Only those that failed before this time.
        died_before: Option<UnixMs> = fields::time().optional(),
    }

    struct LetterQuery {
        .. filter: LetterFilter,
        /// Filter by whether another operation redrives it.
        redriven: Option<bool> = fields::boolean().optional(),
        /// Maximum number of entries.
        limit: usize = fields::page_size(),
        /// `next` of the previous response.
        cursor: Option<OperationId> = fields::cursor(cursor::read_operation).optional(),
    }

    /// Filter for dead letters. `{}` selects all.
    struct WhichLetters {
        .. filter: LetterFilter,
        /// Maximum number of dead letters, the oldest first.
        limit: usize = fields::integer(1..=MAX_BULK as u64).or(MAX_BULK),
    }

    /// Filter for dead letters. `{}` selects all.
    struct WhichToDiscard {
        .. which: WhichLetters,
        /// Filter by whether another operation redrives it.
        redriven: Option<bool> = fields::boolean().optional(),
    }
}

impl LetterFilter {
    /// The guild, and the rest of the filter.
    fn into_parts(self) -> (Option<u64>, DeadLetterFilter) {
        let filter = DeadLetterFilter {
            kind: self.kind,
            class: self.class,
            message_contains: self.reason,
            died_after: self.died_after,
            died_before: self.died_before,
            ..DeadLetterFilter::default()
        };
        (self.guild_id, filter)
    }
}

fn example() -> Value {
    json!({
        "id": AN_OPERATION, "kind": "create_role", "guild_id": A_GUILD, "payload": {"name": "Pilots"}, "reason": null,
        "error": {"class": "forbidden", "message": "Missing Permissions", "status": 403, "code": 50013}, "attempts": 1,
        "created_at": A_TIME, "died_at": LATER, "redrive_of": null, "redriven_as": null,
        "href": format!("/v1/dead-letters/{AN_OPERATION}"),
    })
}

pub(crate) fn list_doc() -> RouteDoc {
    RouteDoc::new(Tag::DeadLetters, "list_dead_letters", "List dead letters")
        .description("The newest first; only those that are visible to the key.")
        .response(200, "A page of dead letters.", [("page", json!({"dead_letters": [example()], "next": null}))])
}

pub(crate) async fn list(Query(query): Query<LetterQuery>, caller: Caller, app: App) -> JsonResult<DeadLetterPage> {
    let limit = query.limit;
    let (guild, filter) = query.filter.into_parts();
    // One more shows whether another page follows.
    let filter = DeadLetterFilter { redriven: query.redriven, before: query.cursor, limit: limit + 1, ..filter };
    let listed =
        app.with_operations(|service| async move { service.dead_letters(&caller, guild, filter).await }).await?;
    let listed = listed.map_err(|error| errors::operation_problem(&error))?;
    let (listed, next) = page(listed, limit, |last| cursor::of_operation(last.id));
    Ok(Json(DeadLetterPage { dead_letters: listed.iter().map(DeadLetter::from).collect(), next }))
}

pub(crate) fn show_doc() -> RouteDoc {
    RouteDoc::new(Tag::DeadLetters, "show_dead_letter", "Show a dead letter")
        .description("A dead letter has the id of its operation, and is stored for seven days.")
        .response(200, "The dead letter.", [("letter", example())])
}

pub(crate) async fn show(
    Path(DeadLetterId(id)): Path<DeadLetterId>,
    caller: Caller,
    app: App,
) -> JsonResult<DeadLetter> {
    let letter = app.with_operations(|service| async move { service.dead_letter(&caller, id).await }).await?;
    Ok(Json((&letter.map_err(|error| errors::operation_problem(&error))?).into()))
}

pub(crate) fn redrive_doc() -> RouteDoc {
    let doc = RouteDoc::new(Tag::DeadLetters, "redrive_dead_letter", "Redrive a dead letter")
        .description(
            "Submits the operation again as a new one, at the end of its queue. A dead letter can be redriven only \
            once. Requires the same scopes as submitting the operation.",
        )
        .response_of::<RetriedOperation>(
            202,
            "The operation was submitted again.",
            [("new operation", redriven_example())],
        )
        .headers([ResponseHeader::Location]);
    with_redrive_problems(doc)
}

pub(crate) async fn redrive(Path(DeadLetterId(id)): Path<DeadLetterId>, caller: Caller, app: App) -> HandlerResult {
    let redriver = caller.clone();
    let redriven = app.with_operations(|service| async move { service.redrive(&redriver, id).await }).await?;
    let redriven = redriven.inspect_err(|error| app.audit_redrive_rejection(&caller, error));
    let redriven = redriven.map_err(|error| errors::operation_problem(&error))?;
    let mut response = HttpResponse::Accepted();
    Ok(response.insert_header((LOCATION, dto::location(redriven))).json(RetriedOperation::redriven(redriven, id)))
}

pub(crate) fn redrive_all_doc() -> RouteDoc {
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
        .body_example("all with the class forbidden", json!({"class": "forbidden"}))
        .body_example("all", json!({}))
        .response_of::<Redriven>(202, "Some dead letters were redriven.", [("redriven", redriven)])
        .response_of::<Redriven>(200, "No dead letter was redriven.", [("none", none)])
}

pub(crate) async fn redrive_all(
    request: HttpRequest,
    Body(body): Body<WhichLetters>,
    caller: Caller,
    app: App,
) -> HandlerResult {
    let (guild, filter) = body.filter.into_parts();
    let filter = DeadLetterFilter { limit: body.limit, ..filter };
    let summary =
        app.with_operations(|service| async move { service.redrive_all(&caller, guild, filter).await }).await?;
    let summary = summary.map_err(|error| errors::operation_problem(&error))?;
    middleware::charge_after(&request, &app, summary.redriven.len()).await;
    let mut response = if summary.redriven.is_empty() { HttpResponse::Ok() } else { HttpResponse::Accepted() };
    Ok(response.json(Redriven::from(&summary)))
}

pub(crate) fn discard_all_doc() -> RouteDoc {
    RouteDoc::new(Tag::DeadLetters, "discard_dead_letters", "Discard all matching dead letters")
        .body_example("all of one kind", json!({"kind": "send_dm", "limit": 100}))
        .response(200, "The dead letters were discarded.", [("discarded", json!({"discarded": 3, "more": false}))])
}

pub(crate) async fn discard_all(Body(body): Body<WhichToDiscard>, caller: Caller, app: App) -> JsonResult<Discarded> {
    let (guild, filter) = body.which.filter.into_parts();
    let filter = DeadLetterFilter { redriven: body.redriven, limit: body.which.limit, ..filter };
    let summary =
        app.with_operations(|service| async move { service.discard_all(&caller, guild, filter).await }).await?;
    Ok(Json(summary.map_err(|error| errors::operation_problem(&error))?.into()))
}

pub(crate) fn discard_doc() -> RouteDoc {
    RouteDoc::new(Tag::DeadLetters, "discard_dead_letter", "Discard a dead letter")
        .empty_response(204, "The dead letter was discarded.")
}

pub(crate) async fn discard(Path(DeadLetterId(id)): Path<DeadLetterId>, caller: Caller, app: App) -> HandlerResult {
    let discarded = app.with_operations(|service| async move { service.discard(&caller, id).await }).await?;
    discarded.map_err(|error| errors::operation_problem(&error))?;
    Ok(HttpResponse::NoContent().finish())
}
