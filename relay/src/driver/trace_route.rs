//! `GET /trace` on the admin surface: the verdicts on one client or session, line by line.
//!
//! `?of=` names a host, a client socket or a session; `lines` and `seconds` bound the answer. One
//! trace at a time: another asker is told to wait, so tracing cannot be made a load.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures_lite::stream;
use serde::Deserialize;
use syrinx_shared::http::ApiError;
use syrinx_shared::worker::Mailbox;
use tokio::sync::mpsc::{Receiver, channel};
use tokio::time::{Instant, timeout_at};

use super::service::RelayMessage;
use super::trace::{Trace, TraceFilter};

/// Lines that wait for the asker to read them; further ones are counted as missed.
const QUEUE_LINES: usize = 1_024;
/// The most lines of a trace.
const LINES_MAX: u32 = 100_000;
/// The longest trace, in seconds.
const SECONDS_MAX: u64 = 3_600;

#[derive(Debug, Deserialize)]
struct Request {
    of: String,
    #[serde(default = "default_lines")]
    lines: u32,
    #[serde(default = "default_seconds")]
    seconds: u64,
}

fn default_lines() -> u32 {
    100
}

fn default_seconds() -> u64 {
    30
}

#[derive(Clone)]
struct Tracing {
    workers: Arc<[Mailbox<RelayMessage>]>,
    busy: Arc<AtomicBool>,
}

/// Says that a trace is under way, until it is dropped.
struct Turn(Arc<AtomicBool>);

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// The route, over the mailboxes of all workers.
pub fn tracing_route(workers: Vec<Mailbox<RelayMessage>>) -> Router {
    let tracing = Tracing {
        workers: workers.into(),
        busy: Arc::default(),
    };
    let wrong_method = || async { ApiError::wrong_method("GET") };
    Router::new()
        .route("/trace", get(trace).fallback(wrong_method))
        .with_state(tracing)
}

async fn trace(
    State(tracing): State<Tracing>,
    request: Result<Query<Request>, axum::extract::rejection::QueryRejection>,
) -> Response {
    let asked = request
        .map_err(|error| error.body_text())
        .and_then(|Query(request)| {
            let filter = request
                .of
                .parse::<TraceFilter>()
                .map_err(|error| error.to_string())?;
            Ok((filter, request))
        });
    let (filter, request) = match asked {
        Ok(asked) => asked,
        Err(message) => {
            let error = ApiError::new(StatusCode::BAD_REQUEST, "bad_trace", message);
            return error.into_response();
        }
    };
    if tracing.busy.swap(true, Ordering::AcqRel) {
        let message = "another trace is under way: end it, or wait for it";
        return ApiError::new(StatusCode::CONFLICT, "trace_under_way", message).into_response();
    }
    let turn = Turn(Arc::clone(&tracing.busy));
    let (sender, receiver) = channel(QUEUE_LINES);
    let line_count = request.lines.min(LINES_MAX);
    let trace = Trace::new(filter, line_count, sender);
    for (worker, mailbox) in tracing.workers.iter().enumerate() {
        // A worker that takes no messages has none to trace.
        let _ = mailbox.send(RelayMessage::Trace(trace.for_worker(worker)));
    }
    drop(trace);
    let until = Instant::now() + Duration::from_secs(request.seconds.min(SECONDS_MAX));
    let body = Body::from_stream(lines(receiver, line_count, until, turn));
    ([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], body).into_response()
}

/// The lines as they come, until there are enough, time is up, or the asker is gone.
fn lines(
    receiver: Receiver<String>,
    line_count: u32,
    until: Instant,
    turn: Turn,
) -> impl stream::Stream<Item = Result<String, std::convert::Infallible>> {
    let start = (receiver, line_count, turn);
    stream::unfold(start, move |(mut receiver, lines_left, turn)| async move {
        let lines_left = lines_left.checked_sub(1)?;
        let line = timeout_at(until, receiver.recv()).await.ok().flatten()?;
        Some((Ok(line), (receiver, lines_left, turn)))
    })
}
