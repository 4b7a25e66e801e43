//! The Realtime API over HTTP, and the page.
//!
//! | request | answer |
//! |---|---|
//! | `POST /v1/realtime/calls[?model=..][&dcid=N]`, `application/sdp` | 201, answer, `Location` |
//! | `GET /v1/realtime/calls/{id}` | 200, JSON: how the call is doing |
//! | `DELETE /v1/realtime/calls/{id}`, `POST ..../{id}/hangup` | 200 |
//! | `GET /`, `/app.js`, `/style.css` | the page |
//!
//! Every error is JSON ([`ApiError`]). Who knows a call's id may end it: it is unguessable, and was
//! told to nobody but the one who opened it. What a call is, the [`Desk`] knows; this module knows
//! HTTP.

mod cors;
mod page;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde::Deserialize;
use syrinx_shared::http::ApiError;

use super::call_id::CallId;
use super::calls::{OpenError, Request as CallRequest};
use super::registrar::Refusal;
use crate::driver::desk::{Desk, DeskError};
use crate::engine::{OFFER_BYTES_MAX, OfferError};

pub use cors::AllowedOrigins;

const CALLS_PATH: &str = "/v1/realtime/calls";
const SDP: &str = "application/sdp";

/// When a full process is worth another try: calls last minutes, and one of many ends every few
/// seconds.
const RETRY_WHEN_FULL_S: u32 = 5;
/// When a process that drains or is overtaken by a burst is: another one takes the call, or the
/// burst is over.
const RETRY_SOON_S: u32 = 1;

/// Ids that SCTP leaves to nobody: 65,535 is reserved (RFC 8831, 6.2).
const CHANNEL_STREAM_MAX: u16 = 65_534;

/// Longest name of a model, in bytes; those in use are a third of it.
const MODEL_BYTES_MAX: usize = 128;

/// What the routes need.
#[derive(Clone)]
pub struct Signalling {
    /// Opens, finds and ends calls.
    pub desk: Arc<Desk>,
    /// Time for a request's body to arrive.
    pub body_timeout: Duration,
}

/// All routes of the signalling address.
pub fn router(signalling: Signalling, origins: AllowedOrigins) -> Router {
    let calls = Router::new()
        .route(
            CALLS_PATH,
            post(open).fallback(async || ApiError::wrong_method("POST")),
        )
        .route(
            "/v1/realtime/calls/{id}",
            get(view)
                .delete(end)
                .fallback(async || ApiError::wrong_method("GET, HEAD, DELETE")),
        )
        .route(
            "/v1/realtime/calls/{id}/hangup",
            post(end).fallback(async || ApiError::wrong_method("POST")),
        )
        .with_state(signalling)
        .layer(axum::middleware::from_fn_with_state(
            Arc::new(origins),
            cors::answer,
        ));
    calls
        .merge(page::router())
        .fallback(async || ApiError::unknown_path())
}

#[derive(Deserialize)]
struct OpenQuery {
    /// Which model the client wants; repeated in `session.created`.
    model: Option<String>,
    /// Stream id of a data channel that was agreed on instead of being opened in band.
    dcid: Option<u16>,
}

async fn open(
    State(signalling): State<Signalling>,
    query: Result<Query<OpenQuery>, axum::extract::rejection::QueryRejection>,
    request: Request,
) -> Result<Response, ApiError> {
    let Query(query) = query.map_err(|_| bad_channel())?;
    if query.dcid.is_some_and(|stream| stream > CHANNEL_STREAM_MAX) {
        return Err(bad_channel());
    }
    if query
        .model
        .as_ref()
        .is_some_and(|model| model.len() > MODEL_BYTES_MAX)
    {
        return Err(bad_model());
    }
    let (parts, body) = request.into_parts();
    require_sdp(&parts.headers)?;
    let body = read_body(&parts.headers, body, signalling.body_timeout).await?;
    let request = CallRequest {
        offer: &body,
        model: query.model,
        negotiated_channel: query.dcid,
    };
    let answer = signalling.desk.open(request).map_err(refuse)?;
    let location = format!("{CALLS_PATH}/{}", answer.call);
    let headers = [
        (header::CONTENT_TYPE, SDP.to_owned()),
        (header::LOCATION, location),
    ];
    Ok((StatusCode::CREATED, headers, answer.sdp).into_response())
}

fn bad_query(param: &'static str, message: String) -> ApiError {
    let error = ApiError::new(StatusCode::BAD_REQUEST, "invalid_query", message);
    ApiError {
        param: Some(param),
        ..error
    }
}

