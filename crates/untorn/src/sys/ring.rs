//! Several files flushed together, so that the device flush is shared.
//!
//! # One pool for a process
//! An io_uring takes a descriptor and about 50 KiB of what its user may lock in memory (RLIMIT_MEMLOCK, 8 MiB by
//! default), so a ring for each open file would end at 157 files. The media of a process share a few rings.
//!
//! 1. A flush has a ring to itself while it runs. So flushes of independent files never wait for each other.
//! 2. A flush that finds no free ring opens another, up to [`MOST`]. Beyond that, and where the kernel gives none,
//!    threads flush.
//! 3. The rings go with the last medium that used them.
//! 4. A forked child uses none of its parent's rings, and gives none of their memory back: it has no such mappings.
//!
//! # Safety
//! The only operation submitted is IORING_OP_FSYNC, which refers to a descriptor and to no memory. The descriptor is
//! borrowed while its entry is handed over, and the kernel takes its own reference to the open file then.
#![allow(unsafe_code)]

use std::fmt;
use std::io;
#[cfg(feature = "io-uring")]
use std::os::fd::AsRawFd;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::{mem, thread};

#[cfg(feature = "io-uring")]
use io_uring::{IoUring, Probe, opcode, types};
use rustix::io::Errno;

use super::{PerProcess, incarnation};

/// The most files one round submits together; more go in further rounds.
const ENTRIES: u32 = 8;

/// The most rings of a process: that many flushes of several files each run at once without a thread of their own.
const MOST: usize = 8;

/// Flushes files' data together. One serves a whole medium; all share the rings of the process.
#[derive(Default)]
pub(crate) struct Flusher {
    /// Empty until several files are first flushed together.
    rings: OnceLock<Arc<Rings>>,
}

/// The rings of this process, while a medium uses them.
static RINGS: PerProcess<Mutex<Weak<Rings>>> = PerProcess::new();

struct Rings {
    /// The process that opened them.
    process: u64,
    pool: Mutex<Pool>,
}

#[derive(Default)]
struct Pool {
    idle: Vec<Box<dyn Queue + Send>>,
    /// Rings that are open, idle or at work.
    open: usize,
    /// The kernel, a limit or a filter refused one, or one broke: no more are opened.
    refused: bool,
}

impl Rings {
    fn new() -> Self {
        Rings { process: incarnation(), pool: Mutex::default() }
    }

    /// Those of this process.
    fn shared() -> Arc<Rings> {
        let mut shared = RINGS.lock();
        shared.upgrade().unwrap_or_else(|| {
            let rings = Arc::new(Rings::new());
            *shared = Arc::downgrade(&rings);
            rings
        })
    }

    fn pool(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A ring for one flush, if there is one.
    fn take(&self) -> Option<Box<dyn Queue + Send>> {
        // Before the lock, which a thread of the parent may have held at the fork.
        if self.process != incarnation() {
            return None;
        }
        let mut pool = self.pool();
        if let Some(idle) = pool.idle.pop() {
            return Some(idle);
        }
        if pool.refused || pool.open == MOST {
            return None;
        }
        pool.open += 1;
        // The kernel may take its time.
        drop(pool);
        let opened = open_ring();
        if opened.is_err() {
            let mut pool = self.pool();
            pool.open -= 1;
            pool.refused = true;
        }
        opened.ok()
    }

    /// Takes a ring back after a flush. Completions of a round that broke may still arrive, so such a ring serves no
    /// other.
    fn give_back(&self, ring: Box<dyn Queue + Send>, works: bool) {
        let mut pool = self.pool();
        if works {
            pool.idle.push(ring);
        } else {
            pool.open -= 1;
            pool.refused = true;
        }
    }
}

impl Drop for Rings {
    fn drop(&mut self) {
        if self.process != incarnation() {
            // The memory of a ring is not inherited; something of the child's own may be there.
            mem::forget(mem::take(&mut self.pool.get_mut().unwrap_or_else(PoisonError::into_inner).idle));
        }
    }
}

/// What a round of flushes needs of io_uring. The tests have one that breaks when told to.
trait Queue {
    /// Puts a flush in line under this number. False if there is no room.
    fn push(&mut self, number: u64, file: BorrowedFd<'_>) -> bool;

    /// Hands what is in line to the kernel and waits until `count` flushes are done.
    fn wait(&mut self, count: usize) -> io::Result<()>;

    /// How many flushes still are in line, which are the last ones pushed: the kernel has not taken, so not started
    /// them.
    fn in_line(&mut self) -> usize;

    /// The number and the result of a flush that is done, each one once.
    fn done(&mut self) -> Option<(u64, i32)>;
}

#[cfg(feature = "io-uring")]
impl Queue for IoUring {
    fn push(&mut self, number: u64, file: BorrowedFd<'_>) -> bool {
        let fd = types::Fd(file.as_raw_fd());
        let entry = opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build().user_data(number);
        // SAFETY: the entry refers to no memory, and to a descriptor that is borrowed until `Flusher::flush` has
        // returned; the kernel takes its own reference to the open file when it takes the entry, and takes none after
        // the ring was given up.
        unsafe { self.submission().push(&entry) }.is_ok()
    }

