//! The client-facing API over HTTP, and the page.
//!
//! | request | answer |
//! |---|---|
//! | `POST /v1/realtime/client_secrets` | 200, an ephemeral key ([`secrets`]) |
//! | `POST /v1/realtime/calls[?model=..][&dcid=N]`, SDP or multipart | 201, answer, `Location` |
//! | `GET /v1/realtime/calls/{id}` | 200, JSON: how the call is doing |
//! | `DELETE /v1/realtime/calls/{id}`, `POST ..../{id}/hangup` | 200 |
//! | `POST /v1/realtime?model=..`, `POST /v1/realtime/sessions` | older names of the first two |
//! | `GET /v1/realtime?call_id=..`, WebSocket | the [`sideband`] |
//! | `POST /whip`, `DELETE`, `PATCH /whip/{id}` | [`whip`] |
//! | `GET /openapi.json` | all of this, for programs |
//! | `GET /`, and the scripts and the style it names | the page |
//!
//! Every error is JSON ([`ApiError`]). Where API keys are configured each request needs one, or an
//! ephemeral key; what each of them may is the [`Gate`]'s business. What a call is, the [`Desk`]
//! knows; this module knows HTTP.

mod body;
mod calls;
mod cors;
mod credential;
mod errors;
mod page;
mod secrets;
mod sideband;
mod whip;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::{MethodRouter, delete, get, post};
use syrinx_shared::http::ApiError;

use crate::driver::desk::Desk;
use crate::driver::gate::Gate;

pub use cors::AllowedOrigins;

/// What the routes need.
#[derive(Clone)]
pub struct Signalling {
    /// Opens, finds and ends calls.
    pub desk: Arc<Desk>,
    /// Knows who may.
    pub gate: Arc<Gate>,
    /// Whose pages may use the API.
    pub origins: Arc<AllowedOrigins>,
    /// Time for a request's body to arrive.
    pub body_timeout: Duration,
}

/// All routes of the signalling address.
pub fn router(signalling: Signalling) -> Router {
    let origins = Arc::clone(&signalling.origins);
    Router::new()
        .route(
            "/v1/realtime",
            only("GET, POST", get(sideband::open).post(calls::open)),
        )
        .route(calls::PATH, only("POST", post(calls::open)))
        .route(
            "/v1/realtime/calls/{id}",
            of_call("GET, HEAD, DELETE", get(calls::view).delete(calls::end)),
        )
        .route(
            "/v1/realtime/calls/{id}/hangup",
            only("POST", post(calls::end)),
        )
        .route(
            "/v1/realtime/client_secrets",
            only("POST", post(secrets::client_secret)),
        )
        .route(
            "/v1/realtime/sessions",
            only("POST", post(secrets::session)),
        )
        .route(
            whip::PATH,
            only("POST, OPTIONS", post(whip::open).options(whip::options)),
        )
        .route(
            "/whip/{id}",
            of_call(
                "DELETE, PATCH, OPTIONS",
                delete(calls::end)
                    .patch(whip::patch)
                    .options(whip::call_options),
            ),
        )
        .with_state(signalling)
        .layer(axum::middleware::from_fn_with_state(origins, cors::answer))
        .merge(page::router())
        .fallback(async || ApiError::unknown_path())
}

/// A path that answers other methods with a JSON error, and with the ones it has.
fn only(methods: &'static str, routes: MethodRouter<Signalling>) -> MethodRouter<Signalling> {
    routes.fallback(async move || ApiError::wrong_method(methods))
}

/// The same for the path of a call, which clients may want to offer anew.
fn of_call(methods: &'static str, routes: MethodRouter<Signalling>) -> MethodRouter<Signalling> {
    routes.fallback(async move || {
        let mut error = ApiError::wrong_method(methods);
        error.message.push(' ');
        error.message.push_str(OFFERED_ONCE);
        error
    })
}

/// What to do instead of a second offer for a call.
const OFFERED_ONCE: &str = "A call keeps the offer it was opened with: restart ICE by PATCH of \
    /whip/{id} with an SDP fragment, or POST the offer again, which opens another call.";
