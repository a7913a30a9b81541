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
            Describe as _, Field, SchemaRef, any_object, any_of, boolean, closed, count, integer, list, object,
            one_of_names, optional, or_null, required, schema_ref, text, text_of,
        },
    },
    problem::ProblemType,
};

use super::events::PLACE;

pub(crate) fn doc_for(method: &str, path: &str) -> Option<RouteDoc> {
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
const MAX_LIFETIME: u64 = 10 * 366 * 24 * 60 * 60;
/// Maximum time that a rotated key stays valid: thirty days, in seconds.
const MAX_OVERLAP: u64 = 30 * 24 * 60 * 60;
/// A tenant's name.
const TENANT: &str = "^[a-z0-9_-]+$";
/// A guild in a list of scopes.
const GUILD: &str = "^guild:[1-9][0-9]{0,18}$";

fn tenant() -> utoipa::openapi::schema::ObjectBuilder {
    text_of(1, 64).pattern(Some(TENANT))
}

fn key() -> Vec<Field> {
    vec![
        required("id", schema_ref("KeyId")),
        required("name", text().describe("What the key is for.")),
        required("tenant", text().describe("The tenant of the key.")),
        required("scopes", list(schema_ref("Scope"))),
        required("active", boolean().describe("Whether the key is valid now.")),
        required("created_at", time()),
        required("expires_at", or_null(time())),
        required("revoked_at", or_null(time())),
        required("rotated_to", or_null(schema_ref("KeyId").describe("The key that replaces it."))),
    ]
}

/// All schemas of this file, by name.
pub(crate) fn schemas() -> Vec<(&'static str, SchemaRef)> {
    let scopes = one_of_names(Scope::ALL.map(Scope::name));
    let guild = text().pattern(Some(GUILD)).describe(
        "Restricts the key to this guild, and to others that are given \
        likewise.",
    );
    let scope = any_of([scopes.into(), guild.into()])
        .describe("A permission of a key. `write` includes `read`; `admin` includes everything.");
    let secret = required("key", text().describe("The key itself. **It is shown only in this response.**"));
    let new = closed([
        required("name", text_of(1, 100).describe("What the key is for. No control characters.")),
        required(
            "scopes",
            list(schema_ref("Scope"))
                .min_items(Some(1))
                .describe("Permissions of the key: at least one that is not a guild."),
        ),
        optional("tenant", tenant().default(Some("default".into())).describe("The tenant of the key.")),
        optional(
            "expires_in_s",
            or_null(integer(1, MAX_LIFETIME).describe("Lifetime in seconds; without it the key does not expire.")),
        ),
    ]);
    let rotate = closed([optional(
        "overlap_s",
        or_null(
            integer(0, MAX_OVERLAP).default(Some(3_600.into())).describe("How many seconds the old key stays valid."),
        ),
    )]);
    let row = object([
        required("place", text().pattern(Some(PLACE)).describe("Position in this list.")),
        required("at", time()),
        required("tenant", text()),
        required("key", text().describe("The id of the key; `admin` for the admin key.")),
        required("action", one_of_names(AuditAction::ALL.map(AuditAction::name))),
        required("guild_id", or_null(snowflake())),
        required("target", or_null(text().describe("The object of the action."))),
        required("detail", or_null(text())),
        required("request_id", text().describe("`X-Request-Id` of the request.")),
    ]);
    let before =
        or_null(text().pattern(Some(PLACE)).describe("Value of `before` for the next page; `null` on the last page."));
    vec![
        ("Scope", scope.into()),
        ("Key", object(key()).describe("An API key without its secret.").into()),
        ("MadeKey", object(key().into_iter().chain([secret])).describe("A new API key.").into()),
        ("KeyPage", object([required("keys", list(schema_ref("Key"))), required("next", next())]).into()),
        ("NewKey", new.into()),
        ("RotateKey", rotate.into()),
        ("AuditRow", row.describe("A change, or a rejected request.").into()),
        ("Erase", erase_schema().into()),
        ("Erased", erased_schema().into()),
        ("AuditPage", object([required("audit", list(schema_ref("AuditRow"))), required("next", before)]).into()),
    ]
}

fn a_key() -> Value {
    json!({
        "id": "k7mq2vx9apzd", "name": "the shop", "tenant": "default",
        "scopes": ["operations:write", format!("guild:{A_GUILD}")], "active": true, "created_at": A_TIME,
        "expires_at": null, "revoked_at": null, "rotated_to": null,
    })
}

fn a_new_key() -> Value {
    let mut made = a_key();
    made["key"] = "gh_k7mq2vx9apzd_…".into();
    made
}

fn list_all() -> RouteDoc {
    RouteDoc::new(Tag::Keys, "list_keys", "List API keys")
        .description(
            "The newest first, including those that are no longer valid. Their secrets are not stored, and so not \
            shown.",
        )
        .query("tenant", text_of(1, 64), "Filter by tenant.")
        .with_paging()
        .responses(200, "A page of keys.", schema_ref("KeyPage"), [("page", json!({"keys": [a_key()], "next": null}))])
}

fn create() -> RouteDoc {
    RouteDoc::new(Tag::Keys, "create_key", "Create an API key")
        .description(
            "Scopes that affect all guilds (`events`, `state`, `fleet`, `budgets`, `application`, `admin`) cannot be \
             combined with `guild:<id>`, and are permitted for the tenant `default` only. A guild belongs to the \
             tenant whose key named it first.",
        )
        .required_body(
            schema_ref("NewKey"),
            [(
                "for one guild, for a month",
                json!({"name": "the shop", "scopes": ["operations:write", format!("guild:{A_GUILD}")], "expires_in_s": 2_592_000}),
            )],
        )
        .responses(201, "The key; its secret is shown only here.", schema_ref("MadeKey"), [("key", a_new_key())])
        .with_header(ResponseHeader::Location)
        .with_header(ResponseHeader::NoStore)
        .problem(ProblemType::Conflict)
}

fn show() -> RouteDoc {
    RouteDoc::new(Tag::Keys, "show_key", "Show an API key").path("id", schema_ref("KeyId"), "The key.").responses(
        200,
        "The key without its secret.",
        schema_ref("Key"),
        [("key", a_key())],
    )
}

fn revoke() -> RouteDoc {
    RouteDoc::new(Tag::Keys, "revoke_key", "Revoke an API key")
        .description("Within two seconds all processes reject the key. Idempotent.")
        .path("id", schema_ref("KeyId"), "The key.")
        .empty_response(204, "The key is revoked.")
}

fn rotate() -> RouteDoc {
    RouteDoc::new(Tag::Keys, "rotate_key", "Rotate an API key")
        .description("The new key has the properties of the old one, but idempotency keys of its own.")
        .path("id", schema_ref("KeyId"), "The old key.")
        .optional_body(schema_ref("RotateKey"), [("the old key expires at once", json!({"overlap_s": 0}))])
        .responses(201, "The new key; its secret is shown only here.", schema_ref("MadeKey"), [("key", a_new_key())])
        .with_header(ResponseHeader::Location)
        .with_header(ResponseHeader::NoStore)
        .problem(ProblemType::Conflict)
}

fn audit() -> RouteDoc {
    let row = json!({
        "place": "12", "at": A_TIME, "tenant": "default", "key": "admin", "action": "keys.create", "guild_id": null,
        "target": "k7mq2vx9apzd", "detail": "operations:write", "request_id": "deploy-42.1",
    });
    RouteDoc::new(Tag::Keys, "list_audit", "List the audit")
        .description(
            "The newest first. Every change leaves one row; so does a rejected request of a key, at most ten times a \
             minute for each key. Rows are stored for `retention.audit_ms`.",
        )
        .query("key", text_of(1, 64), "Filter by the key that was used.")
        .query("action", one_of_names(AuditAction::ALL.map(AuditAction::name)), "Filter by action.")
        .query("guild_id", snowflake(), "Filter by guild.")
        .query("before", text().pattern(Some(PLACE)), "`next` of the previous response.")
        .with_limit()
        .responses(
            200,
            "A page of audit rows.",
            schema_ref("AuditPage"),
            [("page", json!({"audit": [row], "next": null}))],
        )
}

fn erase_schema() -> utoipa::openapi::schema::ObjectBuilder {
    closed([
        optional("user_id", snowflake()),
        optional("guild_id", snowflake()),
        optional("next", or_null(text_of(1, 1_024).describe("`next` of the previous response, to continue."))),
    ])
    .describe("The subject of the erasure: exactly one of `user_id` and `guild_id`.")
}

fn erased_schema() -> utoipa::openapi::schema::ObjectBuilder {
    let retained = object([
        required("what", text().describe("What stays.")),
        optional("count", count().describe("How many rows, where they are counted.")),
        required("why", text().describe("Why it stays, and what to do.")),
    ]);
    object([
        required(
            "removed",
            any_object()
                .additional_properties(Some(AdditionalProperties::from(count())))
                .describe("Number of removed rows, by kind."),
        ),
        required("kept", list(retained)),
        required("done", boolean().describe("Whether every table was examined.")),
        required("next", or_null(text().describe("What to send as `next` to continue; `null` at the end."))),
    ])
}

fn erase() -> RouteDoc {
    RouteDoc::new(Tag::Keys, "erase", "Erase the data of a user or a guild")
        .description(
            "Removes finished operations, dead letters, dead events, results and state entries that contain the id, \
             and for a guild also its managed objects and known channels. The response says what stays and why. A \
             request examines rows for at most five seconds: send it again with `next` until `done` is `true`.",
        )
        .required_body(schema_ref("Erase"), [("a user", json!({"user_id": "80351110224678912"}))])
        .responses(
            200,
            "What was removed and what stays.",
            schema_ref("Erased"),
            [(
                "erased",
                json!({"removed": {"operations": 3}, "kept": [{"what": "audit", "why": "changes must stay traceable; \
                    rows expire after retention.audit_ms"}],
                    "done": true, "next": null}),
            )],
        )
}
