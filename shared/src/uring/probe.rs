//! Which receive model a worker runs on: asked for, or found out by trying.
//!
//! Trying means setting up a small ring with the flags of the real one and asking it for the
//! operations the model uses, on the thread that will use it: a seccomp filter or a container's
//! policy can differ from the version of the kernel.

use super::ring;
use super::slices::ring_lifecycle;
use io_uring::{IoUring, Probe, opcode};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io;
use thiserror::Error;

/// Completion entries of the trial ring; the smallest that its submission entries allow.
const TRIAL_COMPLETIONS: u32 = 128;

/// The receive model to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IoModel {
    /// io_uring where the host permits it, else `recvmmsg`.
    #[default]
    Auto,
    /// io_uring, or an error.
    Ring,
    /// `ppoll` and `recvmmsg`.
    Mmsg,
}

impl fmt::Display for IoModel {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            IoModel::Auto => "auto",
            IoModel::Ring => "ring",
            IoModel::Mmsg => "mmsg",
        })
    }
}

/// The outcome: [`IoModel::Ring`] or [`IoModel::Mmsg`], and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IoModelChoice {
    /// Never [`IoModel::Auto`].
    pub model: IoModel,
    /// For the log.
    pub reason: String,
}

/// io_uring was asked for, or is needed, and cannot be had.
#[derive(Debug, Error)]
pub enum IoModelError {
    /// The kernel or a filter refuses io_uring.
    #[error(
        "io_uring is not permitted here ({0}): set `sysctl kernel.io_uring_disabled=0`, and allow \
         io_uring_setup, io_uring_enter and io_uring_register in the unit's SystemCallFilter (or \
         the container's seccomp profile)"
    )]
    NotPermitted(io::Error),
    /// The kernel lacks io_uring or a part of it.
    #[error("this kernel's io_uring is too old ({0}): Linux 6.1 or newer is needed")]
    TooOld(String),
    /// The limit on locked memory or descriptors, or memory itself, is used up.
    #[error(
        "io_uring could not be set up ({0}): raise the unit's LimitNOFILE and LimitMEMLOCK, or \
         free memory"
    )]
    Exhausted(io::Error),
}

/// Decides on the calling thread.
///
/// Errors: [`IoModelError`] if [`IoModel::Ring`] is asked for and cannot be had.
pub fn choose_io_model(wanted: IoModel) -> Result<IoModelChoice, IoModelError> {
    let choice = |model, reason: &str| IoModelChoice {
        model,
        reason: reason.to_owned(),
    };
    match wanted {
        IoModel::Mmsg => Ok(choice(IoModel::Mmsg, "asked for by the configuration")),
        IoModel::Ring => {
            try_ring()?;
            Ok(choice(
                IoModel::Ring,
                "asked for by the configuration, and available",
            ))
        }
        IoModel::Auto => Ok(match try_ring() {
            Ok(()) => choice(IoModel::Ring, "io_uring is available"),
            Err(error) => choice(IoModel::Mmsg, &error.to_string()),
        }),
    }
}

/// Tries io_uring with what the ring model needs.
pub(crate) fn try_ring() -> Result<(), IoModelError> {
    let trial = ring::build(TRIAL_COMPLETIONS, false).map_err(classify)?;
    let outcome = try_operations(&trial);
    let _closing = ring_lifecycle();
    drop(trial);
    outcome
}

fn try_operations(trial: &IoUring) -> Result<(), IoModelError> {
    let mut probe = Probe::new();
    trial
        .submitter()
        .register_probe(&mut probe)
        .map_err(classify)?;
    let needed = [
        ("recvmsg", opcode::RecvMsgMulti::CODE),
        ("read", opcode::Read::CODE),
        ("poll_add", opcode::PollAdd::CODE),
    ];
    for (name, code) in needed {
        if !probe.is_supported(code) {
            return Err(IoModelError::TooOld(format!("no {name} operation")));
        }
    }
    Ok(())
}

fn classify(error: io::Error) -> IoModelError {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => IoModelError::NotPermitted(error),
        Some(libc::ENOMEM | libc::EMFILE | libc::ENFILE) => IoModelError::Exhausted(error),
        _ => IoModelError::TooOld(error.to_string()),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::uring::syscall::deny_io_uring;

    /// Runs `body` on a thread on which `io_uring_setup` fails with `errno`, as under a unit whose
    /// SystemCallFilter leaves it out. Threads started by `body` inherit the filter.
    pub(crate) fn without_io_uring<T: Send>(errno: i32, body: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let thread = scope.spawn(move || {
                deny_io_uring(errno).unwrap();
                body()
            });
            thread.join().unwrap()
        })
    }

    #[test]
    fn auto_takes_the_ring_where_it_works() {
        let choice = choose_io_model(IoModel::Auto).unwrap();
        assert_eq!(choice.model, IoModel::Ring);
    }

    #[test]
    fn auto_falls_back_to_mmsg_with_the_reason_when_io_uring_is_filtered() {
        let choice = without_io_uring(libc::EPERM, || choose_io_model(IoModel::Auto).unwrap());
        assert_eq!(choice.model, IoModel::Mmsg);
        assert!(
            choice.reason.contains("Operation not permitted"),
            "{}",
            choice.reason
        );
    }

    #[test]
    fn an_explicit_ring_that_is_not_permitted_is_an_error_with_the_remedy() {
        let error = without_io_uring(libc::EPERM, || choose_io_model(IoModel::Ring).unwrap_err());
        let text = error.to_string();
        assert!(text.contains("kernel.io_uring_disabled"), "{text}");
        assert!(text.contains("SystemCallFilter"), "{text}");
    }

    #[test]
    fn an_explicit_ring_on_a_kernel_without_it_names_the_version() {
        let error = without_io_uring(libc::ENOSYS, || choose_io_model(IoModel::Ring).unwrap_err());
        assert!(error.to_string().contains("Linux 6.1"), "{error}");
    }

    #[test]
    fn mmsg_is_taken_when_asked_for_even_if_the_ring_works() {
        assert_eq!(choose_io_model(IoModel::Mmsg).unwrap().model, IoModel::Mmsg);
    }
}
