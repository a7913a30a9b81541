//! API keys, the audit, and erasure.

use guildhall_actors::access::AuditAction;
use guildhall_core::access::Scope;
use serde_json::{Value, json};
use utoipa::openapi::schema::AdditionalProperties;

use crate::api::{
    openapi::{
        common::{A_GUILD, A_TIME, next, snowflake, time},
        headers::ResponseHeader,
        route_doc::{RouteDoc, Tag},
        schema::{
            Describe as _, Field, SchemaRef, any_object, any_of, closed, count, integer, list, may, must, named,
            object, one_of_names, or_null, text, text_of, truth,
        },
    },
    problem::ProblemType,
};

use super::events::PLACE;

pub(crate) fn about(method: &str, path: &str) -> Option<RouteDoc> {
    Some(match (method, path) {
        ("GET", "/keys") => list_all(),
        ("POST", "/keys") => create(),
        ("GET", "/keys/{id}") => show(),
        ("DELETE", "/keys/{id}") => revoke(),
        ("POST", "/keys/{id}/rotate") => rotate(),
        ("GET", "/audit") => audit(),
        ("POST", "/erase") => erase(),
        _ => return None,
    })
}

/// Maximum lifetime of a key that expires: ten years, in seconds.
const LASTS_MOST: u64 = 10 * 366 * 24 * 60 * 60;
/// Maximum time that a rotated key stays valid: thirty days, in seconds.
const OVERLAP_MOST: u64 = 30 * 24 * 60 * 60;
/// A tenant's name.
const TENANT: &str = "^[a-z0-9_-]+$";
/// A guild in a list of scopes.
const GUILD: &str = "^guild:[1-9][0-9]{0,18}$";

fn tenant() -> utoipa::openapi::schema::ObjectBuilder {
    text_of(1, 64).pattern(Some(TENANT))
}

fn key() -> Vec<Field> {
    vec![
        must("id", named("KeyId")),
        must("name", text().says("What the key is for.")),
        must("tenant", text().says("The tenant of the key.")),
        must("scopes", list(named("Scope"))),
        must("active", truth().says("Whether the key is valid now.")),
        must("created_at", time()),
        must("expires_at", or_null(time())),
        must("revoked_at", or_null(time())),
        must("rotated_to", or_null(named("KeyId").says("The key that replaces it."))),
    ]
}

/// All schemas of this file, by name.
pub(crate) fn schemas() -> Vec<(&'static str, SchemaRef)> {
    let scopes = one_of_names(Scope::ALL.map(Scope::name));
    let guild = text().pattern(Some(GUILD)).says(
        "Restricts the key to this guild, and to others that are given \
        likewise.",
    );
    let scope = any_of([scopes.into(), guild.into()])
        .says("A permission of a key. `write` includes `read`; `admin` includes everything.");
    let secret = must("key", text().says("The key itself. **It is shown only in this response.**"));
    let new = closed([
        must("name", text_of(1, 100).says("What the key is for. No control characters.")),
        must(
            "scopes",
            list(named("Scope")).min_items(Some(1)).says("Permissions of the key: at least one that is not a guild."),
        ),
        may("tenant", tenant().default(Some("default".into())).says("The tenant of the key.")),
        may(
            "expires_in_s",
            or_null(integer(1, LASTS_MOST).says("Lifetime in seconds; without it the key does not expire.")),
        ),
    ]);
    let rotate = closed([may(
        "overlap_s",
        or_null(integer(0, OVERLAP_MOST).default(Some(3_600.into())).says("How many seconds the old key stays valid.")),
    )]);
    let row = object([
        must("place", text().pattern(Some(PLACE)).says("Position in this list.")),
        must("at", time()),
        must("tenant", text()),
        must("key", text().says("The id of the key; `admin` for the admin key.")),
        must("action", one_of_names(AuditAction::ALL.map(AuditAction::name))),
        must("guild_id", or_null(snowflake())),
        must("target", or_null(text().says("The object of the action."))),
        must("detail", or_null(text())),
        must("request_id", text().says("`X-Request-Id` of the request.")),
    ]);
    let before =
        or_null(text().pattern(Some(PLACE)).says("Value of `before` for the next page; `null` on the last page."));
    vec![
        ("Scope", scope.into()),
        ("Key", object(key()).says("An API key without its secret.").into()),
        ("MadeKey", object(key().into_iter().chain([secret])).says("A new API key.").into()),
        ("KeyPage", object([must("keys", list(named("Key"))), must("next", next())]).into()),
        ("NewKey", new.into()),
        ("RotateKey", rotate.into()),
        ("AuditRow", row.says("A change, or a rejected request.").into()),
        ("Erase", erase_schema().into()),
        ("Erased", erased_schema().into()),
        ("AuditPage", object([must("audit", list(named("AuditRow"))), must("next", before)]).into()),
    ]
}

fn a_key() -> Value {
    json!({
        "id": "k7mq2vx9apzd", "name": "the shop", "tenant": "default",
        "scopes": ["operations:write", format!("guild:{A_GUILD}")], "active": true, "created_at": A_TIME,
        "expires_at": null, "revoked_at": null, "rotated_to": null,
    })
}

fn a_made_key() -> Value {
    let mut made = a_key();
    made["key"] = "gh_k7mq2vx9apzd_…".into();
    made
}

