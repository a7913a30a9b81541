//! The open connections: how many, of whom, and which of them does nothing.

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::sync::Notify;

use super::events::{ConnectionCut, ConnectionEnded, ConnectionOpened, CutReason};
use crate::events::emit;

/// Maximum number of connections that were closed to make room, and have not ended yet.
const MAX_CLOSING: usize = 1_024;

/// Whose a connection is: the address, or the /64 of an IPv6 address. `None`: it came over the Unix socket.
pub(super) type Peer = Option<IpAddr>;

/// The open connections.
///
/// When there is no room for another one, the connection that has done nothing for the longest time is closed: of the
/// peer that holds most of them, or, if the new one is of that peer, its own. A connection with a call in progress is
/// never closed.
#[derive(Debug)]
pub(super) struct ConnectionTable {
    max: usize,
    max_per_peer: usize,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    last_id: u64,
    /// Counts the times at which a connection became idle: a lower number is a longer time ago.
    last_idle: u64,
    open: HashMap<u64, Entry>,
    peers: HashMap<Peer, PeerConnections>,
    /// Connections that were closed to make room, and have not ended.
    closing: usize,
}

#[derive(Debug)]
struct Entry {
    peer: Peer,
    /// Since when it is idle; `None` while it has a call in progress.
    idle: Option<u64>,
    signals: Arc<Signals>,
}

#[derive(Debug, Default)]
struct PeerConnections {
    open: usize,
    /// Idle connections, the longest first.
    idle: BTreeMap<u64, u64>,
}

#[derive(Debug, Default)]
struct Signals {
    close: Notify,
    is_busy: AtomicBool,
}

/// An open connection, until this is dropped.
#[derive(Debug)]
pub(super) struct OpenConnection {
    table: Arc<ConnectionTable>,
    id: u64,
    signals: Arc<Signals>,
}

/// A call in progress on a connection, until this is dropped.
#[derive(Debug)]
pub(super) struct BusyConnection {
    table: Arc<ConnectionTable>,
    id: u64,
    signals: Arc<Signals>,
}

impl ConnectionTable {
    pub(super) fn new(max: usize, max_per_peer: usize) -> Arc<Self> {
        Arc::new(Self { max, max_per_peer, state: Mutex::default(), changed: Notify::new() })
    }

    /// Adds a connection of a peer; `None` if there is no room for it.
    pub(super) fn open(self: &Arc<Self>, peer: Peer) -> Option<OpenConnection> {
        let peer = peer.map(network_of);
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let own = state.peers.get(&peer).map_or(0, |peer| peer.open);
        let of = if own >= self.max_per_peer {
            Some(peer)
        } else if state.open.len() >= self.max {
            Some(state.largest_with_idle().filter(|(_, largest)| *largest > own).map_or(peer, |(peer, _)| peer))
        } else {
            None
        };
        if let Some(of) = of {
            state.close_longest_idle(of)?;
            emit(ConnectionCut { reason: CutReason::Idle });
        }
        state.last_id += 1;
        let (id, signals) = (state.last_id, Arc::<Signals>::default());
        state.open.insert(id, Entry { peer, idle: None, signals: Arc::clone(&signals) });
        state.peers.entry(peer).or_default().open += 1;
        state.set_idle(id);
        emit(ConnectionOpened);
        Some(OpenConnection { table: Arc::clone(self), id, signals })
    }

    /// Waits until all connections have ended.
    pub(super) async fn wait_until_empty(&self) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            let is_empty = {
                let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
                state.open.is_empty() && state.closing == 0
            };
            if is_empty {
                return;
            }
            changed.await;
        }
    }
}

impl State {
    /// The peer with the most connections among those with an idle one.
    fn largest_with_idle(&self) -> Option<(Peer, usize)> {
        let with_idle = self.peers.iter().filter(|(_, peer)| !peer.idle.is_empty());
        with_idle.map(|(peer, connections)| (*peer, connections.open)).max_by_key(|(_, open)| *open)
    }

    fn close_longest_idle(&mut self, peer: Peer) -> Option<()> {
        if self.closing >= MAX_CLOSING {
            return None;
        }
        let (_, id) = self.peers.get(&peer)?.idle.first_key_value()?;
        let entry = self.remove(*id)?;
        self.closing += 1;
        entry.signals.close.notify_one();
        Some(())
    }

    fn remove(&mut self, id: u64) -> Option<Entry> {
        let entry = self.open.remove(&id)?;
        if let Some(peer) = self.peers.get_mut(&entry.peer) {
            peer.open -= 1;
            if let Some(since) = entry.idle {
                peer.idle.remove(&since);
            }
            if peer.open == 0 {
                self.peers.remove(&entry.peer);
            }
        }
        Some(entry)
    }

    fn set_idle(&mut self, id: u64) {
        let Some(entry) = self.open.get_mut(&id) else { return };
        self.last_idle += 1;
        entry.idle = Some(self.last_idle);
        if let Some(peer) = self.peers.get_mut(&entry.peer) {
            peer.idle.insert(self.last_idle, id);
        }
    }

    fn set_busy(&mut self, id: u64) {
        let Some(entry) = self.open.get_mut(&id) else { return };
        if let Some(since) = entry.idle.take()
            && let Some(peer) = self.peers.get_mut(&entry.peer)
        {
            peer.idle.remove(&since);
        }
    }
}

