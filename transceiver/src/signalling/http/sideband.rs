//! The sideband: a WebSocket beside a call, `GET /v1/realtime?call_id=rtc_..`.
//!
//! It carries the events of the call's data channel both ways: what the session says to its client
//! comes here too, and what is sent here is handled as if the client had sent it. When the call
//! ends, the close frame says why. It ends with the call or with its own peer, whichever is first,
//! and nothing of it reaches the session but checked events, one at a time.

use std::time::Duration;

use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::{SinkExt as _, StreamExt as _};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use syrinx_shared::http::ApiError;
use tokio::time::{Instant, interval_at, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::server::create_response_with_body;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error as WsError, Message};

use super::{Signalling, credential, errors};
use crate::backend::EdgeError;
use crate::driver::desk::{Sideband, SidebandNews};
use crate::session::EndReason;
use crate::session::events::{self, EventFault, EventIds};
use crate::signalling::access::Purpose;

/// Largest event that is taken, in bytes; the same as the Realtime API's clients keep to on a data
/// channel.
const EVENT_BYTES_MAX: usize = 256 * 1024;
/// How often the peer is asked whether it is there.
const PING_PACE: Duration = Duration::from_secs(20);
/// Silence after which it is not.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// How long it may take to take one message.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// What a browser, which can set no headers, may put its key into; as in the Realtime API.
const KEY_PROTOCOL: &str = "openai-insecure-api-key.";
/// The protocol that is agreed on, if the client offers any.
const PROTOCOL: &str = "realtime";

type Socket = WebSocketStream<TokioIo<Upgraded>>;

#[derive(Deserialize)]
pub(super) struct SidebandQuery {
    call_id: String,
}

pub(super) async fn open(
    State(signalling): State<Signalling>,
    query: Result<Query<SidebandQuery>, QueryRejection>,
    mut request: Request,
) -> Result<Response, ApiError> {
    let headers = request.headers();
    let protocols = protocols(headers);
    let in_protocol = protocols.iter().find_map(|p| p.strip_prefix(KEY_PROTOCOL));
    let caller = credential::admit_or(&signalling, headers, in_protocol, Purpose::Manage)?;
    let Query(query) = query.map_err(|_| {
        let message = "call_id names the call to listen to.";
        errors::bad("invalid_query", "call_id", message)
    })?;
    let call = query.call_id.parse().map_err(|_| errors::unknown_call())?;
    let mut answer = create_response_with_body(&request, Body::empty).map_err(no_websocket)?;
    if protocols.iter().any(|protocol| protocol == PROTOCOL) {
        let agreed = HeaderValue::from_static(PROTOCOL);
        answer
            .headers_mut()
            .insert(header::SEC_WEBSOCKET_PROTOCOL, agreed);
    }
    let upgrade = hyper::upgrade::on(&mut request);
    let sideband = signalling.desk.listen(call, caller.key);
    let sideband = sideband.map_err(errors::refuse_ask)?;
    tokio::spawn(converse(upgrade, sideband));
    Ok(answer.into_response())
}

fn protocols(headers: &HeaderMap) -> Vec<String> {
    let given = headers.get_all(header::SEC_WEBSOCKET_PROTOCOL).iter();
    let given = given.filter_map(|value| value.to_str().ok());
    given
        .flat_map(|value| value.split(','))
        .map(|protocol| protocol.trim().to_owned())
        .collect()
}

fn no_websocket(error: WsError) -> ApiError {
    let message = format!("This path speaks WebSocket: {error}.");
    ApiError::new(StatusCode::UPGRADE_REQUIRED, "upgrade_required", message)
}

