//! Calls: opened by an offer, looked at, and ended.

use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use syrinx_shared::http::ApiError;

use super::body::OfferingKind;
use super::{Signalling, credential, errors};
use crate::driver::desk::Answer;
use crate::signalling::access::Purpose;
use crate::signalling::api_keys::KeyId;
use crate::signalling::call_id::CallId;
use crate::signalling::calls::{Owner, Request as CallRequest};
use crate::signalling::session_config::{MODEL_BYTES_MAX, SessionConfig};

pub(super) const PATH: &str = "/v1/realtime/calls";

/// Ids that SCTP leaves to nobody: 65,535 is reserved (RFC 8831, 6.2).
const CHANNEL_STREAM_MAX: u16 = 65_534;

#[derive(Deserialize)]
pub(super) struct OpenQuery {
    /// Which model the client wants; repeated in `session.created`.
    model: Option<String>,
    /// Stream id of a data channel that was agreed on instead of being opened in band.
    dcid: Option<u16>,
}

pub(super) async fn open(
    State(signalling): State<Signalling>,
    query: Result<Query<OpenQuery>, QueryRejection>,
    request: Request,
) -> Result<Response, ApiError> {
    let Answer { call, sdp } = answer(&signalling, query, request).await?;
    let headers = [
        (header::CONTENT_TYPE, "application/sdp".to_owned()),
        (header::LOCATION, format!("{PATH}/{call}")),
    ];
    Ok((StatusCode::CREATED, headers, sdp).into_response())
}

/// Opens a call, whatever its resource is called.
pub(super) async fn answer(
    signalling: &Signalling,
    query: Result<Query<OpenQuery>, QueryRejection>,
    request: Request,
) -> Result<Answer, ApiError> {
    let (parts, body) = request.into_parts();
    let headers = &parts.headers;
    let caller = credential::admit(signalling, headers, Purpose::Open)?;
    let (channel, asked) = judge(query)?;
    let kind = OfferingKind::of(headers)?;
    if matches!(kind, OfferingKind::Multipart { .. }) {
        refuse_forgery(signalling, headers)?;
    }
    let offering = kind.read(headers, body, signalling.body_timeout).await?;
    let request = CallRequest {
        offer: &offering.offer,
        owner: Owner {
            key: caller.key,
            calls_count_max: caller.calls_count_max,
        },
        // What the server wrote into the ephemeral key, the client cannot change.
        session: asked.overlaid(offering.session).overlaid(caller.session),
        negotiated_channel: channel,
    };
    signalling.desk.open(request).map_err(errors::refuse_open)
}

/// The channel and the session that the query asks for.
fn judge(
    query: Result<Query<OpenQuery>, QueryRejection>,
) -> Result<(Option<u16>, SessionConfig), ApiError> {
    let bad_channel = || {
        let message =
            format!("dcid is the id of a data channel: a number from 0 to {CHANNEL_STREAM_MAX}.");
        errors::bad("invalid_query", "dcid", message)
    };
    let Query(query) = query.map_err(|_| bad_channel())?;
    if query.dcid.is_some_and(|stream| stream > CHANNEL_STREAM_MAX) {
        return Err(bad_channel());
    }
    let session = query.model.map(|model| SessionConfig::of_model(&model));
    let session = session.transpose().map_err(|_| {
        let message = format!("model is a name of 1 to {MODEL_BYTES_MAX} bytes.");
        errors::bad("invalid_query", "model", message)
    })?;
    Ok((query.dcid, session.unwrap_or_default()))
}

/// A browser sends a form for any page, without asking leave. Where no key is needed, that would
/// open a call in the name of whoever looks at the page.
fn refuse_forgery(signalling: &Signalling, headers: &HeaderMap) -> Result<(), ApiError> {
    if signalling.gate.access().is_anonymous() && signalling.origins.is_foreign(headers) {
        return Err(ApiError::new(
            StatusCode::FORBIDDEN,
            "origin_not_allowed",
            "The page's origin is not in signalling.allowed_origins.",
        ));
    }
    Ok(())
}

/// Whose call a request is about, and which.
pub(super) fn named(
    signalling: &Signalling,
    headers: &HeaderMap,
    id: &str,
) -> Result<(CallId, KeyId), ApiError> {
    let caller = credential::admit(signalling, headers, Purpose::Manage)?;
    let call = id.parse().map_err(|_| errors::unknown_call())?;
    Ok((call, caller.key))
}

pub(super) async fn end(
    State(signalling): State<Signalling>,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<StatusCode, ApiError> {
    let (call, key) = named(&signalling, &headers, &id)?;
    signalling.desk.end(call, key).map_err(errors::refuse_ask)?;
    Ok(StatusCode::OK)
}

pub(super) async fn view(
    State(signalling): State<Signalling>,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let (call, key) = named(&signalling, &headers, &id)?;
    let view = signalling.desk.view(call, key).await;
    Ok(axum::Json(view.map_err(errors::refuse_ask)?).into_response())
}
