//! `routes`: cost of finding the route of an API request and checking its scope, in the order of `ROUTES` as the daemon does,
//! and with a resource of actix-web for each path, where the check is wrapped around each resource.
//!
//! Both applications answer every route with an empty response and run in this process, without sockets.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use actix_web::body::MessageBody;
use actix_web::dev::{Service, ServiceRequest, ServiceResponse};
use actix_web::http::{Method, StatusCode};
use actix_web::middleware::{Next, from_fn};
use actix_web::{App, Error, HttpMessage as _, HttpRequest, HttpResponse, test, web};
use anyhow::ensure;
use guildhall::api::{ROUTES, Route, find_route};
use guildhall_core::access::Scope;
use serde_json::{Value, json};

/// Value of the variable segments.
const ID: &str = "1234567890123456789";

pub(crate) async fn run(seconds: u64, quiet: bool) -> anyhow::Result<Value> {
    let time = Duration::from_secs(seconds) / 2;
    let own = test::init_service(App::new().default_service(web::to(respond)).wrap(from_fn(check_found))).await;
    let own_ns = measure(&own, time).await?;
    let resources = test::init_service(App::new().configure(resources)).await;
    let resources_ns = measure(&resources, time).await?;
    if !quiet {
        println!("own matching: {own_ns:.0} ns a request; resources: {resources_ns:.0} ns");
    }
    Ok(json!({
        "name": "routes",
        "seconds": seconds,
        "routes": ROUTES.len(),
        "own_ns": own_ns,
        "resources_ns": resources_ns,
        "ratio": own_ns / resources_ns,
    }))
}

/// Nanoseconds per request, when each route is requested in turn.
async fn measure<S, B>(service: &S, time: Duration) -> anyhow::Result<f64>
where
    S: Service<actix_http::Request, Response = ServiceResponse<B>, Error = Error>,
    B: MessageBody,
{
    let requests: Vec<(Method, String)> =
        ROUTES.iter().map(|route| (method(route), path(route).replace("{id}", ID))).collect();
    let (start, mut count) = (Instant::now(), 0_u32);
    while start.elapsed() < time {
        for (method, path) in &requests {
            let request = test::TestRequest::with_uri(path).method(method.clone()).to_request();
            let status = service.call(request).await.map_or(StatusCode::INTERNAL_SERVER_ERROR, |sent| sent.status());
            ensure!(status == StatusCode::NO_CONTENT, "{method} {path} was answered {status}");
            count += 1;
        }
    }
    Ok(start.elapsed().as_secs_f64() * 1e9 / f64::from(count))
}

/// A resource for each path. `{id}` stands for every variable segment.
fn resources(config: &mut web::ServiceConfig) {
    let mut by_path: BTreeMap<String, Vec<&'static Route>> = BTreeMap::new();
    for route in ROUTES {
        by_path.entry(path(route)).or_default().push(route);
    }
    // A fixed segment is tried before a variable one.
    let mut paths: Vec<_> = by_path.into_iter().collect();
    paths.sort_by_key(|(path, _)| path.contains("{id}"));
    for (path, routes) in paths {
        let mut resource = web::resource(&path);
        for route in &routes {
            resource = resource.route(web::route().method(method(route)).to(respond));
        }
        config.service(resource.wrap(from_fn(move |request, next| check(routes.clone(), request, next))));
    }
}

fn method(route: &Route) -> Method {
    Method::from_bytes(route.method.as_bytes()).expect("invariant: methods of routes are valid")
}

/// The path with `{id}` for its variable segment.
fn path(route: &Route) -> String {
    match route.path.split_once('{') {
        Some((before, rest)) => format!("/v1{before}{{id}}{}", rest.split_once('}').map_or("", |(_, after)| after)),
        None => format!("/v1{}", route.path),
    }
}

/// The scope that was checked. Without one, the handler rejects the request.
struct Checked(Scope);

async fn respond(request: HttpRequest) -> HttpResponse {
    match request.extensions().get::<Checked>() {
        Some(Checked(scope)) if *scope != Scope::Danger => HttpResponse::NoContent().finish(),
        _ => HttpResponse::Forbidden().finish(),
    }
}

async fn check_found(
    request: ServiceRequest,
    next: Next<impl MessageBody>,
) -> Result<ServiceResponse<impl MessageBody>, Error> {
    if let Some(route) = find_route(request.path(), request.method()) {
        request.extensions_mut().insert(Checked(route.needs));
    }
    next.call(request).await
}

async fn check(
    routes: Vec<&'static Route>,
    request: ServiceRequest,
    next: Next<impl MessageBody>,
) -> Result<ServiceResponse<impl MessageBody>, Error> {
    if let Some(route) = routes.iter().find(|route| request.method().as_str() == route.method) {
        request.extensions_mut().insert(Checked(route.needs));
    }
    next.call(request).await
}
