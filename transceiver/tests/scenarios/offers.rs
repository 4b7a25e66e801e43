//! Offers as they come, and the answers to them: count and order kept, nothing else repeated.

mod browsers;
mod codecs;

use std::time::Instant;

use super::support::advertised;
use browsers::{chrome, firefox};
use proptest::prelude::*;
use syrinx_transceiver::engine::{Credentials, OFFER_BYTES_MAX, Offer, OfferError, Template};

const UFRAG: &str = "ABCDabcd0123+/ABCDabcd0123+/ABCD";
const PASSWORD: &str = "pwd0pwd1pwd2pwd3pwd4pwd5pwd6pwd7";

fn crlf(text: &str) -> String {
    text.replace('\n', "\r\n")
}

fn answer(offer: &str) -> Result<String, OfferError> {
    let template = Template::new(&advertised()).unwrap();
    let credentials = Credentials {
        ufrag: UFRAG.into(),
        password: PASSWORD.into(),
    };
    let offer = Offer::parse(offer.as_bytes())?;
    let (_, answer) = template.answer(Instant::now(), &offer, &credentials, None)?;
    // A strict reader takes the answer, if the offer was as complete as it wants an answer to be.
    if answer.matches("\na=mid:").count() == answer.matches("\nm=").count() {
        str0m::change::SdpAnswer::from_sdp_string(&answer).expect("the answer is SDP");
    }
    assert!(answer.lines().count() < 200 && answer.ends_with("\r\n"));
    Ok(answer)
}

/// The answer's text before its first m-line, and that of each section.
fn sections(answer: &str) -> Vec<Vec<&str>> {
    let mut sections = vec![Vec::new()];
    for line in answer.lines() {
        if line.starts_with("m=") {
            sections.push(Vec::new());
        }
        sections.last_mut().unwrap().push(line);
    }
    sections
}

fn has(section: &[&str], line: &str) -> bool {
    section.contains(&line)
}

#[test]
fn the_answer_to_chrome_keeps_count_and_order_and_refuses_the_camera_in_its_place() {
    let answer = answer(&crlf(&chrome())).unwrap();
    let sections = sections(&answer);
    let [session, _, video, channel] = &sections[..] else {
        panic!("three sections: {answer}");
    };
    assert_eq!(session[0], "v=0");
    assert!(has(session, "a=group:BUNDLE 0 2"), "{session:?}");
    assert!(has(session, "a=ice-lite"));
    assert!(!answer.contains("str0m"), "the engine is nobody's business");
    let refused = [
        "m=video 0 UDP/TLS/RTP/SAVPF 0",
        "c=IN IP4 0.0.0.0",
        "a=mid:1",
        "a=inactive",
    ];
    assert_eq!(video, &refused);
    assert_eq!(
        channel[0],
        "m=application 3478 UDP/DTLS/SCTP webrtc-datachannel"
    );
    assert!(has(channel, "a=mid:2") && has(channel, "a=sctp-port:5000"));
    assert!(has(channel, "a=max-message-size:262144"));
    assert!(!answer.contains("sctp-init"));
}

#[test]
fn the_answer_to_chrome_names_our_transport_and_the_codecs_we_speak_and_no_other() {
    let answer = answer(&crlf(&chrome())).unwrap();
    let audio = &sections(&answer)[1];
    assert_eq!(audio[0], "m=audio 3478 UDP/TLS/RTP/SAVPF 111 110 126");
    for line in [
        "c=IN IP4 203.0.113.1",
        "a=mid:0",
        "a=sendrecv",
        "a=rtcp-mux",
        "a=setup:passive",
        "a=rtpmap:111 opus/48000/2",
        "a=rtpmap:110 telephone-event/48000",
        "a=rtpmap:126 telephone-event/8000",
        "a=extmap:1 urn:ietf:params:rtp-hdrext:ssrc-audio-level",
        "a=extmap:4 urn:ietf:params:rtp-hdrext:sdes:mid",
        "a=end-of-candidates",
        &format!("a=ice-ufrag:{UFRAG}"),
        &format!("a=ice-pwd:{PASSWORD}"),
    ] {
        assert!(has(audio, line), "{line} in {audio:#?}");
    }
    let candidates: Vec<_> = answer
        .lines()
        .filter(|line| line.contains("candidate:"))
        .collect();
    assert_eq!(candidates.len(), 2, "{candidates:?}");
    assert!(
        candidates[0].contains(" 203.0.113.1 3478 typ host"),
        "{candidates:?}"
    );
    assert!(
        candidates[1].contains(" 2001:db8::1 3478 typ host"),
        "{candidates:?}"
    );
    for unwanted in [
        "red/",
        "G722",
        "PCMU",
        "transport-cc",
        "send-time",
        "192.0.2.44",
        ".local",
    ] {
        assert!(!answer.contains(unwanted), "{unwanted} in {answer}");
    }
}

