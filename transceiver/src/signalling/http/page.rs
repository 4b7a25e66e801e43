//! The page, and the description of the API: a few files, compiled in, so that the binary is all
//! there is to install.

use axum::Router;
use axum::http::header::{self, HeaderName};
use axum::response::IntoResponse;
use axum::routing::get;
use syrinx_shared::http::ApiError;

/// Scripts and styles come from here only, nothing is loaded from elsewhere, and no page can frame
/// this one. Media elements play streams, which need no permission of the policy.
const POLICY: &str = "default-src 'self'; base-uri 'none'; form-action 'none'; \
                      frame-ancestors 'none'; object-src 'none'";

const SCRIPT_TYPE: &str = "text/javascript; charset=utf-8";

/// Path, media type, text.
const FILES: [(&str, &str, &str); 7] = [
    (
        "/",
        "text/html; charset=utf-8",
        include_str!("../../../web/index.html"),
    ),
    ("/app.js", SCRIPT_TYPE, include_str!("../../../web/app.js")),
    (
        "/conversation.js",
        SCRIPT_TYPE,
        include_str!("../../../web/conversation.js"),
    ),
    (
        "/events.js",
        SCRIPT_TYPE,
        include_str!("../../../web/events.js"),
    ),
    (
        "/style.css",
        "text/css; charset=utf-8",
        include_str!("../../../web/style.css"),
    ),
    (
        "/icon.svg",
        "image/svg+xml",
        include_str!("../../../web/icon.svg"),
    ),
    (
        "/openapi.json",
        "application/json",
        include_str!("../../../openapi.json"),
    ),
];

/// The page's routes.
pub(super) fn router() -> Router {
    FILES
        .iter()
        .fold(Router::new(), |router, &(path, kind, text)| {
            let file = get(async move || with_headers(kind, text))
                .fallback(async || ApiError::wrong_method("GET, HEAD"));
            router.route(path, file)
        })
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
