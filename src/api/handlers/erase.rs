//! Erases the stored data about a user or a guild: `POST /v1/erase`.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use actix_web::{HttpRequest, HttpResponse, web::Data};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use guildhall_actors::access::{AuditAction, DataSubject, ErasureCursor, ErasureStep};
use serde_json::{Map, Value, json};

use crate::api::app_state::AppState;
use crate::api::problem::ProblemResponse;
use crate::api::{errors, middleware, params};

/// How long one request examines rows before it returns where to continue.
const REQUEST_TIME_LIMIT: Duration = Duration::from_secs(5);

/// The parameters of one request.
struct EraseRequest {
    subject: DataSubject,
    from: ErasureCursor,
    is_first: bool,
}

pub(crate) async fn erase(request: HttpRequest, app: Data<AppState>) -> Result<HttpResponse, ProblemResponse> {
    let EraseRequest { subject, from, is_first } = parse_request(&request)?;
    let caller = middleware::caller_of(&request);
    // The audit record does not name a user: it outlives the data.
    let note = caller.audit_record(AuditAction::Erase, app.now());
    let note = match subject {
        DataSubject::User(_) => note.with_target(&"user"),
        DataSubject::Guild(guild) => note.with_target(&"guild").in_guild(Some(guild)),
    };
    let erased = app.with_erasure(move |store| async move {
        let until = Instant::now() + REQUEST_TIME_LIMIT;
        let mut all = store.erase(subject, from, is_first.then_some(note)).await?;
        while let Some(next) = all.next.take_if(|_| Instant::now() < until) {
            let ErasureStep { removed, retained, next } = store.erase(subject, next, None).await?;
            add(&mut all.removed, removed);
            add(&mut all.retained, retained);
            all.next = next;
        }
        Ok(all)
    });
    let erased = erased.await?.map_err(|error| errors::store_problem(&error))?;
    Ok(HttpResponse::Ok().json(response_body(subject, &erased)))
}

fn parse_request(request: &HttpRequest) -> Result<EraseRequest, ProblemResponse> {
    let mut params = params::Params::body(request)?;
    let (user, guild, next) = (params.user(), params.guild(), params.text("next", 1_024));
    params.finish()?;
    let subject = match (user, guild) {
        (Some(user), None) => DataSubject::User(user),
        (None, Some(guild)) => DataSubject::Guild(guild),
        (Some(_), Some(_)) | (None, None) => {
            return Err(params::parameter("user_id", "or guild_id must be given, but not both"));
        }
    };
    let from = match &next {
        None => ErasureCursor::default(),
        Some(text) => {
            read_cursor(text).ok_or_else(|| params::parameter("next", "must be `next` of the previous response"))?
        }
    };
    Ok(EraseRequest { subject, from, is_first: next.is_none() })
}

fn read_cursor(text: &str) -> Option<ErasureCursor> {
    let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
    let (table, after) = std::str::from_utf8(&bytes).ok()?.split_once(':')?;
    Some(ErasureCursor { table: table.parse().ok()?, after: after.to_owned() })
}

fn add(all: &mut BTreeMap<&'static str, u64>, more: BTreeMap<&'static str, u64>) {
    for (what, count) in more {
        *all.entry(what).or_default() += count;
    }
}

/// Why found rows stay.
fn reason(what: &str) -> &'static str {
    match what {
        "operations" => "accepted operations still run; cancel them or wait until they have ended, then erase again",
        "events" => "events that wait for their handler are handled first; erase again afterwards",
        "results" => "the operation is still pending",
        "managed_objects" => "operations of the guild are pending and may refer to them; erase again afterwards",
        _ => "still in use; erase again later",
    }
}

/// What an erasure never removes, and why.
fn never_removed(subject: DataSubject) -> Vec<Value> {
    let stays = |what: &str, reason: &str| json!({"what": what, "why": reason});
    let mut all = vec![
        stays("audit", "changes must stay traceable; rows expire after retention.audit_ms"),
        stays(
            "idempotency_keys",
            "they prevent operations from running twice; they expire after retention.idempotency_ms",
        ),
        stays("logs", "log files and collectors are outside of Guildhall's store"),
        stays("discord", "messages, roles and audit log entries in Discord must be removed there"),
    ];
    if matches!(subject, DataSubject::Guild(_)) {
        all.push(stays("tenant", "the tenant of the guild is stored: without it another tenant could claim the guild"));
        all.push(stays("keys", "API keys for the guild stay until they are revoked or expire"));
    }
    all
}

fn response_body(subject: DataSubject, erased: &ErasureStep) -> Value {
    let removed: Map<_, _> = erased.removed.iter().map(|(what, count)| ((*what).to_owned(), (*count).into())).collect();
    let found = erased.retained.iter().map(|(what, count)| json!({"what": what, "count": count, "why": reason(what)}));
    let retained: Vec<_> = found.chain(never_removed(subject)).collect();
    let next = erased.next.as_ref().map(|next| URL_SAFE_NO_PAD.encode(format!("{}:{}", next.table, next.after)));
    json!({"removed": removed, "kept": retained, "done": next.is_none(), "next": next})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursor_is_read_as_it_was_written() {
        let erased = ErasureStep {
            next: Some(ErasureCursor { table: 2, after: "admin\nkey:1".to_owned() }),
            ..ErasureStep::default()
        };
        let next = response_body(DataSubject::User(1), &erased)["next"].as_str().unwrap().to_owned();
        assert_eq!(read_cursor(&next), erased.next);
        assert_eq!(read_cursor("!"), None);
        assert_eq!(read_cursor(&URL_SAFE_NO_PAD.encode("x:y")), None);
    }
}
