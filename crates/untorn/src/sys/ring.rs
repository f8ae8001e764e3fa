//! Several files flushed together, so that the device flush is shared.
//!
//! # Safety
//! The only operation submitted is IORING_OP_FSYNC, which refers to a descriptor and to no memory, and the submitter
//! waits for every completion while it borrows the descriptors.
#![allow(unsafe_code)]

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::{Mutex, PoisonError};
use std::thread;

use io_uring::{IoUring, opcode, types};
use rustix::io::Errno;

use super::file::uninterrupted;

/// The most files one round submits together; more go in further rounds.
const ENTRIES: u32 = 8;

/// Flushes files' data together. One serves a whole medium.
#[derive(Default)]
pub(crate) struct Flusher {
    ring: Mutex<Ring>,
}

#[derive(Default)]
enum Ring {
    /// Not needed yet.
    #[default]
    Unborn,
    /// Works.
    Open(Box<IoUring>),
    /// The kernel, a limit or a filter refused it, or it broke: threads do its work.
    Refused,
}

impl Flusher {
    /// `fdatasync(2)` of every file, all under way at the same time. One result a file, in their order.
    ///
    /// io_uring does it where it is available, else helper threads do. What a flush reports is final; only a flush that
    /// did not take place is done again the other way.
    pub(crate) fn flush(&self, files: &[BorrowedFd<'_>]) -> Vec<io::Result<()>> {
        if let [file] = files {
            return vec![fdatasync(*file)];
        }
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*ring, Ring::Unborn) {
            *ring = IoUring::new(ENTRIES).map_or(Ring::Refused, |ring| Ring::Open(Box::new(ring)));
        }
        let mut results = Vec::with_capacity(files.len());
        if let Ring::Open(open) = &mut *ring {
            for chunk in files.chunks(ENTRIES as usize) {
                match submit(open, chunk) {
                    Some(round) => results.extend(round),
                    None => {
                        // Completions of this round may still arrive, so the ring can't be used for another.
                        *ring = Ring::Refused;
                        break;
                    }
                }
            }
        }
        drop(ring);
        if results.len() < files.len() {
            let done = results.len();
            results.extend(flush_on_threads(&files[done..]));
        }
        results
    }

    /// A flusher that behaves as if the kernel had no io_uring.
    #[cfg(test)]
    pub(crate) fn without_ring() -> Self {
        Flusher { ring: Mutex::new(Ring::Refused) }
    }
}

impl fmt::Debug for Flusher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Flusher")
    }
}

/// Whether this kernel gives this process an io_uring, with the reason if not.
pub(crate) fn probe() -> io::Result<()> {
    IoUring::new(2).map(drop)
}

/// Submits one flush a file and waits for all. `None` if the ring broke, with what took place unknown.
fn submit(ring: &mut IoUring, files: &[BorrowedFd<'_>]) -> Option<Vec<io::Result<()>>> {
    for (index, file) in files.iter().enumerate() {
        let fd = types::Fd(file.as_raw_fd());
        let entry = opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build().user_data(index as u64);
        // SAFETY: the entry refers to no memory, and to a descriptor that is borrowed until `submit` has returned; the
        // kernel takes its own reference to the open file when it takes the entry.
        unsafe { ring.submission().push(&entry) }.ok()?;
    }
    let mut results: Vec<Option<io::Result<()>>> = files.iter().map(|_| None).collect();
    let mut missing = files.len();
    while missing > 0 {
        match ring.submit_and_wait(missing) {
            Ok(_) => {}
            Err(error) if error.raw_os_error() == Some(Errno::INTR.raw_os_error()) => {}
            Err(_) => return None,
        }
        for completion in ring.completion() {
            let index = completion.user_data() as usize;
            let slot = results.get_mut(index).expect("a completion carries the index it was submitted with");
            *slot = Some(outcome(completion.result(), files[index]));
            missing -= 1;
        }
    }
    results.into_iter().collect()
}

/// The result of one flush. Errors by which the kernel says that the flush never started are answered by doing it now.
fn outcome(result: i32, file: BorrowedFd<'_>) -> io::Result<()> {
    if result >= 0 {
        return Ok(());
    }
    let error = Errno::from_raw_os_error(-result);
    match error {
        Errno::NOSYS | Errno::INVAL | Errno::CANCELED | Errno::AGAIN | Errno::INTR => fdatasync(file),
        _ => Err(error.into()),
    }
}

/// One thread a file but for the last, which the caller flushes; a thread that can't be had is done without.
fn flush_on_threads(files: &[BorrowedFd<'_>]) -> Vec<io::Result<()>> {
    let Some((last, others)) = files.split_last() else { return Vec::new() };
    thread::scope(|scope| {
        let others: Vec<_> = others
            .iter()
            .map(|file| (*file, thread::Builder::new().spawn_scoped(scope, move || fdatasync(*file))))
            .collect();
        let last = fdatasync(*last);
        let joined = others.into_iter().map(|(file, thread)| match thread {
            Ok(thread) => thread.join().expect("fdatasync does not panic"),
            Err(_) => fdatasync(file),
        });
        joined.chain([last]).collect()
    })
}

/// `fdatasync(2)`, called again when a signal interrupts it.
fn fdatasync(file: BorrowedFd<'_>) -> io::Result<()> {
    uninterrupted(|| rustix::fs::fdatasync(file.as_fd()))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    use super::*;

    fn errnos(results: Vec<io::Result<()>>) -> Vec<Option<i32>> {
        results.into_iter().map(|result| result.err().map(|error| error.raw_os_error().unwrap())).collect()
    }

    fn each_file_gets_its_own_result(flusher: &Flusher) {
        let (reader, _writer) = io::pipe().unwrap();
        let files: Vec<File> = (0..20).map(|_| tempfile::tempfile().unwrap()).collect();
        for count in [0, 1, 2, 3, 8, 9, 20] {
            for bad in [None, Some(0), Some(1), Some(7), Some(8), Some(19)] {
                let bad = bad.filter(|bad| *bad < count);
                let mut descriptors: Vec<_> = files[..count].iter().map(AsFd::as_fd).collect();
                for file in &files[..count] {
                    file.write_all_at(b"dirty", 0).unwrap();
                }
                if let Some(bad) = bad {
                    // A pipe can't be flushed.
                    descriptors[bad] = reader.as_fd();
                }
                let expected: Vec<_> =
                    (0..count).map(|i| (Some(i) == bad).then_some(Errno::INVAL.raw_os_error())).collect();
                assert_eq!(errnos(flusher.flush(&descriptors)), expected, "{count} files, bad {bad:?}");
            }
        }
    }

    #[test]
    fn the_ring_reports_every_file() {
        let flusher = Flusher::default();
        each_file_gets_its_own_result(&flusher);
        match probe() {
            Ok(()) => assert!(matches!(*flusher.ring.lock().unwrap(), Ring::Open(_)), "the ring did the work"),
            Err(error) => eprintln!("io_uring is not available here ({error}); threads were tested in its place"),
        }
    }

    #[test]
    fn threads_report_every_file() {
        each_file_gets_its_own_result(&Flusher::without_ring());
    }

    #[test]
    fn rounds_of_many_threads_do_not_mix() {
        let flusher = Flusher::default();
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..5).for_each(|_| each_file_gets_its_own_result(&flusher)));
            }
        });
    }
}
