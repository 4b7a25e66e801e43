//! The subcommands, one module each.

pub(crate) mod admin;
pub(crate) mod decode;
pub(crate) mod keys;
pub(crate) mod run;
pub(crate) mod top;
pub(crate) mod trace;
