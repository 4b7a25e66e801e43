//! The inner leg's sockets, opened alike at both ends: one UDP port a process, one socket a worker,
//! each bundle steered to the worker that it names ([`crate::wire::encap`]).

use std::io;
use std::net::SocketAddr;

use crate::uring::{
    PathMtu, Send, Sends, SocketError, UdpOptions, UdpSocket, attach_shard_steering, open_udp_group,
};
use crate::wire::encap::DESTINATION_SHARD_OFFSET;
use crate::wire::train::Trains;

/// Which configuration key the address came from, and what it says.
#[derive(Debug, Clone, Copy)]
pub struct InnerLegOptions {
    /// Dotted key of the address, for errors.
    pub key: &'static str,
    /// The address.
    pub listen: SocketAddr,
    /// Receive buffer wanted for each socket, in bytes.
    pub receive_buffer_bytes: usize,
    /// Send buffer wanted for each socket, in bytes.
    pub send_buffer_bytes: usize,
}

/// Why there is no inner leg. Displays as one line that ends in the remedy.
#[derive(Debug, thiserror::Error)]
pub enum InnerLegError {
    /// The address cannot be had.
    #[error("{key}: {cause}")]
    Socket {
        /// Dotted key of the address.
        key: &'static str,
        /// What is wrong, and the remedy.
        cause: SocketError,
    },
    /// The kernel does not steer.
    #[error(
        "{key} = {address}: bundles cannot be steered to their workers \
         (SO_ATTACH_REUSEPORT_CBPF): {cause}; set workers.count = 1"
    )]
    Steering {
        /// Dotted key of the address.
        key: &'static str,
        /// The address.
        address: SocketAddr,
        /// What the kernel said.
        cause: io::Error,
    },
}

/// Opens one socket for each of `worker_count` workers, in the order of their shards.
///
/// # Errors
/// [`InnerLegError`]; nothing is left open.
pub fn open_inner_leg(
    options: &InnerLegOptions,
    worker_count: usize,
) -> Result<Vec<UdpSocket>, InnerLegError> {
    let InnerLegOptions { key, listen, .. } = *options;
    let udp = UdpOptions {
        receive_buffer_bytes: options.receive_buffer_bytes,
        send_buffer_bytes: options.send_buffer_bytes,
        // Records carry the marks of the client's leg; those of the bundle mean nothing.
        traffic_class: false,
        gro: true,
        // A record may be larger than the path's MTU, and must arrive all the same.
        path_mtu: PathMtu::Fragment,
        ..UdpOptions::new(listen)
    };
    let group =
        open_udp_group(&udp, worker_count).map_err(|cause| InnerLegError::Socket { key, cause })?;
    if worker_count > 1 {
        let offset = u32::try_from(DESTINATION_SHARD_OFFSET).expect("invariant: a small offset");
        attach_shard_steering(&group, offset).map_err(|cause| InnerLegError::Steering {
            key,
            address: listen,
            cause,
        })?;
    }
    Ok(group)
}

/// Queues every train of a pass on the worker's inner socket, one send each.
pub fn push_trains<'a>(trains: &'a Trains, inner_socket: usize, sends: &mut Sends<'a>) {
    for train in trains.iter() {
        sends.push(Send {
            socket: inner_socket,
            to: train.to,
            from_ip: None,
            traffic_class: 0,
            segment_bytes: train.segment_bytes,
            item_count: train.record_count,
            payload: train.bytes,
        });
    }
}

/// Says in the log that the kernel granted smaller receive buffers than `key` asks for.
pub fn warn_of_small_buffers(key: &str, wanted_bytes: usize, group: &[UdpSocket]) {
    let granted = group
        .iter()
        .map(UdpSocket::granted_receive_buffer_bytes)
        .min();
    let Some(granted_bytes) = granted.filter(|granted| *granted < wanted_bytes) else {
        return;
    };
    tracing::warn!(
        granted_bytes,
        "{key} = {wanted_bytes}: the kernel granted less, so bursts may be dropped: raise \
         net.core.rmem_max (systemd/sysctl.d has the value and why)"
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::time::Duration;

    const OPTIONS: InnerLegOptions = InnerLegOptions {
        key: "media.inner_listen",
        listen: SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0),
        receive_buffer_bytes: 1 << 16,
        send_buffer_bytes: 1 << 16,
    };

    #[test]
    fn a_bundle_reaches_the_socket_of_the_shard_it_names() {
        let group = open_inner_leg(&OPTIONS, 3).unwrap();
        let sender = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        for shard in [2u8, 0, 1] {
            sender
                .send_to(&[0x0c, 0x10, shard, 0], group[0].local_addr())
                .unwrap();
            let clone = group[usize::from(shard)]
                .as_fd()
                .try_clone_to_owned()
                .unwrap();
            let receiver = std::net::UdpSocket::from(clone);
            receiver.set_nonblocking(false).unwrap();
            receiver
                .set_read_timeout(Some(Duration::from_secs(2)))
                .unwrap();
            let mut bytes = [0; 16];
            assert_eq!(receiver.recv(&mut bytes).unwrap(), 4);
            assert_eq!(bytes[2], shard);
        }
    }

    #[test]
    fn an_address_in_use_names_the_key() {
        let group = open_inner_leg(&OPTIONS, 1).unwrap();
        let again = InnerLegOptions {
            listen: group[0].local_addr(),
            ..OPTIONS
        };
        let line = open_inner_leg(&again, 1).unwrap_err().to_string();
        assert!(
            line.starts_with("media.inner_listen: UDP 127.0.0.1:"),
            "{line}"
        );
        assert!(line.contains("in use"), "{line}");
    }
}
