//! The subcommands, one module each.

pub(crate) mod admin;
pub(crate) mod decode;
pub(crate) mod keys;
pub(crate) mod run;
pub(crate) mod top;
pub(crate) mod trace;

use std::time::{SystemTime, UNIX_EPOCH};

use syrinx_shared::route::UnixMinutes;

/// The wall clock, as ufrags are dated.
fn unix_minutes() -> UnixMinutes {
    let seconds = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs());
    UnixMinutes((seconds / 60) as u32)
}
