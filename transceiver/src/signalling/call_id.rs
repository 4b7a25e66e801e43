//! `rtc_…`: the name of a call in the HTTP API.
//!
//! The name is also the permission to end the call or look at it, so it is 128 random bits that
//! nobody can guess: 22 digits to the base 62, the smallest number of them that can spell 2^128.

use std::fmt;
use std::str::FromStr;

/// What every call id starts with, as in the Realtime API.
const PREFIX: &str = "rtc_";

/// Digits of 128 bits to the base 62: 62^22 > 2^128 > 62^21.
const DIGIT_COUNT: usize = 22;
const _: () = assert!(62u128.checked_pow(21).is_some() && 62u128.checked_pow(22).is_none());

const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// A call, as the HTTP API names it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct CallId(u128);

/// Text that names no call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a call id: rtc_ and 22 letters and digits")]
pub struct NotACallId;

impl CallId {
    /// The id that 16 bytes of a secure source make.
    pub fn new(random: [u8; 16]) -> Self {
        Self(u128::from_be_bytes(random))
    }
}

impl fmt::Display for CallId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut digits = [b'0'; DIGIT_COUNT];
        let mut rest = self.0;
        for digit in digits.iter_mut().rev() {
            *digit = DIGITS[(rest % 62) as usize];
            rest /= 62;
        }
        assert_eq!(rest, 0, "invariant: 22 digits spell 128 bits");
        write!(
            f,
            "{PREFIX}{}",
            std::str::from_utf8(&digits).expect("invariant: digits are ASCII")
        )
    }
}

impl fmt::Debug for CallId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for CallId {
    type Err = NotACallId;

    fn from_str(text: &str) -> Result<Self, NotACallId> {
        let digits = text.strip_prefix(PREFIX).ok_or(NotACallId)?;
        if digits.len() != DIGIT_COUNT {
            return Err(NotACallId);
        }
        let mut value = 0u128;
        for digit in digits.bytes() {
            let digit = DIGITS
                .iter()
                .position(|known| *known == digit)
                .ok_or(NotACallId)?;
            value = value
                .checked_mul(62)
                .and_then(|value| value.checked_add(digit as u128))
                .ok_or(NotACallId)?;
        }
        Ok(Self(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_extremes_are_spelt_in_22_digits() {
        assert_eq!(
            CallId::new([0; 16]).to_string(),
            "rtc_0000000000000000000000"
        );
        assert_eq!(
            CallId::new([255; 16]).to_string(),
            "rtc_7n42DGM5Tflk9n8mt7Fhc7"
        );
    }

    #[test]
    fn text_that_no_id_is_spelt_as_is_refused() {
        for text in [
            "",
            "rtc_",
            "7n42DGM5Tflk9n8mt7Fhc7",
            "rtc_7n42DGM5Tflk9n8mt7Fhc",
            "rtc_7n42DGM5Tflk9n8mt7Fhc77",
            "rtc_7n42DGM5Tflk9n8mt7Fhc8",
            "rtc_zzzzzzzzzzzzzzzzzzzzzz",
            "rtc_00000000000000000000-0",
            "rtc_0000000000000000000é0",
        ] {
            assert_eq!(text.parse::<CallId>(), Err(NotACallId), "{text}");
        }
    }

    proptest! {
        #[test]
        fn round_trips(random: [u8; 16]) {
            let id = CallId::new(random);
            prop_assert_eq!(id.to_string().parse(), Ok(id));
        }

        #[test]
        fn no_text_panics(text: String) {
            let _ = text.parse::<CallId>();
            let _ = format!("rtc_{text}").parse::<CallId>();
        }
    }
}
