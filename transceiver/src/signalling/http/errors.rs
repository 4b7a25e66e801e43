//! What can be wrong with a request, as the JSON errors that clients read.

use std::fmt;

use axum::http::StatusCode;
use syrinx_shared::http::ApiError;

use crate::driver::desk::{DeskError, RestartError};
use crate::engine::OfferError;
use crate::signalling::access::AccessError;
use crate::signalling::calls::OpenError;
use crate::signalling::directory::NoBackend;
use crate::signalling::owners::TooMany;
use crate::signalling::registrar::Refusal;
use crate::signalling::session_config::SessionFault;

/// When a full process, or a key that has all it may have, is worth another try: calls last
/// minutes, and one of many ends every few seconds.
const RETRY_WHEN_FULL_S: u32 = 5;
/// When a process that drains or is overtaken by a burst is: another one takes the call, or the
/// burst is over.
const RETRY_SOON_S: u32 = 1;

/// 400 about a part of the request.
pub(super) fn bad(code: &'static str, param: &'static str, message: impl Into<String>) -> ApiError {
    let error = ApiError::new(StatusCode::BAD_REQUEST, code, message);
    ApiError {
        param: Some(param),
        ..error
    }
}

/// 413; `what` is larger than `limit_bytes`.
pub(super) fn too_large(
    code: &'static str,
    param: Option<&'static str>,
    what: &str,
    limit_bytes: usize,
) -> ApiError {
    let message = format!("The {what} is larger than {limit_bytes} bytes.");
    let error = ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, code, message);
    ApiError { param, ..error }
}

/// Why somebody may not do what they ask for.
pub(super) fn refuse_access(error: AccessError) -> ApiError {
    let (status, code) = match error {
        AccessError::Missing => (StatusCode::UNAUTHORIZED, "missing_api_key"),
        AccessError::Unknown => (StatusCode::UNAUTHORIZED, "invalid_api_key"),
        AccessError::Expired => (StatusCode::UNAUTHORIZED, "expired_ephemeral_key"),
        AccessError::NeedsApiKey => (StatusCode::FORBIDDEN, "needs_api_key"),
    };
    ApiError::new(status, code, sentence(error))
}

/// Why a session object was refused.
pub(super) fn refuse_session(fault: SessionFault) -> ApiError {
    let status = match fault {
        SessionFault::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        _ => StatusCode::BAD_REQUEST,
    };
    let param = match fault {
        SessionFault::Model => "session.model",
        SessionFault::Type => "session.type",
        SessionFault::NotAnObject | SessionFault::TooLarge => "session",
    };
    ApiError {
        param: Some(param),
        ..ApiError::new(status, "invalid_session", sentence(fault))
    }
}

/// Why a call was not opened.
pub(super) fn refuse_open(error: OpenError) -> ApiError {
    let message = sentence(&error);
    let later = |status, code, retry_after_s| ApiError {
        retry_after_s: Some(retry_after_s),
        ..ApiError::new(status, code, message.clone())
    };
    let unavailable =
        |code, retry_after_s| later(StatusCode::SERVICE_UNAVAILABLE, code, retry_after_s);
    let of_offer = |status, code| ApiError {
        param: Some("sdp"),
        ..ApiError::new(status, code, message.clone())
    };
    match error {
        OpenError::Offer(OfferError::Malformed { .. } | OfferError::Refused(_)) => {
            of_offer(StatusCode::BAD_REQUEST, "invalid_offer")
        }
        OpenError::Offer(OfferError::TooLarge { .. }) => {
            of_offer(StatusCode::PAYLOAD_TOO_LARGE, "offer_too_large")
        }
        OpenError::Offer(OfferError::NothingUsable(_)) => {
            of_offer(StatusCode::NOT_ACCEPTABLE, "nothing_usable")
        }
        OpenError::Refused(Refusal::Full) => unavailable("full", RETRY_WHEN_FULL_S),
        OpenError::Refused(Refusal::NoHeadroom) => unavailable("no_headroom", RETRY_WHEN_FULL_S),
        OpenError::Refused(Refusal::Draining) => unavailable("draining", RETRY_SOON_S),
        OpenError::Busy => unavailable("busy", RETRY_SOON_S),
        OpenError::TooMany(TooMany::Calls(_)) => {
            let (status, after) = (StatusCode::TOO_MANY_REQUESTS, RETRY_WHEN_FULL_S);
            later(status, "too_many_calls", after)
        }
        OpenError::TooMany(TooMany::HalfOpen(_)) => {
            let (status, after) = (StatusCode::TOO_MANY_REQUESTS, RETRY_SOON_S);
            later(status, "too_many_half_open_calls", after)
        }
        OpenError::NoBackend(NoBackend::Unknown) => ApiError {
            param: Some("session.model"),
            ..ApiError::new(StatusCode::NOT_FOUND, "unknown_model", message)
        },
        OpenError::NoBackend(NoBackend::Down) => unavailable("backend_down", RETRY_SOON_S),
        OpenError::Mint(_) => misconfigured(message),
    }
}

/// 500: the operator has to look.
pub(super) fn misconfigured(message: String) -> ApiError {
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "misconfigured", message)
}

/// Why a call was not ended or looked at.
pub(super) fn refuse_ask(error: DeskError) -> ApiError {
    match error {
        DeskError::UnknownCall => unknown_call(),
        DeskError::Crowded => ApiError {
            retry_after_s: Some(RETRY_WHEN_FULL_S),
            ..ApiError::new(
                StatusCode::TOO_MANY_REQUESTS,
                "too_many_sidebands",
                sentence(error),
            )
        },
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

/// Why ICE was not restarted.
pub(super) fn refuse_restart(error: RestartError) -> ApiError {
    match error {
        RestartError::Desk(error) => refuse_ask(error),
        RestartError::NoCredentials => ApiError::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "unsupported_fragment",
            sentence(error),
        ),
        RestartError::Mint(error) => misconfigured(sentence(error)),
    }
}

/// A call that is not there, text that can name none, and another key's call look the same.
pub(super) fn unknown_call() -> ApiError {
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

/// An error as a sentence of its own.
pub(super) fn sentence(error: impl fmt::Display) -> String {
    let text = error.to_string();
    let mut characters = text.chars();
    match characters.next() {
        Some(first) => format!("{}{}.", first.to_uppercase(), characters.as_str()),
        None => text,
    }
}