fn bad_channel() -> ApiError {
    let message =
        format!("dcid is the id of a data channel: a number from 0 to {CHANNEL_STREAM_MAX}.");
    bad_query("dcid", message)
}

fn bad_model() -> ApiError {
    bad_query(
        "model",
        format!("model is a name of at most {MODEL_BYTES_MAX} bytes."),
    )
}

fn bad_offer(message: impl Into<String>) -> ApiError {
    let error = ApiError::new(StatusCode::BAD_REQUEST, "invalid_offer", message);
    ApiError {
        param: Some("sdp"),
        ..error
    }
}

fn too_large() -> ApiError {
    let message = format!("The offer is larger than {OFFER_BYTES_MAX} bytes.");
    let error = ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "offer_too_large", message);
    ApiError {
        param: Some("sdp"),
        ..error
    }
}

fn require_sdp(headers: &HeaderMap) -> Result<(), ApiError> {
    let given = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    let essence = given
        .unwrap_or_default()
        .split(';')
        .next()
        .unwrap_or_default()
        .trim();
    if essence.eq_ignore_ascii_case(SDP) {
        return Ok(());
    }
    Err(ApiError::new(
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        "unsupported_media_type",
        format!("Send the SDP offer as the body, with Content-Type: {SDP}."),
    ))
}

async fn read_body(headers: &HeaderMap, body: Body, timeout: Duration) -> Result<Bytes, ApiError> {
    let announced = headers
        .get(header::CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok());
    if announced
        .and_then(|value| value.parse().ok())
        .is_some_and(|n: usize| n > OFFER_BYTES_MAX)
    {
        return Err(too_large());
    }
    match tokio::time::timeout(timeout, to_bytes(body, OFFER_BYTES_MAX)).await {
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

fn refuse(error: OpenError) -> ApiError {
    let message = sentence(&error);
    let unavailable = |code, retry_after_s| ApiError {
        retry_after_s: Some(retry_after_s),
        ..ApiError::new(StatusCode::SERVICE_UNAVAILABLE, code, message.clone())
    };
    match error {
        OpenError::Offer(OfferError::Malformed { .. } | OfferError::Refused(_)) => {
            bad_offer(message)
        }
        OpenError::Offer(OfferError::TooLarge { .. }) => ApiError {
            message,
            ..too_large()
        },
        OpenError::Offer(OfferError::NothingUsable(_)) => ApiError {
            param: Some("sdp"),
            ..ApiError::new(StatusCode::NOT_ACCEPTABLE, "nothing_usable", message)
        },
        OpenError::Refused(Refusal::Full) => unavailable("full", RETRY_WHEN_FULL_S),
        OpenError::Refused(Refusal::Draining) => unavailable("draining", RETRY_SOON_S),
        OpenError::Busy => unavailable("busy", RETRY_SOON_S),
        OpenError::Mint(_) => {
            ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "misconfigured", message)
        }
    }
}

/// An error as a sentence of its own.
fn sentence(error: &OpenError) -> String {
    let text = error.to_string();
    let mut characters = text.chars();
    match characters.next() {
        Some(first) => format!("{}{}.", first.to_uppercase(), characters.as_str()),
        None => text,
    }
}

fn unknown_call() -> ApiError {
    let error = ApiError::new(
        StatusCode::NOT_FOUND,
        "unknown_call",
        "There is no such call: it has ended.",
    );
    ApiError {
        param: Some("call_id"),
        ..error
    }
}

/// A call that is not there and text that can name none look the same from outside.
fn parse_call(id: &str) -> Result<CallId, ApiError> {
    id.parse().map_err(|_| unknown_call())
}

fn refuse_ask(error: DeskError) -> ApiError {
    match error {
        DeskError::UnknownCall => unknown_call(),
        DeskError::Busy => ApiError {
            retry_after_s: Some(RETRY_SOON_S),
            ..ApiError::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "busy",
                "The worker is busy.",
            )
        },
    }
}

async fn end(
    State(signalling): State<Signalling>,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    signalling.desk.end(parse_call(&id)?).map_err(refuse_ask)?;
    Ok(StatusCode::OK)
}

async fn view(
    State(signalling): State<Signalling>,
    Path(id): Path<String>,
) -> Result<Response, ApiError> {
    let view = signalling
        .desk
        .view(parse_call(&id)?)
        .await
        .map_err(refuse_ask)?;
    Ok(axum::Json(view).into_response())
}