    fn wait(&mut self, count: usize) -> io::Result<()> {
        self.submit_and_wait(count).map(drop)
    }

    fn in_line(&mut self) -> usize {
        // The kernel's own count: it moves the head past what it takes, in the order of the line.
        self.submission().len()
    }

    fn done(&mut self) -> Option<(u64, i32)> {
        self.completion().next().map(|completion| (completion.user_data(), completion.result()))
    }
}

/// A ring whose kernel knows how to flush, if this process is given one.
#[cfg(feature = "io-uring")]
fn open_ring() -> io::Result<Box<dyn Queue + Send>> {
    let ring = IoUring::new(ENTRIES)?;
    let mut known = Probe::new();
    ring.submitter().register_probe(&mut known)?;
    if known.is_supported(opcode::Fsync::CODE) { Ok(Box::new(ring)) } else { Err(Errno::OPNOTSUPP.into()) }
}

/// This build has none.
#[cfg(not(feature = "io-uring"))]
fn open_ring() -> io::Result<Box<dyn Queue + Send>> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "this build of untorn lacks the feature `io-uring`"))
}

impl Flusher {
    /// `fdatasync(2)` of every file, all under way at the same time. One result a file, in their order.
    ///
    /// io_uring does it where it is available, else helper threads do. What a flush reports is final, and so is that
    /// one was started: after a failed flush the kernel calls the pages clean, and a second one would succeed over
    /// data that the device lost. Only a flush that was never started is done the other way.
    pub(crate) fn flush(&self, files: &[BorrowedFd<'_>]) -> Vec<io::Result<()>> {
        if let [file] = files {
            return vec![fdatasync(*file)];
        }
        let mut results: Vec<Option<io::Result<()>>> = files.iter().map(|_| None).collect();
        let rings = self.rings.get_or_init(Rings::shared);
        if let Some(mut ring) = rings.take() {
            let mut rounds = files.chunks(ENTRIES as usize).zip(results.chunks_mut(ENTRIES as usize));
            let works = rounds.all(|(files, results)| round(&mut *ring, files, results));
            rings.give_back(ring, works);
        }
        let unstarted = files.iter().zip(&results).filter(|(_, result)| result.is_none());
        let unstarted: Vec<_> = unstarted.map(|(file, _)| *file).collect();
        let mut late = flush_on_threads(&unstarted).into_iter();
        // The threads gave one result for each that was missing.
        results.into_iter().filter_map(|result| result.or_else(|| late.next())).collect()
    }

    /// A flusher that behaves as if the kernel had no io_uring.
    #[cfg(test)]
    pub(crate) fn without_ring() -> Self {
        Flusher::over(Pool { refused: true, ..Pool::default() })
    }

    /// A flusher with rings of its own.
    #[cfg(test)]
    fn over(pool: Pool) -> Self {
        let rings = Arc::new(Rings { pool: Mutex::new(pool), ..Rings::new() });
        Flusher { rings: OnceLock::from(rings) }
    }

    /// Rings that are open, and whether no more will be.
    #[cfg(test)]
    fn open(&self) -> (usize, bool) {
        self.rings.get().map_or((0, false), |rings| {
            let pool = rings.pool();
            (pool.open, pool.refused)
        })
    }
}

impl fmt::Debug for Flusher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Flusher")
    }
}

/// Whether this kernel gives this process an io_uring that flushes, with the reason if not.
pub(crate) fn probe() -> io::Result<()> {
    open_ring().map(drop)
}

