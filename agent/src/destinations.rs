//! Where connections may go by the configuration in force; one that goes elsewhere is ended.

use std::collections::HashSet;
use std::hash::Hash;
use std::sync::Arc;

use tailnet_crds::agent::EgressTarget;
use tokio::sync::watch;

/// What a connection was dialled to: address and port of a target.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Destination {
    pub(crate) address: String,
    pub(crate) port: u16,
}

impl From<&EgressTarget> for Destination {
    fn from(target: &EgressTarget) -> Self {
        Self {
            address: target.address.clone(),
            port: target.port,
        }
    }
}

impl Destination {
    /// `host:port`, an IPv6 address in brackets.
    pub(crate) fn dial_address(&self) -> String {
        if self.address.contains(':') {
            format!("[{}]:{}", self.address, self.port)
        } else {
            format!("{}:{}", self.address, self.port)
        }
    }
}

/// Tells connections which ways are configured: of an egress the destinations.
#[derive(Debug)]
pub(crate) struct Configured<W = Destination>(watch::Sender<Arc<HashSet<W>>>);

/// What a connection watches.
#[derive(Debug)]
pub(crate) struct Destinations<W = Destination>(watch::Receiver<Arc<HashSet<W>>>);

impl<W> Clone for Destinations<W> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// Both ends; nothing is configured yet.
pub(crate) fn channel<W: Eq + Hash>() -> (Configured<W>, Destinations<W>) {
    let (sender, receiver) = watch::channel(Arc::new(HashSet::new()));
    (Configured(sender), Destinations(receiver))
}

impl<W: Eq + Hash> Configured<W> {
    /// From now on `ways` are what may be connected by. What only gets another name keeps its connections.
    pub(crate) fn set(&self, ways: impl IntoIterator<Item = impl Into<W>>) {
        let now: HashSet<W> = ways.into_iter().map(Into::into).collect();
        self.0.send_if_modified(|before| {
            let changed = **before != now;
            *before = Arc::new(now);
            changed
        });
    }
}

impl<W: Eq + Hash> Destinations<W> {
    /// Returns when `destination` is not, or no longer, configured.
    pub(crate) async fn until_removed(&self, destination: &W) {
        let mut configured = self.0.clone();
        if configured.wait_for(|now| !now.contains(destination)).await.is_err() {
            // The listeners are gone and nothing changes any more: the drain decides.
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn target(name: &str, address: &str, port: u16) -> EgressTarget {
        EgressTarget {
            name: name.into(),
            listen_port: 10000,
            address: address.into(),
            port,
        }
    }

    #[test]
    fn an_ipv6_address_gets_brackets() {
        let dialed = |address| Destination::from(&target("db", address, 5432)).dial_address();
        assert_eq!(dialed("2001:db8::1"), "[2001:db8::1]:5432");
        assert_eq!(dialed("db.example.net"), "db.example.net:5432");
    }

    /// Long enough for a task that is ready to run.
    const MOMENT: Duration = Duration::from_millis(50);

    #[tokio::test]
    async fn a_connection_ends_with_the_last_target_of_its_destination() {
        let (configured, destinations) = channel::<Destination>();
        configured.set(&[target("db", "192.0.2.10", 5432), target("web", "192.0.2.10", 443)]);
        let db = Destination::from(&target("db", "192.0.2.10", 5432));
        let removed = destinations.until_removed(&db);
        tokio::pin!(removed);
        assert!(tokio::time::timeout(MOMENT, &mut removed).await.is_err());
        configured.set(&[target("renamed", "192.0.2.10", 5432)]);
        assert!(
            tokio::time::timeout(MOMENT, &mut removed).await.is_err(),
            "a new name ends no connection"
        );
        configured.set(&[target("renamed", "192.0.2.11", 5432)]);
        removed.await;
    }

    #[tokio::test]
    async fn the_end_of_the_configuration_ends_no_connection() {
        let (configured, destinations) = channel::<Destination>();
        let db = target("db", "192.0.2.10", 5432);
        configured.set(std::slice::from_ref(&db));
        drop(configured);
        let waited = tokio::time::timeout(MOMENT, destinations.until_removed(&Destination::from(&db))).await;
        assert!(waited.is_err());
    }
}
