//! The listener on `interactions.bind`: interactions that Discord posts.
//!
//! ```text
//!  POST ─▶ headers, time ─▶ body, within limits ─▶ signature ─▶ PING: answered
//!            └─ 401 ──────────────────────────────────┘    └─▶ events: deferred, or the reply itself ─▶ response
//! ```

mod signature;

use std::{io, time::Duration};

use actix_web::{
    App, Error, HttpMessage as _, HttpResponse,
    body::MessageBody,
    dev::{Payload, ServiceRequest, ServiceResponse},
    http::{Method, header::HeaderValue},
    middleware::{Next, from_fn},
    web::{self, Data, scope},
};
use guildhall_actors::guild::HttpInteractionResponse;
use guildhall_actors::supervision::Part;
use guildhall_actors::supervisor::EventsHandle;
use guildhall_actors::wall_clock::WallClock;
use guildhall_core::event::{EventName, read_interaction};
use serde_json::json;

use self::signature::{InteractionSignature, SignatureRejection};
use super::body;
use super::body::{BodyMemory, announces_more_than, closing_problem, hold_unread_body, with_connection_close};
use super::events::{InteractionRejected, InteractionsListening};
use super::listener::{BoundListener, Listener};
use super::problem::{ProblemResponse, ProblemType};
use crate::api::listener::edge_config::EdgeConfig;
use crate::{discord::first_response, events::emit, settings::PublicKey};

const CONNECTIONS: usize = 512;
/// Maximum size of an interaction.
const MAX_BODY: usize = 1024 * 1024;
/// Maximum size of all interactions that are read at once: whether Discord sent them is known only afterwards.
const MAX_BODIES: usize = 32 * 1024 * 1024;
/// How long one may take to arrive: Discord waits for three seconds in all.
const ARRIVAL_TIMEOUT: Duration = Duration::from_secs(3);
/// How long Discord waits.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(3);
const KEEP_ALIVE: Duration = Duration::from_secs(75);

/// The endpoint for interactions.
#[derive(Clone, Debug)]
pub struct InteractionsEndpoint {
    /// The key that Discord signs with.
    pub key: PublicKey,
    /// How far the time of a signature may be from the current time.
    pub window: Duration,
    /// Receives the interactions.
    pub events: EventsHandle,
    /// The current time.
    pub clock: WallClock,
}

impl BoundListener {
    /// Starts serving interactions. Must be called within an actix system.
    ///
    /// # Errors
    ///
    /// When the operating system refuses the socket.
    pub fn serve_interactions(self, endpoint: InteractionsEndpoint) -> io::Result<Listener> {
        let (endpoint, memory) = (Data::new(endpoint), Data::new(BodyMemory::new(MAX_BODIES)));
        let edge = EdgeConfig {
            connections: CONNECTIONS,
            // This listener serves no health.
            health_connections: 0,
            header_timeout: ARRIVAL_TIMEOUT,
            write_timeout: RESPONSE_TIMEOUT,
            keep_alive: KEEP_ALIVE,
        };
        let address = self.address();
        let listener = self.with_limits(edge).serve_app(Part::InteractionsListener, move || {
            let all = scope("").wrap(from_fn(handle)).default_service(web::to(HttpResponse::NotFound));
            App::new().app_data(endpoint.clone()).app_data(memory.clone()).service(all)
        })?;
        emit(InteractionsListening { address });
        Ok(listener)
    }
}

/// Answers a request, whatever its path.
async fn handle(
    mut request: ServiceRequest,
    _: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<impl MessageBody>, Error> {
    let mut unread = request.take_payload();
    let state =
        request.app_data::<Data<InteractionsEndpoint>>().cloned().zip(request.app_data::<Data<BodyMemory>>().cloned());
    let response = match state {
        Some((endpoint, room)) => endpoint.respond(&request, &mut unread, &room).await,
        None => ProblemType::Internal.response(),
    };
    Ok(hold_unread_body(request.into_response(response), unread))
}

impl InteractionsEndpoint {
    async fn respond(&self, request: &ServiceRequest, unread: &mut Payload, memory: &BodyMemory) -> HttpResponse {
        if request.method() != Method::POST {
            return with_connection_close(ProblemType::not_allowed(HeaderValue::from_static("POST")));
        }
        // Before the body is read, so that few senders can make the daemon read one.
        let now = self.clock.now();
        let signature = match InteractionSignature::read(request.headers(), now, self.window) {
            Ok(signature) => signature,
            Err(doubt) => return closing_problem(&rejection_problem(doubt)),
        };
        if announces_more_than(MAX_BODY as u64, request.headers()) {
            return closing_problem(&ProblemType::BodyTooLarge.into());
        }
        let body = match body::read(unread, MAX_BODY, ARRIVAL_TIMEOUT, memory).await {
            Ok(body) => body,
            Err(problem) => return closing_problem(&problem),
        };
        if let Err(doubt) = signature.verify(&self.key, &body.bytes) {
            return rejection_problem(doubt).response();
        }
        let text = String::from_utf8(body.bytes.to_vec()).map_err(|_| "it is not UTF-8".to_owned());
        let event = match text.and_then(|text| read_interaction(text, now).map_err(|error| error.to_string())) {
            Ok(event) => event,
            Err(reason) => {
                return ProblemType::BadRequest
                    .with_detail(format!("The body is not an interaction: {reason}."))
                    .response();
            }
        };
        if event.name == EventName::Known("interaction.ping") {
            return HttpResponse::Ok().json(json!({ "type": 1 }));
        }
        match tokio::time::timeout(RESPONSE_TIMEOUT, self.events.handle_interaction(event)).await {
            Ok(HttpInteractionResponse::Respond(first)) => HttpResponse::Ok().json(first_response(first)),
            Ok(HttpInteractionResponse::NoResponse) => {
                ProblemType::NotFound.with_detail("No handler responds to this interaction.").response()
            }
            Ok(HttpInteractionResponse::Busy) | Err(_) => {
                ProblemType::Busy.with_detail("The interaction cannot be handled now. Retry in a moment.").response()
            }
        }
    }
}

fn rejection_problem(rejection: SignatureRejection) -> ProblemResponse {
    emit(InteractionRejected { reason: rejection.name() });
    ProblemType::Unauthorized.with_detail(match rejection {
        SignatureRejection::Headers => {
            "The headers X-Signature-Ed25519 and X-Signature-Timestamp are required, as Discord sends them."
        }
        SignatureRejection::Time => "The time of the signature is too far in the past or in the future.",
        SignatureRejection::Signature => "The signature is invalid.",
    })
}