#[test]
fn the_answer_to_firefox_takes_its_session_level_fingerprint_and_its_numbers() {
    let answer = answer(&crlf(&firefox())).unwrap();
    let sections = sections(&answer);
    assert_eq!(sections.len(), 3);
    assert_eq!(sections[1][0], "m=audio 3478 UDP/TLS/RTP/SAVPF 109 101");
    assert!(has(
        &sections[1],
        "a=extmap:3 urn:ietf:params:rtp-hdrext:sdes:mid"
    ));
    assert!(has(&sections[1], "a=fmtp:101 0-15"), "{:#?}", sections[1]);
}

#[test]
fn spelling_makes_no_difference() {
    let plain = chrome();
    let want = sections(&answer(&crlf(&plain)).unwrap())[1][0].to_owned();
    for odd in [
        plain.clone(),
        format!("\u{feff}{plain}"),
        plain.replace('\n', "\n\n"),
        plain.replace('\n', "  \r\n"),
        plain.replace("a=mid:", "a=mid: "),
        plain.replace("a=rtcp-mux\n", ""),
        plain.replace("a=sendrecv\n", ""),
        plain
            .replace("sha-256", "SHA-256")
            .replace("0A:1B", "0a:1b"),
        plain.replace("opus/48000", "OPUS/48000"),
        plain.replace("a=setup:actpass\n", ""),
        plain.trim_end().to_owned(),
    ] {
        let answer = answer(&odd).unwrap_or_else(|error| panic!("{error}\n{odd}"));
        assert_eq!(sections(&answer)[1][0], want, "{odd}");
    }
}

#[test]
fn header_extensions_keep_the_numbers_of_the_offer() {
    let (level, mid) = (
        "urn:ietf:params:rtp-hdrext:ssrc-audio-level",
        "urn:ietf:params:rtp-hdrext:sdes:mid",
    );
    let plain = chrome();
    let with = |level_id: &str, mid_id: &str| {
        plain
            .replace(&format!("a=extmap:1 {level}\n"), level_id)
            .replace(&format!("a=extmap:4 {mid}\n"), mid_id)
    };
    let swapped = with(
        &format!("a=extmap:4 {level}\n"),
        &format!("a=extmap:1 {mid}\n"),
    );
    let only_mid = with("", &format!("a=extmap:1/sendonly {mid}\n"));
    let beyond_one_byte = with("", &format!("a=extmap:15 {mid}\n"));
    let extmaps = |offer: &str| -> Vec<String> {
        let answer = answer(offer).unwrap();
        let mut lines: Vec<_> = answer
            .lines()
            .filter_map(|line| line.strip_prefix("a=extmap:"))
            .map(str::to_owned)
            .collect();
        lines.sort();
        lines
    };
    assert_eq!(
        extmaps(&swapped),
        [format!("1 {mid}"), format!("4 {level}")]
    );
    assert_eq!(extmaps(&only_mid), [format!("1 {mid}")]);
    assert_eq!(extmaps(&beyond_one_byte), [""; 0]);
}

#[test]
fn directions_are_answered_from_the_other_side() {
    for (offered, answered) in [
        ("sendrecv", "sendrecv"),
        ("sendonly", "recvonly"),
        ("recvonly", "sendonly"),
    ] {
        let offer = chrome().replacen("a=sendrecv", &format!("a={offered}"), 1);
        let answer = answer(&offer).unwrap();
        assert!(
            has(&sections(&answer)[1], &format!("a={answered}")),
            "{answer}"
        );
    }
}

