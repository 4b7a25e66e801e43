//! Scenarios of the session core on virtual time: one module each, a whole WebRTC client in
//! memory on the other side, and no socket, clock or thread.

mod audio;
mod channel;
mod consent;
mod containment;
mod ending;
mod farewells;
mod fingerprints;
mod handshakes;
mod hearing;
mod hostile_sctp;
mod integrity;
mod malformed;
mod media_v1;
mod moving;
mod offers;
mod playout;
mod realtime;
mod reports;
mod restarts;
mod seam;
mod served;
mod setup;
mod support;
mod unadmitted;
