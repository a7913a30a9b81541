//! The API under `/v1`.
//!
//! ```text
//!  request ──▶ entry: key, body, desk ──▶ handler: read ──▶ desk (on the daemon's runtime) ──▶ view ──▶ answer
//!                      └──────────────────────┴──────────────────────┴─▶ refusal ──▶ problem
//! ```
//!
//! It speaks to the desk alone. A caller that hangs up does not stop what it has asked for.

mod entry;
mod guilds;
mod instances;
mod kept;
mod letters;
mod operations;
mod read;
mod refusal;
mod view;

use std::{
    future::{Future, ready},
    sync::{Arc, OnceLock},
    time::Duration,
};

use actix_web::{
    Resource, Route,
    guard::{self, Guard},
    http::Method,
    middleware::from_fn,
    web::{self, Data},
};
use guildhall_actors::operations::Desk;
use tokio::{runtime::Handle, sync::Semaphore};

pub use self::kept::Shelf;
use super::{
    admin_key::AdminKey,
    problem::{Problem, Told},
};

/// The API's bounds.
#[derive(Clone, Copy, Debug)]
pub struct ControlConfig {
    /// The largest body that is read.
    pub body_most: usize,
    /// How long a body may take to arrive.
    pub body_within: Duration,
    /// Requests that are before the desk at once.
    pub calls_most: usize,
}

impl Default for ControlConfig {
    fn default() -> Self {
        Self { body_most: 1024 * 1024, body_within: Duration::from_secs(10), calls_most: 512 }
    }
}

/// What the API needs. It answers from the start, and says that it cannot do anything yet until the desk is there.
#[derive(Clone, Debug)]
pub struct Control {
    key: AdminKey,
    config: ControlConfig,
    desk: Arc<OnceLock<Arc<Desk>>>,
    shelf: Arc<OnceLock<Arc<Shelf>>>,
    calls: Arc<Semaphore>,
}

impl Control {
    /// An API for whoever has this key.
    #[must_use]
    pub fn new(key: AdminKey, config: ControlConfig) -> Self {
        Self {
            key,
            config,
            desk: Arc::default(),
            shelf: Arc::default(),
            calls: Arc::new(Semaphore::new(config.calls_most)),
        }
    }

    /// From now on this is the desk. A second one changes nothing.
    pub fn open(&self, desk: Arc<Desk>) {
        drop(self.desk.set(desk));
    }

    /// From now on this is where values and dead events are. A second one changes nothing.
    pub fn open_shelf(&self, shelf: Shelf) {
        drop(self.shelf.set(Arc::new(shelf)));
    }
}

/// The API as the listener's threads have it.
pub(crate) struct Served {
    control: Control,
    runtime: Handle,
    /// Whose guilds these are, while there is but one tenant.
    tenant: Arc<str>,
    /// Whose idempotency keys these are.
    scope: Arc<str>,
}

impl Served {
    pub(crate) fn new(control: Control, runtime: Handle) -> Self {
        Self { control, runtime, tenant: Arc::from("default"), scope: Arc::from("admin") }
    }

    /// Asks the desk, on the runtime that it belongs to: what it needs lives there, and a caller that hangs up does not stop
    /// it half way.
    async fn ask<T, F>(&self, question: impl FnOnce(Arc<Desk>) -> F) -> Result<T, Told>
    where
        F: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        let desk = self.control.desk.get().ok_or(Problem::Starting)?;
        self.run(|| question(Arc::clone(desk))).await
    }

    /// The same of what bots keep.
    async fn ask_shelf<T, F>(&self, question: impl FnOnce(Arc<Shelf>) -> F) -> Result<T, Told>
    where
        F: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        let shelf = self.control.shelf.get().ok_or(Problem::Starting)?;
        self.run(|| question(Arc::clone(shelf))).await
    }

    async fn run<T, F>(&self, work: impl FnOnce() -> F) -> Result<T, Told>
    where
        F: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        let permit = Arc::clone(&self.control.calls).try_acquire_owned().map_err(|_| Problem::Busy)?;
        let answer = work();
        let task = self.runtime.spawn(async move {
            let answer = answer.await;
            drop(permit);
            answer
        });
        task.await.map_err(|error| {
            if error.is_cancelled() {
                Problem::StoreUnavailable.says(
                    "The process is ending. Ask another one, or this one again; what has an idempotency key is never accepted \
                     twice with the same one.",
                )
            } else {
                Problem::Internal.into()
            }
        })
    }
}

/// Adds the API to an app.
pub(crate) fn routes(config: &mut web::ServiceConfig, served: &Data<Served>) {
    let api = web::scope("/v1")
        .wrap(from_fn(entry::admit))
        .service(resource("/guilds/{guild_id}/operations", "POST", [web::post().to(operations::submit_in_guild)]))
        .service(resource("/guilds/{guild_id}/pause", "POST", [web::post().to(guilds::pause)]))
        .service(resource("/guilds/{guild_id}/resume", "POST", [web::post().to(guilds::resume)]))
        .service(resource("/guilds/{guild_id}", "GET, HEAD", [get().to(guilds::show)]))
        .service(resource("/events/dead", "GET, HEAD", [get().to(kept::dead)]))
        .service(resource("/events/dead/{place}/revive", "POST", [web::post().to(kept::revive)]))
        .service(resource(
            "/state/{key:.+}",
            "GET, HEAD, PUT, DELETE",
            [get().to(kept::show), web::put().to(kept::put), web::delete().to(kept::remove)],
        ))
        .service(resource("/instances", "GET, HEAD", [get().to(instances::list)]))
        .service(resource("/pause", "POST", [web::post().to(guilds::pause_all)]))
        .service(resource("/resume", "POST", [web::post().to(guilds::resume_all)]))
        .service(resource(
            "/operations",
            "GET, HEAD, POST",
            [get().to(operations::list), web::post().to(operations::submit)],
        ))
        .service(resource("/operations/{id}", "GET, HEAD", [get().to(operations::show)]))
        .service(resource("/operations/{id}/cancel", "POST", [web::post().to(operations::cancel)]))
        .service(resource("/operations/{id}/retry", "POST", [web::post().to(operations::retry)]))
        .service(resource("/dead-letters", "GET, HEAD", [get().to(letters::list)]))
        .service(resource("/dead-letters/redrive", "POST", [web::post().to(letters::redrive_all)]))
        .service(resource(
            "/dead-letters/{id}",
            "GET, HEAD, DELETE",
            [get().to(letters::show), web::delete().to(letters::discard)],
        ))
        .service(resource("/dead-letters/{id}/redrive", "POST", [web::post().to(letters::redrive)]))
        .default_service(web::to(async || Problem::NotFound.response()));
    config.app_data(served.clone()).service(api);
}

fn resource<const N: usize>(path: &'static str, allow: &'static str, routes: [Route; N]) -> Resource {
    let resource = routes.into_iter().fold(web::resource(path), Resource::route);
    resource.default_service(web::to(move || ready(Problem::MethodNotAllowed { allow }.response())))
}

/// Who may GET may also HEAD.
fn get() -> Route {
    web::route().guard(guard::fn_guard(|context| guard::Get().check(context) || context.head().method == Method::HEAD))
}