/// Submits one flush a file and waits for all. False if the ring broke: then the files whose flush was never started
/// are left without a result, and those whose flush was started and not seen to end have an error.
fn round(queue: &mut dyn Queue, files: &[BorrowedFd<'_>], results: &mut [Option<io::Result<()>>]) -> bool {
    // What is only in line the kernel has not seen, so a line that can't be made leaves no flush behind.
    if !files.iter().zip(0..).all(|(file, number)| queue.push(number, *file)) {
        return false;
    }
    let mut missing = files.len();
    while missing > 0 {
        let waited = queue.wait(missing);
        while let Some((number, result)) = queue.done() {
            if let Some(place @ None) = results.get_mut(number as usize) {
                *place = Some(outcome(result));
                missing -= 1;
            }
        }
        match waited {
            Ok(()) => {}
            // Only the waiting was interrupted; what the kernel took before, it goes on with.
            Err(error) if error.raw_os_error() == Some(Errno::INTR.raw_os_error()) => {}
            Err(error) => {
                let started = files.len().saturating_sub(queue.in_line());
                for place in &mut results[..started] {
                    place.get_or_insert_with(|| Err(unknown(&error)));
                }
                return false;
            }
        }
    }
    true
}

/// The result of one flush that the kernel took.
///
/// No error of it means for sure that the flush never started. ECANCELED, EAGAIN, EINTR and EINVAL would, where
/// io_uring itself gives them; but a file system passes on whatever the write-back of a page ended with, those among
/// them, and it passes that on once. That the kernel knows the operation was asked when the ring was opened.
fn outcome(result: i32) -> io::Result<()> {
    if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(()) }
}

