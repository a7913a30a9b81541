//! Creates, lists, rotates and revokes API keys.

use std::{sync::Arc, time::Duration};

use actix_web::{HttpRequest, HttpResponse, http::header::LOCATION, web::Data};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use guildhall_actors::access::{AuditAction, DEFAULT_TENANT};
use guildhall_actors::ports::{AddKeyResult, ApiKey, KeyFilter, NewApiKey, RevokeResult, RotateResult};
use guildhall_core::{
    access::{Grant, KeyId, ParsedKey, Scope},
    time::UnixMs,
};
use serde_json::{Value, json};

use crate::api::app_state::AppState;
use crate::api::params::Params;
use crate::api::{dto, errors, middleware, params};
use crate::{
    api::{
        keyring,
        problem::{ProblemResponse, ProblemType},
    },
    random,
};

type HandlerResult = Result<HttpResponse, ProblemResponse>;

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

/// The properties of a new key.
struct KeyRequest {
    name: String,
    tenant: Arc<str>,
    grant: Grant,
    lifetime: Option<Duration>,
}

pub(crate) async fn create(request: HttpRequest, app: Data<AppState>) -> HandlerResult {
    let requested = parse_request(&request)?;
    let now = app.now();
    let (id, secret) = generate()?;
    let new = NewApiKey {
        id,
        tenant: requested.tenant,
        name: requested.name,
        digest: keyring::digest(&secret),
        grant: requested.grant,
        created_at: now,
        expires_at: requested.lifetime.map(|lifetime| now + lifetime),
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

pub(crate) async fn rotate(request: HttpRequest, app: Data<AppState>) -> HandlerResult {
    let old = key_id(&request)?;
    let mut params = Params::optional_body(&request)?;
    let overlap = params.number("overlap_s", 0, MAX_OVERLAP).unwrap_or(DEFAULT_OVERLAP);
    params.finish()?;
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

pub(crate) async fn revoke(request: HttpRequest, app: Data<AppState>) -> HandlerResult {
    let id = key_id(&request)?;
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

pub(crate) async fn show(request: HttpRequest, app: Data<AppState>) -> HandlerResult {
    let id = key_id(&request)?;
    let found = app.with_keys(&request, move |keys| async move { keys.key(id).await }).await?;
    let found = found.map_err(|error| errors::store_problem(&error))?.ok_or_else(|| no_key(id))?;
    Ok(HttpResponse::Ok().json(key_json(&found, app.now())))
}

pub(crate) async fn list(request: HttpRequest, app: Data<AppState>) -> HandlerResult {
    let mut params = Params::query(&request);
    let (limit, before) = (params.limit(), params.key_cursor());
    let tenant = params.text("tenant", MAX_TENANT_LEN).map(Arc::from);
    params.finish()?;
    // One more shows whether another page follows.
    let filter = KeyFilter { tenant, before, limit: limit + 1 };
    let listed = app.with_keys(&request, |keys| async move { keys.keys(filter).await }).await?;
    let mut listed = listed.map_err(|error| errors::store_problem(&error))?;
    let more = listed.len() > limit;
    listed.truncate(limit);
    let next = listed.last().filter(|_| more).map(|key| params::key_cursor(key.key.created_at, key.key.id));
    let keys: Vec<_> = listed.iter().map(|key| key_json(key, app.now())).collect();
    Ok(HttpResponse::Ok().json(json!({ "keys": keys, "next": next })))
}

fn parse_request(request: &HttpRequest) -> Result<KeyRequest, ProblemResponse> {
    let Value::Object(mut fields) = params::json(request)? else {
        return Err(ProblemType::BadRequest.with_detail(
            "The request body must be a JSON object: {\"name\": …, \"scopes\": \
            […]}.",
        ));
    };
    let mut errors: Vec<(String, String)> = Vec::new();
    let mut add_error = |field: &str, message: String| errors.push((field.to_owned(), message));
    let name = fields.remove("name").unwrap_or_default();
    let name = name
        .as_str()
        .map(str::trim)
        .filter(|name| (1..=MAX_NAME_LEN).contains(&name.chars().count()) && !name.chars().any(char::is_control));
    if name.is_none() {
        add_error("name", format!("must be a string of 1 to {MAX_NAME_LEN} characters that says what the key is for"));
    }
    let tenant = fields.remove("tenant").unwrap_or_else(|| DEFAULT_TENANT.into());
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '_');
    let tenant = tenant.as_str().filter(|name| (1..=MAX_TENANT_LEN).contains(&name.len()) && name.chars().all(plain));
    if tenant.is_none() {
        add_error("tenant", format!("must be 1 to {MAX_TENANT_LEN} lowercase letters, digits, `-` and `_`"));
    }
    let scopes = fields.remove("scopes").unwrap_or_default();
    let scopes: Option<Vec<&str>> = scopes.as_array().and_then(|scopes| scopes.iter().map(Value::as_str).collect());
    let grant = match scopes.map(Grant::read) {
        Some(Ok(grant)) => Some(grant),
        Some(Err(found)) => {
            found.iter().for_each(|error| add_error("scopes", error.to_string()));
            None
        }
        None => {
            add_error("scopes", "must be a list of strings, such as [\"operations:write\", \"guild:42\"]".to_owned());
            None
        }
    };
    let lifetime = fields.remove("expires_in_s").unwrap_or_default();
    let seconds = lifetime.as_u64().filter(|seconds| (1..=MAX_LIFETIME).contains(seconds));
    if seconds.is_none() && !lifetime.is_null() {
        add_error("expires_in_s", format!("must be a whole number of seconds from 1 to {MAX_LIFETIME}, or omitted"));
    }
    if let (Some(tenant), Some(grant)) = (tenant, &grant)
        && tenant != DEFAULT_TENANT
        && let Some(scope) =
            Scope::ALL.into_iter().find(|scope| scope.applies_to_all_guilds() && grant.has_scope(*scope))
    {
        add_error(
            "scopes",
            format!("{} affects all tenants, and is permitted for the tenant {DEFAULT_TENANT} only", scope.name()),
        );
    }
    for other in fields.keys().take(10) {
        let displayed: String = other.chars().take(64).collect();
        add_error(&displayed, "is unknown; expected one of: name, scopes, tenant, expires_in_s".to_owned());
    }
    match (name, tenant, grant) {
        (Some(name), Some(tenant), Some(grant)) if errors.is_empty() => Ok(KeyRequest {
            name: name.to_owned(),
            tenant: Arc::from(tenant),
            grant,
            lifetime: seconds.map(Duration::from_secs),
        }),
        _ => {
            let details: Vec<_> = errors.iter().map(|(name, message)| format!("{name} {message}")).collect();
            Err(ProblemType::BadRequest.with_detail(format!("{}.", details.join("; "))).errors(errors))
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
    let mut body = key_json(&key, new.created_at);
    body["key"] = ParsedKey { id: new.id, secret }.write().into();
    HttpResponse::Created()
        .insert_header((LOCATION, format!("/v1/keys/{}", new.id)))
        .insert_header(("Cache-Control", "no-store"))
        .json(body)
}

fn key_json(key: &ApiKey, now: UnixMs) -> Value {
    let at = |at: Option<UnixMs>| at.map_or(Value::Null, dto::time);
    json!({
        "id": key.key.id.as_str(),
        "name": key.key.name,
        "tenant": &*key.key.tenant,
        "scopes": key.key.grant.names(),
        "active": key.is_valid(now),
        "created_at": dto::time(key.key.created_at),
        "expires_at": at(key.key.expires_at),
        "revoked_at": at(key.revoked_at),
        "rotated_to": key.rotated_to.map(|id| id.to_string()),
    })
}

fn key_id(request: &HttpRequest) -> Result<KeyId, ProblemResponse> {
    params::path_parameter(request, "id")?
        .parse()
        .map_err(|error: guildhall_core::access::ParseKeyIdError| params::parameter("id", error.to_string()))
}

fn no_key(id: KeyId) -> ProblemResponse {
    ProblemType::NotFound.with_detail(format!("Key {id} does not exist."))
}
