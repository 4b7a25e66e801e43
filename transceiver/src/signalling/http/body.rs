//! The bodies of requests: bounded in size and in time, and what kind they are.
//!
//! A body that announces more than is taken is refused before a byte of it is read.

use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use axum::http::{HeaderMap, StatusCode, header};
use multer::Multipart;
use syrinx_shared::http::ApiError;

use super::errors;
use crate::engine::OFFER_BYTES_MAX;
use crate::signalling::session_config::{SESSION_TEXT_BYTES_MAX, SessionConfig};

/// Largest JSON body, in bytes: a session laid out for people, and what goes round it.
const JSON_BYTES_MAX: usize = SESSION_TEXT_BYTES_MAX + 1_024;
/// Largest multipart body, in bytes: both parts, and what goes round them.
const MULTIPART_BYTES_MAX: usize = OFFER_BYTES_MAX + SESSION_TEXT_BYTES_MAX + 8 * 1_024;
/// Parts that are looked at; the API has two.
const PARTS_COUNT_MAX: usize = 8;

const SDP: &str = "application/sdp";

/// What opens a call.
#[derive(Debug)]
pub(super) struct Offering {
    /// The SDP offer.
    pub(super) offer: Bytes,
    /// What is asked of the session beside it.
    pub(super) session: SessionConfig,
}

/// The kinds of body that open a call.
pub(super) enum OfferingKind {
    /// SDP and nothing else.
    Sdp,
    /// A form with the parts `sdp` and `session`.
    Multipart {
        /// What stands between its parts.
        boundary: String,
    },
}

impl OfferingKind {
    /// The kind that the request's `Content-Type` says.
    pub(super) fn of(headers: &HeaderMap) -> Result<Self, ApiError> {
        let given = content_type(headers);
        if is_kind(given, SDP) {
            return Ok(Self::Sdp);
        }
        if is_kind(given, "multipart/form-data") {
            return match multer::parse_boundary(given) {
                Ok(boundary) => Ok(Self::Multipart { boundary }),
                Err(_) => Err(bad_multipart("its Content-Type names no boundary")),
            };
        }
        Err(unsupported(
            "Send the SDP offer as the body, with Content-Type: application/sdp, or a \
             multipart/form-data with the parts sdp and session.",
        ))
    }

    /// Reads what opens a call.
    pub(super) async fn read(
        self,
        headers: &HeaderMap,
        body: Body,
        timeout: Duration,
    ) -> Result<Offering, ApiError> {
        match self {
            Self::Sdp => Ok(Offering {
                offer: read_sdp(headers, body, timeout).await?,
                session: SessionConfig::default(),
            }),
            Self::Multipart { boundary } => {
                let limit = MULTIPART_BYTES_MAX;
                let too_large = || errors::too_large("body_too_large", None, "body", limit);
                let body = read(headers, body, limit, timeout, too_large).await?;
                take_apart(body, &boundary).await
            }
        }
    }
}

/// Reads an SDP offer.
pub(super) async fn read_sdp(
    headers: &HeaderMap,
    body: Body,
    timeout: Duration,
) -> Result<Bytes, ApiError> {
    let limit = OFFER_BYTES_MAX;
    let too_large = || errors::too_large("offer_too_large", Some("sdp"), "offer", limit);
    read(headers, body, limit, timeout, too_large).await
}

/// Reads a JSON body; an empty one needs no `Content-Type`.
pub(super) async fn read_json(
    headers: &HeaderMap,
    body: Body,
    timeout: Duration,
) -> Result<Bytes, ApiError> {
    let limit = JSON_BYTES_MAX;
    let too_large = || errors::too_large("body_too_large", None, "body", limit);
    let body = read(headers, body, limit, timeout, too_large).await?;
    if body.is_empty() || is_kind(content_type(headers), "application/json") {
        return Ok(body);
    }
    Err(unsupported(
        "Send JSON, with Content-Type: application/json.",
    ))
}

/// The `Content-Type` of a request, or nothing.
pub(super) fn content_type(headers: &HeaderMap) -> &str {
    let given = headers.get(header::CONTENT_TYPE);
    given
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default()
}

/// Whether a content type is of this kind, whatever its parameters.
pub(super) fn is_kind(given: &str, kind: &str) -> bool {
    let essence = given.split(';').next().unwrap_or_default().trim();
    essence.eq_ignore_ascii_case(kind)
}

pub(super) fn unsupported(message: &str) -> ApiError {
    let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
    ApiError::new(status, "unsupported_media_type", message)
}

/// Reads a body of at most `limit` bytes that arrives within `timeout`.
pub(super) async fn read(
    headers: &HeaderMap,
    body: Body,
    limit: usize,
    timeout: Duration,
    too_large: impl Fn() -> ApiError,
) -> Result<Bytes, ApiError> {
    let announced = headers
        .get(header::CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok());
    if announced
        .and_then(|value| value.parse().ok())
        .is_some_and(|length: usize| length > limit)
    {
        return Err(too_large());
    }
    match tokio::time::timeout(timeout, to_bytes(body, limit)).await {
        Ok(Ok(body)) => Ok(body),
        // The limit, or a client that broke off and reads no answer.
        Ok(Err(_)) => Err(too_large()),
        Err(_) => Err(ApiError::new(
            StatusCode::REQUEST_TIMEOUT,
            "body_timeout",
            format!(
                "The body did not arrive within {} s.",
                timeout.as_secs_f32()
            ),
        )),
    }
}

/// The parts of a form. Browsers give them no `Content-Type` of their own, so their names say what
/// they are.
async fn take_apart(body: Bytes, boundary: &str) -> Result<Offering, ApiError> {
    let mut form = Multipart::new(Body::from(body).into_data_stream(), boundary);
    let (mut offer, mut session) = (None, None);
    for _ in 0..PARTS_COUNT_MAX {
        let part = form.next_field().await.map_err(bad_multipart)?;
        let Some(part) = part else { break };
        let place = match part.name() {
            Some("sdp") => &mut offer,
            Some("session") => &mut session,
            // SDKs may send more than is looked at.
            _ => continue,
        };
        let content = part.bytes().await.map_err(bad_multipart)?;
        if place.replace(content).is_some() {
            return Err(bad_multipart("it has a part twice"));
        }
    }
    let offer = offer.ok_or_else(|| {
        errors::bad(
            "invalid_multipart",
            "sdp",
            "The form has no part named sdp.",
        )
    })?;
    if offer.len() > OFFER_BYTES_MAX {
        let limit = OFFER_BYTES_MAX;
        return Err(errors::too_large(
            "offer_too_large",
            Some("sdp"),
            "offer",
            limit,
        ));
    }
    let session = session.map(|json| SessionConfig::parse(&json));
    Ok(Offering {
        offer,
        session: session
            .transpose()
            .map_err(errors::refuse_session)?
            .unwrap_or_default(),
    })
}

fn bad_multipart(what: impl std::fmt::Display) -> ApiError {
    let message = format!("The multipart/form-data cannot be read: {what}.");
    ApiError::new(StatusCode::BAD_REQUEST, "invalid_multipart", message)
}
