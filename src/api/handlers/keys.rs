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
const NAME_MOST: usize = 100;
/// Maximum length of a tenant's name.
const TENANT_MOST: usize = 64;
/// Maximum lifetime of a key that expires: ten years, in seconds.
const LASTS_MOST: u64 = 10 * 366 * 24 * 60 * 60;
/// How long a rotated key stays valid by default, in seconds.
const OVERLAP: u64 = 60 * 60;
/// The maximum of that.
const OVERLAP_MOST: u64 = 30 * 24 * 60 * 60;

/// The properties of a new key.
struct KeyRequest {
    name: String,
    tenant: Arc<str>,
    grant: Grant,
    lasts: Option<Duration>,
}

pub(crate) async fn create(request: HttpRequest, served: Data<AppState>) -> HandlerResult {
    let wanted = wanted(&request)?;
    let now = served.now();
    let (id, secret) = make()?;
    let new = NewApiKey {
        id,
        tenant: wanted.tenant,
        name: wanted.name,
        digest: keyring::digest(&secret),
        grant: wanted.grant,
        created_at: now,
        expires_at: wanted.lasts.map(|lasts| now + lasts),
    };
    let note = middleware::caller_of(&request).note(AuditAction::KeysCreate, now).of(&new.tenant);
    let note = note.on(&id).saying(new.grant.names().join(" "));
    let kept = new.clone();
    let added = served.ask_keys(&request, |keys| async move { keys.add_key(kept, note).await }).await?;
    match added.map_err(|error| errors::of_store(&error))? {
        AddKeyResult::Done => {
            served.control.lookup.created(id);
            Ok(given(&new, &secret))
        }
        AddKeyResult::GuildTaken(guild) => Err(ProblemType::Conflict
            .says(format!("Guild {guild} belongs to another tenant; a guild belongs to one tenant only."))
            .errors([("scopes".to_owned(), format!("guild:{guild} belongs to another tenant"))])),
    }
}

pub(crate) async fn rotate(request: HttpRequest, served: Data<AppState>) -> HandlerResult {
    let old = key_id(&request)?;
    let mut asking = Params::optional_body(&request)?;
    let overlap = asking.number("overlap_s", 0, OVERLAP_MOST).unwrap_or(OVERLAP);
    asking.end()?;
    let now = served.now();
    let found = served.ask_keys(&request, move |keys| async move { keys.key(old).await }).await?;
    let found = found.map_err(|error| errors::of_store(&error))?.ok_or_else(|| no_key(old))?;
    let (id, secret) = make()?;
    let new = NewApiKey { id, digest: keyring::digest(&secret), created_at: now, ..found.made };
    let note = middleware::caller_of(&request)
        .note(AuditAction::KeysRotate, now)
        .of(&new.tenant)
        .on(&old)
        .saying(format!("now {id}"));
    let (kept, until) = (new.clone(), now + Duration::from_secs(overlap));
    let rotated =
        served.ask_keys(&request, move |keys| async move { keys.rotate_key(old, kept, until, note).await }).await?;
    match rotated.map_err(|error| errors::of_store(&error))? {
        RotateResult::Done => {
            served.control.lookup.created(id);
            Ok(given(&new, &secret))
        }
        RotateResult::Unknown => Err(no_key(old)),
        RotateResult::Over => Err(ProblemType::Conflict.says(format!(
            "Key {old} has expired, or was revoked or rotated before; create a \
                new key instead."
        ))),
    }
}

pub(crate) async fn revoke(request: HttpRequest, served: Data<AppState>) -> HandlerResult {
    let id = key_id(&request)?;
    let found = served.ask_keys(&request, move |keys| async move { keys.key(id).await }).await?;
    let found = found.map_err(|error| errors::of_store(&error))?.ok_or_else(|| no_key(id))?;
    let note =
        middleware::caller_of(&request).note(AuditAction::KeysRevoke, served.now()).of(&found.made.tenant).on(&id);
    let revoked = served.ask_keys(&request, move |keys| async move { keys.revoke_key(id, note).await }).await?;
    match revoked.map_err(|error| errors::of_store(&error))? {
        RevokeResult::Now | RevokeResult::Before => Ok(HttpResponse::NoContent().finish()),
        RevokeResult::Unknown => Err(no_key(id)),
    }
}

pub(crate) async fn show(request: HttpRequest, served: Data<AppState>) -> HandlerResult {
    let id = key_id(&request)?;
    let found = served.ask_keys(&request, move |keys| async move { keys.key(id).await }).await?;
    let found = found.map_err(|error| errors::of_store(&error))?.ok_or_else(|| no_key(id))?;
    Ok(HttpResponse::Ok().json(shown(&found, served.now())))
}

pub(crate) async fn list(request: HttpRequest, served: Data<AppState>) -> HandlerResult {
    let mut asking = Params::query(&request);
    let (limit, before) = (asking.limit(), asking.key_cursor());
    let tenant = asking.text("tenant", TENANT_MOST).map(Arc::from);
    asking.end()?;
    // One more shows whether another page follows.
    let filter = KeyFilter { tenant, before, limit: limit + 1 };
    let listed = served.ask_keys(&request, |keys| async move { keys.keys(filter).await }).await?;
    let mut listed = listed.map_err(|error| errors::of_store(&error))?;
    let more = listed.len() > limit;
    listed.truncate(limit);
    let next = listed.last().filter(|_| more).map(|key| params::key_cursor(key.made.created_at, key.made.id));
    let keys: Vec<_> = listed.iter().map(|key| shown(key, served.now())).collect();
    Ok(HttpResponse::Ok().json(json!({ "keys": keys, "next": next })))
}