/// The error for a flush that was started and whose end was not seen.
fn unknown(cause: &io::Error) -> io::Error {
    io::Error::other(format!("io_uring failed ({cause}) after the flush was started; the flush's outcome is unknown"))
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

/// Has every flush of a single file fail, in a process that a test has for itself.
#[cfg(test)]
pub(crate) static FAIL: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

/// `fdatasync(2)`, once: EINTR too may be what the write-back of a page ended with.
fn fdatasync(file: BorrowedFd<'_>) -> io::Result<()> {
    #[cfg(test)]
    if FAIL.load(std::sync::atomic::Ordering::SeqCst) {
        return Err(Errno::IO.into());
    }
    Ok(rustix::fs::fdatasync(file.as_fd())?)
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
            Ok(()) => assert!(flusher.open().0 > 0, "the ring did the work"),
            Err(error) => eprintln!("io_uring is not available here ({error}); threads were tested in its place"),
        }
    }

    #[test]
    fn threads_report_every_file() {
        each_file_gets_its_own_result(&Flusher::without_ring());
    }

    #[test]
    fn rounds_of_many_threads_do_not_mix() {
        let flushers = [Flusher::default(), Flusher::default()];
        thread::scope(|scope| {
            for number in 0..4 {
                let flusher = &flushers[number % 2];
                scope.spawn(move || (0..5).for_each(|_| each_file_gets_its_own_result(flusher)));
            }
        });
        let rings = flushers[0].rings.get().unwrap();
        assert!(Arc::ptr_eq(rings, flushers[1].rings.get().unwrap()), "media of one process share their rings");
    }

    /// A queue whose flushes end when all who take part in a meeting have come.
    struct Meeting(Arc<std::sync::Barrier>, Vec<u64>);

    impl Queue for Meeting {
        fn push(&mut self, number: u64, _: BorrowedFd<'_>) -> bool {
            self.1.push(number);
            true
        }

        fn wait(&mut self, _: usize) -> io::Result<()> {
            self.0.wait();
            Ok(())
        }

        fn in_line(&mut self) -> usize {
            0
        }

        fn done(&mut self) -> Option<(u64, i32)> {
            self.1.pop().map(|number| (number, 0))
        }
    }

    /// Were one flush to wait for another, none would ever end.
    #[test]
    fn independent_flushes_run_at_the_same_time() {
        const FLUSHES: usize = 4;
        let meeting = Arc::new(std::sync::Barrier::new(FLUSHES));
        let queue = || -> Box<dyn Queue + Send> { Box::new(Meeting(meeting.clone(), Vec::new())) };
        let idle = (0..FLUSHES).map(|_| queue()).collect();
        let flusher = Flusher::over(Pool { idle, open: MOST, refused: false });
        let file = tempfile::tempfile().unwrap();
        thread::scope(|scope| {
            for _ in 0..FLUSHES {
                scope.spawn(|| assert_eq!(errnos(flusher.flush(&[file.as_fd(), file.as_fd()])), [None, None]));
            }
        });
        // None is free, and no more are opened: threads do it.
        let taken: Vec<_> = (0..FLUSHES).map(|_| flusher.rings.get().unwrap().take().unwrap()).collect();
        assert_eq!(errnos(flusher.flush(&[file.as_fd(), file.as_fd()])), [None, None]);
        drop(taken);
    }

    #[test]
    fn a_child_flushes_without_the_rings_of_its_parent() {
        let flusher = Flusher::default();
        let file = tempfile::tempfile().unwrap();
        assert_eq!(errnos(flusher.flush(&[file.as_fd(), file.as_fd()])), [None, None]);
        // Held by a thread that the child does not have.
        let held = flusher.rings.get().unwrap().pool();
        let child = crate::sys::in_forked_child(|| {
            let of_parent = flusher.rings.get().unwrap().take().is_some();
            let own = Rings::shared();
            i32::from(of_parent || Arc::ptr_eq(&own, flusher.rings.get().unwrap()) || own.process != incarnation())
        });
        drop(held);
        assert_eq!(child, Some(0));
    }

    /// A queue that takes and ends only so many flushes, then fails. `done` are the results it still reports.
    struct Breaking {
        room: usize,
        takes: usize,
        waits: Vec<i32>,
        done: Vec<(u64, i32)>,
        line: usize,
    }

    impl Queue for Breaking {
        fn push(&mut self, _: u64, _: BorrowedFd<'_>) -> bool {
            let fits = self.line < self.room;
            self.line += usize::from(fits);
            fits
        }

        fn wait(&mut self, _: usize) -> io::Result<()> {
            self.line -= self.takes.min(self.line);
            Err(io::Error::from_raw_os_error(self.waits.remove(0)))
        }

        fn in_line(&mut self) -> usize {
            self.line
        }

        fn done(&mut self) -> Option<(u64, i32)> {
            if self.waits.is_empty() { self.done.pop() } else { None }
        }
    }

    /// What becomes of three files, the middle one a pipe that only a flush by threads finds out about.
    fn broken(queue: Breaking) -> Vec<String> {
        let (reader, _writer) = io::pipe().unwrap();
        let files = [tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap()];
        let flusher = Flusher::over(Pool { idle: vec![Box::new(queue)], open: 1, refused: false });
        let results = flusher.flush(&[files[0].as_fd(), reader.as_fd(), files[1].as_fd()]);
        assert_eq!(flusher.open(), (0, true), "a broken ring is not used again");
        let word = |result: io::Result<()>| match result {
            Ok(()) => "done".to_owned(),
            Err(error) => match error.raw_os_error() {
                Some(code) => Errno::from_raw_os_error(code).to_string(),
                None if error.to_string().contains("outcome is unknown") => "unknown".to_owned(),
                None => error.to_string(),
            },
        };
        results.into_iter().map(word).collect()
    }

    #[test]
    fn a_flush_that_was_started_is_never_started_again() {
        let (eio, eintr, ebusy) = (Errno::IO.raw_os_error(), Errno::INTR.raw_os_error(), Errno::BUSY.raw_os_error());
        let queue = |takes, waits: &[i32], done: &[(u64, i32)]| Breaking {
            room: 8,
            takes,
            waits: waits.to_vec(),
            done: done.to_vec(),
            line: 0,
        };
        let (io, invalid) = (Errno::IO.to_string(), Errno::INVAL.to_string());
        // Nothing was taken: threads do it all, and find the pipe.
        assert_eq!(broken(queue(0, &[ebusy], &[])), ["done", &invalid, "done"]);
        assert_eq!(broken(Breaking { room: 2, ..queue(0, &[], &[]) }), ["done", &invalid, "done"]);
        // All were taken, none was seen to end.
        assert_eq!(broken(queue(3, &[ebusy], &[])), ["unknown", "unknown", "unknown"]);
        // Those that were seen to end keep their result, also an error; the last was never taken.
        assert_eq!(broken(queue(2, &[ebusy], &[(0, -eio)])), [&io, "unknown", "done"]);
        assert_eq!(broken(queue(2, &[ebusy], &[(1, 0), (0, -eio)])), [&io, "done", "done"]);
        // An interrupted wait goes on.
        assert_eq!(broken(queue(2, &[eintr, ebusy], &[(2, 0)])), ["unknown", "unknown", "done"]);
    }

    #[test]
    fn no_error_of_a_flush_is_taken_for_one_that_did_not_start() {
        for errno in [Errno::CANCELED, Errno::AGAIN, Errno::INTR, Errno::INVAL, Errno::NOSYS, Errno::IO] {
            assert_eq!(outcome(-errno.raw_os_error()).unwrap_err().raw_os_error(), Some(errno.raw_os_error()));
        }
        assert!(outcome(0).is_ok());
    }
}
