//! Links of a real worker to backends that keep faith, and to backends that do not.
//!
//! Each test starts a worker of its own, without sessions: it commands links as a dialect would and
//! hears what they tell. The backends are threads of the test, on real sockets.

mod backend;
mod faithful;
mod faithless;
mod many;
mod tls;
mod worker;
