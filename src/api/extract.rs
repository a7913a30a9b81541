//! Extractors of handlers. They also describe what they extract: the parameters and the body of a route are documented by
//! the signature of its handler.

use actix_web::{
    Handler, HttpRequest, HttpResponse,
    http::header::CONTENT_TYPE,
    web::{Bytes, Data, Json},
};
use guildhall_actors::access::Caller;
use guildhall_core::{
    access::{KeyId, ParseKeyIdError},
    budget::BudgetName,
    operation::{OperationId, ParseOperationIdError},
    state_key,
};
use percent_encoding::percent_decode_str;
use serde::Serialize;
use serde_json::Value;
use url::form_urlencoded;
use utoipa::ToSchema;

use super::{
    app_state::AppState,
    dto,
    fields::{Fields, GivenFields, field_error, snowflake},
    middleware,
    openapi::{
        route_doc::RouteDoc,
        schema::{SchemaRef, integer, schema_ref, text, text_of},
    },
    problem::{ProblemResponse, ProblemType},
};

/// The state of the API, as handlers get it.
pub(crate) type App = Data<AppState>;
/// The result of a handler that responds with JSON and status 200.
pub(crate) type JsonResult<T> = Result<Json<T>, ProblemResponse>;
/// The result of a handler that chooses its status.
pub(crate) type HandlerResult = Result<HttpResponse, ProblemResponse>;

/// The body as JSON.
pub(crate) fn json(request: &HttpRequest) -> Result<Value, ProblemResponse> {
    let body: Bytes = middleware::body_of(request);
    let kind = request.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if essence != "application/json" && !(essence.starts_with("application/") && essence.ends_with("+json")) {
        return Err(ProblemType::NotJson.into());
    }
    serde_json::from_slice(&body)
        .map_err(|error| ProblemType::BadRequest.with_detail(format!("The request body is not valid JSON: {error}.")))
}

/// A part of a request, and its documentation.
pub(crate) trait Extract: Sized {
    fn extract(request: &HttpRequest) -> Result<Self, ProblemResponse>;

    fn describe(doc: RouteDoc) -> RouteDoc;
}

/// The query.
pub(crate) struct Query<T>(pub(crate) T);

impl<T: Fields> Extract for Query<T> {
    fn extract(request: &HttpRequest) -> Result<Self, ProblemResponse> {
        let pairs = form_urlencoded::parse(request.query_string().as_bytes());
        let given = pairs.map(|(name, value)| (name.into_owned(), Value::String(value.into_owned())));
        GivenFields::new(given.collect()).finish().map(Self)
    }

    fn describe(doc: RouteDoc) -> RouteDoc {
        T::describe().into_iter().fold(doc.problem(ProblemType::BadRequest), RouteDoc::query)
    }
}

/// The body, which must be an object.
pub(crate) struct Body<T>(pub(crate) T);

impl<T: Fields> Extract for Body<T> {
    fn extract(request: &HttpRequest) -> Result<Self, ProblemResponse> {
        match json(request)? {
            Value::Object(fields) => GivenFields::new(fields.into_iter().collect()).finish().map(Self),
            _ => {
                let names: Vec<_> = T::describe().iter().map(|field| field.name).collect();
                let detail = format!("The request body must be a JSON object with the fields {}.", names.join(", "));
                Err(ProblemType::BadRequest.with_detail(detail))
            }
        }
    }

    fn describe(doc: RouteDoc) -> RouteDoc {
        doc.body::<T>(true)
    }
}

/// A body which may be omitted.
pub(crate) struct OptionalBody<T>(pub(crate) T);

impl<T: Fields> Extract for OptionalBody<T> {
    fn extract(request: &HttpRequest) -> Result<Self, ProblemResponse> {
        if middleware::body_of(request).is_empty() {
            return GivenFields::new(Vec::new()).finish().map(Self);
        }
        Body::extract(request).map(|Body(fields)| Self(fields))
    }

    fn describe(doc: RouteDoc) -> RouteDoc {
        doc.body::<T>(false)
    }
}

