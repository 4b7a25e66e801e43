//! The client side: thousands of clients, each with an address and a session of its own, that ask
//! for their flow by a STUN check, then send and check measured datagrams.
//!
//! Client *n* has the *n*th address of a range, `127.16.0.0` on, all on one wildcard socket. A
//! client is *settled* once the answer to its check came back through the relay: only then does the
//! relay have a flow for it, and the sink a way back. Checks are repeated until all are settled, as
//! ICE does.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use syrinx_shared::route::SessionRef;
use syrinx_shared::wire::stun::{Integrity, RequestWriter};

use super::ledger::Ledger;
use super::payload::{PAYLOAD_BYTES_MAX, Stamp};
use super::port::{Arrival, Port};
use super::turn;

/// Most clients: their addresses are one /12.
pub const CLIENTS_MAX: u32 = 1 << 20;
/// The first client's address on loopback.
pub const FIRST_ON_LOOPBACK: Ipv4Addr = Ipv4Addr::new(127, 16, 0, 0);
/// The first byte of a STUN Binding success response (RFC 8489 section 5).
const BINDING_SUCCESS: [u8; 2] = [0x01, 0x01];
/// Marks a transaction id as ours; the client's index follows.
const TRANSACTION_MARK: [u8; 8] = *b"syrinx-b";

/// What a client was given in signalling.
#[derive(Clone, Debug)]
pub struct Invitation {
    /// The server's ICE ufrag, which routes.
    pub server_ufrag: Vec<u8>,
    /// The server's ICE password.
    pub password: Vec<u8>,
    /// The session the ufrag names, where the target's ufrags name one.
    pub session: Option<SessionRef>,
}

/// How a client's datagrams look on the wire to the relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// As they are.
    Bare,
    /// As TURN ChannelData (RFC 8656 section 12.4), after an allocation and a channel to the sink.
    Channel {
        /// The sink's address, the peer that the channel is bound to.
        peer: SocketAddr,
    },
}

/// How far a client is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// TURN only: has no allocation yet.
    Unallocated,
    /// TURN only: has an allocation, no channel yet.
    Unbound,
    /// Its check is not answered yet.
    Unchecked,
    /// Its flow stands.
    Settled,
}

/// All clients of a run.
#[derive(Debug)]
pub struct Clients {
    port: Port,
    addresses: Addresses,
    relay: SocketAddr,
    framing: Framing,
    invitations: Vec<Invitation>,
    standings: Vec<Standing>,
    settled_count: usize,
}

impl Clients {
    /// Clients on loopback; nothing is sent yet.
    ///
    /// # Errors
    /// When their socket cannot be opened.
    ///
    /// # Panics
    /// When there are more than [`CLIENTS_MAX`] invitations, or none.
    pub fn open(
        relay: SocketAddr,
        framing: Framing,
        invitations: Vec<Invitation>,
    ) -> io::Result<Self> {
        let port = Port::bind((Ipv4Addr::UNSPECIFIED, 0).into())?;
        Ok(Self::new(
            port,
            FIRST_ON_LOOPBACK,
            relay,
            framing,
            invitations,
        ))
    }

    /// Clients behind a wildcard `port`, whose host has the /12 of addresses from `first` on.
    ///
    /// # Panics
    /// When there are more than [`CLIENTS_MAX`] invitations, or none.
    pub fn new(
        port: Port,
        first: Ipv4Addr,
        relay: SocketAddr,
        framing: Framing,
        invitations: Vec<Invitation>,
    ) -> Self {
        assert!((1..=CLIENTS_MAX as usize).contains(&invitations.len()));
        let standings = vec![Standing::first(framing); invitations.len()];
        let addresses = Addresses {
            first: first.into(),
        };
        Self {
            port,
            addresses,
            relay,
            framing,
            invitations,
            standings,
            settled_count: 0,
        }
    }

    /// How many there are.
    pub fn count(&self) -> u32 {
        self.invitations.len() as u32
    }

    /// How many have a flow.
    pub fn settled_count(&self) -> usize {
        self.settled_count
    }

    /// Whether all have a flow.
    pub fn all_settled(&self) -> bool {
        self.settled_count == self.standings.len()
    }

