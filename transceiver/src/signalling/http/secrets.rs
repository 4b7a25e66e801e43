//! Ephemeral keys, issued to the server that holds an API key, for its clients to open calls with.

use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use syrinx_shared::http::ApiError;

use super::{Signalling, body, credential, errors};
use crate::signalling::access::Purpose;
use crate::signalling::ephemeral::Claims;
use crate::signalling::session_config::SessionConfig;

/// How long an ephemeral key can be good for, in seconds, and is when nothing is said: the Realtime
/// API's own figures.
const LIFETIME_S: std::ops::RangeInclusive<u32> = 10..=7_200;
const LIFETIME_DEFAULT_S: u32 = 600;

/// The body of `POST /v1/realtime/client_secrets`.
#[derive(Default, Deserialize)]
struct SecretRequest {
    expires_after: Option<ExpiresAfter>,
    session: Option<Value>,
}

#[derive(Default, Deserialize)]
struct ExpiresAfter {
    anchor: Option<String>,
    seconds: Option<u32>,
}

#[derive(Serialize)]
struct SecretAnswer<'a> {
    value: &'a str,
    expires_at: u32,
    session: SessionView<'a>,
}

/// The answer of `POST /v1/realtime/sessions`.
#[derive(Serialize)]
struct SessionAnswer<'a> {
    #[serde(flatten)]
    session: SessionView<'a>,
    client_secret: ClientSecret<'a>,
}

#[derive(Serialize)]
struct ClientSecret<'a> {
    value: &'a str,
    expires_at: u32,
}

#[derive(Serialize)]
struct SessionView<'a> {
    r#type: &'static str,
    object: &'static str,
    #[serde(flatten)]
    members: &'a Map<String, Value>,
}

impl<'a> SessionView<'a> {
    fn new(session: &'a SessionConfig) -> Self {
        Self {
            r#type: "realtime",
            object: "realtime.session",
            members: session.members(),
        }
    }
}

/// `POST /v1/realtime/client_secrets`.
pub(super) async fn client_secret(
    State(signalling): State<Signalling>,
    request: Request,
) -> Result<Response, ApiError> {
    let (parts, body) = request.into_parts();
    let caller = credential::admit(&signalling, &parts.headers, Purpose::Issue)?;
    let body = body::read_json(&parts.headers, body, signalling.body_timeout).await?;
    let asked: SecretRequest = match body.is_empty() {
        true => SecretRequest::default(),
        false => serde_json::from_slice(&body).map_err(bad_json)?,
    };
    let lifetime = lifetime(asked.expires_after)?;
    let session = asked.session.map(SessionConfig::judge).transpose();
    let session = session.map_err(errors::refuse_session)?.unwrap_or_default();
    let issued = signalling.gate.issue(caller.key, session, lifetime);
    let (value, claims) = issued.map_err(|error| errors::misconfigured(errors::sentence(error)))?;
    let answer = SecretAnswer {
        value: &value,
        expires_at: claims.expires_at,
        session: SessionView::new(&claims.session),
    };
    Ok(axum::Json(answer).into_response())
}

/// `POST /v1/realtime/sessions`, as it was called before: the body is the session itself.
pub(super) async fn session(
    State(signalling): State<Signalling>,
    request: Request,
) -> Result<Response, ApiError> {
    let (parts, body) = request.into_parts();
    let caller = credential::admit(&signalling, &parts.headers, Purpose::Issue)?;
    let body = body::read_json(&parts.headers, body, signalling.body_timeout).await?;
    let mut asked: Map<String, Value> = match body.is_empty() {
        true => Map::new(),
        false => serde_json::from_slice(&body).map_err(bad_json)?,
    };
    // Where that API puts the lifetime.
    let secret = asked.remove("client_secret").unwrap_or_default();
    let expires_after = secret.get("expires_after").cloned();
    let expires_after = expires_after.map(serde_json::from_value).transpose();
    let lifetime = lifetime(expires_after.map_err(bad_json)?)?;
    let session = SessionConfig::judge(Value::Object(asked)).map_err(errors::refuse_session)?;
    let issued = signalling.gate.issue(caller.key, session, lifetime);
    let (value, claims) = issued.map_err(|error| errors::misconfigured(errors::sentence(error)))?;
    let Claims {
        expires_at,
        session,
        ..
    } = &claims;
    let answer = SessionAnswer {
        session: SessionView::new(session),
        client_secret: ClientSecret {
            value: &value,
            expires_at: *expires_at,
        },
    };
    Ok(axum::Json(answer).into_response())
}

fn lifetime(asked: Option<ExpiresAfter>) -> Result<Duration, ApiError> {
    let asked = asked.unwrap_or_default();
    if asked.anchor.is_some_and(|anchor| anchor != "created_at") {
        let message = "The anchor of expires_after is \"created_at\".";
        return Err(errors::bad(
            "invalid_expiry",
            "expires_after.anchor",
            message,
        ));
    }
    let seconds = asked.seconds.unwrap_or(LIFETIME_DEFAULT_S);
    if !LIFETIME_S.contains(&seconds) {
        let (min, max) = (LIFETIME_S.start(), LIFETIME_S.end());
        let message = format!("An ephemeral key is good for {min} to {max} seconds.");
        return Err(errors::bad(
            "invalid_expiry",
            "expires_after.seconds",
            message,
        ));
    }
    Ok(Duration::from_secs(seconds.into()))
}

fn bad_json(error: serde_json::Error) -> ApiError {
    let message = format!("The body is not the JSON this path takes: {error}.");
    ApiError::new(StatusCode::BAD_REQUEST, "invalid_json", message)
}