/// The variable segment of the path.
pub(crate) struct Path<T>(pub(crate) T);

/// A variable segment of a path.
pub(crate) trait PathParameter: Sized {
    const NAME: &'static str;
    const DESCRIPTION: &'static str;

    fn parse(given: &str) -> Result<Self, ProblemResponse>;

    fn schema() -> SchemaRef;
}

impl<T: PathParameter> Extract for Path<T> {
    fn extract(request: &HttpRequest) -> Result<Self, ProblemResponse> {
        let given = middleware::path_parameter(request);
        let text = percent_decode_str(&given).decode_utf8().map_err(|_| field_error(T::NAME, "must be UTF-8"))?;
        T::parse(&text).map(Self)
    }

    fn describe(doc: RouteDoc) -> RouteDoc {
        doc.path(T::NAME, T::schema(), T::DESCRIPTION)
    }
}

/// A guild.
pub(crate) struct GuildId(pub(crate) u64);

impl PathParameter for GuildId {
    const NAME: &'static str = "guild_id";
    const DESCRIPTION: &'static str = "The guild.";

    fn parse(given: &str) -> Result<Self, ProblemResponse> {
        let id = snowflake(given).map(Self);
        id.ok_or_else(|| field_error(Self::NAME, "must be a guild id, a number such as 1571715189416398849"))
    }

    fn schema() -> SchemaRef {
        schema_ref("Snowflake").into()
    }
}

impl PathParameter for OperationId {
    const NAME: &'static str = "id";
    const DESCRIPTION: &'static str = "The operation.";

    fn parse(given: &str) -> Result<Self, ProblemResponse> {
        given.parse().map_err(|error: ParseOperationIdError| field_error(Self::NAME, error.to_string()))
    }

    fn schema() -> SchemaRef {
        schema_ref("OperationId").into()
    }
}

/// A dead letter, which has the id of its operation.
pub(crate) struct DeadLetterId(pub(crate) OperationId);

impl PathParameter for DeadLetterId {
    const NAME: &'static str = "id";
    const DESCRIPTION: &'static str = "The dead letter.";

    fn parse(given: &str) -> Result<Self, ProblemResponse> {
        PathParameter::parse(given).map(Self)
    }

    fn schema() -> SchemaRef {
        <OperationId as PathParameter>::schema()
    }
}

impl PathParameter for KeyId {
    const NAME: &'static str = "id";
    const DESCRIPTION: &'static str = "The key.";

    fn parse(given: &str) -> Result<Self, ProblemResponse> {
        given.parse().map_err(|error: ParseKeyIdError| field_error(Self::NAME, error.to_string()))
    }

    fn schema() -> SchemaRef {
        schema_ref("KeyId").into()
    }
}

impl PathParameter for BudgetName {
    const NAME: &'static str = "name";
    const DESCRIPTION: &'static str = "The budget.";

    fn parse(given: &str) -> Result<Self, ProblemResponse> {
        Self::new(given).map_err(|error| {
            let message = error.to_string();
            ProblemType::BadRequest.with_detail(format!("{message}.")).errors([(Self::NAME.to_owned(), message)])
        })
    }

    fn schema() -> SchemaRef {
        text_of(1, 128).into()
    }
}

/// The key of a state entry.
pub(crate) struct StateKey(pub(crate) String);

impl PathParameter for StateKey {
    const NAME: &'static str = "key";
    const DESCRIPTION: &'static str =
        "At most 255 bytes, no control characters, and none of the reserved keys that docs/handlers.md lists.";

    fn parse(given: &str) -> Result<Self, ProblemResponse> {
        let max = state_key::MAX_BYTES;
        if !(1..=max).contains(&given.len()) || given.chars().any(char::is_control) {
            return Err(field_error(Self::NAME, format!("must be 1 to {max} bytes, without control characters")));
        }
        state_key::check_reserved(given).map_err(|reserved| field_error(Self::NAME, reserved.to_string()))?;
        Ok(Self(given.to_owned()))
    }