#[test]
fn a_client_that_wants_to_be_the_dtls_server_is_let() {
    let answer = answer(&chrome().replace("a=setup:actpass", "a=setup:passive")).unwrap();
    assert!(has(&sections(&answer)[1], "a=setup:active"));
}

#[test]
fn only_the_first_usable_audio_line_is_served_and_the_active_one_preferred() {
    let offer = chrome();
    let start = offer.find("m=audio").unwrap();
    let end = offer.find("m=video").unwrap();
    let second = offer[start..end].replace("a=mid:0", "a=mid:9");
    let first_inactive = offer[start..end].replace("a=sendrecv", "a=inactive");
    let twice = format!(
        "{}{first_inactive}{second}{}",
        &offer[..start],
        &offer[end..]
    )
    .replace("BUNDLE 0 1 2", "BUNDLE 0 9 1 2");
    let answer = answer(&twice).unwrap();
    let sections = sections(&answer);
    let ports: Vec<_> = sections[1..]
        .iter()
        .map(|s| s[0].split(' ').nth(1).unwrap())
        .collect();
    assert_eq!(ports, ["0", "3478", "0", "3478"]);
    assert!(has(&sections[0], "a=group:BUNDLE 9 2"));
}

#[test]
fn a_data_only_offer_is_served_and_a_bundle_only_line_too() {
    let offer = chrome();
    let (head, rest) = offer.split_at(offer.find("m=audio").unwrap());
    let channel = &rest[rest.find("m=application").unwrap()..];
    let data = format!("{}{channel}", head.replace("BUNDLE 0 1 2", "BUNDLE 2"));
    let text = answer(&data).unwrap();
    assert_eq!(sections(&text).len(), 2);
    assert!(text.contains("a=candidate:"));

    let bundle_only = offer
        .replace("m=application 9", "m=application 0")
        .replace("a=mid:2", "a=mid:2\na=bundle-only");
    let text = answer(&bundle_only).unwrap();
    assert!(sections(&text)[3][0].starts_with("m=application 3478"));
}

#[test]
fn without_a_bundle_only_one_line_is_served() {
    let offer = chrome().replace("a=group:BUNDLE 0 1 2\n", "");
    let answer = answer(&offer).unwrap();
    let sections = sections(&answer);
    assert!(!answer.contains("a=group"));
    assert!(sections[1][0].starts_with("m=audio 3478"));
    assert!(sections[3][0].starts_with("m=application 0"));
}

#[test]
fn a_line_without_a_mid_is_answered_without_one() {
    let offer = chrome().replace("a=group:BUNDLE 0 1 2\n", "");
    let nameless: String = offer
        .lines()
        .filter(|line| !line.starts_with("a=mid"))
        .map(|line| format!("{line}\n"))
        .collect();
    let answer = answer(&nameless).unwrap();
    assert_eq!(sections(&answer).len(), 4);
    assert!(!answer.contains("a=mid"));
}

#[test]
fn what_cannot_be_read_is_malformed_and_says_where() {
    let chrome = chrome();
    let at = |offer: &str| match answer(offer) {
        Err(OfferError::Malformed { line, what }) => (line, what),
        other => panic!("{other:?} for {offer}"),
    };
    assert_eq!(at("").0, 0);
    assert_eq!(at("\r\n \n").0, 0);
    assert_eq!(at("hello").0, 1);
    assert_eq!(at("{\"sdp\":\"v=0\"}").0, 1);
    assert_eq!(at("v=0\ns=-\n").1, "no m-line");
    assert_eq!(at(&chrome.replace("t=0 0", "garbage")).0, 4);
    assert_eq!(
        at(&chrome.replace("a=mid:1", "a=mid:0")).1,
        "its a=mid is used by an earlier m-line"
    );
    at(&chrome.replace("a=mid:0", "a=mid:01234567890123456"));
    at(&chrome.replace("a=ice-ufrag:Kw6P", "a=ice-ufrag:x"));
    at(&chrome.replace("a=ice-pwd", "a=x-pwd"));
    at(&chrome.replace("a=fingerprint", "a=x-fingerprint"));
    at(&chrome.replace("0A:1B", "0A"));
    at(&chrome.replace("setup:actpass", "setup:maybe"));
    at(&chrome.replace("m=video 9", "m=video nine"));
    at(&chrome.replace("m=video 9 UDP/TLS/RTP/SAVPF 96 97", "m=video"));
    assert!(matches!(
        Offer::parse(b"v=0\r\n\xff\xfe"),
        Err(OfferError::Malformed { line: 0, .. })
    ));
}

