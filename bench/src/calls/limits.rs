//! What this machine allows the generator, looked at before a run: a generator that runs out of its
//! own descriptors would blame the server.

use anyhow::{Context, bail};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Descriptors beside the clients' sockets: standard streams, pipes and listeners, files, and one
/// epoll, timer and waker a thread.
const DESCRIPTORS_ELSEWHERE: u64 = 128;

/// Raises the limit on open descriptors as far as `clients` at once and `diallers` need.
///
/// # Errors
/// When the hard limit is too low, with what to do about it.
pub fn make_room(clients: u32, diallers: usize) -> anyhow::Result<()> {
    let needed = u64::from(clients) + diallers as u64 + DESCRIPTORS_ELSEWHERE;
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).context("cannot read RLIMIT_NOFILE")?;
    if soft >= needed {
        return Ok(());
    }
    if hard < needed {
        bail!(
            "{clients} clients need {needed} file descriptors and this process may have {hard}: \
             raise the limit (ulimit -Hn {needed}, or LimitNOFILE={needed} of the unit), or ask \
             for fewer calls at once"
        );
    }
    setrlimit(Resource::RLIMIT_NOFILE, needed, hard).context("cannot raise RLIMIT_NOFILE")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_how_many_descriptors_are_missing_before_a_run() {
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
        let Ok(clients) = u32::try_from(hard) else {
            return;
        };
        let error = make_room(clients, 16).expect_err("too many").to_string();
        assert!(error.contains("ulimit -Hn"), "{error}");
        assert!(make_room(1, 1).is_ok());
    }
}
