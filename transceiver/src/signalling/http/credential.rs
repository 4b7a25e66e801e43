//! The credential of a request: `Authorization: Bearer ..` (RFC 6750, 2.1).

use axum::http::{HeaderMap, header};
use syrinx_shared::http::ApiError;

use super::{Signalling, errors};
use crate::signalling::access::{Caller, Purpose};

/// Who sent a request, if they may do what they ask for.
pub(super) fn admit(
    signalling: &Signalling,
    headers: &HeaderMap,
    purpose: Purpose,
) -> Result<Caller, ApiError> {
    admit_or(signalling, headers, None, purpose)
}

/// [`admit`], with a credential from elsewhere that counts where the header is missing.
pub(super) fn admit_or(
    signalling: &Signalling,
    headers: &HeaderMap,
    elsewhere: Option<&str>,
    purpose: Purpose,
) -> Result<Caller, ApiError> {
    let credential = bearer(headers).or(elsewhere);
    let admitted = signalling.gate.admit(credential, purpose);
    admitted.map_err(errors::refuse_access)
}

/// The token of the first `Authorization` header, if its scheme is Bearer. Schemes are told apart
/// without regard to case (RFC 9110, 11.1).
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    #[test]
    fn only_a_bearer_token_is_a_credential() {
        for (value, token) in [
            ("Bearer ek_x", Some("ek_x")),
            ("bearer  ek_x ", Some("ek_x")),
            ("Bearer", None),
            ("Bearer ", None),
            ("Basic eDp5", None),
            ("ek_x", None),
        ] {
            let value = HeaderValue::from_static(value);
            let headers = HeaderMap::from_iter([(header::AUTHORIZATION, value.clone())]);
            assert_eq!(bearer(&headers), token, "{value:?}");
        }
        assert_eq!(bearer(&HeaderMap::new()), None);
    }
}
