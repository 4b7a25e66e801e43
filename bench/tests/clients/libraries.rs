//! WebRTC libraries: those that hand out RTP get their payloads back byte for byte, those that
//! play sound get their sentence back.

use std::process::Command;

#[cfg(feature = "every-client")]
use syrinx_bench::hearing::Recording;
use syrinx_bench::namespace::with_namespaces;

use crate::ground::{Ending, Ground, on_ground};
use crate::manual;
use crate::program::{prepare, sources};

/// A program that sends payloads.
pub(crate) fn sends_frames(ground: &mut Ground<'_>, program: &mut Command) {
    let returned = ground.folder().join("returned");
    program.arg("--frames").arg(ground.frames());
    program.arg("--returned").arg(&returned);
    let report = ground.run(program);
    ground.judge_report(&report);
    ground.judge_frames(&returned);
    ground.expect_end(Ending::Closed);
    manual::confirm(&report, Ending::Closed);
}

/// A program that speaks.
#[cfg(feature = "every-client")]
fn speaks(ground: &mut Ground<'_>, program: &mut Command, ending: Ending) {
    let returned = ground.folder().join("returned.wav");
    program.arg("--speech").arg(ground.long_speech());
    program.arg("--returned").arg(&returned);
    program.args(["--seconds", &ground.recording_s().to_string()]);
    let report = ground.run(program);
    ground.judge_report(&report);
    let returned = Recording::read_wav(&returned).expect("the program's recording");
    ground.judge_recording(&returned);
    ground.expect_end(ending);
    manual::confirm(&report, ending);
}

#[test]
fn libdatachannel_gets_its_payloads_back() {
    with_namespaces("libraries::libdatachannel_gets_its_payloads_back", || {
        prepare("node");
        on_ground(|ground| {
            let program = sources().join("programs/libdatachannel.mjs");
            sends_frames(ground, Command::new("node").arg(program));
        });
    });
}

#[cfg(feature = "every-client")]
#[test]
fn pion_gets_its_payloads_back() {
    with_namespaces("libraries::pion_gets_its_payloads_back", || {
        let _ = prepare("pion");
        on_ground(|ground| sends_frames(ground, &mut Command::new(prepare("pion").join("pion"))));
    });
}

#[cfg(feature = "every-client")]
#[test]
fn aiortc_hears_itself() {
    with_namespaces("libraries::aiortc_hears_itself", || {
        let _ = prepare("aiortc");
        on_ground(|ground| {
            let mut program = Command::new(prepare("aiortc").join("aiortc/bin/python"));
            program.arg(sources().join("programs/aiortc_caller.py"));
            speaks(ground, &mut program, Ending::Closed);
        });
    });
}

#[cfg(feature = "every-client")]
#[test]
fn gstreamer_with_an_ecdsa_certificate_hears_itself() {
    let name = "libraries::gstreamer_with_an_ecdsa_certificate_hears_itself";
    with_namespaces(name, || {
        let _ = prepare("gstreamer");
        on_ground(|ground| {
            // Debian's own Python has the bindings, whatever comes first on the path.
            let mut program = Command::new("/usr/bin/python3");
            program.arg(sources().join("programs/gstreamer.py"));
            speaks(ground, &mut program, Ending::HungUp);
        });
    });
}
