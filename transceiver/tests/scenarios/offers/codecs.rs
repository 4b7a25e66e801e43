//! Which codecs an answer takes.

use super::browsers::chrome;
use super::{answer, sections};

#[test]
fn a_client_without_opus_gets_the_g711_it_prefers_and_its_key_presses() {
    let served = |formats: &str, without: &[&str]| {
        let mut offer = chrome().replace("111 63 9 0 8 13 110 126", formats);
        for line in without {
            offer = offer.replace(&format!("a=rtpmap:{line}\n"), "");
        }
        let answer = answer(&offer).unwrap();
        sections(&answer)[1]
            .iter()
            .filter(|line| line.starts_with("m=") || line.starts_with("a=rtpmap"))
            .map(|&line| line.to_owned())
            .collect::<Vec<_>>()
    };
    let ulaw = [
        "m=audio 3478 UDP/TLS/RTP/SAVPF 0 126",
        "a=rtpmap:0 PCMU/8000",
        "a=rtpmap:126 telephone-event/8000",
    ];
    assert_eq!(served("0 8 13 110 126", &["111 opus/48000/2"]), ulaw);
    // Static payload types need no a=rtpmap.
    let nameless = ["111 opus/48000/2", "0 PCMU/8000", "8 PCMA/8000"];
    assert_eq!(served("9 0 8 110 126", &nameless), ulaw);
    assert_eq!(
        served("9 8 0 126", &nameless),
        [
            "m=audio 3478 UDP/TLS/RTP/SAVPF 8 126",
            "a=rtpmap:8 PCMA/8000",
            "a=rtpmap:126 telephone-event/8000"
        ]
    );
    let opus = served("0 8 111", &[]);
    assert_eq!(opus[0], "m=audio 3478 UDP/TLS/RTP/SAVPF 111");
}

#[test]
fn forward_error_correction_is_asked_for_and_dtx_is_answered_to_who_wants_it() {
    let fmtp = |offer: &str| {
        let answer = answer(offer).unwrap();
        let line = answer.lines().find(|line| line.starts_with("a=fmtp:111"));
        line.expect("Opus has parameters").to_owned()
    };
    let plain = fmtp(&chrome());
    assert!(
        plain.contains("useinbandfec=1") && !plain.contains("usedtx"),
        "{plain}"
    );
    let dtx = fmtp(&chrome().replace("useinbandfec=1", "useinbandfec=1; usedtx=1"));
    assert!(
        dtx.contains("useinbandfec=1") && dtx.contains("usedtx=1"),
        "{dtx}"
    );
}
