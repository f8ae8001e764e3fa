//! The little unsafe code the tests need: counting allocations, `fork`, signals, and a mapping made by hand.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use untorn::{Error, Result};

/// The system's allocator, counting the calls of each thread. A test program that asks for [`allocations`] installs
/// it with `#[global_allocator]`.
pub(crate) struct CountingAlloc;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static LARGEST: Cell<usize> = const { Cell::new(0) };
}

/// Allocations this thread has made so far.
pub(crate) fn allocations() -> u64 {
    ALLOCATIONS.with(Cell::get)
}

/// Bytes of the largest allocation that this thread makes meanwhile.
pub(crate) fn largest_allocation(act: impl FnOnce()) -> usize {
    LARGEST.with(|largest| largest.set(0));
    act();
    LARGEST.with(Cell::get)
}

fn count(bytes: usize) {
    // A thread that is ending may have no thread-local state any more; nobody counts there.
    let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
    let _ = LARGEST.try_with(|largest| largest.set(largest.get().max(bytes)));
}

// SAFETY: every call goes to the system's allocator as it came; counting allocates nothing, for the cell is constant
// from the start and needs no destructor.
unsafe impl GlobalAlloc for CountingAlloc {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size);
        // SAFETY: as above.
        unsafe { System.realloc(at, layout, size) }
    }
}

// SAFETY: the declarations of `fork(2)`, `_exit(2)` and `signal(2)` in the C library that the standard library links.
unsafe extern "C" {
    fn fork() -> i32;
    fn _exit(code: i32) -> !;
    fn signal(number: i32, handler: usize) -> usize;
}

/// A forked child, running until it is awaited. A test that fails before that ends it: a process that lives on would
/// keep the output of the test open.
pub(crate) struct Child(rustix::process::Pid);

/// Runs `body` in a forked child, which ends with the code it returns, or with 101 if it panics.
pub(crate) fn in_forked_child(body: impl FnOnce() -> i32) -> Child {
    // SAFETY: the C library makes its allocator usable in the child of a process with threads; beyond allocating, the
    // child uses only what this thread owns, and it leaves by `_exit`.
    let child = unsafe { fork() };
    if child == 0 {
        let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or(101);
        // SAFETY: ends the child.
        unsafe { _exit(code) }
    }
    assert!(child > 0, "fork: {}", std::io::Error::last_os_error());
    Child(rustix::process::Pid::from_raw(child).unwrap())
}

impl Child {
    /// The number of the process.
    pub(crate) fn id(&self) -> u32 {
        self.0.as_raw_nonzero().get() as u32
    }

    /// Kills it, wherever it is.
    pub(crate) fn kill(&self) {
        rustix::process::kill_process(self.0, rustix::process::Signal::KILL).unwrap();
    }

    /// The child's exit code; `None` if a signal ended it.
    pub(crate) fn wait(self) -> Option<i32> {
        let child = std::mem::ManuallyDrop::new(self);
        let options = rustix::process::WaitOptions::empty();
        let (_, status) = rustix::process::waitpid(Some(child.0), options).unwrap().unwrap();
        status.exit_status()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = rustix::process::kill_process(self.0, rustix::process::Signal::KILL);
        let _ = rustix::process::waitpid(Some(self.0), rustix::process::WaitOptions::empty());
    }
}

/// In a forked child: which of its calls did not say that it is one, from 1; 0 if all did. Each names `path`, if there
/// is one.
pub(crate) fn first_untold(outcomes: &[Result<()>], path: Option<&Path>) -> i32 {
    let is_told = |outcome: &Result<()>| match outcome {
        Err(Error::Forked { path: named }) => path.is_none_or(|path| path == named),
        _ => false,
    };
    outcomes.iter().position(|outcome| !is_told(outcome)).map_or(0, |n| n as i32 + 1)
}

/// What a signal does.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Disposition {
    /// Its default action.
    Default,
    /// Nothing.
    Ignore,
    /// Ends the process with this code, which no other end has.
    Exit,
}

/// The code that [`Disposition::Exit`] ends the process with.
pub(crate) const HANDLED: i32 = 42;

