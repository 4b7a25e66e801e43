//! Cross-origin requests (the Fetch standard, "CORS protocol"): which pages' scripts may use the
//! API, and what of an answer they may read.
//!
//! Opening a call takes a request that browsers ask leave for beforehand (its content type is not a
//! form's, or it has a key), so a page whose origin is not configured cannot open one through a
//! visitor's browser. The one exception, a form where no key is needed, is told by
//! [`AllowedOrigins::is_foreign`].

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

/// What the API's paths take together.
const METHODS: HeaderValue = HeaderValue::from_static("GET, POST, PATCH, DELETE");
/// Beyond these a script reads only the few headers every browser shows.
const EXPOSED: HeaderValue = HeaderValue::from_static("Location, ETag, Retry-After");
/// Seconds a browser may keep the leave it was given.
const MAX_AGE_S: HeaderValue = HeaderValue::from_static("600");

/// The configured origins.
#[derive(Debug, Clone)]
pub struct AllowedOrigins {
    any: bool,
    listed: Vec<HeaderValue>,
}

impl AllowedOrigins {
    /// From validated configuration: serialised origins, or `*`.
    pub fn new(origins: &[String]) -> Self {
        Self {
            any: origins.iter().any(|origin| origin == "*"),
            listed: origins
                .iter()
                .filter_map(|origin| origin.parse().ok())
                .collect(),
        }
    }

    fn permit(&self, origin: &HeaderValue) -> bool {
        self.any || self.listed.contains(origin)
    }

    /// Whether a request comes from a page of another origin than this server's that is not
    /// configured. Browsers say in `Sec-Fetch-Site` how they see it, whatever a proxy between has
    /// made of `Host`; older ones leave only the comparison. What is no browser sends neither.
    pub(super) fn is_foreign(&self, headers: &HeaderMap) -> bool {
        let Some(origin) = headers.get(header::ORIGIN) else {
            return false;
        };
        if self.permit(origin) {
            return false;
        }
        if let Some(site) = headers.get("sec-fetch-site") {
            return site != "same-origin";
        }
        let authority = origin.to_str().ok().and_then(|o| o.split_once("://"));
        let host = headers.get(header::HOST).and_then(|h| h.to_str().ok());
        authority.is_none_or(|(_, authority)| Some(authority) != host)
    }
}

/// Answers a preflight itself, and marks the answers to permitted origins.
pub(super) async fn answer(
    State(origins): State<Arc<AllowedOrigins>>,
    request: Request,
    next: Next,
) -> Response {
    let headers = request.headers();
    let origin = headers
        .get(header::ORIGIN)
        .filter(|origin| origins.permit(origin))
        .cloned();
    let asked = headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS).cloned();
    let is_preflight = request.method() == Method::OPTIONS
        && headers.contains_key(header::ORIGIN)
        && headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
    let mut response = if is_preflight {
        StatusCode::NO_CONTENT.into_response()
    } else {
        next.run(request).await
    };
    let headers = response.headers_mut();
    // Caches keep one answer an origin.
    headers.append(header::VARY, HeaderValue::from(header::ORIGIN));
    let Some(origin) = origin else {
        return response;
    };
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    if is_preflight {
        permit_request(headers, asked);
    } else {
        headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
    }
    response
}

/// SDKs send headers of their own, so whatever is asked for is permitted: none of them gives a page
/// anything that the permitted origin alone does not.
fn permit_request(headers: &mut HeaderMap, asked: Option<HeaderValue>) {
    const ASKED: HeaderName = header::ACCESS_CONTROL_REQUEST_HEADERS;
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, METHODS);
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, MAX_AGE_S);
    headers.append(header::VARY, HeaderValue::from(ASKED));
    if let Some(asked) = asked {
        headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, asked);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_foreign_unless_it_is_ours_or_configured() {
        let origins = AllowedOrigins::new(&["https://app.example".to_owned()]);
        let is_foreign = |headers: &[(&'static str, &'static str)]| {
            let headers = headers.iter().map(|(name, value)| {
                let name = HeaderName::from_static(name);
                (name, HeaderValue::from_static(value))
            });
            origins.is_foreign(&headers.collect())
        };
        let host = ("host", "127.0.0.1:8080");
        assert!(!is_foreign(&[host]), "no browser");
        assert!(!is_foreign(&[host, ("origin", "http://127.0.0.1:8080")]));
        assert!(!is_foreign(&[host, ("origin", "https://app.example")]));
        for origin in ["https://evil.example", "null", "http://127.0.0.1:80"] {
            assert!(is_foreign(&[host, ("origin", origin)]), "{origin}");
        }
        let behind_proxy = [host, ("origin", "https://edge.example")];
        let [host, origin] = behind_proxy;
        assert!(!is_foreign(&[
            host,
            origin,
            ("sec-fetch-site", "same-origin")
        ]));
        assert!(is_foreign(&[host, origin, ("sec-fetch-site", "same-site")]));
        let own = ("origin", "http://127.0.0.1:8080");
        assert!(is_foreign(&[host, own, ("sec-fetch-site", "cross-site")]));
    }
}
