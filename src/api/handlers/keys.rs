//! Creates, lists, rotates and revokes API keys.

use std::{sync::Arc, time::Duration};

use actix_web::{HttpRequest, HttpResponse, http::header::LOCATION, web::Json};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use guildhall_actors::access::{AuditAction, DEFAULT_TENANT};
use guildhall_actors::ports::{AddKeyResult, ApiKey, KeyFilter, NewApiKey, RevokeResult, RotateResult};
use guildhall_core::{
    access::{Grant, KeyId, ParsedKey, Scope},
    time::UnixMs,
};
use serde_json::{Value, json};

use super::page;
use crate::{
    api::{
        cursor,
        dto::{CreatedKey, Key, KeyPage},
        errors,
        extract::{App, Body, HandlerResult, JsonResult, OptionalBody, Path, Query},
        fields::{self, Field as _, field_error, fields},
        keyring, middleware,
        openapi::{
            common::{A_GUILD, A_TIME},
            headers::ResponseHeader,
            route_doc::{RouteDoc, Tag},
            schema::{self, integer, schema_ref, text_of},
        },
        problem::{ProblemResponse, ProblemType},
    },
    random,
};

/// Maximum length of a name, in characters.
const MAX_NAME_LEN: usize = 100;
/// Maximum length of a tenant's name.
const MAX_TENANT_LEN: usize = 64;
/// Maximum lifetime of a key that expires: ten years, in seconds.
const MAX_LIFETIME: u64 = 10 * 366 * 24 * 60 * 60;
/// How long a rotated key stays valid by default, in seconds.
const DEFAULT_OVERLAP: u64 = 60 * 60;
/// The maximum of that.
const MAX_OVERLAP: u64 = 30 * 24 * 60 * 60;

fields! {
    struct NewKey {
        /// What the key is for. No control characters.
        name: String = fields::json(read_name, || text_of(1, MAX_NAME_LEN)),
        /// The tenant of the key.
        tenant: String =
            fields::json(read_tenant, || text_of(1, MAX_TENANT_LEN).pattern(Some("^[a-z0-9_-]+$"))).or(DEFAULT_TENANT.to_owned()),
        /// Permissions of the key: at least one that is not a guild.
        scopes: Grant = fields::json(read_scopes, || schema::list(schema_ref("Scope")).min_items(Some(1))),
        /// Lifetime in seconds; without it the key does not expire.
        expires_in_s: Option<u64> = fields::json(read_lifetime, || integer(1, MAX_LIFETIME)).optional(),
    }

    struct RotateKey {
        /// How many seconds the old key stays valid.
        overlap_s: u64 = fields::integer(0..=MAX_OVERLAP).or(DEFAULT_OVERLAP),
    }

    struct KeyQuery {
        /// Filter by tenant.
        tenant: Option<String> = fields::text(MAX_TENANT_LEN).optional(),
        /// Maximum number of entries.
        limit: usize = fields::page_size(),
        /// `next` of the previous response.
        cursor: Option<(UnixMs, KeyId)> = fields::cursor(cursor::read_key).optional(),
    }
}

fn read_name(given: &Value) -> Result<String, Vec<String>> {
    let name = given.as_str().map(str::trim);
    let name =
        name.filter(|name| (1..=MAX_NAME_LEN).contains(&name.chars().count()) && !name.chars().any(char::is_control));
    name.map(str::to_owned).ok_or_else(|| {
        vec![format!("must be a string of 1 to {MAX_NAME_LEN} characters that says what the key is for")]
    })
}

fn read_tenant(given: &Value) -> Result<String, Vec<String>> {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '_');
    match given {
        Value::String(name) if (1..=MAX_TENANT_LEN).contains(&name.len()) && name.chars().all(plain) => {
            Ok(name.clone())
        }
        _ => Err(vec![format!("must be 1 to {MAX_TENANT_LEN} lowercase letters, digits, `-` and `_`")]),
    }
}

fn read_scopes(given: &Value) -> Result<Grant, Vec<String>> {
    let scopes: Option<Vec<&str>> = given.as_array().and_then(|scopes| scopes.iter().map(Value::as_str).collect());
    match scopes.map(Grant::read) {
        Some(Ok(grant)) => Ok(grant),
        Some(Err(found)) => Err(found.iter().map(ToString::to_string).collect()),
        None => Err(vec!["must be a list of strings, such as [\"operations:write\", \"guild:42\"]".to_owned()]),
    }
}

fn read_lifetime(given: &Value) -> Result<u64, Vec<String>> {
    let seconds = given.as_u64().filter(|seconds| (1..=MAX_LIFETIME).contains(seconds));
    seconds.ok_or_else(|| vec![format!("must be a whole number of seconds from 1 to {MAX_LIFETIME}, or omitted")])
}

