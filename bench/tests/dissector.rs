//! The Wireshark dissector against the codec: bundles made by the one are read by the other.

use std::path::Path;
use std::process::Command;

use syrinx_shared::keys::Cookie;
use syrinx_shared::route::{ClientSocket, LocalEndpoint, SessionRef, ShardIndex, Transport};
use syrinx_shared::wire::encap::{Control, Direction, Marks, Preamble, RecordHeader, push_record};
use syrinx_shared::wire::stun::{Integrity, RequestWriter};

/// `LINKTYPE_RAW` of the pcap format: packets begin with the IP header.
const LINKTYPE_RAW: u32 = 101;

fn header(client: &str, direction: Direction) -> RecordHeader {
    RecordHeader {
        direction,
        marks: Marks::from_traffic_class(0xb9),
        transport: Transport::Udp,
        endpoint: LocalEndpoint(3),
        client: ClientSocket::new(client.parse().unwrap()),
        session: SessionRef::from_bytes([0, 7, 2, 0, 0x12, 0x67, 0, 9]),
        cookie: Cookie([0xaa; 8]),
    }
}

fn bundle(records: &[(RecordHeader, Vec<u8>)]) -> Vec<u8> {
    let count = records.len() as u8;
    let preamble = Preamble {
        destination: ShardIndex(2),
        source: ShardIndex(5),
        sender: 0x0102,
        count,
    };
    let mut bytes = Vec::from(preamble.to_bytes());
    for (header, payload) in records {
        push_record(&mut bytes, &header.to_raw(), payload);
    }
    bytes
}

/// A capture of UDP datagrams between two hosts.
fn capture(datagrams: &[Vec<u8>]) -> Vec<u8> {
    let mut file = Vec::new();
    file.extend(0xa1b2_c3d4u32.to_le_bytes());
    file.extend([2, 0, 4, 0]);
    file.extend([0; 8]);
    file.extend(65_535u32.to_le_bytes());
    file.extend(LINKTYPE_RAW.to_le_bytes());
    for datagram in datagrams {
        let udp_bytes = (8 + datagram.len()) as u16;
        let ip_bytes = 20 + udp_bytes;
        file.extend([0; 8]);
        file.extend(u32::from(ip_bytes).to_le_bytes());
        file.extend(u32::from(ip_bytes).to_le_bytes());
        file.extend([0x45, 0]);
        file.extend(ip_bytes.to_be_bytes());
        file.extend([0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        file.extend(3480u16.to_be_bytes());
        file.extend(3490u16.to_be_bytes());
        file.extend(udp_bytes.to_be_bytes());
        file.extend([0, 0]);
        file.extend(datagram);
    }
    file
}

/// What tshark says of `fields`, a line a packet; several values of one field are joined by commas.
fn dissect(datagrams: &[Vec<u8>], fields: &[&str]) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("inner.pcap");
    std::fs::write(&path, capture(datagrams)).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../relay/wireshark/syrinx.lua");
    let mut command = Command::new("tshark");
    command.env("HOME", folder.path());
    command.args(["-X", &format!("lua_script:{}", script.display()), "-r"]);
    command
        .arg(&path)
        .args(["-T", "fields", "-E", "separator=|"]);
    for field in fields {
        command.args(["-e", field]);
    }
    let output = command
        .output()
        .expect("tshark is installed by `make test`");
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && !complaints.contains("Lua:"),
        "{complaints}"
    );
    String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(str::to_owned)
        .collect()
}

#[test]
fn every_field_of_a_bundle_is_shown_with_the_codecs_value() {
    let check = RequestWriter {
        server_ufrag: b"server",
        client_ufrag: b"client",
        password: b"password",
        transaction_id: [1; 12],
        nominate: true,
        integrity: Integrity::Sha1,
    };
    let mut bytes = bundle(&[
        (
            header("192.0.2.1:5000", Direction::ToTransceiver),
            check.to_bytes(),
        ),
        (
            header("[2001:db8::7]:6000", Direction::ToClient),
            vec![0x80; 20],
        ),
        (
            header("192.0.2.1:5000", Direction::Control),
            Control::FlowClosed.to_bytes().to_vec(),
        ),
    ]);
    bytes.extend([0; 16]);
    let lines = dissect(
        &[bytes],
        &[
            "syrinx.version",
            "syrinx.destination_shard",
            "syrinx.source_shard",
            "syrinx.sender",
            "syrinx.count",
            "syrinx.record.direction",
            "syrinx.record.ecn",
            "syrinx.record.dscp",
            "syrinx.record.endpoint",
            "syrinx.record.client_port",
            "syrinx.record.client_ipv4",
            "syrinx.record.client_ipv6",
            "syrinx.record.slot",
            "syrinx.record.generation",
            "syrinx.record.control",
            "stun.att.username",
            "syrinx.padding",
        ],
    );
    let want = "1|2|5|258|3|0,1,2|1,1,1|46,46,46|3,3,3|5000,6000,5000|192.0.2.1,192.0.2.1\
                |2001:db8::7|4711,4711,4711|9,9,9|1|server:client|";
    assert_eq!(lines.len(), 1);
    assert!(lines[0].starts_with(want), "{}", lines[0]);
    assert!(lines[0].ends_with(&"00".repeat(16)), "{}", lines[0]);
}

#[test]
fn a_record_that_is_cut_off_is_marked_and_other_traffic_is_left_alone() {
    let whole = bundle(&[(
        header("192.0.2.1:5000", Direction::ToClient),
        vec![0x80; 20],
    )]);
    let cut = whole[..whole.len() - 1].to_vec();
    let stranger = vec![0x0d; 60];
    let lines = dissect(
        &[whole, cut, stranger],
        &["syrinx.count", "syrinx.truncated"],
    );
    let marked: Vec<bool> = lines
        .iter()
        .map(|line| line.split('|').nth(1) != Some(""))
        .collect();
    assert_eq!(marked, [false, true, false]);
    assert_eq!(lines[2], "|");
}
