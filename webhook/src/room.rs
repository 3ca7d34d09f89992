//! How much memory reviews may take, all together: a body asks before it is read, and again before it becomes a tree.
//!
//! The port is open to every Pod of the cluster, and the process has a memory limit. Nearly all reviews are small: what every
//! connection may send without asking is bounded by the number of connections, so that large bodies, or whoever sends them
//! slowly, keep no small one waiting. One source never has all of the rest.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::router::MAX_BODY;

/// Of every body so much is read without asking: 32 MiB for [`crate::connections::CONNECTIONS`].
pub const FREE: usize = 32 * 1024;
/// What the larger bodies of one source may have at once: the largest one.
const SHARE: usize = MAX_BODY;
/// What the larger bodies of all sources may have at once.
const BODIES: usize = 3 * SHARE;
/// What the trees of all reviews may have at once.
const TREES: usize = 48 * 1024 * 1024;
/// What the tree of one review may have: a hundred times what the largest object of ours takes.
pub const MAX_TREE: usize = 16 * 1024 * 1024;
/// Permits are counted in this unit.
const UNIT: usize = 1024;

/// The memory that reviews share.
#[derive(Debug)]
pub struct Room {
    bodies: Arc<Semaphore>,
    trees: Arc<Semaphore>,
    /// Of the sources that hold something or wait for it.
    shares: Arc<Mutex<HashMap<IpAddr, Share>>>,
}

#[derive(Debug)]
struct Share {
    room: Arc<Semaphore>,
    users: usize,
}

/// Room that is held; dropping it gives it back.
#[derive(Debug)]
pub struct Held {
    _parts: Vec<OwnedSemaphorePermit>,
    _source: Option<User>,
}

/// One that uses a share. The last one takes it away.
#[derive(Debug)]
struct User {
    shares: Arc<Mutex<HashMap<IpAddr, Share>>>,
    source: IpAddr,
}

impl Drop for User {
    fn drop(&mut self) {
        let mut shares = self.shares.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(share) = shares.get_mut(&self.source) {
            share.users -= 1;
            if share.users == 0 {
                shares.remove(&self.source);
            }
        }
    }
}

fn units(bytes: usize) -> u32 {
    // The largest budget fits by far.
    u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX)
}

impl Default for Room {
    fn default() -> Self {
        Self {
            bodies: Arc::new(Semaphore::new(BODIES / UNIT)),
            trees: Arc::new(Semaphore::new(TREES / UNIT)),
            shares: Arc::default(),
        }
    }
}

impl Room {
    /// Waits for room for a body of `size` bytes from `source`; at most [`MAX_BODY`] is ever read.
    pub async fn body(&self, source: IpAddr, size: usize) -> Option<Held> {
        let size = units(size.min(MAX_BODY));
        let (room, user) = self.enter(source);
        // Its own share first: who waits there takes nothing from others.
        let share = room.acquire_many_owned(size).await.ok()?;
        let whole = Arc::clone(&self.bodies).acquire_many_owned(size).await.ok()?;
        Some(Held {
            _parts: vec![share, whole],
            _source: Some(user),
        })
    }

    /// Waits for room for a tree of `weight` bytes.
    pub async fn tree(&self, weight: usize) -> Option<Held> {
        let weight = units(weight.min(MAX_TREE));
        let part = Arc::clone(&self.trees).acquire_many_owned(weight).await.ok()?;
        Some(Held {
            _parts: vec![part],
            _source: None,
        })
    }

    fn enter(&self, source: IpAddr) -> (Arc<Semaphore>, User) {
        let mut shares = self.shares.lock().unwrap_or_else(PoisonError::into_inner);
        let share = shares.entry(source).or_insert_with(|| Share {
            room: Arc::new(Semaphore::new(SHARE / UNIT)),
            users: 0,
        });
        share.users += 1;
        let user = User {
            shares: Arc::clone(&self.shares),
            source,
        };
        (Arc::clone(&share.room), user)
    }
}

/// What a JSON text will take as a tree, reckoned from its commas and brackets while it comes in: `[0,0,0…` takes forty times
/// its length.
#[derive(Debug, Default, Clone, Copy)]
pub struct Weight {
    bytes: usize,
    in_string: bool,
    escaped: bool,
}

impl Weight {
    /// A value beside another: the value itself, its key, and what a growing list holds in reserve.
    const VALUE: usize = 160;
    /// An array or object: its first entries are allocated at once.
    const CONTAINER: usize = 512;

    /// Takes the next piece of the text.
    pub fn add(&mut self, piece: &[u8]) {
        self.bytes += piece.len();
        for byte in piece {
            match (self.in_string, byte) {
                (true, _) if self.escaped => self.escaped = false,
                (true, b'\\') => self.escaped = true,
                (true, b'"') => self.in_string = false,
                (true, _) => {}
                (false, b'"') => self.in_string = true,
                (false, b',') => self.bytes += Self::VALUE,
                (false, b'[' | b'{') => self.bytes += Self::CONTAINER,
                (false, _) => {}
            }
        }
    }

    /// Bytes.
    pub fn get(self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};
    use std::time::Duration;

    use super::{BODIES, MAX_BODY, Room, SHARE, Weight};

    fn source(last: u8) -> IpAddr {
        Ipv4Addr::new(192, 0, 2, last).into()
    }

    async fn waits<T>(work: impl Future<Output = T>) -> bool {
        tokio::time::timeout(Duration::from_millis(50), work).await.is_err()
    }

    #[tokio::test]
    async fn one_source_never_has_all_the_room() {
        let room = Room::default();
        let first = room.body(source(1), MAX_BODY).await.expect("room");
        assert!(waits(room.body(source(1), 64 * 1024)).await, "its share is used up");
        let second = room.body(source(2), MAX_BODY).await.expect("room for another");
        let third = room.body(source(3), usize::MAX).await.expect("never more than a body");
        assert!(waits(room.body(source(4), 64 * 1024)).await, "all of it is used up");
        drop((second, third));
        assert!(room.body(source(4), MAX_BODY).await.is_some());
        drop(first);
        assert!(room.body(source(1), MAX_BODY).await.is_some());
        assert!(
            room.shares.lock().expect("lock").is_empty(),
            "nothing is kept of a source"
        );
        assert_eq!(room.bodies.available_permits() * 1024, BODIES);
        const { assert!(BODIES > SHARE) };
    }

    fn weight(text: &str) -> usize {
        let mut weight = Weight::default();
        // In pieces, as it comes from a connection.
        text.as_bytes().chunks(3).for_each(|piece| weight.add(piece));
        weight.get()
    }

    #[test]
    fn what_stands_in_strings_weighs_no_more_than_it_is_long() {
        let text = r#"",{[\"\\,[\\\",""#;
        assert_eq!(weight(text), text.len());
        assert!(weight(r#"{"a":[1,2,3]}"#) > 2 * Weight::CONTAINER);
    }

    #[test]
    fn a_tree_is_never_heavier_than_its_weight() {
        // What a value takes, as the compiler says; what an allocation adds is in the constants.
        assert!(size_of::<serde_json::Value>() * 2 <= Weight::VALUE);
        assert!(size_of::<(u64, String, serde_json::Value)>() * 4 <= Weight::CONTAINER);
        let zeros = format!("[{}0]", "0,".repeat(100_000));
        assert!(weight(&zeros) > 40 * zeros.len());
    }
}
