//! The listener on `interactions.bind`: interactions that Discord posts.
//!
//! ```text
//!  POST ─▶ headers, time ─▶ body, within bounds ─▶ signature ─▶ PING: answered
//!            └─ 401 ──────────────────────────────────┘    └─▶ events: deferred, or the reply itself ─▶ answer
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
use super::{
    body::{self, BodyMemory, announces_more_than, closing, hold, last_words},
    edge::EdgeConfig,
    events::{InteractionRejected, InteractionsListening},
    listener::{BoundListener, Listener},
    problem::{ProblemResponse, ProblemType},
};
use crate::{discord::first_response, events::emit, settings::PublicKey};

const CONNECTIONS: usize = 512;
/// The largest interaction.
const BODY_MOST: usize = 1024 * 1024;
/// All of them that are read at once: whether they are Discord's is known only afterwards.
const BODIES_MOST: usize = 32 * 1024 * 1024;
/// How long one may take to arrive: Discord waits for three seconds in all.
const ARRIVES_WITHIN: Duration = Duration::from_secs(3);
/// How long Discord waits.
const ANSWERED_WITHIN: Duration = Duration::from_secs(3);
const KEEP_ALIVE: Duration = Duration::from_secs(75);

/// What takes interactions.
#[derive(Clone, Debug)]
pub struct InteractionsEndpoint {
    /// Whose signature counts.
    pub key: PublicKey,
    /// How far a signature's time may be from the present one.
    pub window: Duration,
    /// Where interactions go.
    pub events: EventsHandle,
    /// The present time.
    pub clock: WallClock,
}

impl BoundListener {
    /// Starts to take interactions. Must be called within an actix system.
    ///
    /// # Errors
    ///
    /// When the operating system refuses the socket.
    pub fn take_interactions(self, endpoint: InteractionsEndpoint) -> io::Result<Listener> {
        let (endpoint, room) = (Data::new(endpoint), Data::new(BodyMemory::new(BODIES_MOST)));
        let edge = EdgeConfig {
            connections: CONNECTIONS,
            // There is no health to ask for.
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
        // Before anything is read, so that hardly anybody can make us read.
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
            Err(why) => return ProblemType::BadRequest.says(format!("This is no interaction: {why}.")).response(),
        };
        if event.name == EventName::Known("interaction.ping") {
            return HttpResponse::Ok().json(json!({ "type": 1 }));
        }
        match tokio::time::timeout(ANSWERED_WITHIN, self.events.interaction(event)).await {
            Ok(HttpInteractionResponse::Answer(first)) => HttpResponse::Ok().json(first_response(first)),
            Ok(HttpInteractionResponse::Nobody) => {
                ProblemType::NotFound.says("No handler answers this interaction.").response()
            }
            Ok(HttpInteractionResponse::Busy) | Err(_) => {
                ProblemType::Busy.says("The interaction cannot be taken now.").response()
            }
        }
    }
}

fn refused(doubt: SignatureRejection) -> ProblemResponse {
    emit(InteractionRejected { why: doubt.name() });
    ProblemType::Unauthorized.says(match doubt {
        SignatureRejection::Headers => {
            "X-Signature-Ed25519 and X-Signature-Timestamp must be there, as Discord sends them."
        }
        SignatureRejection::Time => "The signature is too old or too new.",
        SignatureRejection::Signature => "The signature does not fit.",
    })
}