    /// The address and port that client `client` sends from.
    ///
    /// # Errors
    /// The kernel's.
    pub fn addr(&self, client: u32) -> io::Result<SocketAddr> {
        Ok(SocketAddr::new(
            self.addresses.of(client),
            self.port.local_addr()?.port(),
        ))
    }

    /// The session that client `client` was invited to.
    pub fn session(&self, client: u32) -> Option<SessionRef> {
        self.invitations[client as usize].session
    }

    /// Asks that every client's flow be confirmed anew: a relay forgets flows whose clients sent
    /// no authenticated packet for a while. Allocations and channels stand.
    pub fn unsettle(&mut self) {
        for standing in &mut self.standings {
            if *standing == Standing::Settled {
                *standing = Standing::Unchecked;
            }
        }
        self.settled_count = 0;
    }

    /// Sends the next step towards its flow for client `client`, unless it is settled.
    ///
    /// # Errors
    /// The kernel's.
    pub fn ask(&mut self, client: u32) -> io::Result<()> {
        let transaction = transaction_of(client);
        match (self.standings[client as usize], self.framing) {
            (Standing::Settled, _) => Ok(()),
            (Standing::Unallocated, _) => self.send_raw(client, &turn::allocate(transaction)),
            (Standing::Unbound, Framing::Channel { peer }) => {
                self.send_raw(client, &turn::bind_channel(transaction, peer))
            }
            (Standing::Unbound | Standing::Unchecked, _) => {
                let check = self.check(client);
                self.send_framed(client, &check).map(drop)
            }
        }
    }

    /// Sends the measured datagram that `stamp` names; `false` when the kernel would not take it.
    ///
    /// # Errors
    /// The kernel's.
    pub fn send(&mut self, stamp: &Stamp) -> io::Result<bool> {
        let mut payload = [0; PAYLOAD_BYTES_MAX];
        let length = stamp.write(&mut payload);
        self.send_framed(stamp.client, &payload[..length])
    }

    /// Takes what has arrived: answers settle clients, measured datagrams go to `ledger`, and
    /// those that count to `delivered`. Returns the datagram count.
    ///
    /// # Errors
    /// The kernel's.
    pub fn receive(
        &mut self,
        ledger: &mut Ledger,
        mut delivered: impl FnMut(&Stamp),
    ) -> io::Result<usize> {
        let Self {
            port,
            addresses,
            relay,
            framing,
            standings,
            settled_count,
            ..
        } = self;
        port.receive(|arrival| {
            let client = arrival.at.and_then(|at| addresses.client(at));
            let client = client.filter(|_| arrival.from == *relay);
            let Some(datagram) = unframe(*framing, &arrival) else {
                return match client.map(|client| &mut standings[client as usize]) {
                    Some(standing) => standing.advance(arrival.payload),
                    None => ledger.arrive_malformed(),
                };
            };
            if let Some(answered) = answered_client(datagram) {
                let standing = &mut standings[answered as usize];
                if client == Some(answered) && *standing == Standing::Unchecked {
                    *standing = Standing::Settled;
                    *settled_count += 1;
                }
                return;
            }
            if let Some(stamp) = ledger.arrive(client, datagram) {
                delivered(&stamp);
            }
        })
    }

    /// The ICE connectivity check that opens the client's flow.
    fn check(&self, client: u32) -> Vec<u8> {
        let invitation = &self.invitations[client as usize];
        RequestWriter {
            server_ufrag: &invitation.server_ufrag,
            client_ufrag: b"bench",
            password: &invitation.password,
            transaction_id: transaction_of(client),
            nominate: true,
            integrity: Integrity::Sha1,
        }
        .to_bytes()
    }

    fn send_framed(&self, client: u32, datagram: &[u8]) -> io::Result<bool> {
        if self.framing == Framing::Bare {
            return self
                .port
                .send(self.relay, Some(self.addresses.of(client)), datagram, None);
        }
        let mut framed = [0; turn::CHANNEL_HEADER_BYTES + FRAMED_BYTES_MAX];
        let length = turn::put_channel_data(&mut framed, datagram);
        self.port.send(
            self.relay,
            Some(self.addresses.of(client)),
            &framed[..length],
            None,
        )
    }