#[test]
fn what_cannot_be_served_says_why() {
    let chrome = chrome();
    let why = |offer: &str| match answer(offer) {
        Err(OfferError::NothingUsable(why)) => why,
        other => panic!("{other:?} for {offer}"),
    };
    let video = chrome.find("m=video").unwrap();
    let application = chrome.find("m=application").unwrap();
    let audio = chrome.find("m=audio").unwrap();
    let only_video = format!("{}{}", &chrome[..audio], &chrome[video..application]);
    assert!(why(&only_video).contains("neither"));
    let only_audio = chrome[..video].to_owned();
    let no_g711 = only_audio.replace("111 63 9 0 8 13", "111 63 9 13");
    assert!(why(&no_g711.replace("opus/48000/2", "speex/16000")).contains("opus"));
    assert!(why(&only_audio.replace("m=audio 54609", "m=audio 0")).contains("opus"));
    assert!(why(&only_audio.replace("a=sendrecv", "a=inactive")).contains("inactive"));
    assert!(why(&chrome.replace("sha-256", "sha-1")).contains("sha-256"));
    assert!(why(&chrome.replace("s=-", "s=-\na=ice-lite")).contains("ICE-lite"));
}

#[test]
fn limits_are_named() {
    let big = format!(
        "v=0\n{}",
        "a=x:yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy\n".repeat(5_000)
    );
    assert!(big.len() > OFFER_BYTES_MAX);
    let unit = |offer: &str| match answer(offer) {
        Err(OfferError::TooLarge { unit, .. }) => unit,
        other => panic!("{other:?}"),
    };
    assert_eq!(unit(&big), "bytes");
    assert_eq!(unit(&format!("v=0\n{}", "a=x\n".repeat(10_000))), "lines");
    assert_eq!(
        unit(&format!(
            "v=0\n{}",
            "m=video 9 UDP/TLS/RTP/SAVPF 96\n".repeat(65)
        )),
        "m-lines"
    );
    // 112 KB of gathered candidates is an offer like any other.
    let candidates =
        "a=candidate:1 1 udp 2113937151 192.0.2.1 54609 typ host generation 0\n".repeat(1_600);
    let long = chrome().replace("a=mid:0\n", &format!("{candidates}a=mid:0\n"));
    assert!(
        (112_000..OFFER_BYTES_MAX).contains(&long.len()),
        "{}",
        long.len()
    );
    assert!(answer(&long).is_ok());
}

#[test]
fn a_negotiated_channel_needs_no_opening_in_band() {
    let template = Template::new(&advertised()).unwrap();
    let credentials = Credentials {
        ufrag: UFRAG.into(),
        password: PASSWORD.into(),
    };
    let offer = Offer::parse(chrome().as_bytes()).unwrap();
    assert!(
        template
            .answer(Instant::now(), &offer, &credentials, Some(42))
            .is_ok()
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Any one line of a real offer bent or repeated: an answer or a reason, never a panic, and
    /// an answer has as many sections as the offer.
    #[test]
    fn bent_offers_are_answered_or_refused(
        line in any::<prop::sample::Index>(),
        with in "[ -~]{0,40}",
        how in 0..4,
    ) {
        let offer = chrome();
        let mut lines: Vec<String> = offer.lines().map(str::to_owned).collect();
        let at = line.index(lines.len());
        match how {
            0 => lines[at] = with,
            1 => lines[at].push_str(&with),
            2 => { lines.insert(at, format!("a={with}")); }
            _ => { lines.remove(at); }
        }
        if let Ok(answer) = answer(&lines.join("\r\n")) {
            let offered = lines.iter().filter(|line| line.starts_with("m=")).count();
            prop_assert_eq!(sections(&answer).len() - 1, offered);
        }
    }

    #[test]
    fn no_bytes_make_the_parser_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = Offer::parse(&bytes);
        let mut text = b"v=0\nm=audio 9 UDP/TLS/RTP/SAVPF 111\na=".to_vec();
        text.extend(bytes);
        let _ = Offer::parse(&text);
    }
}
