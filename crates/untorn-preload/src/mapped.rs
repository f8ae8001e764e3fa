//! Shared mappings of managed files. What is mapped is a file's *twin*, memory that the server has made with the
//! file's bytes, so all that a program does to a mapping the kernel does. What can be stored to is registered with
//! userfaultfd(2) and protected, so that each first store to a page waits until the server has heard of it.
//!
//! # What makes it sound
//! 1. Nobody knows the address of a mapping before all of it is protected and the server has the descriptor that
//!    tells of its faults. The place of one of `MAP_FIXED` others may know, and store there meanwhile: so it is made
//!    elsewhere, told to the server, and moved to its place, which to others is one step.
//! 2. A forked child has the mappings, and they are not protected in it. So before `fork` returns each of them is
//!    made so again, or the child is killed. Where no mapping can be stored to, there is nothing to protect.
//! 3. Which mappings there are is the kernel's knowledge, which the server asks for. Here is only a range that all
//!    lie in.
//! 4. A mapping that would have to move (`mremap`) is made once more, and the old one unmapped.

use core::ffi::{CStr, c_int};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use libc::off_t;
use untorn_wire::{
    Addresses, Inherited, InheritedReply, Map, MapAgain, MapAgainReply, Mapped, Placed, SyncMapped, Unmapped,
};

use crate::client::{self, ask};
use crate::layer::refuse;
use crate::raw::{self, Quiet, word};

/// What a program asks of `mmap`.
#[derive(Clone, Copy)]
pub(crate) struct Wanted {
    pub(crate) place: usize,
    pub(crate) len: usize,
    pub(crate) protection: c_int,
    pub(crate) flags: c_int,
    pub(crate) offset: off_t,
}

impl Wanted {
    /// Whether what is there now is to be replaced. At address 0 nothing is that a program may use.
    fn replaces(self) -> bool {
        self.place != 0 && self.flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) == libc::MAP_FIXED
    }
}

/// Below no mapping lies.
static LOWEST: AtomicUsize = AtomicUsize::new(usize::MAX);
/// Above none does.
static HIGHEST: AtomicUsize = AtomicUsize::new(0);
/// Whether there ever was one that can be stored to, here or in a process that this one is a child of.
static WATCHED: AtomicBool = AtomicBool::new(false);

/// Whether a shared mapping of a managed file may be in a range.
#[inline]
pub(crate) fn may_be_in(start: usize, len: usize) -> bool {
    start < HIGHEST.load(Ordering::Relaxed) && start.saturating_add(len) > LOWEST.load(Ordering::Relaxed)
}

// Source: `linux/userfaultfd.h`.
const API: u64 = 0xaa;
const FEATURES: u64 = 1 << 0 | 1 << 12;
/// The kernel tells of a move, and what was registered stays so.
const FEATURE_MOVES: u64 = 1 << 2;
const IOCTL_API: u64 = 0xc018_aa3f;
const IOCTL_REGISTER: u64 = 0xc020_aa00;
const IOCTL_WRITEPROTECT: u64 = 0xc018_aa06;
const MODE_WRITEPROTECT: u64 = 2;
const PROTECTED: u64 = 1;
const USER_MODE_ONLY: c_int = 1;

fn request(fd: c_int, number: u64, words: &mut [u64]) -> Result<(), c_int> {
    // SAFETY: the kernel reads and writes as many bytes as the request says, which are those of `words`. What they
    // name is a mapping just made, or inherited and told nobody yet; whether a store to it waits is all that changes.
    unsafe { raw::result(libc::SYS_ioctl, [word(fd), number as usize, words.as_mut_ptr() as usize, 0, 0, 0]) }.map(drop)
}

/// A descriptor of ours, closed when it is dropped.
struct Owned(c_int);

impl Drop for Owned {
    fn drop(&mut self) {
        let _ = raw::close(self.0);
    }
}

