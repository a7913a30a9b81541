//! Responses to health probes and to Prometheus.

use std::time::Duration;

use actix_web::{
    HttpResponse,
    http::header::{CONTENT_TYPE, HeaderValue},
    web,
};
use guildhall_actors::supervision::spawn_work_on;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::runtime::Handle;

use super::{
    dto::{Live, Started},
    problem::ProblemType,
    readiness::Readiness,
};
use crate::process;

/// An event loop that takes longer to run an empty task is not alive.
const LIVENESS_TIMEOUT: Duration = Duration::from_secs(1);

/// What the handlers need.
#[derive(Clone)]
pub(crate) struct HealthState {
    pub(crate) readiness: Readiness,
    pub(crate) metrics: PrometheusHandle,
    /// Runtime of the rest of the daemon; the listener's threads have their own.
    pub(crate) runtime: Handle,
}

/// All paths that are served here.
pub(crate) const PATHS: [&str; 4] = ["/livez", "/readyz", "/startupz", "/metrics"];

pub(crate) fn routes(config: &mut web::ServiceConfig) {
    config
        .service(get("/livez", web::get().to(livez), web::head().to(livez)))
        .service(get("/readyz", web::get().to(readyz), web::head().to(readyz)))
        .service(get("/startupz", web::get().to(startupz), web::head().to(startupz)))
        .service(get("/metrics", web::get().to(metrics), web::head().to(metrics)))
        .default_service(web::to(async || ProblemType::NotFound.response()));
}

fn get(path: &str, get: actix_web::Route, head: actix_web::Route) -> actix_web::Resource {
    web::resource(path)
        .route(get)
        .route(head)
        .default_service(web::to(async || ProblemType::not_allowed(HeaderValue::from_static("GET, HEAD"))))
}

/// Checks the event loop of the daemon, not the one of the listener: that one evidently runs.
async fn livez(ops: web::Data<HealthState>) -> HttpResponse {
    let pulse = spawn_work_on(&ops.runtime, async {});
    match tokio::time::timeout(LIVENESS_TIMEOUT, pulse).await {
        Ok(Ok(())) => HttpResponse::Ok().json(Live { live: true }),
        Ok(Err(_)) | Err(_) => HttpResponse::ServiceUnavailable().json(Live { live: false }),
    }
}

async fn readyz(ops: web::Data<HealthState>) -> HttpResponse {
    let report = ops.readiness.report();
    let mut response = if report.ready { HttpResponse::Ok() } else { HttpResponse::ServiceUnavailable() };
    response.json(report)
}

async fn startupz(ops: web::Data<HealthState>) -> HttpResponse {
    let started = ops.readiness.is_started();
    let mut response = if started { HttpResponse::Ok() } else { HttpResponse::ServiceUnavailable() };
    response.json(Started { started })
}

async fn metrics(ops: web::Data<HealthState>) -> HttpResponse {
    process::sample();
    let mut text = ops.metrics.render();
    process::write_cpu(&mut text);
    HttpResponse::Ok().insert_header((CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")).body(text)
}

#[cfg(test)]
mod tests {
    use actix_web::{
        App,
        http::{StatusCode, header::CONTENT_LENGTH},
        middleware::from_fn,
        test,
    };
    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::*;
    use crate::api::body::{UNREAD_MAX, without_body};

    async fn answer(ops: HealthState, request: test::TestRequest) -> (StatusCode, String, String) {
        let app = App::new().app_data(web::Data::new(ops)).wrap(from_fn(without_body)).configure(routes);
        let app = test::init_service(app).await;
        let response = test::call_service(&app, request.to_request()).await;
        let kind = response.headers().get(CONTENT_TYPE).map(|kind| kind.to_str().unwrap().to_owned());
        let status = response.status();
        let body = String::from_utf8(test::read_body(response).await.to_vec()).unwrap();
        (status, kind.unwrap_or_default(), body)
    }

    fn ops() -> HealthState {
        HealthState {
            readiness: Readiness::default(),
            metrics: PrometheusBuilder::new().build_recorder().handle(),
            runtime: Handle::current(),
        }
    }

    #[actix_web::test]
    async fn process_is_live_only_while_its_event_loop_runs() {
        let (status, ..) = answer(ops(), test::TestRequest::get().uri("/livez")).await;
        assert_eq!(status, StatusCode::OK);

        let ended = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let runtime = ended.handle().clone();
        ended.shutdown_background();
        let (status, ..) = answer(HealthState { runtime, ..ops() }, test::TestRequest::get().uri("/livez")).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    }

    #[actix_web::test]
    async fn readiness_lists_each_part_with_its_reason() {
        let ops = ops();
        let gateway = ops.readiness.register("gateway");
        gateway.not_ready("0 of 1 shards are connected");
        let (status, _, body) = answer(ops.clone(), test::TestRequest::get().uri("/readyz")).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        let body: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!(body["parts"]["gateway"]["reason"], "0 of 1 shards are connected");
        let (status, ..) = answer(ops.clone(), test::TestRequest::get().uri("/startupz")).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);

        gateway.ready();
        for path in ["/readyz", "/startupz"] {
            let (status, ..) = answer(ops.clone(), test::TestRequest::get().uri(path)).await;
            assert_eq!(status, StatusCode::OK, "{path}");
        }
    }

    #[actix_web::test]
    async fn other_paths_and_methods_are_problems() {
        let (status, kind, body) = answer(ops(), test::TestRequest::get().uri("/nothing/here")).await;
        assert_eq!((status, kind.as_str()), (StatusCode::NOT_FOUND, "application/problem+json"));
        assert!(body.contains("urn:guildhall:problem:not-found"), "{body}");

        let (status, kind, _) = answer(ops(), test::TestRequest::post().uri("/livez")).await;
        assert_eq!((status, kind.as_str()), (StatusCode::METHOD_NOT_ALLOWED, "application/problem+json"));
    }

    #[actix_web::test]
    async fn a_body_announced_as_too_large_is_refused() {
        let request = test::TestRequest::get().uri("/livez").insert_header((CONTENT_LENGTH, UNREAD_MAX + 1));
        let (status, kind, _) = answer(ops(), request).await;
        assert_eq!((status, kind.as_str()), (StatusCode::PAYLOAD_TOO_LARGE, "application/problem+json"));
    }
}
