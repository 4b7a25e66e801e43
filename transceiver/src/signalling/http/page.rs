//! The page: four files, compiled in, so that the binary is all there is to install.

use axum::Router;
use axum::http::header::{self, HeaderName};
use axum::response::IntoResponse;
use axum::routing::get;
use syrinx_shared::http::ApiError;

/// Scripts and styles come from here only, nothing is loaded from elsewhere, and no page can frame
/// this one. Media elements play streams, which need no permission of the policy.
const POLICY: &str = "default-src 'self'; base-uri 'none'; form-action 'none'; \
                      frame-ancestors 'none'; object-src 'none'";

const HTML: &str = include_str!("../../../web/index.html");
const SCRIPT: &str = include_str!("../../../web/app.js");
const STYLE: &str = include_str!("../../../web/style.css");
const ICON: &str = include_str!("../../../web/icon.svg");

/// The page's routes.
pub(super) fn router() -> Router {
    let file = |kind: &'static str, text: &'static str| {
        get(async move || with_headers(kind, text))
            .fallback(async || ApiError::wrong_method("GET, HEAD"))
    };
    Router::new()
        .route("/", file("text/html; charset=utf-8", HTML))
        .route("/app.js", file("text/javascript; charset=utf-8", SCRIPT))
        .route("/style.css", file("text/css; charset=utf-8", STYLE))
        .route("/icon.svg", file("image/svg+xml", ICON))
}

fn with_headers(kind: &'static str, text: &'static str) -> impl IntoResponse {
    const PERMISSIONS_POLICY: HeaderName = HeaderName::from_static("permissions-policy");
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (PERMISSIONS_POLICY, "microphone=(self), camera=()"),
        // The files change with the binary; a copy kept beyond that would speak another API.
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, text)
}
