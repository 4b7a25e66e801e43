//! Which UDP ports a process holds, as the kernel lists them (proc(5)).
//!
//! A test that says "one port" asks the kernel, not the program that claims it.

use std::collections::BTreeSet;
use std::io;

/// Local ports of all UDP sockets that process `pid` has open, IPv4 and IPv6.
pub(super) fn udp_ports(pid: u32) -> io::Result<BTreeSet<u16>> {
    let mut own = BTreeSet::new();
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd"))? {
        // A descriptor may be closed between the listing and the look at it.
        let Ok(target) = std::fs::read_link(entry?.path()) else {
            continue;
        };
        let target = target.to_string_lossy().into_owned();
        let inode = target
            .strip_prefix("socket:[")
            .and_then(|rest| rest.strip_suffix(']'));
        own.extend(inode.map(str::to_owned));
    }
    let mut ports = BTreeSet::new();
    for table in ["udp", "udp6"] {
        let text = std::fs::read_to_string(format!("/proc/{pid}/net/{table}"))?;
        let rows = text.lines().skip(1).filter_map(row);
        ports.extend(
            rows.filter(|(_, inode)| own.contains(*inode))
                .map(|(port, _)| port),
        );
    }
    Ok(ports)
}

/// Port and inode of one line: `sl local_address rem_address st .. uid timeout inode ..`, the
/// address as hexadecimal `IP:PORT`.
fn row(line: &str) -> Option<(u16, &str)> {
    let mut fields = line.split_whitespace();
    let (_, port) = fields.nth(1)?.rsplit_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    Some((port, fields.nth(7)?))
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn lists_the_ports_of_this_process_on_both_families() {
        let four = UdpSocket::bind("127.0.0.1:0").expect("an IPv4 socket");
        let six = UdpSocket::bind("[::1]:0").expect("an IPv6 socket");
        let ports = udp_ports(std::process::id()).expect("own descriptors");
        for socket in [&four, &six] {
            assert!(ports.contains(&socket.local_addr().expect("bound").port()));
        }
        let gone = four.local_addr().expect("bound").port();
        drop((four, six));
        assert!(
            !udp_ports(std::process::id())
                .expect("own descriptors")
                .contains(&gone)
        );
    }
}
