//! Identical reads in flight are sent once, on the routes that the settings name.

use std::{
    collections::{HashMap, HashSet},
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use futures_util::{
    FutureExt as _,
    future::{Shared, WeakShared},
};
use guildhall_actors::gate::{ApiVersion, RequestBody, RestRequest};
use guildhall_core::{
    lane::Lane,
    response::{Credential, ResponseClass},
    route::RouteKey,
};
use http::{HeaderMap, Method, StatusCode};

use super::answer::OwnAnswer;
use super::events::CallCoalesced;
use crate::events::emit;

/// A response for several callers.
#[derive(Clone, Debug)]
pub(super) struct SharedResponse {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    pub(super) class: ResponseClass,
    /// Discord's error code.
    pub(super) code: Option<u32>,
    /// How long Discord took.
    pub(super) elapsed: Duration,
}

type CallResult = Result<SharedResponse, OwnAnswer>;
type CallFuture = Pin<Box<dyn Future<Output = CallResult> + Send>>;

/// The reads in flight. Each is made by those that wait for it together: it ends early only if all of them are gone.
#[derive(Debug)]
pub(super) struct Coalescer {
    routes: HashSet<String>,
    in_flight: Mutex<InFlight>,
}

#[derive(Debug, Default)]
struct InFlight {
    last_id: u64,
    calls: HashMap<CallKey, (u64, WeakShared<CallFuture>)>,
}

/// Calls with the same key get the same response.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct CallKey {
    credential: Credential,
    lane: Lane,
    /// Version, path and headers.
    request: Vec<u8>,
}

impl CallKey {
    fn of(request: &RestRequest) -> Self {
        let version = match request.version {
            ApiVersion::Configured => String::new(),
            ApiVersion::Number(number) => number.to_string(),
            ApiVersion::Unversioned => "none".to_owned(),
        };
        let mut text = format!("{version}\n{}\n", request.path).into_bytes();
        for (name, value) in &request.headers {
            text.extend_from_slice(name.as_str().as_bytes());
            text.push(b':');
            text.extend_from_slice(value.as_bytes());
            text.push(b'\n');
        }
        Self { credential: request.credential, lane: request.lane, request: text }
    }
}

impl Coalescer {
    /// Reads of these routes are coalesced.
    pub(super) fn new(templates: &[String]) -> Arc<Self> {
        let routes = templates.iter().map(|template| format!("GET {template}")).collect();
        Arc::new(Self { routes, in_flight: Mutex::default() })
    }

    /// The key of a call that may share its response; `None` for others.
    pub(super) fn key_of(&self, request: &RestRequest, route: &RouteKey) -> Option<CallKey> {
        let is_empty = match &request.body {
            RequestBody::Empty => true,
            RequestBody::Whole(bytes) => bytes.is_empty(),
            RequestBody::Stream(_) => false,
        };
        let may_share = request.method == Method::GET && is_empty && self.routes.contains(route.as_str());
        may_share.then(|| CallKey::of(request))
    }

    /// Waits for the call with this key that is in flight; if there is none, `start` makes it.
    pub(super) async fn join<F>(self: &Arc<Self>, key: CallKey, start: impl FnOnce() -> F) -> CallResult
    where
        F: Future<Output = CallResult> + Send + 'static,
    {
        let call = {
            let mut in_flight = self.in_flight.lock().unwrap_or_else(PoisonError::into_inner);
            let existing = in_flight.calls.get(&key).and_then(|(_, call)| call.upgrade());
            match existing {
                Some(call) => {
                    emit(CallCoalesced);
                    call
                }
                None => {
                    in_flight.last_id += 1;
                    let id = in_flight.last_id;
                    let entry = EntryGuard { coalescer: Arc::clone(self), key: key.clone(), id };
                    let call = start();
                    let call: CallFuture = Box::pin(async move {
                        let _entry = entry;
                        call.await
                    });
                    let call: Shared<CallFuture> = call.shared();
                    if let Some(weak) = call.downgrade() {
                        in_flight.calls.insert(key, (id, weak));
                    }
                    call
                }
            }
        };
        call.await
    }
}

/// The entry of a call in flight, until it has ended or nobody waits for it.
struct EntryGuard {
    coalescer: Arc<Coalescer>,
    key: CallKey,
    id: u64,
}

