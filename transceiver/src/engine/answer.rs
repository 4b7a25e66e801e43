//! Writes the SDP answer: str0m's own sections, put back where the offer had them.
//!
//! str0m sees only the sections that are served, in canonical spelling. An answer must have as many
//! m-lines as the offer, in the same order (RFC 3264, 6), so what was not served is refused here,
//! in its place, with port 0. Candidates are complete from the start: a client need not wait for
//! more, and the default address in `c=` and `m=` is the first of them (RFC 8839, 5.1).

use std::net::SocketAddr;

use super::offer::{Offer, Section};

/// Splits str0m's answer at its m-lines: what stands before the first, then one text a section.
fn split(answer: &str) -> impl Iterator<Item = Vec<&str>> {
    let mut sections = vec![Vec::new()];
    for line in answer.lines() {
        if line.starts_with("m=") {
            sections.push(Vec::new());
        }
        sections
            .last_mut()
            .expect("invariant: starts with one")
            .push(line);
    }
    sections.into_iter()
}

/// The answer to `offer`, from str0m's answer to its canonical form.
///
/// `default` is the first candidate; `session_id` and the version are what `o=` needs.
pub(super) fn compose(offer: &Offer, engine_answer: &str, default: SocketAddr) -> String {
    let mut parts = split(engine_answer);
    let head = parts.next().unwrap_or_default();
    let mut text = String::with_capacity(engine_answer.len() + 512);
    write_head(&mut text, offer, &head);
    let mut first = true;
    for section in offer.sections() {
        let served = section.is_served().then(|| parts.next()).flatten();
        match served {
            Some(lines) => write_served(&mut text, section, &lines, default, first),
            None => write_refused(&mut text, section),
        }
        first &= !section.is_served();
    }
    text
}

fn write_head(text: &mut String, offer: &Offer, head: &[&str]) {
    for line in head {
        // The engine's version is nobody's business.
        if let Some(origin) = line.strip_prefix("o=") {
            let id = origin.split(' ').nth(1).unwrap_or("1");
            push_line(text, &format!("o=- {id} 2 IN IP4 0.0.0.0"));
        } else if !line.starts_with("a=group:") || offer.is_bundled() {
            push_line(text, line);
        }
    }
}

fn write_served(
    text: &mut String,
    section: &Section,
    lines: &[&str],
    default: SocketAddr,
    first: bool,
) {
    let formats = lines
        .first()
        .and_then(|line| line.splitn(4, ' ').nth(3))
        .unwrap_or("0");
    push_line(text, &section.served_line(default.port(), formats));
    let family = if default.is_ipv4() { "IP4" } else { "IP6" };
    push_line(text, &format!("c=IN {family} {}", default.ip()));
    for line in lines.iter().skip(1) {
        let unnamed = line.starts_with("a=mid:") && section.mid().is_none();
        let is_opus_fmtp = line.starts_with("a=fmtp:") && line.contains("useinbandfec=1");
        if is_opus_fmtp && section.wants_dtx() {
            push_line(text, &format!("{line};usedtx=1"));
            continue;
        }
        // All candidates are here, so nothing will trickle.
        if !line.starts_with("c=") && !line.starts_with("a=ice-options:") && !unnamed {
            push_line(text, line);
        }
    }
    if first {
        push_line(text, "a=end-of-candidates");
    }
}

fn write_refused(text: &mut String, section: &Section) {
    push_line(text, &section.refused_line());
    push_line(text, "c=IN IP4 0.0.0.0");
    if let Some(mid) = section.mid() {
        push_line(text, &format!("a=mid:{mid}"));
    }
    push_line(text, "a=inactive");
}

fn push_line(text: &mut String, line: &str) {
    text.push_str(line);
    text.push_str("\r\n");
}
