//! The subcommands, one module each.

pub(crate) mod decode;
pub(crate) mod keys;
pub(crate) mod run;