impl Drop for EntryGuard {
    fn drop(&mut self) {
        let mut in_flight = self.coalescer.in_flight.lock().unwrap_or_else(PoisonError::into_inner);
        // The key may belong to a later call already.
        if in_flight.calls.get(&self.key).is_some_and(|(id, _)| *id == self.id) {
            in_flight.calls.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::future::{join, pending};
    use http::HeaderValue;
    use tokio::sync::oneshot;

    use guildhall_actors::lease_guard::LeaseGuard;

    use super::*;

    const BOT: Credential = Credential::Application(1);

    fn coalescer() -> Arc<Coalescer> {
        Coalescer::new(&["/channels/{id}".to_owned()])
    }

    fn key(coalescer: &Coalescer, request: &RestRequest) -> Option<CallKey> {
        coalescer.key_of(request, &request.route(0).key)
    }

    fn get(path: &str) -> RestRequest {
        RestRequest::new(Method::GET, path, BOT, LeaseGuard::always())
    }

    fn response() -> CallResult {
        let body = Bytes::from_static(b"shared");
        let class = ResponseClass::Success;
        Ok(SharedResponse {
            status: StatusCode::OK,
            headers: HeaderMap::new(),
            body,
            class,
            code: None,
            elapsed: Duration::ZERO,
        })
    }

    #[test]
    fn only_identical_reads_of_the_named_routes_share_a_response() {
        let coalescer = coalescer();
        let first = key(&coalescer, &get("/channels/5"));
        assert!(first.is_some() && first == key(&coalescer, &get("/channels/5")));
        assert_ne!(first, key(&coalescer, &get("/channels/6")));
        assert_ne!(first, key(&coalescer, &get("/channels/5?x=1")));
        let mut other = get("/channels/5");
        other.headers.insert("accept-language", HeaderValue::from_static("de"));
        assert_ne!(first, key(&coalescer, &other));
        let mut other = get("/channels/5");
        other.credential = Credential::Anonymous;
        assert_ne!(first, key(&coalescer, &other));
        assert_eq!(key(&coalescer, &get("/guilds/5")), None);
        assert_eq!(key(&coalescer, &RestRequest::new(Method::DELETE, "/channels/5", BOT, LeaseGuard::always())), None);
        let mut with_body = get("/channels/5");
        with_body.body = RequestBody::Whole(Bytes::from_static(b"{}"));
        assert_eq!(key(&coalescer, &with_body), None);
    }

    #[tokio::test]
    async fn call_is_made_once_and_goes_on_without_its_first_caller() {
        let (coalescer, made) = (coalescer(), Arc::<AtomicUsize>::default());
        let key = key(&coalescer, &get("/channels/5")).unwrap();
        let (answer, answered) = oneshot::channel();
        let count = Arc::clone(&made);
        let mut first = Box::pin(coalescer.join(key.clone(), || async move {
            count.fetch_add(1, Ordering::SeqCst);
            answered.await.unwrap()
        }));
        assert!(first.as_mut().now_or_never().is_none());
        let wait = || coalescer.join(key.clone(), pending);
        let (mut second, mut third) = (Box::pin(wait()), Box::pin(wait()));
        assert!(second.as_mut().now_or_never().is_none() && third.as_mut().now_or_never().is_none());
        drop(first);
        answer.send(response()).unwrap();
        let (second, third) = join(second, third).await;
        assert_eq!((second.unwrap().body, third.unwrap().body), ("shared".into(), "shared".into()));
        assert_eq!(made.load(Ordering::SeqCst), 1);
        assert!(coalescer.in_flight.lock().unwrap().calls.is_empty());
        // The next call is a new one.
        let count = Arc::clone(&made);
        let next = coalescer.join(key, || async move {
            count.fetch_add(1, Ordering::SeqCst);
            response()
        });
        next.await.unwrap();
        assert_eq!(made.load(Ordering::SeqCst), 2);
    }

    #[tokio::test]
    async fn call_that_nobody_waits_for_is_given_up() {
        struct SetOnDrop(Arc<AtomicUsize>);
        impl Drop for SetOnDrop {
            fn drop(&mut self) {
                self.0.fetch_add(1, Ordering::SeqCst);
            }
        }
        let (coalescer, dropped) = (coalescer(), Arc::<AtomicUsize>::default());
        let key = key(&coalescer, &get("/channels/5")).unwrap();
        let guard = SetOnDrop(Arc::clone(&dropped));
        let mut call = Box::pin(coalescer.join(key, || async move {
            let _guard = guard;
            pending().await
        }));
        assert!(call.as_mut().now_or_never().is_none());
        drop(call);
        assert_eq!(dropped.load(Ordering::SeqCst), 1);
        assert!(coalescer.in_flight.lock().unwrap().calls.is_empty());
    }
}
