//! Submitting operations, looking at them, taking them back.

use std::time::Duration;

use actix_web::{
    HttpRequest, HttpResponse,
    http::header::{HeaderMap, HeaderName, HeaderValue, LOCATION},
    web::Data,
};
use guildhall_actors::operations::{
    DelayedBy, ListFilter,
    desk::{Accepted, Asked, Retried, Submission, SubmitProblem, Wrong, key_problem},
};
use guildhall_core::policy::{Policy, submission_cost};
use serde_json::{Value, json};

use super::{
    Served, entry, prefer,
    read::{self, Asking},
    refusal::{self, Shape},
    view,
    wait::Wish,
};
use crate::api::problem::{Problem, Told};

type Answer = Result<HttpResponse, Told>;

const IDEMPOTENCY_KEY: &str = "Idempotency-Key";

pub(super) async fn submit_in_guild(request: HttpRequest, served: Data<Served>) -> Answer {
    let guild = read::guild(&request)?;
    accept(&request, &served, Some(guild)).await
}

pub(super) async fn submit(request: HttpRequest, served: Data<Served>) -> Answer {
    accept(&request, &served, None).await
}

async fn accept(request: &HttpRequest, served: &Served, guild: Option<u64>) -> Answer {
    let (shape, values) = match read::json(request)? {
        Value::Object(object) if object.contains_key("operations") => {
            (Shape::Many, read::only_list(object, "operations")?)
        }
        one => (Shape::One, vec![one]),
    };
    entry::charge(request, served, submission_cost(values.len(), entry::body_of(request).len() as u64)).await?;
    let wish = Wish::of(served, prefer::wait(request.headers()), values.len());
    let mut operations: Vec<_> = values.into_iter().map(Asked::read).collect();
    if let Some(wrong) = take_key(request.headers(), shape, &mut operations) {
        return Err(Told::from(Problem::InvalidOperation).errors([(IDEMPOTENCY_KEY.to_owned(), wrong)]));
    }
    put_off(&mut operations, entry::delay_of(request))?;
    let submission = Submission { caller: entry::caller_of(request), guild, operations };
    let accepted = served.ask(|desk| async move { desk.submit(submission).await }).await?;
    let accepted = accepted.map_err(|problem| {
        let said = |wrong: &[(usize, Wrong)]| wrong.first().map_or_else(String::new, |(_, one)| one.message.clone());
        match &problem {
            SubmitProblem::Forbidden(lacks) => {
                served.refused(&entry::caller_of(request), format!("an operation that {}", said(lacks)));
            }
            SubmitProblem::Elsewhere(wrong) => {
                served.refused(&entry::caller_of(request), format!("an operation: {}", said(wrong)));
            }
            SubmitProblem::Empty
            | SubmitProblem::TooMany { .. }
            | SubmitProblem::Invalid(_)
            | SubmitProblem::NoGuild(_)
            | SubmitProblem::Store(_) => {}
        }
        refusal::of_submission(problem, shape)
    })?;
    entry::let_go_of_body(request);
    if let Some(wish) = &wish
        && let Some(answer) = wish.answer(served, shape, &accepted).await
    {
        return Ok(answer);
    }
    let mut answer = match (shape, accepted.as_slice()) {
        (Shape::One, [one]) => answer_one(one),
        (Shape::One | Shape::Many, all) => answer_many(all),
    };
    if let Some((name, value)) = wish.as_ref().map(Wish::applied)
        && let Ok(value) = HeaderValue::from_str(&value)
    {
        answer.headers_mut().insert(HeaderName::from_static(name), value);
    }
    Ok(answer)
}

/// Gives the one operation the key that stands in the header; what is wrong with that, if something is.
fn take_key(headers: &HeaderMap, shape: Shape, operations: &mut [Result<Asked, Vec<Wrong>>]) -> Option<String> {
    let mut given = headers.get_all(IDEMPOTENCY_KEY);
    let (first, second) = (given.next()?, given.next());
    if second.is_some() {
        return Some("is there more than once".to_owned());
    }
    if shape == Shape::Many {
        return Some("is for a single operation; give each of many its own `key`".to_owned());
    }
    let Ok(key) = first.to_str() else { return key_problem("") };
    if let Some(problem) = key_problem(key) {
        return Some(problem);
    }
    if let [Ok(asked)] = operations {
        match &asked.key {
            Some(other) if other != key => return Some("is another one than `key` in the body".to_owned()),
            Some(_) | None => asked.key = Some(key.to_owned()),
        }
    }
    None
}