/// What tells of stores to this process's memory, which may be moved then, or not.
///
/// # Errors
/// EPERM, ENOSYS, EINVAL where the kernel, or a filter, does not let it.
fn watch(moves: bool) -> Result<Owned, c_int> {
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
    // SAFETY: a new descriptor changes no memory.
    let made = |flags| unsafe { raw::result(libc::SYS_userfaultfd, [word(flags), 0, 0, 0, 0, 0]) };
    // Without the right to it the kernel's own stores (`read(2)` into a mapping) cannot wait, and fail.
    let watch = Owned(made(flags).or_else(|_| made(flags | USER_MODE_ONLY))? as c_int);
    let features = if moves { FEATURES | FEATURE_MOVES } else { FEATURES };
    request(watch.0, IOCTL_API, &mut [API, features, 0])?;
    Ok(watch)
}

/// The length of the pages that a mapping takes: of one that is not whole the kernel maps all.
fn whole(len: usize) -> Result<usize, c_int> {
    len.checked_next_multiple_of(4096).ok_or(libc::EINVAL)
}

fn addresses(start: usize, len: usize) -> Addresses {
    Addresses { start: start as u64, len: len as u64 }
}

/// Has every page of a mapping wait for its first store, and the server hear of it. It is moved to `place` next, if
/// that is not 0.
fn announce(start: usize, len: usize, watch: Option<&Owned>, place: usize) -> Result<(), c_int> {
    if let Some(watch) = watch {
        let whole = whole(len)? as u64;
        request(watch.0, IOCTL_REGISTER, &mut [start as u64, whole, MODE_WRITEPROTECT, 0])?;
        loop {
            match request(watch.0, IOCTL_WRITEPROTECT, &mut [start as u64, whole, PROTECTED]) {
                Err(libc::EAGAIN | libc::EINTR) => {}
                done => break done?,
            }
        }
    }
    let told = Mapped { at: addresses(start, len), watched: watch.is_some(), place: place as u64 };
    loop {
        match ask(&told, watch.map(|watch| watch.0)) {
            // Another thread is about to move one to the same place.
            Err(libc::EBUSY) => raw::pause(),
            done => return done.map(drop),
        }
    }
}

fn unmap(start: usize, len: usize) {
    // SAFETY: a mapping of ours that nobody knows of, or one that is not to be touched.
    let _ = unsafe { raw::result(libc::SYS_munmap, [start, len, 0, 0, 0, 0]) };
}

/// There is about to be a mapping; before anybody may unmap it.
fn expect(start: usize, len: usize, watch: Option<&Owned>) {
    LOWEST.fetch_min(start, Ordering::Relaxed);
    HIGHEST.fetch_max(start.saturating_add(len), Ordering::Relaxed);
    if watch.is_some() {
        WATCHED.store(true, Ordering::Relaxed);
    }
}

/// Maps a twin where the program asks for it, or the kernel wants to have it.
fn mapped(twin: &Owned, wanted: Wanted) -> Result<usize, c_int> {
    let Wanted { place, len, protection, flags, offset } = wanted;
    let arguments = [place, len, word(protection), word(flags), word(twin.0), offset as usize];
    // SAFETY: what the program asked for, but for what the bytes are kept in.
    unsafe { raw::result(libc::SYS_mmap, arguments) }
}

/// Maps a twin, and has the server hear of stores to it.
fn map(twin: &Owned, watch: Option<&Owned>, wanted: Wanted) -> Result<usize, c_int> {
    if wanted.replaces() {
        return put(twin, watch, wanted);
    }
    let start = mapped(twin, wanted)?;
    expect(start, wanted.len, watch);
    announce(start, wanted.len, watch, 0).map(|()| start).inspect_err(|_| unmap(start, wanted.len))
}