    fn schema() -> SchemaRef {
        text_of(1, state_key::MAX_BYTES).into()
    }
}

/// A dead event, by its position in their list.
pub(crate) struct EventPosition(pub(crate) i64);

impl PathParameter for EventPosition {
    const NAME: &'static str = "id";
    const DESCRIPTION: &'static str = "`place` of the event.";

    fn parse(given: &str) -> Result<Self, ProblemResponse> {
        given.parse().map(Self).map_err(|_| field_error(Self::NAME, "must be a number from the list of dead events"))
    }

    fn schema() -> SchemaRef {
        text().pattern(Some(dto::POSITION)).into()
    }
}

/// A shard.
pub(crate) struct ShardId(pub(crate) u32);

impl PathParameter for ShardId {
    const NAME: &'static str = "id";
    const DESCRIPTION: &'static str = "The shard.";

    fn parse(given: &str) -> Result<Self, ProblemResponse> {
        given.parse().map(Self).map_err(|_| field_error(Self::NAME, "must be the number of a shard, from 0"))
    }

    fn schema() -> SchemaRef {
        integer(0, u64::from(u32::MAX)).into()
    }
}

impl Extract for HttpRequest {
    fn extract(request: &HttpRequest) -> Result<Self, ProblemResponse> {
        Ok(request.clone())
    }

    fn describe(doc: RouteDoc) -> RouteDoc {
        doc
    }
}

impl Extract for Data<AppState> {
    fn extract(request: &HttpRequest) -> Result<Self, ProblemResponse> {
        request.app_data::<Self>().cloned().ok_or_else(|| ProblemType::Internal.into())
    }

    fn describe(doc: RouteDoc) -> RouteDoc {
        doc
    }
}

impl Extract for Caller {
    fn extract(request: &HttpRequest) -> Result<Self, ProblemResponse> {
        Ok(middleware::caller_of(request))
    }

    fn describe(doc: RouteDoc) -> RouteDoc {
        doc
    }
}

macro_rules! extract_tuples {
    ($($($name:ident)+;)+) => {$(
        impl<$($name: Extract),+> Extract for ($($name,)+) {
            fn extract(request: &HttpRequest) -> Result<Self, ProblemResponse> {
                Ok(($($name::extract(request)?,)+))
            }

            fn describe(doc: RouteDoc) -> RouteDoc {
                $( let doc = $name::describe(doc); )+
                doc
            }
        }
    )+};
}

extract_tuples! {
    A;
    A B;
    A B C;
    A B C D;
}

/// A response, and its documentation.
pub(crate) trait Response {
    fn respond(self) -> HttpResponse;

    fn describe(doc: RouteDoc) -> RouteDoc;
}

/// A response whose documentation names its type.
impl Response for HttpResponse {
    fn respond(self) -> HttpResponse {
        self
    }

    fn describe(doc: RouteDoc) -> RouteDoc {
        doc
    }
}

/// Responds with status 200.
impl<T: Serialize + ToSchema> Response for Json<T> {
    fn respond(self) -> HttpResponse {
        HttpResponse::Ok().json(self.0)
    }

    fn describe(doc: RouteDoc) -> RouteDoc {
        doc.with_schema::<T>()
    }
}

/// Calls a handler with its arguments.
pub(crate) async fn call<F, A, R>(handler: F, request: HttpRequest) -> Result<HttpResponse, ProblemResponse>
where
    F: Handler<A, Output = Result<R, ProblemResponse>>,
    A: Extract,
    R: Response,
{
    let arguments = A::extract(&request)?;
    handler.call(arguments).await.map(Response::respond)
}

/// Adds to the documentation of a route what the signature of its handler says.
pub(crate) fn describe<F, A, R>(_: F, doc: RouteDoc) -> RouteDoc
where
    F: Handler<A, Output = Result<R, ProblemResponse>>,
    A: Extract,
    R: Response,
{
    R::describe(A::describe(doc))
}