fn example() -> Value {
    json!({
        "id": "k7mq2vx9apzd", "name": "the shop", "tenant": "default",
        "scopes": ["operations:write", format!("guild:{A_GUILD}")], "active": true, "created_at": A_TIME,
        "expires_at": null, "revoked_at": null, "rotated_to": null,
    })
}

/// What the responses with a new key have in common.
fn with_new_key(doc: RouteDoc, description: &'static str) -> RouteDoc {
    let mut made = example();
    made["key"] = "gh_k7mq2vx9apzd_…".into();
    doc.response_of::<CreatedKey>(201, description, [("key", made)])
        .headers([ResponseHeader::Location, ResponseHeader::NoStore])
        .problem(ProblemType::Conflict)
}

pub(crate) fn create_doc() -> RouteDoc {
    let doc = RouteDoc::new(Tag::Keys, "create_key", "Create an API key")
        .description(
            "Scopes that affect all guilds (`events`, `state`, `fleet`, `budgets`, `application`, `admin`) cannot be \
             combined with `guild:<id>`, and are permitted for the tenant `default` only. A guild belongs to the \
             tenant whose key named it first.",
        )
        .body_example(
            "for one guild, for a month",
            json!({"name": "the shop", "scopes": ["operations:write", format!("guild:{A_GUILD}")], "expires_in_s": 2_592_000}),
        );
    with_new_key(doc, "The key; its secret is shown only here.")
}

pub(crate) async fn create(request: HttpRequest, Body(body): Body<NewKey>, app: App) -> HandlerResult {
    check_tenant(&body)?;
    let now = app.now();
    let (id, secret) = generate()?;
    let new = NewApiKey {
        id,
        tenant: body.tenant.into(),
        name: body.name,
        digest: keyring::digest(&secret),
        grant: body.scopes,
        created_at: now,
        expires_at: body.expires_in_s.map(|lifetime| now + Duration::from_secs(lifetime)),
    };
    let note = middleware::caller_of(&request).audit_record(AuditAction::KeysCreate, now).with_tenant(&new.tenant);
    let note = note.with_target(&id).with_detail(new.grant.names().join(" "));
    let key = new.clone();
    let added = app.with_keys(&request, |keys| async move { keys.add_key(key, note).await }).await?;
    match added.map_err(|error| errors::store_problem(&error))? {
        AddKeyResult::Done => {
            app.control.lookup.on_key_created(id);
            Ok(created_response(&new, &secret))
        }
        AddKeyResult::GuildTaken(guild) => Err(ProblemType::Conflict
            .with_detail(format!("Guild {guild} belongs to another tenant; a guild belongs to one tenant only."))
            .errors([("scopes".to_owned(), format!("guild:{guild} belongs to another tenant"))])),
    }
}

pub(crate) fn rotate_doc() -> RouteDoc {
    let doc = RouteDoc::new(Tag::Keys, "rotate_key", "Rotate an API key")
        .description("The new key has the properties of the old one, but idempotency keys of its own.")
        .body_example("the old key expires at once", json!({"overlap_s": 0}));
    with_new_key(doc, "The new key; its secret is shown only here.")
}

pub(crate) async fn rotate(
    request: HttpRequest,
    Path(old): Path<KeyId>,
    OptionalBody(RotateKey { overlap_s: overlap }): OptionalBody<RotateKey>,
    app: App,
) -> HandlerResult {
    let now = app.now();
    let found = app.with_keys(&request, move |keys| async move { keys.key(old).await }).await?;
    let found = found.map_err(|error| errors::store_problem(&error))?.ok_or_else(|| no_key(old))?;
    let (id, secret) = generate()?;
    let new = NewApiKey { id, digest: keyring::digest(&secret), created_at: now, ..found.key };
    let note = middleware::caller_of(&request)
        .audit_record(AuditAction::KeysRotate, now)
        .with_tenant(&new.tenant)
        .with_target(&old)
        .with_detail(format!("now {id}"));
    let (new_key, until) = (new.clone(), now + Duration::from_secs(overlap));
    let rotated =
        app.with_keys(&request, move |keys| async move { keys.rotate_key(old, new_key, until, note).await }).await?;
    match rotated.map_err(|error| errors::store_problem(&error))? {
        RotateResult::Done => {
            app.control.lookup.on_key_created(id);
            Ok(created_response(&new, &secret))
        }
        RotateResult::Unknown => Err(no_key(old)),
        RotateResult::NotValid => Err(ProblemType::Conflict.with_detail(format!(
            "Key {old} has expired, or was revoked or rotated before; create a \
                new key instead."
        ))),
    }
}