/// The same where something may be that others know of.
fn put(twin: &Owned, watch: Option<&Owned>, wanted: Wanted) -> Result<usize, c_int> {
    let Wanted { place, len, .. } = wanted;
    // No handler of a signal comes in between: whoever else maps something there waits for this.
    let _quiet = Quiet::new();
    let start = elsewhere(twin, wanted)?;
    expect(place, len, watch);
    let moved = announce(start, len, watch, place).and_then(|()| {
        let arguments = [start, len, len, word(libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED), place, 0];
        // SAFETY: a mapping of ours that nobody knows of, moved to where the program asked for one.
        match unsafe { raw::result(libc::SYS_mremap, arguments) } {
            // Of a place that is none `mmap` says it so.
            Err(libc::EINVAL) => Err(libc::ENOMEM),
            moved => moved,
        }
    });
    if moved.is_err() {
        unmap(start, len);
    }
    let told = Placed { at: addresses(place, len), from: start as u64, placed: moved.is_ok() };
    // Others wait for this. Without a descriptor to connect with it has to wait for a connection that there is. What
    // fails with the server has been heard by it, and may be said again.
    while let Err(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS) = ask(&told, None) {
        raw::pause();
    }
    moved
}

/// Maps a twin in another place than the one that is wanted.
fn elsewhere(twin: &Owned, wanted: Wanted) -> Result<usize, c_int> {
    let wanted = Wanted { flags: wanted.flags & !libc::MAP_FIXED, ..wanted };
    let len = whole(wanted.len)?;
    let overlaps = |start: usize| start < wanted.place.saturating_add(len) && wanted.place < start.saturating_add(len);
    // Of three places of which none has anything of another, one has nothing of the wanted one.
    let mut taken = [0; 2];
    let mut found = mapped(twin, Wanted { place: 0, ..wanted });
    for kept in &mut taken {
        if let Ok(start) = found
            && overlaps(start)
        {
            *kept = start;
            found = mapped(twin, Wanted { place: 0, ..wanted });
        }
    }
    taken.into_iter().filter(|start| *start != 0).for_each(|start| unmap(start, len));
    found
}

/// `mmap` of a managed descriptor, shared.
pub(crate) fn shared(fd: c_int, wanted: Wanted) -> Result<usize, c_int> {
    const CALL: &CStr = c"mmap";
    let access = raw::fcntl(fd, libc::F_GETFL, 0)? & libc::O_ACCMODE;
    let writes = wanted.protection & libc::PROT_WRITE != 0;
    if wanted.len == 0
        || wanted.offset < 0
        || wanted.offset % 4096 != 0
        || wanted.replaces() && !wanted.place.is_multiple_of(4096)
    {
        return Err(libc::EINVAL);
    }
    if access == libc::O_WRONLY || writes && access != libc::O_RDWR {
        return Err(libc::EACCES);
    }
    if client::is_in_vfork() {
        return Err(refuse(CALL, c"shared mapping by a vfork child", fd));
    }
    // Also of one that is for reading: it may be made writable later. Where nobody would hear of stores, it may not.
    let watch = match watch(wanted.replaces()) {
        Ok(watch) if access == libc::O_RDWR => Some(watch),
        Err(_) if writes => {
            return Err(refuse(
                CALL,
                c"writable shared mapping: userfaultfd(2) is not permitted or lacks a needed feature",
                fd,
            ));
        }
        _ => None,
    };
    let (reply, twin) = client::ask_for_descriptor(&Map { writable: watch.is_some() }, Some(fd));
    let twin = twin.map(Owned);
    reply?;
    map(&twin.ok_or(libc::EMFILE)?, watch.as_ref(), wanted)
}

/// The first shared mapping in a range: what the server says of it, and its twin.
fn found(start: usize, len: usize) -> (Result<MapAgainReply, c_int>, Option<Owned>) {
    let (reply, twin) = client::ask_for_descriptor(&MapAgain { at: addresses(start, len) }, None);
    (reply, twin.map(Owned))
}

