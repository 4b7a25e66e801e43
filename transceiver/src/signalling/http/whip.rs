//! WHIP (RFC 9725): the same calls for clients of the broadcast world.
//!
//! | request | answer |
//! |---|---|
//! | `POST /whip`, SDP | 201, the answer, `Location`, `ETag` |
//! | `DELETE /whip/{id}` | 200 |
//! | `PATCH /whip/{id}`, a fragment that trickles | 204: the client's address comes of its checks |
//! | the same with `If-Match: *` | 200: ICE is restarted; our fragment and a new `ETag` |
//!
//! The entity tag names the ICE session (RFC 9725, 4.3.1). Beyond the RFC, an offer that receives
//! as well as sends is answered in kind.

use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use syrinx_shared::http::ApiError;

use super::body::{self, OfferingKind};
use super::calls::{self, OpenQuery};
use super::{OFFERED_ONCE, Signalling, errors};
use crate::driver::desk::Answer;
use crate::engine::{FRAGMENT_BYTES_MAX, Fragment};

pub(super) const PATH: &str = "/whip";

const FRAGMENT: &str = "application/trickle-ice-sdpfrag";

pub(super) async fn open(
    State(signalling): State<Signalling>,
    query: Result<Query<OpenQuery>, QueryRejection>,
    request: Request,
) -> Result<Response, ApiError> {
    if !matches!(OfferingKind::of(request.headers()), Ok(OfferingKind::Sdp)) {
        return Err(body::unsupported(
            "Send the SDP offer as the body, with Content-Type: application/sdp.",
        ));
    }
    let Answer { call, sdp } = calls::answer(&signalling, query, request).await?;
    let headers = [
        (header::CONTENT_TYPE, "application/sdp".to_owned()),
        (header::LOCATION, format!("{PATH}/{call}")),
        (header::ETAG, tag(0)),
    ];
    Ok((StatusCode::CREATED, headers, sdp).into_response())
}

/// `OPTIONS`, where it is no browser's preflight.
pub(super) async fn options() -> Response {
    const ACCEPT_POST: &str = "accept-post";
    (StatusCode::NO_CONTENT, [(ACCEPT_POST, "application/sdp")]).into_response()
}

/// `OPTIONS` on a call.
pub(super) async fn call_options() -> Response {
    const ACCEPT_PATCH: &str = "accept-patch";
    (StatusCode::NO_CONTENT, [(ACCEPT_PATCH, FRAGMENT)]).into_response()
}

pub(super) async fn patch(
    State(signalling): State<Signalling>,
    Path(id): Path<String>,
    request: Request,
) -> Result<Response, ApiError> {
    let (parts, body) = request.into_parts();
    let headers = &parts.headers;
    let (call, key) = calls::named(&signalling, headers, &id)?;
    if !body::is_kind(body::content_type(headers), FRAGMENT) {
        let message =
            format!("Send an SDP fragment, with Content-Type: {FRAGMENT}. {OFFERED_ONCE}");
        return Err(body::unsupported(&message));
    }
    let wanted = Precondition::of(headers)?;
    let limit = FRAGMENT_BYTES_MAX;
    let too_large = || errors::too_large("fragment_too_large", None, "fragment", limit);
    let body = body::read(headers, body, limit, signalling.body_timeout, too_large).await?;
    let fragment = Fragment::parse(&body).map_err(|error| {
        let message = errors::sentence(error);
        ApiError::new(StatusCode::BAD_REQUEST, "invalid_fragment", message)
    })?;
    let restarts = signalling
        .desk
        .restarts(call, key)
        .map_err(errors::refuse_ask)?;
    match wanted {
        Precondition::Tags(tags) if tags.iter().any(|given| *given == tag(restarts)) => {
            // An ICE-lite agent checks no address, so it needs no candidates.
            Ok((StatusCode::NO_CONTENT, [(header::ETAG, tag(restarts))]).into_response())
        }
        Precondition::Tags(_) => Err(ApiError::new(
            StatusCode::PRECONDITION_FAILED,
            "stale_ice_session",
            "If-Match names an ICE session that has been restarted, or none of this call.",
        )),
        Precondition::Any => {
            let restarted = signalling.desk.restart(call, key, &fragment);
            let (restarts, ours) = restarted.map_err(errors::refuse_restart)?;
            let headers = [
                (header::CONTENT_TYPE, FRAGMENT.to_owned()),
                (header::ETAG, tag(restarts)),
            ];
            Ok((StatusCode::OK, headers, ours).into_response())
        }
    }
}

/// The entity tag of a call's ICE session.
fn tag(restarts: u16) -> String {
    format!("\"ice-{restarts}\"")
}

/// What `If-Match` asks for.
#[derive(Debug, PartialEq, Eq)]
enum Precondition {
    /// Any ICE session: the client begins another. The RFC's text writes it in quotes.
    Any,
    /// One of these, in their quotes.
    Tags(Vec<String>),
}

impl Precondition {
    fn of(headers: &HeaderMap) -> Result<Self, ApiError> {
        let given = headers.get_all(header::IF_MATCH).iter();
        let given = given.filter_map(|value: &HeaderValue| value.to_str().ok());
        let tags: Vec<String> = given
            .flat_map(|value| value.split(','))
            .map(|tag| tag.trim().to_owned())
            .filter(|tag| !tag.is_empty())
            .collect();
        if tags.is_empty() {
            return Err(ApiError::new(
                StatusCode::PRECONDITION_REQUIRED,
                "precondition_required",
                "Say in If-Match which ICE session this is for, or * to restart ICE.",
            ));
        }
        let is_any = |tag: &String| matches!(tag.as_str(), "*" | "\"*\"");
        Ok(match tags.iter().any(is_any) {
            true => Self::Any,
            false => Self::Tags(tags),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_precondition_is_any_or_a_list_of_tags() {
        let of = |value| {
            let value = HeaderValue::from_static(value);
            Precondition::of(&HeaderMap::from_iter([(header::IF_MATCH, value)]))
        };
        assert_eq!(of("*"), Ok(Precondition::Any));
        assert_eq!(of("\"*\""), Ok(Precondition::Any));
        let tags = vec!["\"ice-0\"".to_owned(), "\"x\"".to_owned()];
        assert_eq!(of("\"ice-0\" , \"x\""), Ok(Precondition::Tags(tags)));
        for missing in ["", " ,"] {
            let refused = of(missing).unwrap_err();
            assert_eq!(refused.status, StatusCode::PRECONDITION_REQUIRED);
        }
        assert!(Precondition::of(&HeaderMap::new()).is_err());
    }
}