/// Why a sideband is over.
enum End {
    /// The call has ended.
    Call(EndReason),
    /// The peer went, or does not read.
    Peer,
    /// The peer broke the protocol's rules or ours.
    Fault(CloseCode, &'static str),
}

async fn converse(upgrade: OnUpgrade, mut sideband: Sideband) {
    // A client that breaks off now is its own business.
    let Ok(upgraded) = upgrade.await else { return };
    let config = WebSocketConfig::default()
        .read_buffer_size(8 * 1024)
        .write_buffer_size(0)
        .max_write_buffer_size(2 * EVENT_BYTES_MAX)
        .max_message_size(Some(EVENT_BYTES_MAX))
        .max_frame_size(Some(EVENT_BYTES_MAX));
    let io = TokioIo::new(upgraded);
    let mut socket = WebSocketStream::from_raw_socket(io, Role::Server, Some(config)).await;
    let close = match carry(&mut socket, &mut sideband).await {
        End::Peer => return,
        End::Call(reason) => CloseFrame {
            code: close_code(reason),
            reason: reason.label().into(),
        },
        End::Fault(code, reason) => CloseFrame {
            code,
            reason: reason.into(),
        },
    };
    // Until the peer has said the same: what it still had on its way would else reset the stream,
    // and with it the reason.
    let farewell = async {
        if socket.close(Some(close)).await.is_ok() {
            while let Some(Ok(_)) = socket.next().await {}
        }
    };
    let _ = timeout(WRITE_TIMEOUT, farewell).await;
}

/// A call that ended for a reason of its own is no fault of this end (RFC 6455, 7.4.1).
fn close_code(reason: EndReason) -> CloseCode {
    match reason {
        EndReason::EngineFailed | EndReason::Panicked | EndReason::Runaway => CloseCode::Error,
        EndReason::Drained => CloseCode::Away,
        _ => CloseCode::Normal,
    }
}

/// Carries events both ways until there is a reason to stop.
async fn carry(socket: &mut Socket, sideband: &mut Sideband) -> End {
    let mut ids = EventIds::new(sideband.event_seed());
    let mut pings = interval_at(Instant::now() + PING_PACE, PING_PACE);
    let mut heard = Instant::now();
    loop {
        let written = tokio::select! {
            news = sideband.next() => match news {
                Some(SidebandNews::Said { event, missed }) => {
                    tell(socket, &mut ids, event, missed).await
                }
                Some(SidebandNews::Ended(reason)) => return End::Call(reason),
                None => return End::Peer,
            },
            message = socket.next() => {
                heard = Instant::now();
                match message {
                    Some(Ok(message)) => match take(socket, sideband, &mut ids, message).await {
                        Ok(written) => written,
                        Err(end) => return end,
                    },
                    Some(Err(WsError::Capacity(_))) => {
                        return End::Fault(CloseCode::Size, "an event is too large");
                    }
                    Some(Err(WsError::Protocol(_))) => {
                        return End::Fault(CloseCode::Protocol, "this is no WebSocket");
                    }
                    Some(Err(_)) | None => return End::Peer,
                }
            }
            _ = pings.tick() => match heard.elapsed() > SILENCE_MAX {
                true => return End::Peer,
                false => write(socket, Message::Ping(Default::default())).await,
            },
        };
        if written.is_err() {
            return End::Peer;
        }
    }
}

/// Tells the peer what the session has said.
async fn tell(
    socket: &mut Socket,
    ids: &mut EventIds,
    event: String,
    missed: u32,
) -> Result<(), ()> {
    if missed > 0 {
        let message = format!("{missed} events before this one were left out: read faster.");
        let error = EdgeError {
            kind: "server_error",
            code: "events_missed",
            message: &message,
        };
        write(socket, Message::text(events::error(ids, error))).await?;
    }
    write(socket, Message::text(event)).await
}

/// Takes a message of the peer.
async fn take(
    socket: &mut Socket,
    sideband: &Sideband,
    ids: &mut EventIds,
    message: Message,
) -> Result<Result<(), ()>, End> {
    let text = match message {
        Message::Text(text) => text,
        // Answered by the socket itself as it is read further.
        Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => return Ok(Ok(())),
        Message::Close(_) => return Err(End::Peer),
        Message::Binary(_) => {
            return Err(End::Fault(CloseCode::Unsupported, "events are JSON text"));
        }
    };
    let fault = match events::check(text.as_bytes()) {
        Ok(event) => match sideband.inject(event).await {
            Ok(()) => return Ok(Ok(())),
            Err(_) => EdgeError {
                kind: "server_error",
                code: "busy",
                message: "The event was not taken: the call has ended or its worker is busy.",
            },
        },
        Err(EventFault::NotAnEvent | EventFault::TooLarge) => EdgeError {
            kind: "invalid_request_error",
            code: "invalid_event",
            message: "A message is a JSON object with a \"type\".",
        },
    };
    Ok(write(socket, Message::text(events::error(ids, fault))).await)
}

/// Writes a message, unless the peer does not read.
async fn write(socket: &mut Socket, message: Message) -> Result<(), ()> {
    match timeout(WRITE_TIMEOUT, socket.send(message)).await {
        Ok(Ok(())) => Ok(()),
        _ => Err(()),
    }
}
