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
use super::body::{BodyMemory, announces_more_than, closing, hold, last_words};
use super::events::{InteractionRejected, InteractionsListening};
use super::listener::{BoundListener, Listener};
use super::problem::{ProblemResponse, ProblemType};
use crate::api::listener::edge_config::EdgeConfig;
use crate::{discord::first_response, events::emit, settings::PublicKey};

const CONNECTIONS: usize = 512;
/// Maximum size of an interaction.
const BODY_MOST: usize = 1024 * 1024;
/// Maximum size of all interactions that are read at once: whether Discord sent them is known only afterwards.
const BODIES_MOST: usize = 32 * 1024 * 1024;
/// How long one may take to arrive: Discord waits for three seconds in all.
const ARRIVES_WITHIN: Duration = Duration::from_secs(3);
/// How long Discord waits.
const ANSWERED_WITHIN: Duration = Duration::from_secs(3);
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
    pub fn take_interactions(self, endpoint: InteractionsEndpoint) -> io::Result<Listener> {
        let (endpoint, room) = (Data::new(endpoint), Data::new(BodyMemory::new(BODIES_MOST)));
        let edge = EdgeConfig {
            connections: CONNECTIONS,
            // This listener serves no health.
            doorstep: 0,
            header_within: ARRIVES_WITHIN,
            write_within: ANSWERED_WITHIN,
            keep_alive: KEEP_ALIVE,
        };
        let address = self.address();
        let listener = self.within(edge).open(Part::InteractionsListener, move || {
            let all = scope("").wrap(from_fn(take)).default_service(web::to(HttpResponse::NotFound));
            App::new().app_data(endpoint.clone()).app_data(room.clone()).service(all)
        })?;
        emit(InteractionsListening { address });
        Ok(listener)
    }
}

/// Answers a request, whatever its path.
async fn take(
    mut request: ServiceRequest,
    _: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<impl MessageBody>, Error> {
    let mut unread = request.take_payload();
    let known =
        request.app_data::<Data<InteractionsEndpoint>>().cloned().zip(request.app_data::<Data<BodyMemory>>().cloned());
    let response = match known {
        Some((endpoint, room)) => endpoint.answer(&request, &mut unread, &room).await,
        None => ProblemType::Internal.response(),
    };
    Ok(hold(request.into_response(response), unread))
}

impl InteractionsEndpoint {
    async fn answer(&self, request: &ServiceRequest, unread: &mut Payload, room: &BodyMemory) -> HttpResponse {
        if request.method() != Method::POST {
            return closing(ProblemType::not_allowed(HeaderValue::from_static("POST")));
        }
        // Before the body is read, so that few senders can make the daemon read one.
        let now = self.clock.now();
        let claim = match InteractionSignature::read(request.headers(), now, self.window) {
            Ok(claim) => claim,
            Err(doubt) => return last_words(&refused(doubt)),
        };
        if announces_more_than(BODY_MOST as u64, request.headers()) {
            return last_words(&ProblemType::BodyTooLarge.into());
        }
        let body = match body::read(unread, BODY_MOST, ARRIVES_WITHIN, room).await {
            Ok(body) => body,
            Err(told) => return last_words(&told),
        };
        if let Err(doubt) = claim.holds(&self.key, &body.bytes) {
            return refused(doubt).response();
        }
        let text = String::from_utf8(body.bytes.to_vec()).map_err(|_| "it is not UTF-8".to_owned());
        let event = match text.and_then(|text| read_interaction(text, now).map_err(|error| error.to_string())) {
            Ok(event) => event,
            Err(why) => {
                return ProblemType::BadRequest.says(format!("The body is not an interaction: {why}.")).response();
            }
        };
        if event.name == EventName::Known("interaction.ping") {
            return HttpResponse::Ok().json(json!({ "type": 1 }));
        }
        match tokio::time::timeout(ANSWERED_WITHIN, self.events.interaction(event)).await {
            Ok(HttpInteractionResponse::Answer(first)) => HttpResponse::Ok().json(first_response(first)),
            Ok(HttpInteractionResponse::Nobody) => {
                ProblemType::NotFound.says("No handler responds to this interaction.").response()
            }
            Ok(HttpInteractionResponse::Busy) | Err(_) => {
                ProblemType::Busy.says("The interaction cannot be handled now. Retry in a moment.").response()
            }
        }
    }
}

fn refused(doubt: SignatureRejection) -> ProblemResponse {
    emit(InteractionRejected { why: doubt.name() });
    ProblemType::Unauthorized.says(match doubt {
        SignatureRejection::Headers => {
            "The headers X-Signature-Ed25519 and X-Signature-Timestamp are required, as Discord sends them."
        }
        SignatureRejection::Time => "The time of the signature is too far in the past or in the future.",
        SignatureRejection::Signature => "The signature is invalid.",
    })
}
