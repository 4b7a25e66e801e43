//! Which transceivers there are, and where: the table by which a session reference becomes an
//! inner address and a shard. Built outside the packet path (from configuration), shared by the
//! workers, replaced whole when it changes.

use std::net::SocketAddr;

use syrinx_shared::route::{SessionRef, TransceiverId};
use syrinx_shared::wire::train::TrainDestination;

use super::verdict::DropReason;

/// One transceiver process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// Its id, as ufrags name it.
    pub transceiver: TransceiverId,
    /// Its inner address.
    pub addr: SocketAddr,
    /// How many shards it has: 1 to 255.
    pub shard_count: u8,
}

/// Why a route table cannot be built.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RoutesError {
    /// Two routes with one id.
    #[error("transceiver {0} is routed twice: give each process an id of its own")]
    Twice(u16),
    /// A route without shards.
    #[error("transceiver {0} has no shards: set its shard count to its number of workers")]
    NoShards(u16),
}

/// The route table: an array indexed by transceiver id.
#[derive(Debug, Default)]
pub struct Routes(Vec<Option<Route>>);

impl Routes {
    /// Builds the table.
    ///
    /// # Errors
    /// [`RoutesError`] for an id that appears twice or a route without shards.
    pub fn new(routes: &[Route]) -> Result<Self, RoutesError> {
        let highest = routes
            .iter()
            .map(|route| usize::from(route.transceiver.0))
            .max();
        let mut table = vec![None; highest.map_or(0, |id| id + 1)];
        for route in routes {
            let id = route.transceiver.0;
            if route.shard_count == 0 {
                return Err(RoutesError::NoShards(id));
            }
            if table[usize::from(id)].replace(*route).is_some() {
                return Err(RoutesError::Twice(id));
            }
        }
        Ok(Self(table))
    }

    /// Where the records of `session` go.
    ///
    /// # Errors
    /// [`DropReason::UnknownTransceiver`] or [`DropReason::UnknownShard`].
    pub fn destination(&self, session: SessionRef) -> Result<TrainDestination, DropReason> {
        let route = self
            .0
            .get(usize::from(session.transceiver.0))
            .and_then(Option::as_ref)
            .ok_or(DropReason::UnknownTransceiver)?;
        if session.shard.0 >= route.shard_count {
            return Err(DropReason::UnknownShard);
        }
        Ok(TrainDestination {
            addr: route.addr,
            shard: session.shard,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use syrinx_shared::route::ShardIndex;

    fn route(id: u16, shard_count: u8) -> Route {
        let addr = SocketAddr::from(([127, 0, 0, 1], 3490 + id));
        Route {
            transceiver: TransceiverId(id),
            addr,
            shard_count,
        }
    }

    fn session(transceiver: u16, shard: u8) -> SessionRef {
        let mut bytes = [0; 8];
        bytes[..2].copy_from_slice(&transceiver.to_be_bytes());
        bytes[2] = shard;
        SessionRef::from_bytes(bytes)
    }

    #[test]
    fn finds_the_shard_of_each_transceiver_and_nothing_else() {
        let routes = Routes::new(&[route(3, 2), route(9, 1)]).unwrap();
        let to = routes.destination(session(3, 1)).unwrap();
        assert_eq!(
            to,
            TrainDestination {
                addr: route(3, 2).addr,
                shard: ShardIndex(1)
            }
        );
        assert_eq!(
            routes.destination(session(3, 2)),
            Err(DropReason::UnknownShard)
        );
        assert_eq!(
            routes.destination(session(4, 0)),
            Err(DropReason::UnknownTransceiver)
        );
        assert_eq!(
            routes.destination(session(10, 0)),
            Err(DropReason::UnknownTransceiver)
        );
    }

    #[test]
    fn refuses_a_table_that_cannot_be_meant() {
        assert_eq!(
            Routes::new(&[route(3, 2), route(3, 1)]).err(),
            Some(RoutesError::Twice(3))
        );
        assert_eq!(
            Routes::new(&[route(3, 0)]).err(),
            Some(RoutesError::NoShards(3))
        );
        assert!(Routes::new(&[]).is_ok());
    }
}
