//! A proxy on loopback that makes a network slow, cut or dead.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// The state of the network.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Open,
    /// Bytes wait until the network is whole again.
    Cut,
    /// Bytes are dropped, and no connection is closed.
    Dead,
}

struct Network {
    way: Mutex<Way>,
    changed: Condvar,
    /// Both ends of each connection.
    streams: Mutex<Vec<TcpStream>>,
}

impl Network {
    fn set(&self, way: Way) {
        *self.way.lock().unwrap() = way;
        self.changed.notify_all();
    }

    /// Waits while the network is cut. Returns whether bytes come through then.
    fn comes_through(&self) -> bool {
        let way = self.way.lock().unwrap();
        *self.changed.wait_while(way, |way| *way == Way::Cut).unwrap() == Way::Open
    }
}

/// A proxy to another port of this machine.
pub(crate) struct Proxy {
    pub(crate) port: u16,
    network: Arc<Network>,
}

impl Proxy {
    /// One whose network has this round-trip time.
    pub(crate) fn start(target: u16, round_trip: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (way, streams) = (Mutex::new(Way::Open), Mutex::default());
        let network = Arc::new(Network { way, changed: Condvar::new(), streams });
        let of_thread = Arc::clone(&network);
        thread::spawn(move || {
            for inner in listener.incoming().map_while(Result::ok) {
                let Ok(outer) = TcpStream::connect(("127.0.0.1", target)) else { continue };
                let copies = [&inner, &outer].map(|stream| {
                    stream.set_nodelay(true).unwrap();
                    stream.try_clone().unwrap()
                });
                of_thread.streams.lock().unwrap().extend(copies);
                let pairs = [(&inner, &outer), (&outer, &inner)];
                for (from, to) in pairs.map(|(from, to)| (from.try_clone().unwrap(), to.try_clone().unwrap())) {
                    pass(from, to, round_trip / 2, &of_thread);
                }
            }
        });
        Proxy { port, network }
    }

    /// From now on nothing comes through, and no connection is closed: packets are dropped.
    pub(crate) fn die(&self) {
        self.network.set(Way::Dead);
    }

    /// From now on nothing comes through, until the network is [mended](Self::mend).
    pub(crate) fn cut(&self) {
        self.network.set(Way::Cut);
    }

    /// What waits comes through, late.
    pub(crate) fn mend(&self) {
        self.network.set(Way::Open);
    }

    /// Closes all connections. What waits is lost: requests, or their answers.
    pub(crate) fn sever(&self) {
        for stream in self.network.streams.lock().unwrap().drain(..) {
            // It may be closed already.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// Passes bytes on in one direction, each piece after the delay. Pieces overtake none and are on the way together.
fn pass(mut from: TcpStream, mut to: TcpStream, delay: Duration, network: &Arc<Network>) {
    let (send, receive) = mpsc::channel::<(Instant, Vec<u8>)>();
    let network = Arc::clone(network);
    thread::spawn(move || {
        let mut piece = vec![0; 64 << 10];
        while let Ok(len @ 1..) = from.read(&mut piece) {
            if send.send((Instant::now() + delay, piece[..len].to_vec())).is_err() {
                return;
            }
        }
    });
    thread::spawn(move || {
        for (due, piece) in receive {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            if network.comes_through() && to.write_all(&piece).is_err() {
                return;
            }
        }
        let _ = to.shutdown(Shutdown::Write);
    });
}
