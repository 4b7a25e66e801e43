//! The admin surface of a daemon: `GET /metrics` and `GET /healthz` on an address of its own.
//!
//! It answers whoever can reach it and shows no secret; the default is loopback, and the shipped
//! units keep it there.

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde::Deserialize;
use serde_json::{Map, Value};
use tokio::net::TcpListener;

use crate::http::{self, ApiError, HttpLimits, HttpMetrics};
use crate::metrics::Exposition;

/// The admin surface serves scrapers and probes: a handful, each for moments.
const LIMITS: HttpLimits = HttpLimits {
    connections_max: 32,
    connections_per_client_max: 32,
    header_timeout: Duration::from_secs(10),
};

/// How often samples of histograms are folded into buckets when nobody scrapes. Samples wait in
/// memory until then: at 1,000 call starts a second that is some 10,000 values of 8 bytes.
const FOLD_INTERVAL: Duration = Duration::from_secs(5);

/// The `[admin]` section's address; each daemon has its own default.
#[derive(Debug, Clone, Copy, Deserialize)]
pub struct AdminConfig {
    /// Address of `/metrics` and `/healthz`. Loopback by default: there is no authentication here.
    pub listen: SocketAddr,
}

/// What a daemon says about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// It serves and takes more.
    Ok,
    /// It serves what is open and takes nothing more.
    Draining,
    /// It does not serve: a probe should fail.
    Failing,
}

impl Status {
    fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Draining => "draining",
            Self::Failing => "failing",
        }
    }
}

/// The answer to `GET /healthz`: status, and facts of the daemon's own (sessions, capacity, ..).
#[derive(Debug, Clone)]
pub struct Health {
    /// 503 when [`Status::Failing`], else 200.
    pub status: Status,
    /// Further members of the JSON object, beside `status`.
    pub facts: Map<String, Value>,
}

impl IntoResponse for Health {
    fn into_response(self) -> Response {
        let code = match self.status {
            Status::Ok | Status::Draining => StatusCode::OK,
            Status::Failing => StatusCode::SERVICE_UNAVAILABLE,
        };
        let mut body = Map::new();
        body.insert("status".to_owned(), self.status.as_str().into());
        body.extend(self.facts);
        (code, axum::Json(body)).into_response()
    }
}

/// Serves until `stop` resolves. `health` is asked on every probe and must not block; `more` are
/// the daemon's own routes.
pub async fn serve<H>(
    listener: TcpListener,
    health: H,
    exposition: Exposition,
    more: Router,
    stop: impl Future<Output = ()>,
) where
    H: Fn() -> Health + Clone + Send + Sync + 'static,
{
    let folded = exposition.clone();
    let fold = async {
        loop {
            tokio::time::sleep(FOLD_INTERVAL).await;
            folded.fold();
        }
    };
    let server = http::serve(
        listener,
        None,
        router(health, move || exposition.render()).merge(more),
        (LIMITS, HttpMetrics::noop()),
        stop,
    );
    tokio::select! {
        () = server => {}
        () = fold => {}
    }
}

fn router<H, R>(health: H, render: R) -> Router
where
    H: Fn() -> Health + Clone + Send + Sync + 'static,
    R: Fn() -> String + Clone + Send + Sync + 'static,
{
    const METHODS: &str = "GET, HEAD";
    let exposition = move || async move {
        (
            [(
                header::CONTENT_TYPE,
                "text/plain; version=0.0.4; charset=utf-8",
            )],
            render(),
        )
    };
    let wrong_method = || async { ApiError::wrong_method(METHODS) };
    Router::new()
        .route("/metrics", get(exposition).fallback(wrong_method))
        .route(
            "/healthz",
            get(move || async move { health() }).fallback(wrong_method),
        )
        .fallback(|| async { ApiError::unknown_path() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;
    use axum::http::{Method, Request};
    use tower_service::Service;

    async fn ask(status: Status, method: Method, path: &str) -> (StatusCode, String, String) {
        let health = move || Health {
            status,
            facts: Map::from_iter([("sessions".to_owned(), Value::from(3))]),
        };
        let mut router = router(health, || "edge_up 1\n".to_owned());
        let request = Request::builder()
            .method(method)
            .uri(path)
            .body(Body::empty())
            .unwrap();
        let response = router.call(request).await.unwrap();
        let kind = response.headers()[header::CONTENT_TYPE]
            .to_str()
            .unwrap()
            .to_owned();
        let code = response.status();
        let body = axum::body::to_bytes(response.into_body(), 4096)
            .await
            .unwrap();
        (code, kind, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn metrics_are_text() {
        let (code, kind, body) = ask(Status::Ok, Method::GET, "/metrics").await;
        assert_eq!((code, body.as_str()), (StatusCode::OK, "edge_up 1\n"));
        assert!(kind.starts_with("text/plain; version=0.0.4"), "{kind}");
    }

    #[tokio::test]
    async fn health_fails_the_probe_only_when_failing() {
        for (status, code, word) in [
            (Status::Ok, StatusCode::OK, "ok"),
            (Status::Draining, StatusCode::OK, "draining"),
            (Status::Failing, StatusCode::SERVICE_UNAVAILABLE, "failing"),
        ] {
            let (answered, kind, body) = ask(status, Method::GET, "/healthz").await;
            assert_eq!((answered, kind.as_str()), (code, "application/json"));
            let body: Value = serde_json::from_str(&body).unwrap();
            assert_eq!(body, serde_json::json!({"status": word, "sessions": 3}));
        }
    }

    #[tokio::test]
    async fn wrong_paths_and_methods_get_json_errors() {
        let (code, kind, body) = ask(Status::Ok, Method::GET, "/nothing").await;
        assert_eq!(
            (code, kind.as_str()),
            (StatusCode::NOT_FOUND, "application/json")
        );
        assert!(body.contains("\"code\":\"unknown_path\""), "{body}");
        let (code, _, body) = ask(Status::Ok, Method::POST, "/healthz").await;
        assert_eq!(code, StatusCode::METHOD_NOT_ALLOWED);
        assert!(body.contains("\"code\":\"method_not_allowed\""), "{body}");
    }
}