fn list_all() -> RouteDoc {
    RouteDoc::new(Tag::Keys, "list_keys", "List API keys")
        .says(
            "The newest first, including those that are no longer valid. Their secrets are not stored, and so not \
            shown.",
        )
        .query("tenant", text_of(1, 64), "Filter by tenant.")
        .paged()
        .answers(200, "A page of keys.", named("KeyPage"), [("page", json!({"keys": [a_key()], "next": null}))])
}

fn create() -> RouteDoc {
    RouteDoc::new(Tag::Keys, "create_key", "Create an API key")
        .says(
            "Scopes that affect all guilds (`events`, `state`, `fleet`, `budgets`, `application`, `admin`) cannot be \
             combined with `guild:<id>`, and are permitted for the tenant `default` only. A guild belongs to the \
             tenant whose key named it first.",
        )
        .takes(
            named("NewKey"),
            [(
                "for one guild, for a month",
                json!({"name": "the shop", "scopes": ["operations:write", format!("guild:{A_GUILD}")], "expires_in_s": 2_592_000}),
            )],
        )
        .answers(201, "The key; its secret is shown only here.", named("MadeKey"), [("key", a_made_key())])
        .with(ResponseHeader::Location)
        .with(ResponseHeader::NoStore)
        .refuses(ProblemType::Conflict)
}

fn show() -> RouteDoc {
    RouteDoc::new(Tag::Keys, "show_key", "Show an API key").path("id", named("KeyId"), "The key.").answers(
        200,
        "The key without its secret.",
        named("Key"),
        [("key", a_key())],
    )
}

fn revoke() -> RouteDoc {
    RouteDoc::new(Tag::Keys, "revoke_key", "Revoke an API key")
        .says("Within two seconds all processes reject the key. Idempotent.")
        .path("id", named("KeyId"), "The key.")
        .answers_nothing(204, "The key is revoked.")
}

fn rotate() -> RouteDoc {
    RouteDoc::new(Tag::Keys, "rotate_key", "Rotate an API key")
        .says("The new key has the properties of the old one, but idempotency keys of its own.")
        .path("id", named("KeyId"), "The old key.")
        .may_take(named("RotateKey"), [("the old key expires at once", json!({"overlap_s": 0}))])
        .answers(201, "The new key; its secret is shown only here.", named("MadeKey"), [("key", a_made_key())])
        .with(ResponseHeader::Location)
        .with(ResponseHeader::NoStore)
        .refuses(ProblemType::Conflict)
}

fn audit() -> RouteDoc {
    let row = json!({
        "place": "12", "at": A_TIME, "tenant": "default", "key": "admin", "action": "keys.create", "guild_id": null,
        "target": "k7mq2vx9apzd", "detail": "operations:write", "request_id": "deploy-42.1",
    });
    RouteDoc::new(Tag::Keys, "list_audit", "List the audit")
        .says(
            "The newest first. Every change leaves one row; so does a rejected request of a key, at most ten times a \
             minute for each key. Rows are stored for `retention.audit_ms`.",
        )
        .query("key", text_of(1, 64), "Filter by the key that was used.")
        .query("action", one_of_names(AuditAction::ALL.map(AuditAction::name)), "Filter by action.")
        .query("guild_id", snowflake(), "Filter by guild.")
        .query("before", text().pattern(Some(PLACE)), "`next` of the previous response.")
        .limited()
        .answers(200, "A page of audit rows.", named("AuditPage"), [("page", json!({"audit": [row], "next": null}))])
}

fn erase_schema() -> utoipa::openapi::schema::ObjectBuilder {
    closed([
        may("user_id", snowflake()),
        may("guild_id", snowflake()),
        may("next", or_null(text_of(1, 1_024).says("`next` of the previous response, to continue."))),
    ])
    .says("The subject of the erasure: exactly one of `user_id` and `guild_id`.")
}

fn erased_schema() -> utoipa::openapi::schema::ObjectBuilder {
    let kept = object([
        must("what", text().says("What stays.")),
        may("count", count().says("How many rows, where they are counted.")),
        must("why", text().says("Why it stays, and what to do.")),
    ]);
    object([
        must(
            "removed",
            any_object()
                .additional_properties(Some(AdditionalProperties::from(count())))
                .says("Number of removed rows, by kind."),
        ),
        must("kept", list(kept)),
        must("done", truth().says("Whether every table was examined.")),
        must("next", or_null(text().says("What to send as `next` to continue; `null` at the end."))),
    ])
}

fn erase() -> RouteDoc {
    RouteDoc::new(Tag::Keys, "erase", "Erase the data of a user or a guild")
        .says(
            "Removes finished operations, dead letters, dead events, results and state entries that contain the id, \
             and for a guild also its managed objects and known channels. The response says what stays and why. A \
             request examines rows for at most five seconds: send it again with `next` until `done` is `true`.",
        )
        .takes(named("Erase"), [("a user", json!({"user_id": "80351110224678912"}))])
        .answers(
            200,
            "What was removed and what stays.",
            named("Erased"),
            [(
                "erased",
                json!({"removed": {"operations": 3}, "kept": [{"what": "audit", "why": "changes must stay traceable; \
                    rows expire after retention.audit_ms"}],
                    "done": true, "next": null}),
            )],
        )
}
