//! Who may have how many connections: all together, and from one address. The port is open to every Pod, and none of them
//! may keep an API server out.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Connections at once; an API server needs one for each request that is under way.
pub const CONNECTIONS: usize = 1024;
/// Connections at once from one address: far more than an API server has writes of our kinds under way, each of which takes
/// milliseconds.
pub const OF_ONE_SOURCE: usize = 256;
/// With more than this many, connections that ask nothing must go.
const CROWD: usize = 128;

/// Why a connection is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Full {
    /// There are [`CONNECTIONS`].
    All,
    /// There are [`OF_ONE_SOURCE`] from this address.
    Source,
}

impl Full {
    /// Label in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Source => "source",
        }
    }

    /// How many there may be.
    pub fn limit(self) -> usize {
        match self {
            Self::All => CONNECTIONS,
            Self::Source => OF_ONE_SOURCE,
        }
    }
}

/// The open connections. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Connections(Arc<Mutex<Counts>>);

#[derive(Debug, Default)]
struct Counts {
    all: usize,
    by_source: HashMap<IpAddr, usize>,
}

/// A connection that is counted until this is dropped.
#[derive(Debug)]
pub struct Counted {
    connections: Connections,
    source: IpAddr,
}

impl Connections {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts one from `source`.
    pub fn enter(&self, source: IpAddr) -> Result<Counted, Full> {
        // The listener for both families shows IPv4 addresses as IPv6 ones.
        let source = source.to_canonical();
        let mut counts = self.counts();
        if counts.all >= CONNECTIONS {
            return Err(Full::All);
        }
        let of_source = counts.by_source.entry(source).or_default();
        if *of_source >= OF_ONE_SOURCE {
            return Err(Full::Source);
        }
        *of_source += 1;
        counts.all += 1;
        drop(counts);
        Ok(Counted {
            connections: self.clone(),
            source,
        })
    }
}

impl Counted {
    /// Where it comes from.
    pub fn source(&self) -> IpAddr {
        self.source
    }

    /// Whether there are so many that one which asks nothing is in the way.
    pub fn is_crowded(&self) -> bool {
        self.connections.counts().all > CROWD
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut counts = self.connections.counts();
        counts.all -= 1;
        if let Some(of_source) = counts.by_source.get_mut(&self.source) {
            *of_source -= 1;
            if *of_source == 0 {
                counts.by_source.remove(&self.source);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::{CONNECTIONS, Connections, Full, OF_ONE_SOURCE};

    #[test]
    fn one_source_leaves_room_for_others_and_gets_its_own_back() {
        let source = |last| IpAddr::from(Ipv4Addr::new(192, 0, 2, last));
        let connections = Connections::default();
        let mut held: Vec<_> = (0..OF_ONE_SOURCE)
            .map(|_| connections.enter(source(1)).expect("room"))
            .collect();
        let mapped = IpAddr::from(Ipv4Addr::new(192, 0, 2, 1).to_ipv6_mapped());
        assert_eq!(
            connections.enter(mapped).map(drop),
            Err(Full::Source),
            "the same address"
        );
        assert!(connections.enter(source(2)).is_ok());
        for last in 2..5 {
            held.extend((0..OF_ONE_SOURCE).map(|_| connections.enter(source(last)).expect("room")));
        }
        assert_eq!(held.len(), CONNECTIONS);
        assert!(held[0].is_crowded());
        assert_eq!(connections.enter(source(9)).map(drop), Err(Full::All));
        held.pop();
        assert!(connections.enter(source(9)).is_ok());
        held.clear();
        let counts = connections.counts();
        assert!(counts.all == 0 && counts.by_source.is_empty(), "{counts:?}");
    }
}