/// Sets what SIGBUS does.
pub(crate) fn on_sigbus(disposition: Disposition) {
    extern "C" fn exit(_: i32) {
        // SAFETY: ends the process; it may be called in a handler.
        unsafe { _exit(HANDLED) }
    }
    let handler = match disposition {
        Disposition::Default => 0,
        Disposition::Ignore => 1,
        Disposition::Exit => exit as extern "C" fn(i32) as usize,
    };
    let number = rustix::process::Signal::BUS.as_raw();
    // SAFETY: the two numbers are `SIG_DFL` and `SIG_IGN`, and the handler does nothing but end the process.
    let before = unsafe { signal(number, handler) };
    assert_ne!(before, usize::MAX, "signal: {}", std::io::Error::last_os_error());
}

/// Touches a mapping of the program's own beyond the end of its file, which is a SIGBUS. Returns what was read if it is
/// survived.
pub(crate) fn touch_beyond(empty: &std::fs::File) -> u8 {
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
    // SAFETY: a new mapping at an address of the kernel's choice disturbs no other memory.
    let page = unsafe { mmap(std::ptr::null_mut(), 4096, ProtFlags::READ, MapFlags::SHARED, empty, 0) }.unwrap();
    // SAFETY: mapped readable; beyond the end of the file it is a signal and not a value.
    let byte = unsafe { page.cast::<u8>().read_volatile() };
    // SAFETY: the mapping made above, used no more.
    unsafe { munmap(page, 4096) }.unwrap();
    byte
}

/// A shared mapping of a whole file, as a program makes one itself.
pub(crate) struct SharedMapping {
    address: *mut u8,
    len: usize,
}

// SAFETY: its memory is accessed through raw pointers only, by volatile stores of single bytes.
unsafe impl Sync for SharedMapping {}

impl SharedMapping {
    pub(crate) fn new(path: &std::path::Path) -> Self {
        use rustix::mm::{MapFlags, ProtFlags, mmap};
        let file = std::fs::File::options().read(true).write(true).open(path).unwrap();
        let len = file.metadata().unwrap().len() as usize;
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let address = unsafe {
            mmap(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &file, 0).unwrap()
        };
        SharedMapping { address: address.cast(), len }
    }

    /// The same at the address of another, in its place: with one call, so that nothing else of the process comes
    /// between.
    pub(crate) fn in_place_of(other: Self, path: &std::path::Path) -> Self {
        use rustix::mm::{MapFlags, ProtFlags, mmap};
        let file = std::fs::File::options().read(true).write(true).open(path).unwrap();
        assert_eq!(file.metadata().unwrap().len() as usize, other.len);
        let (loads_and_stores, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::FIXED);
        // SAFETY: what is replaced is the other's own mapping, of the same length, and nobody has a reference into it.
        let address = unsafe { mmap(other.address.cast(), other.len, loads_and_stores, flags, &file, 0).unwrap() };
        std::mem::forget(other);
        SharedMapping { address: address.cast(), len: file.metadata().unwrap().len() as usize }
    }

    pub(crate) fn address(&self) -> *mut u8 {
        self.address
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Stores bytes, one by one.
    pub(crate) fn store(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.len);
        for (at, byte) in bytes.iter().enumerate() {
            // SAFETY: within the mapping.
            let target = unsafe { self.address.add(offset + at) };
            // SAFETY: mapped and writable for as long as this lives.
            unsafe { target.write_volatile(*byte) };
        }
    }
}

impl Drop for SharedMapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this one's own, and nobody has a reference into it.
        unsafe { rustix::mm::munmap(self.address.cast(), self.len) }.expect("it is mapped");
    }
}

/// Chooses the signal of a lease. Source: `fcntl(2)`, `asm-generic/fcntl.h`.
const F_SETSIG: i32 = 10;

/// Files that nobody may store to, or open for writing, while they are watched.
pub(crate) struct Untouched {
    files: Vec<(PathBuf, fs::File, Seen)>,
}