/// Makes operations due no sooner than their caller may have them done, who asks so much.
fn put_off(operations: &mut [Result<Asked, Vec<Wrong>>], delay: Duration) -> Result<(), Told> {
    for asked in operations.iter_mut().flatten() {
        if delay > asked.delay {
            (asked.delay, asked.delayed_by) = (delay, DelayedBy::Policy);
        }
        if asked.deadline.is_some_and(|deadline| deadline <= asked.delay) {
            let says = format!(
                "Nothing was accepted: this key submits so much that what it submits now is due in {delay:?}, after the \
                 deadline of an operation. Submit it later, with a later deadline, or many operations with one request."
            );
            let told = Problem::TooManyRequests.says(says).with("policy", Policy::HeavyWaits.name());
            return Err(told.after(delay.as_secs().max(1)));
        }
    }
    Ok(())
}

fn answer_one(accepted: &Accepted) -> HttpResponse {
    let mut response = if accepted.replayed { HttpResponse::Ok() } else { HttpResponse::Accepted() };
    if accepted.replayed {
        response.insert_header(("Idempotency-Replayed", "true"));
    }
    response.insert_header((LOCATION, view::place(accepted.id))).json(view::accepted(accepted))
}

/// Nothing new at all is no news; each of the list says of itself whether it is new.
fn answer_many(accepted: &[Accepted]) -> HttpResponse {
    let replayed = accepted.iter().all(|accepted| accepted.replayed);
    let mut response = if replayed { HttpResponse::Ok() } else { HttpResponse::Accepted() };
    if replayed {
        response.insert_header(("Idempotency-Replayed", "true"));
    }
    response.json(view::accepted_together(accepted))
}

pub(super) async fn show(request: HttpRequest, served: Data<Served>) -> Answer {
    let id = read::id(&request)?;
    let caller = entry::caller_of(&request);
    let shown = served.ask(|desk| async move { desk.show(&caller, id).await }).await?;
    let shown = shown.map_err(|error| refusal::of_desk(&error))?;
    Ok(HttpResponse::Ok().json(view::operation(&shown)))
}

pub(super) async fn list(request: HttpRequest, served: Data<Served>) -> Answer {
    let mut asking = Asking::query(&request);
    let (limit, guild) = (asking.limit(), asking.guild());
    let filter = ListFilter {
        state: asking.state(),
        kind: asking.kind(),
        parked: asking.truth("parked"),
        deployment: asking.deployment(),
        created_after: asking.time("created_after"),
        created_before: asking.time("created_before"),
        before: asking.cursor(),
        // One more tells whether there are more.
        limit: limit + 1,
        ..ListFilter::default()
    };
    asking.end()?;
    let caller = entry::caller_of(&request);
    let listed = served.ask(|desk| async move { desk.list(&caller, guild, filter).await }).await?;
    let mut listed = listed.map_err(|error| refusal::of_desk(&error))?;
    let more = listed.len() > limit;
    listed.truncate(limit);
    Ok(HttpResponse::Ok().json(view::operations(&listed, more)))
}

pub(super) async fn cancel(request: HttpRequest, served: Data<Served>) -> Answer {
    let id = read::id(&request)?;
    let caller = entry::caller_of(&request);
    let cancelled = served.ask(|desk| async move { desk.cancel(&caller, id).await }).await?;
    cancelled.map_err(|error| refusal::of_desk(&error))?;
    Ok(HttpResponse::Ok().json(json!({"id": id, "state": "cancelled", "href": view::place(id)})))
}

pub(super) async fn retry(request: HttpRequest, served: Data<Served>) -> Answer {
    let id = read::id(&request)?;
    let caller = entry::caller_of(&request);
    let retried = served.ask(|desk| async move { desk.retry(&caller, id).await }).await?;
    let retried = retried.inspect_err(|error| served.refused_again(&entry::caller_of(&request), error));
    Ok(match retried.map_err(|error| refusal::of_desk(&error))? {
        Retried::Hastened { state } => {
            let body = json!({"id": id, "state": state.name(), "redrive_of": null, "href": view::place(id)});
            HttpResponse::Accepted().insert_header((LOCATION, view::place(id))).json(body)
        }
        Retried::Again { id: again } => {
            let body = json!({"id": again, "state": "queued", "redrive_of": id, "href": view::place(again)});
            HttpResponse::Accepted().insert_header((LOCATION, view::place(again))).json(body)
        }
    })
}
