//! ECN and DSCP, set by real sockets and read by real sockets, on both legs and in both families:
//! congestion control and a network's queues at either end see what the other end marked.

use std::io::IoSliceMut;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsRawFd as _;

use nix::sys::socket::{
    ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, setsockopt, sockopt,
};
use syrinx_shared::wire::encap::Marks;

use crate::caller::{Caller, speech};
use crate::ground::{Ground, Options};

/// Expedited forwarding with ECT(0), assured forwarding with ECT(1), plain CE, and nothing.
const TRAFFIC_CLASSES: [u8; 4] = [46 << 2 | 2, 34 << 2 | 1, 3, 0];

#[test]
fn ecn_and_dscp_survive_both_legs_on_ipv4() {
    carries_marks(Ipv4Addr::LOCALHOST.into(), "auto");
}

#[test]
fn ecn_and_dscp_survive_both_legs_on_ipv6() {
    carries_marks(Ipv6Addr::LOCALHOST.into(), "auto");
}

#[test]
fn ecn_and_dscp_survive_both_legs_without_io_uring() {
    carries_marks(Ipv4Addr::LOCALHOST.into(), "mmsg");
}

fn carries_marks(address: IpAddr, io_model: &'static str) {
    let mut ground = Ground::start(&Options {
        listen: vec![address],
        io_model,
        ..Options::default()
    });
    let to = SocketAddr::new(address, ground.port);
    let caller = Caller::new(SocketAddr::new(address, 0), to, ground.session(1, 1));
    if address.is_ipv4() {
        setsockopt(&caller.socket, sockopt::IpRecvTos, &true).unwrap();
    } else {
        setsockopt(&caller.socket, sockopt::Ipv6RecvTClass, &true).unwrap();
    }
    let transceiver = &mut ground.transceivers[0];
    caller.connect(transceiver);
    // Every pair of both directions' marks: neither is the echo of the other.
    for (number, uplink) in (0..).zip(TRAFFIC_CLASSES) {
        mark(&caller, uplink);
        caller.speak(&speech(number));
        let arrival = transceiver.receive_payload(&speech(number));
        assert_eq!(arrival.header.marks.traffic_class(), uplink);
        for downlink in TRAFFIC_CLASSES {
            let marks = Marks::from_traffic_class(downlink);
            transceiver.send_marked(&arrival, marks, &speech(!number));
            assert_eq!(hear_marked(&caller), (downlink, speech(!number)));
        }
    }
    assert!(ground.relay.stop().unwrap().success());
}

fn mark(caller: &Caller, traffic_class: u8) {
    let traffic_class = i32::from(traffic_class);
    if caller.socket.local_addr().unwrap().is_ipv4() {
        setsockopt(&caller.socket, sockopt::Ipv4Tos, &traffic_class).unwrap();
    } else {
        setsockopt(&caller.socket, sockopt::Ipv6TClass, &traffic_class).unwrap();
    }
}

fn hear_marked(caller: &Caller) -> (u8, Vec<u8>) {
    let mut bytes = [0; 2_048];
    let mut control = nix::cmsg_space!(u8, i32);
    let (count, traffic_class) = {
        let mut slices = [IoSliceMut::new(&mut bytes)];
        let received = recvmsg::<SockaddrStorage>(
            caller.socket.as_raw_fd(),
            &mut slices,
            Some(&mut control),
            MsgFlags::empty(),
        )
        .expect("the answer reaches the caller");
        let traffic_class = received.cmsgs().unwrap().find_map(|message| match message {
            ControlMessageOwned::Ipv4Tos(byte) => Some(byte),
            ControlMessageOwned::Ipv6TClass(word) => u8::try_from(word).ok(),
            _ => None,
        });
        (received.bytes, traffic_class)
    };
    let traffic_class = traffic_class.expect("the kernel tells the traffic class");
    (traffic_class, bytes[..count].to_vec())
}
