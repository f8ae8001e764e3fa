//! Stores of another process to memory that it shares with this one: each first store to a page waits until this
//! process has heard of it. The other process has registered the memory, and handed the descriptor over.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;

use super::userfault::Userfault;

/// Bytes of a message of userfaultfd(2).
const MESSAGE: usize = 32;
/// The event that is a page fault (`linux/userfaultfd.h`).
const PAGEFAULT: u8 = 0x12;
/// The one that is a move of memory.
const REMAP: u8 = 0x14;

/// An event on watched memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// A store to this address waits.
    Store(usize),
    /// The memory was moved. It is reported only if the other process asked for it; that process waits until the event
    /// is handled. Until then the memory is neither protected nor released, and stores are reported first.
    Move,
}

/// Memory of another process whose stores are reported to this process.
#[derive(Debug)]
pub struct StoreWatch(Userfault);

impl StoreWatch {
    /// Takes over the userfaultfd(2) descriptor with which the other process registered its memory.
    pub fn new(descriptor: OwnedFd) -> Self {
        StoreWatch(Userfault::from_fd(descriptor))
    }

    /// The next event, if there is one.
    ///
    /// # Errors
    /// Errors of `read(2)`: the other process did not finish setting up the descriptor.
    pub fn next(&self) -> io::Result<Option<Heard>> {
        loop {
            let mut message = [0; MESSAGE];
            match rustix::io::read(self.0.fd(), &mut message) {
                Ok(MESSAGE) => {}
                Err(Errno::INTR) => continue,
                Ok(_) | Err(Errno::AGAIN) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
            let [_, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, address @ .., _, _, _, _, _, _, _, _] = message;
            match message[0] {
                PAGEFAULT => return Ok(Some(Heard::Store(u64::from_ne_bytes(address) as usize))),
                REMAP => return Ok(Some(Heard::Move)),
                _ => {}
            }
        }
    }

    /// Makes the next store to each page of a range wait. When this returns, no store to it is in progress.
    ///
    /// # Errors
    /// ENOENT if a part of the range is not registered (any more); ESRCH if the process, or its former program, has
    /// ended.
    pub fn protect(&self, address: usize, len: usize) -> io::Result<()> {
        self.0.protect(address, len, true)
    }

    /// Lets stores to a range proceed. Stores to memory that no longer exists fail in their own way.
    pub fn let_go(&self, address: usize, len: usize) {
        if self.0.protect(address, len, false).is_err() {
            self.wake(address, len);
        }
    }

    /// Makes waiting stores to a range retry.
    pub fn wake(&self, address: usize, len: usize) {
        let _ = self.0.wake(address, len);
    }
}

impl AsFd for StoreWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;
    use std::thread;

    use super::super::shared::SharedPages;
    use super::super::userfault;
    use super::*;

    #[test]
    fn a_store_waits_until_it_is_let_go() {
        if let Err(why) = userfault::probe() {
            untorn_testing::skip!("{why}");
        }
        let pages = SharedPages::create("untorn-test", 8192, 8192).unwrap();
        let watch = StoreWatch(Userfault::blocking().unwrap());
        watch.0.register_stores(pages.address(), 8192).unwrap();
        watch.protect(pages.address(), 8192).unwrap();
        assert_eq!(watch.next().unwrap(), None);
        thread::scope(|scope| {
            scope.spawn(|| pages.words(4096, 1)[0].store(7, Ordering::SeqCst));
            let address = loop {
                if let Some(Heard::Store(address)) = watch.next().unwrap() {
                    break address;
                }
                thread::yield_now();
            };
            assert_eq!(address & !4095, pages.address() + 4096);
            assert_eq!(pages.words(4096, 1)[0].load(Ordering::SeqCst), 0);
            watch.let_go(pages.address() + 4096, 4096);
        });
        assert_eq!(pages.words(4096, 1)[0].load(Ordering::SeqCst), 7);
        assert_eq!(watch.protect(1 << 20, 4096).unwrap_err().raw_os_error(), Some(libc::ENOENT));
    }
}
