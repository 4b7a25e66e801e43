//! Clients as people have them call a real relay and a real transceiver from behind a NAT: each
//! connects, is heard, exchanges an event and leaves, and the transceiver frees its session for
//! the right reason.
//!
//! A library is driven by a small program in its own language (`programs/`), a browser by a page
//! script (`browsers/`); none of them judges anything. `prepare` installs what they need. The
//! quick ones run in every test run, all of them with the feature `every-client`
//! (`make test-clients`). The table in shared/manual/clients.md is held to what is seen here.
//!
//! Needs network namespaces, as the network tests do, and espeak-ng and sox.

mod browser;
mod calls;
mod ground;
mod libraries;
mod manual;
#[cfg(feature = "every-client")]
mod moving;
mod program;
mod sdk;
mod sound;
#[cfg(feature = "every-client")]
mod whip;
