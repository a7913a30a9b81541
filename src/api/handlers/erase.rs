//! Erases the stored data about a user or a guild: `POST /v1/erase`.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use actix_web::web::Json;
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use guildhall_actors::access::{AuditAction, Caller, DataSubject, ErasureCursor, ErasureStep};
use serde_json::json;

use crate::api::{
    dto::{Erased, RetainedRows},
    errors,
    extract::{App, Body, JsonResult},
    fields::{self, Field as _, field_error, fields},
    openapi::route_doc::{RouteDoc, Tag},
    problem::ProblemResponse,
};

/// How long one request examines rows before it returns where to continue.
const REQUEST_TIME_LIMIT: Duration = Duration::from_secs(5);

fields! {
    /// The subject of the erasure: exactly one of `user_id` and `guild_id`.
    struct Erase {
        user_id: Option<u64> = fields::user().optional(),
        guild_id: Option<u64> = fields::guild().optional(),
        /// `next` of the previous response, to continue.
        next: Option<String> = fields::text(1_024).optional(),
    }
}

/// What one request erases.
struct EraseRequest {
    subject: DataSubject,
    from: ErasureCursor,
    is_first: bool,
}

pub(crate) fn erase_doc() -> RouteDoc {
    RouteDoc::new(Tag::Keys, "erase", "Erase the data of a user or a guild")
        .description(
            "Removes finished operations, dead letters, dead events, results and state entries that contain the id, \
             and for a guild also its managed objects and known channels. The response says what stays and why. A \
             request examines rows for at most five seconds: send it again with `next` until `done` is `true`.",
        )
        .body_example("a user", json!({"user_id": "80351110224678912"}))
        .response(
            200,
            "What was removed and what stays.",
            [(
                "erased",
                json!({"removed": {"operations": 3}, "kept": [{"what": "audit", "why": "changes must stay traceable; \
                    rows expire after retention.audit_ms"}],
                    "done": true, "next": null}),
            )],
        )
}

pub(crate) async fn erase(Body(body): Body<Erase>, caller: Caller, app: App) -> JsonResult<Erased> {
    let EraseRequest { subject, from, is_first } = check(&body)?;
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
    Ok(Json(response_body(subject, &erased)))
}

fn check(body: &Erase) -> Result<EraseRequest, ProblemResponse> {
    let subject = match (body.user_id, body.guild_id) {
        (Some(user), None) => DataSubject::User(user),
        (None, Some(guild)) => DataSubject::Guild(guild),
        (Some(_), Some(_)) | (None, None) => {
            return Err(field_error("user_id", "or guild_id must be given, but not both"));
        }
    };
    let from = match &body.next {
        None => ErasureCursor::default(),
        Some(text) => {
            read_cursor(text).ok_or_else(|| field_error("next", "must be `next` of the previous response"))?
        }
    };
    Ok(EraseRequest { subject, from, is_first: body.next.is_none() })
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
fn never_removed(subject: DataSubject) -> Vec<RetainedRows> {
    let stays = |what: &str, reason: &str| RetainedRows { what: what.to_owned(), count: None, why: reason.to_owned() };
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

fn response_body(subject: DataSubject, erased: &ErasureStep) -> Erased {
    let found = erased.retained.iter().map(|(what, count)| RetainedRows {
        what: (*what).to_owned(),
        count: Some(*count),
        why: reason(what).to_owned(),
    });
    let next = erased.next.as_ref().map(|next| URL_SAFE_NO_PAD.encode(format!("{}:{}", next.table, next.after)));
    Erased {
        removed: erased.removed.iter().map(|(what, count)| ((*what).to_owned(), *count)).collect(),
        kept: found.chain(never_removed(subject)).collect(),
        done: next.is_none(),
        next,
    }
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
        let next = response_body(DataSubject::User(1), &erased).next.unwrap();
        assert_eq!(read_cursor(&next), erased.next);
        assert_eq!(read_cursor("!"), None);
        assert_eq!(read_cursor(&URL_SAFE_NO_PAD.encode("x:y")), None);
    }
}
