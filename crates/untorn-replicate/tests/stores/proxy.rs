//! A proxy on loopback that makes a network slow, or dead.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// A proxy to another port of this machine.
pub(crate) struct Proxy {
    pub(crate) port: u16,
    is_dead: Arc<AtomicBool>,
}

impl Proxy {
    /// One whose network has this round-trip time.
    pub(crate) fn start(target: u16, round_trip: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let is_dead = Arc::new(AtomicBool::new(false));
        let dead = Arc::clone(&is_dead);
        thread::spawn(move || {
            for inner in listener.incoming().map_while(Result::ok) {
                let Ok(outer) = TcpStream::connect(("127.0.0.1", target)) else { continue };
                for stream in [&inner, &outer] {
                    stream.set_nodelay(true).unwrap();
                }
                let pairs = [(&inner, &outer), (&outer, &inner)];
                for (from, to) in pairs.map(|(from, to)| (from.try_clone().unwrap(), to.try_clone().unwrap())) {
                    pass(from, to, round_trip / 2, &dead);
                }
            }
        });
        Proxy { port, is_dead }
    }

    /// From now on nothing comes through, and no connection is closed: packets are dropped.
    pub(crate) fn die(&self) {
        self.is_dead.store(true, Ordering::Release);
    }
}

/// Passes bytes on in one direction, each piece after the delay. Pieces overtake none and are on the way together.
fn pass(mut from: TcpStream, mut to: TcpStream, delay: Duration, dead: &Arc<AtomicBool>) {
    let (send, receive) = mpsc::channel::<(Instant, Vec<u8>)>();
    let dead = Arc::clone(dead);
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
            if !dead.load(Ordering::Acquire) && to.write_all(&piece).is_err() {
                return;
            }
        }
        let _ = to.shutdown(Shutdown::Write);
    });
}
