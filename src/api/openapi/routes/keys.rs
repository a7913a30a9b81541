//! Keys, and who changed what.

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

pub(super) fn about(method: &str, path: &str) -> Option<RouteDoc> {
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

/// The longest that a key may be good for, if it is to end: ten years.
const LASTS_MOST: u64 = 10 * 366 * 24 * 60 * 60;
/// The longest that a key that was replaced may still be good: thirty days.
const OVERLAP_MOST: u64 = 30 * 24 * 60 * 60;
/// A tenant's name.
const TENANT: &str = "^[a-z0-9_-]+$";
/// A guild among scopes.
const GUILD: &str = "^guild:[1-9][0-9]{0,18}$";

fn tenant() -> utoipa::openapi::schema::ObjectBuilder {
    text_of(1, 64).pattern(Some(TENANT))
}

fn key() -> Vec<Field> {
    vec![
        must("id", named("KeyId")),
        must("name", text().says("What it is for.")),
        must("tenant", text().says("Whose it is.")),
        must("scopes", list(named("Scope"))),
        must("active", truth().says("Whether it is good now.")),
        must("created_at", time()),
        must("expires_at", or_null(time())),
        must("revoked_at", or_null(time())),
        must("rotated_to", or_null(named("KeyId").says("The key that takes its place."))),
    ]
}

/// Every schema of this file, by its name.
pub(super) fn schemas() -> Vec<(&'static str, SchemaRef)> {
    let scopes = one_of_names(Scope::ALL.map(Scope::name));
    let guild = text().pattern(Some(GUILD)).says("For this guild alone, and others that are named like it.");
    let scope = any_of([scopes.into(), guild.into()])
        .says("What a key is good for. `write` holds `read`; `admin` holds everything.");
    let secret = must("key", text().says("The key itself. **This is the only time that it is shown.**"));
    let new = closed([
        must("name", text_of(1, 100).says("What the key is for. No control characters.")),
        must(
            "scopes",
            list(named("Scope")).min_items(Some(1)).says("What it is good for: at least one that is no guild."),
        ),
        may("tenant", tenant().default(Some("default".into())).says("Whose it is.")),
        may(
            "expires_in_s",
            or_null(integer(1, LASTS_MOST).says("For how many seconds it is good; for good if this is left out.")),
        ),
    ]);
    let rotate = closed([may(
        "overlap_s",
        or_null(
            integer(0, OVERLAP_MOST)
                .default(Some(3_600.into()))
                .says("For how many seconds the old one is still good."),
        ),
    )]);
    let row = object([
        must("place", text().pattern(Some(PLACE)).says("What it goes by here.")),
        must("at", time()),
        must("tenant", text()),
        must("key", text().says("The id of the key; `admin` for the one in the settings.")),
        must("action", one_of_names(AuditAction::ALL.map(AuditAction::name))),
        must("guild_id", or_null(snowflake())),
        must("target", or_null(text().says("What it was done to."))),
        must("detail", or_null(text())),
        must("request_id", text().says("`X-Request-Id` of the request.")),
    ]);
    let before =
        or_null(text().pattern(Some(PLACE)).says("What `before` has to be for those that follow; `null` at the end."));
    vec![
        ("Scope", scope.into()),
        ("Key", object(key()).says("A key, but for its secret.").into()),
        ("MadeKey", object(key().into_iter().chain([secret])).says("A key that was just made.").into()),
        ("KeyPage", object([must("keys", list(named("Key"))), must("next", next())]).into()),
        ("NewKey", new.into()),
        ("RotateKey", rotate.into()),
        ("AuditRow", row.says("Something that was changed, or refused.").into()),
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
    RouteDoc::new(Tag::Keys, "list_keys", "List keys")
        .says("The newest first, those that are over among them. Their secrets are not kept, and so not shown.")
        .query("tenant", text_of(1, 64), "Those of this tenant.")
        .paged()
        .answers(200, "A page of them.", named("KeyPage"), [("page", json!({"keys": [a_key()], "next": null}))])
}

fn create() -> RouteDoc {
    RouteDoc::new(Tag::Keys, "create_key", "Make a key")
        .says(
            "What concerns all guilds at once (`events`, `state`, `fleet`, `budgets`, `application`, `admin`) does not go with \
             `guild:<id>`, and is for the tenant `default` alone. A guild belongs to the tenant whose key named it first.",
        )
        .takes(
            named("NewKey"),
            [(
                "for one guild, for a month",
                json!({"name": "the shop", "scopes": ["operations:write", format!("guild:{A_GUILD}")], "expires_in_s": 2_592_000}),
            )],
        )
        .answers(201, "The key, once.", named("MadeKey"), [("key", a_made_key())])
        .with(ResponseHeader::Location)
        .with(ResponseHeader::NoStore)
        .refuses(ProblemType::Conflict)
}

fn show() -> RouteDoc {
    RouteDoc::new(Tag::Keys, "show_key", "Show a key").path("id", named("KeyId"), "The key.").answers(
        200,
        "The key, but for its secret.",
        named("Key"),
        [("key", a_key())],
    )
}

fn revoke() -> RouteDoc {
    RouteDoc::new(Tag::Keys, "revoke_key", "Take a key back")
        .says("Within two seconds no process lets it in. Twice is as good as once.")
        .path("id", named("KeyId"), "The key.")
        .answers_nothing(204, "It is good no more.")
}

fn rotate() -> RouteDoc {
    RouteDoc::new(Tag::Keys, "rotate_key", "Put another key in the place of one")
        .says("The new one is like the old one, but begins with idempotency keys of its own.")
        .path("id", named("KeyId"), "The old key.")
        .may_take(named("RotateKey"), [("the old one ends at once", json!({"overlap_s": 0}))])
        .answers(201, "The new key, once.", named("MadeKey"), [("key", a_made_key())])
        .with(ResponseHeader::Location)
        .with(ResponseHeader::NoStore)
        .refuses(ProblemType::Conflict)
}

fn audit() -> RouteDoc {
    let row = json!({
        "place": "12", "at": A_TIME, "tenant": "default", "key": "admin", "action": "keys.create", "guild_id": null,
        "target": "k7mq2vx9apzd", "detail": "operations:write", "request_id": "deploy-42.1",
    });
    RouteDoc::new(Tag::Keys, "list_audit", "List who changed what")
        .says(
            "The newest first. Every change leaves one row; what a key was refused leaves one, too, ten times a minute for each key \
             at most. Rows are kept for `retention.audit_ms`.",
        )
        .query("key", text_of(1, 64), "What was done with this key.")
        .query("action", one_of_names(AuditAction::ALL.map(AuditAction::name)), "What was done.")
        .query("guild_id", snowflake(), "In this guild.")
        .query("before", text().pattern(Some(PLACE)), "`next` of the answer before.")
        .limited()
        .answers(200, "A page of them.", named("AuditPage"), [("page", json!({"audit": [row], "next": null}))])
}

fn erase_schema() -> utoipa::openapi::schema::ObjectBuilder {
    closed([
        may("user_id", snowflake()),
        may("guild_id", snowflake()),
        may("next", or_null(text_of(1, 1_024).says("`next` of the previous response, to continue."))),
    ])
    .says("Whose data is erased: exactly one of `user_id` and `guild_id`.")
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
                .says("How many rows were removed, by what they hold."),
        ),
        must("kept", list(kept)),
        must("done", truth().says("Whether every table was examined.")),
        must("next", or_null(text().says("What to send as `next` to continue; `null` at the end."))),
    ])
}

fn erase() -> RouteDoc {
    RouteDoc::new(Tag::Keys, "erase", "Erase what is stored about a user or a guild")
        .says(
            "Removes finished operations, dead letters, dead events, results and state entries that contain the id, and for a \
             guild also its managed objects and known channels. The response says what stays and why. A request examines rows \
             for five seconds at most: send it again with `next` until `done`.",
        )
        .takes(named("Erase"), [("a user", json!({"user_id": "80351110224678912"}))])
        .answers(
            200,
            "What was removed and what stays.",
            named("Erased"),
            [(
                "erased",
                json!({"removed": {"operations": 3}, "kept": [{"what": "audit", "why": "who changed what must stay provable"}],
                    "done": true, "next": null}),
            )],
        )
}