pub(crate) fn revoke_doc() -> RouteDoc {
    RouteDoc::new(Tag::Keys, "revoke_key", "Revoke an API key")
        .description("Within two seconds all processes reject the key. Idempotent.")
        .empty_response(204, "The key is revoked.")
}

pub(crate) async fn revoke(request: HttpRequest, Path(id): Path<KeyId>, app: App) -> HandlerResult {
    let found = app.with_keys(&request, move |keys| async move { keys.key(id).await }).await?;
    let found = found.map_err(|error| errors::store_problem(&error))?.ok_or_else(|| no_key(id))?;
    let note = middleware::caller_of(&request)
        .audit_record(AuditAction::KeysRevoke, app.now())
        .with_tenant(&found.key.tenant)
        .with_target(&id);
    let revoked = app.with_keys(&request, move |keys| async move { keys.revoke_key(id, note).await }).await?;
    match revoked.map_err(|error| errors::store_problem(&error))? {
        RevokeResult::Revoked | RevokeResult::AlreadyRevoked => Ok(HttpResponse::NoContent().finish()),
        RevokeResult::Unknown => Err(no_key(id)),
    }
}

pub(crate) fn show_doc() -> RouteDoc {
    RouteDoc::new(Tag::Keys, "show_key", "Show an API key").response(
        200,
        "The key without its secret.",
        [("key", example())],
    )
}

pub(crate) async fn show(request: HttpRequest, Path(id): Path<KeyId>, app: App) -> JsonResult<Key> {
    let found = app.with_keys(&request, move |keys| async move { keys.key(id).await }).await?;
    let found = found.map_err(|error| errors::store_problem(&error))?.ok_or_else(|| no_key(id))?;
    Ok(Json(Key::new(&found, app.now())))
}

pub(crate) fn list_doc() -> RouteDoc {
    RouteDoc::new(Tag::Keys, "list_keys", "List API keys")
        .description(
            "The newest first, including those that are no longer valid. Their secrets are not stored, and so not \
            shown.",
        )
        .response(200, "A page of keys.", [("page", json!({"keys": [example()], "next": null}))])
}

pub(crate) async fn list(
    request: HttpRequest,
    Query(KeyQuery { tenant, limit, cursor: before }): Query<KeyQuery>,
    app: App,
) -> JsonResult<KeyPage> {
    // One more shows whether another page follows.
    let filter = KeyFilter { tenant: tenant.map(Arc::from), before, limit: limit + 1 };
    let listed = app.with_keys(&request, |keys| async move { keys.keys(filter).await }).await?;
    let listed = listed.map_err(|error| errors::store_problem(&error))?;
    let (listed, next) = page(listed, limit, |key| cursor::of_key(key.key.created_at, key.key.id));
    Ok(Json(KeyPage { keys: listed.iter().map(|key| Key::new(key, app.now())).collect(), next }))
}

/// Checks that the scopes are permitted for the tenant.
fn check_tenant(body: &NewKey) -> Result<(), ProblemResponse> {
    let scope = Scope::ALL.into_iter().find(|scope| scope.applies_to_all_guilds() && body.scopes.has_scope(*scope));
    match scope.filter(|_| body.tenant != DEFAULT_TENANT) {
        None => Ok(()),
        Some(scope) => {
            let scope = scope.name();
            let message = format!("{scope} affects all tenants, and is permitted for the tenant {DEFAULT_TENANT} only");
            Err(field_error("scopes", message))
        }
    }
}

/// Generates an id and a secret.
fn generate() -> Result<(KeyId, String), ProblemResponse> {
    let no_chance =
        |_| ProblemType::Internal.with_detail("The system provides no random bytes, so no key can be created.");
    let id = u128::from_le_bytes(random::bytes().map_err(no_chance)?);
    let secret: [u8; 32] = random::bytes().map_err(no_chance)?;
    Ok((KeyId::from_random(id), URL_SAFE_NO_PAD.encode(secret)))
}

/// The only response that contains the key itself.
fn created_response(new: &NewApiKey, secret: &str) -> HttpResponse {
    let key = ApiKey { key: new.clone(), revoked_at: None, rotated_to: None };
    let body = CreatedKey { about: Key::new(&key, new.created_at), key: ParsedKey { id: new.id, secret }.write() };
    HttpResponse::Created()
        .insert_header((LOCATION, format!("/v1/keys/{}", new.id)))
        .insert_header(("Cache-Control", "no-store"))
        .json(body)
}

fn no_key(id: KeyId) -> ProblemResponse {
    ProblemType::NotFound.with_detail(format!("Key {id} does not exist."))
}