    fn send_raw(&self, client: u32, datagram: &[u8]) -> io::Result<()> {
        self.port
            .send(self.relay, Some(self.addresses.of(client)), datagram, None)
            .map(drop)
    }
}

/// The largest datagram a client frames: a check is a little longer than a payload can be.
const FRAMED_BYTES_MAX: usize = 512;
const _: () = assert!(PAYLOAD_BYTES_MAX <= FRAMED_BYTES_MAX);

impl Standing {
    fn first(framing: Framing) -> Self {
        match framing {
            Framing::Bare => Self::Unchecked,
            Framing::Channel { .. } => Self::Unallocated,
        }
    }

    /// Goes one step on when `datagram` is the TURN server's success for the step asked for.
    fn advance(&mut self, datagram: &[u8]) {
        *self = match (*self, turn::success_of(datagram)) {
            (Self::Unallocated, Some(turn::Success::Allocated)) => Self::Unbound,
            (Self::Unbound, Some(turn::Success::Bound)) => Self::Unchecked,
            (standing, _) => standing,
        };
    }
}

fn unframe<'a>(framing: Framing, arrival: &Arrival<'a>) -> Option<&'a [u8]> {
    match framing {
        Framing::Bare => Some(arrival.payload),
        Framing::Channel { .. } => turn::channel_data(arrival.payload),
    }
}

/// Which client has which address.
#[derive(Clone, Copy, Debug)]
struct Addresses {
    first: u32,
}

impl Addresses {
    fn of(self, client: u32) -> IpAddr {
        Ipv4Addr::from(self.first + client).into()
    }

    fn client(self, address: IpAddr) -> Option<u32> {
        let IpAddr::V4(address) = address else {
            return None;
        };
        let client = u32::from(address).checked_sub(self.first)?;
        (client < CLIENTS_MAX).then_some(client)
    }
}

fn transaction_of(client: u32) -> [u8; 12] {
    let mut id = [0; 12];
    id[..8].copy_from_slice(&TRANSACTION_MARK);
    id[8..].copy_from_slice(&client.to_be_bytes());
    id
}

/// The client whose check has this transaction id.
pub fn client_of_transaction(id: &[u8]) -> Option<u32> {
    let index = id.strip_prefix(&TRANSACTION_MARK)?;
    Some(u32::from_be_bytes(index.try_into().ok()?)).filter(|client| *client < CLIENTS_MAX)
}

/// The sink's answer to the check of client `client`: a Binding success response. Relays forward
/// it unread, so it carries neither XOR-MAPPED-ADDRESS nor integrity.
pub fn answer_to(client: u32) -> [u8; 20] {
    let mut answer = [0; 20];
    answer[..2].copy_from_slice(&BINDING_SUCCESS);
    answer[4..8].copy_from_slice(&turn::MAGIC_COOKIE);
    answer[8..].copy_from_slice(&transaction_of(client));
    answer
}

/// The client that `datagram` answers, when it is what [`answer_to`] makes.
fn answered_client(datagram: &[u8]) -> Option<u32> {
    let client = client_of_transaction(datagram.get(8..)?)?;
    (datagram == answer_to(client)).then_some(client)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_client_has_an_address_of_its_own() {
        let addresses = Addresses {
            first: FIRST_ON_LOOPBACK.into(),
        };
        for client in [0, 1, 255, 256, 1_999, CLIENTS_MAX - 1] {
            let address = addresses.of(client);
            assert!(address.is_loopback());
            assert_eq!(addresses.client(address), Some(client));
        }
        assert_eq!(addresses.client([127, 0, 0, 1].into()), None);
        assert_eq!(addresses.client([10, 0, 0, 1].into()), None);
    }

    #[test]
    fn an_answer_settles_only_the_client_it_names() {
        assert_eq!(answered_client(&answer_to(7)), Some(7));
        let mut bent = answer_to(7);
        bent[0] = 0;
        assert_eq!(answered_client(&bent), None);
        assert_eq!(answered_client(&[0; 20]), None);
        assert_eq!(answered_client(b"short"), None);
    }
}