/// What a file is like: its bytes, length, inode, and the times of its last changes.
type Seen = (Vec<u8>, u64, u64, [i64; 4]);

impl Untouched {
    /// Watches files, and all files below directories. Nobody may have them open for writing now.
    pub(crate) fn watch(paths: &[&Path]) -> Self {
        let mut files = Vec::new();
        let mut left: Vec<PathBuf> = paths.iter().map(|path| path.to_path_buf()).collect();
        while let Some(path) = left.pop() {
            if path.is_dir() {
                left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
                continue;
            }
            let file = fs::File::open(&path).unwrap();
            // A signal that nobody heeds; the usual one would end the process.
            assert_ne!(control(&file, F_SETSIG, libc::SIGURG), -1);
            // The kernel ends this lease when somebody opens the file for writing, or truncates it.
            let taken = control(&file, libc::F_SETLEASE, libc::F_RDLCK);
            assert_eq!(taken, 0, "{}: {}", path.display(), std::io::Error::last_os_error());
            let seen = seen(&path);
            files.push((path, file, seen));
        }
        assert!(!files.is_empty());
        Untouched { files }
    }

    #[track_caller]
    pub(crate) fn check(self, what: &str) {
        for (path, file, before) in &self.files {
            let (after, path) = (seen(path), path.display());
            assert_eq!(control(file, libc::F_GETLEASE, 0), libc::F_RDLCK, "{what} opened {path} for writing");
            assert_eq!((after.1, after.2, after.3), (before.1, before.2, before.3), "{what} changed {path}");
            assert!(after.0 == before.0, "{what} changed bytes of {path}");
        }
    }
}

fn control(file: &fs::File, command: i32, argument: i32) -> i32 {
    // SAFETY: these commands take a number.
    unsafe { libc::fcntl(file.as_raw_fd(), command, argument) }
}

fn seen(path: &Path) -> Seen {
    let found = fs::metadata(path).unwrap();
    let times = [found.mtime(), found.mtime_nsec(), found.ctime(), found.ctime_nsec()];
    (fs::read(path).unwrap(), found.len(), found.ino(), times)
}

/// Counts in the first word of every page of a file, through a shared mapping, while something is done. Returns how
/// many of these stores were taken back.
pub(crate) fn counting_in_mappings(path: &Path, work: impl FnOnce()) -> u64 {
    let file = fs::File::options().read(true).write(true).open(path).unwrap();
    let len = file.metadata().unwrap().len() as usize;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let start = unsafe {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        libc::mmap(std::ptr::null_mut(), len, protection, flags, file.as_raw_fd(), 0)
    };
    assert_ne!(start, libc::MAP_FAILED);
    let start = start as usize;
    let word = |page: usize| {
        // SAFETY: within the mapping, which is there until all threads have ended, and at the start of a page.
        unsafe { AtomicU64::from_ptr((start + page * 4096) as *mut u64) }
    };
    let done = AtomicBool::new(false);
    let lost = std::thread::scope(|scope| {
        let counter = scope.spawn(|| {
            let (mut round, mut lost) = (1, 0);
            for page in 0..len / 4096 {
                word(page).store(round, Ordering::Relaxed);
            }
            while !done.load(Ordering::Acquire) {
                for page in 0..len / 4096 {
                    lost += u64::from(word(page).swap(round + 1, Ordering::Relaxed) != round);
                }
                round += 1;
            }
            lost
        });
        let worked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        done.store(true, Ordering::Release);
        let lost = counter.join().unwrap();
        worked.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        lost
    });
    // SAFETY: the mapping made above, which nobody accesses any more.
    assert_eq!(unsafe { libc::munmap(start as *mut libc::c_void, len) }, 0);
    lost
}

/// Words of a map that outlives their use, for threads that store beside what the map does.
pub(crate) fn words(memory: *mut u8, count: usize) -> &'static [AtomicU64] {
    assert!(memory.cast::<AtomicU64>().is_aligned());
    // SAFETY: the caller's map has so many words and outlives the test's threads; all of them use atomic stores.
    unsafe { std::slice::from_raw_parts(memory.cast(), count) }
}