impl OpenConnection {
    /// Waits until the connection is to be closed, to make room for another one.
    pub(super) async fn closed_for_room(&self) {
        self.signals.close.notified().await;
    }

    /// Whether it has a call in progress.
    pub(super) fn is_busy(&self) -> bool {
        self.signals.is_busy.load(Ordering::SeqCst)
    }

    /// Begins calls on this connection, one after the other.
    pub(super) fn calls(&self) -> impl Fn() -> BusyConnection + Send + 'static {
        let (table, id, signals) = (Arc::clone(&self.table), self.id, Arc::clone(&self.signals));
        move || {
            signals.is_busy.store(true, Ordering::SeqCst);
            table.state.lock().unwrap_or_else(PoisonError::into_inner).set_busy(id);
            BusyConnection { table: Arc::clone(&table), id, signals: Arc::clone(&signals) }
        }
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        let mut state = self.table.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.remove(self.id).is_none() {
            state.closing -= 1;
        }
        drop(state);
        emit(ConnectionEnded);
        self.table.changed.notify_waiters();
    }
}

impl Drop for BusyConnection {
    fn drop(&mut self) {
        self.signals.is_busy.store(false, Ordering::SeqCst);
        self.table.state.lock().unwrap_or_else(PoisonError::into_inner).set_idle(self.id);
    }
}

/// What belongs to one owner: an address, or the /64 of an IPv6 address.
fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) if !address.is_loopback() => {
            let [first, second, third, fourth, ..] = address.segments();
            IpAddr::from([first, second, third, fourth, 0, 0, 0, 0])
        }
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use proptest::prelude::*;

    use super::*;

    fn peer(number: u8) -> Peer {
        Some(IpAddr::from([192, 0, 2, number]))
    }

    fn is_closed(connection: &OpenConnection) -> bool {
        connection.closed_for_room().now_or_never().is_some()
    }

    #[test]
    fn longest_idle_connection_of_the_largest_peer_makes_room() {
        let table = ConnectionTable::new(4, 4);
        let [first, second, third] = [(); 3].map(|()| table.open(peer(1)).unwrap());
        let fourth = table.open(peer(2)).unwrap();
        // It had a call later than the second one.
        drop((first.calls())());
        let fifth = table.open(peer(3)).unwrap();
        assert_eq!([&first, &second, &third, &fourth, &fifth].map(is_closed), [false, true, false, false, false]);
    }

    #[test]
    fn peer_with_as_many_as_others_closes_its_own() {
        let table = ConnectionTable::new(4, 4);
        let [first, _second] = [(); 2].map(|()| table.open(peer(1)).unwrap());
        let [third, _fourth] = [(); 2].map(|()| table.open(peer(2)).unwrap());
        let _fifth = table.open(peer(2)).unwrap();
        assert_eq!([&first, &third].map(is_closed), [false, true]);
    }

    #[test]
    fn peer_has_a_maximum_of_its_own() {
        let table = ConnectionTable::new(10, 2);
        let [first, second] = [(); 2].map(|()| table.open(peer(1)).unwrap());
        let _other = table.open(peer(2)).unwrap();
        let _third = table.open(peer(1)).unwrap();
        assert_eq!([&first, &second].map(is_closed), [true, false]);
    }

    #[test]
    fn connection_with_a_call_is_never_closed() {
        let table = ConnectionTable::new(2, 2);
        let [first, second] = [(); 2].map(|()| table.open(peer(1)).unwrap());
        let busy = [(first.calls())(), (second.calls())()];
        assert!(table.open(peer(2)).is_none());
        drop(busy);
        assert!(table.open(peer(2)).is_some());
        assert!(is_closed(&first) && !is_closed(&second));
    }

    #[test]
    fn addresses_of_one_ipv6_network_count_together() {
        let table = ConnectionTable::new(10, 1);
        let first = table.open(Some("2001:db8:1:2:3::4".parse().unwrap())).unwrap();
        let other = table.open(Some("2001:db8:1:3::4".parse().unwrap())).unwrap();
        let _second = table.open(Some("2001:db8:1:2:5::6".parse().unwrap())).unwrap();
        assert_eq!([&first, &other].map(is_closed), [true, false]);
    }

    proptest! {
        #[test]
        fn bounds_hold_and_nothing_is_left_behind(steps in proptest::collection::vec((0_u8..4, 0_u8..5), 0..120)) {
            let table = ConnectionTable::new(6, 4);
            let (mut connections, mut calls) = (Vec::new(), Vec::new());
            for (action, number) in steps {
                match action {
                    0 | 1 => connections.extend(table.open(peer(number))),
                    2 if !connections.is_empty() => {
                        let at = usize::from(number) % connections.len();
                        let connection: &OpenConnection = &connections[at];
                        if !connection.is_busy() {
                            calls.push((connection.calls())());
                        }
                    }
                    _ if !calls.is_empty() => drop(calls.remove(usize::from(number) % calls.len())),
                    _ => {}
                }
                connections.retain(|connection| connection.is_busy() || !is_closed(connection));
                let state = table.state.lock().unwrap();
                prop_assert!(state.open.len() <= 6);
                prop_assert!(state.peers.values().all(|peer| peer.open <= 4 && peer.idle.len() <= peer.open));
            }
            drop((connections, calls));
            let state = table.state.lock().unwrap();
            prop_assert_eq!((state.open.len(), state.peers.len(), state.closing), (0, 0, 0));
        }
    }
}