fn wanted(request: &HttpRequest) -> Result<KeyRequest, ProblemResponse> {
    let Value::Object(mut fields) = params::json(request)? else {
        return Err(ProblemType::BadRequest.says(
            "The request body must be a JSON object: {\"name\": …, \"scopes\": \
            […]}.",
        ));
    };
    let mut errors: Vec<(String, String)> = Vec::new();
    let mut wrong = |field: &str, message: String| errors.push((field.to_owned(), message));
    let name = fields.remove("name").unwrap_or_default();
    let name = name
        .as_str()
        .map(str::trim)
        .filter(|name| (1..=NAME_MOST).contains(&name.chars().count()) && !name.chars().any(char::is_control));
    if name.is_none() {
        wrong("name", format!("must be a string of 1 to {NAME_MOST} characters that says what the key is for"));
    }
    let tenant = fields.remove("tenant").unwrap_or_else(|| DEFAULT_TENANT.into());
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '_');
    let tenant = tenant.as_str().filter(|name| (1..=TENANT_MOST).contains(&name.len()) && name.chars().all(plain));
    if tenant.is_none() {
        wrong("tenant", format!("must be 1 to {TENANT_MOST} lowercase letters, digits, `-` and `_`"));
    }
    let scopes = fields.remove("scopes").unwrap_or_default();
    let scopes: Option<Vec<&str>> = scopes.as_array().and_then(|scopes| scopes.iter().map(Value::as_str).collect());
    let grant = match scopes.map(Grant::read) {
        Some(Ok(grant)) => Some(grant),
        Some(Err(found)) => {
            found.iter().for_each(|error| wrong("scopes", error.to_string()));
            None
        }
        None => {
            wrong("scopes", "must be a list of strings, such as [\"operations:write\", \"guild:42\"]".to_owned());
            None
        }
    };
    let lasts = fields.remove("expires_in_s").unwrap_or_default();
    let seconds = lasts.as_u64().filter(|seconds| (1..=LASTS_MOST).contains(seconds));
    if seconds.is_none() && !lasts.is_null() {
        wrong("expires_in_s", format!("must be a whole number of seconds from 1 to {LASTS_MOST}, or omitted"));
    }
    if let (Some(tenant), Some(grant)) = (tenant, &grant)
        && tenant != DEFAULT_TENANT
        && let Some(scope) = Scope::ALL.into_iter().find(|scope| scope.is_everywhere() && grant.may(*scope))
    {
        wrong(
            "scopes",
            format!("{} affects all tenants, and is permitted for the tenant {DEFAULT_TENANT} only", scope.name()),
        );
    }
    for other in fields.keys().take(10) {
        let shown: String = other.chars().take(64).collect();
        wrong(&shown, "is unknown; expected one of: name, scopes, tenant, expires_in_s".to_owned());
    }
    match (name, tenant, grant) {
        (Some(name), Some(tenant), Some(grant)) if errors.is_empty() => Ok(KeyRequest {
            name: name.to_owned(),
            tenant: Arc::from(tenant),
            grant,
            lasts: seconds.map(Duration::from_secs),
        }),
        _ => {
            let said: Vec<_> = errors.iter().map(|(name, message)| format!("{name} {message}")).collect();
            Err(ProblemType::BadRequest.says(format!("{}.", said.join("; "))).errors(errors))
        }
    }
}

/// Generates an id and a secret.
fn make() -> Result<(KeyId, String), ProblemResponse> {
    let no_chance = |_| ProblemType::Internal.says("The system provides no random bytes, so no key can be created.");
    let id = u128::from_le_bytes(random::bytes().map_err(no_chance)?);
    let secret: [u8; 32] = random::bytes().map_err(no_chance)?;
    Ok((KeyId::from_chance(id), URL_SAFE_NO_PAD.encode(secret)))
}

/// The only response that contains the key itself.
fn given(new: &NewApiKey, secret: &str) -> HttpResponse {
    let key = ApiKey { made: new.clone(), revoked_at: None, rotated_to: None };
    let mut body = shown(&key, new.created_at);
    body["key"] = ParsedKey { id: new.id, secret }.write().into();
    HttpResponse::Created()
        .insert_header((LOCATION, format!("/v1/keys/{}", new.id)))
        .insert_header(("Cache-Control", "no-store"))
        .json(body)
}

fn shown(key: &ApiKey, now: UnixMs) -> Value {
    let at = |at: Option<UnixMs>| at.map_or(Value::Null, dto::time);
    json!({
        "id": key.made.id.as_str(),
        "name": key.made.name,
        "tenant": &*key.made.tenant,
        "scopes": key.made.grant.names(),
        "active": key.is_good(now),
        "created_at": dto::time(key.made.created_at),
        "expires_at": at(key.made.expires_at),
        "revoked_at": at(key.revoked_at),
        "rotated_to": key.rotated_to.map(|id| id.to_string()),
    })
}

fn key_id(request: &HttpRequest) -> Result<KeyId, ProblemResponse> {
    params::named(request, "id")?
        .parse()
        .map_err(|error: guildhall_core::access::ParseKeyIdError| params::parameter("id", error.to_string()))
}

fn no_key(id: KeyId) -> ProblemResponse {
    ProblemType::NotFound.says(format!("Key {id} does not exist."))
}