/// `mremap`: a mapping that gets longer or moves is made once more, which shows the same bytes. `None` if it is none
/// of ours.
pub(crate) fn again(old: usize, old_len: usize, len: usize, flags: c_int) -> Option<Result<usize, c_int>> {
    let (reply, twin) = found(old, 1);
    let found = match reply {
        Ok(MapAgainReply { found: false, .. }) => return None,
        Ok(found) => found,
        Err(errno) => return Some(Err(errno)),
    };
    Some(twin.ok_or(libc::EMFILE).and_then(|twin| made_again(&found, &twin, old, [old_len, len], flags)))
}

fn made_again(
    found: &MapAgainReply,
    twin: &Owned,
    old: usize,
    [old_len, len]: [usize; 2],
    flags: c_int,
) -> Result<usize, c_int> {
    let (old_len, len) = (whole(old_len)?, whole(len)?);
    if len == 0 || flags & !(libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP) != 0 {
        return Err(libc::EINVAL);
    }
    if old_len == 0 || flags & (libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP) != 0 {
        return Err(refuse(c"mremap", c"copying a shared mapping, or moving it to a fixed address", twin.0));
    }
    if len <= old_len {
        if len < old_len {
            unmap(old + len, old_len - len);
            were_unmapped(old + len, old_len - len);
        }
        return Ok(old);
    }
    if flags & libc::MREMAP_MAYMOVE == 0 {
        return Err(libc::ENOMEM);
    }
    let watch = if found.writable { Some(watch(false)?) } else { None };
    let (protection, offset) = (found.protection, found.offset as off_t);
    let wanted = Wanted { place: 0, len, protection, flags: libc::MAP_SHARED, offset };
    let start = map(twin, watch.as_ref(), wanted)?;
    unmap(old, old_len);
    were_unmapped(old, old_len);
    Ok(start)
}

/// `msync`.
///
/// # Errors
/// That of the commit.
pub(crate) fn sync(start: usize, len: usize) -> Result<(), c_int> {
    ask(&SyncMapped { at: addresses(start, len) }, None).map(drop)
}

/// Something may have been unmapped. A commit at a file's last mapping that fails is in the report: `munmap` has no
/// way to tell.
pub(crate) fn were_unmapped(start: usize, len: usize) {
    let _ = ask(&Unmapped { at: addresses(start, len) }, None);
}

/// A refusal, if a shared mapping is there.
pub(crate) fn refused(call: &CStr, why: &CStr, start: usize, len: usize) -> Option<c_int> {
    let (reply, twin) = found(start, len);
    match reply {
        Ok(MapAgainReply { found: false, .. }) => None,
        Ok(_) => Some(refuse(call, why, twin.as_ref().map_or(-1, |twin| twin.0))),
        Err(errno) => Some(errno),
    }
}

/// When the layer is loaded: has children of `fork` say what they inherited.
pub(crate) fn watch_forks() {
    // SAFETY: a function for it to call, which lives as long as the process.
    let _ = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
}

/// In a child of `fork`, before it goes on.
pub(crate) extern "C" fn in_child() {
    if HIGHEST.load(Ordering::Relaxed) == 0 {
        return;
    }
    loop {
        match ask(&Inherited {}, None) {
            Ok(InheritedReply { found: false, .. }) => return,
            Ok(InheritedReply { at, .. }) => {
                let (start, len) = (at.start as usize, at.len as usize);
                // Where stores were never heard of, nothing that it has can be stored to.
                let announced = match WATCHED.load(Ordering::Relaxed) {
                    false => announce(start, len, None, 0),
                    true => watch(false).and_then(|watch| match announce(start, len, Some(&watch), 0) {
                        // It can never be written to.
                        Err(libc::EPERM) => announce(start, len, None, 0),
                        done => done,
                    }),
                };
                if announced.is_err() {
                    raw::die();
                }
            }
            // Nobody would hear of what it stores to memory that it shares with others, of which a part may be
            // committed.
            Err(_) => raw::die(),
        }
    }
}
