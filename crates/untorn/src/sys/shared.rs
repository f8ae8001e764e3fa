//! Memory that several processes map: a file without a name (`memfd_create(2)`), passed on by its descriptor.
//!
//! # Safety
//! Each value owns its mapping from construction to drop and hands out raw pointers and atomic words only: other
//! threads and other processes store to the same bytes at any time. Memory seen as words of one size is never seen as
//! words of another. A forked child has none of it (`MADV_DONTFORK`), and must not use or drop the value; see
//! [`incarnation`](super::incarnation).
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags, SeekFrom};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use super::{copy, incarnation};

/// A mapping of such a file, from its first byte, with room to grow: what lies beyond the file's end is a SIGBUS.
pub(crate) struct SharedPages {
    file: OwnedFd,
    start: NonNull<u8>,
    reserved: usize,
    /// The process that mapped it.
    owner: u64,
}

// SAFETY: the mapping belongs to the process, not to a thread; the value is an address and a number.
unsafe impl Send for SharedPages {}
// SAFETY: as above; a shared value gives out its address and words that are atomic.
unsafe impl Sync for SharedPages {}

impl SharedPages {
    /// Makes a file of `len` bytes without a name (`name` shows in /proc only) and maps `reserve` bytes of it.
    ///
    /// # Errors
    /// Those of `memfd_create(2)`, `ftruncate(2)` and `mmap(2)`.
    pub(crate) fn create(name: &str, len: u64, reserve: usize) -> io::Result<Self> {
        let file = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        super::file::set_len(&file, len)?;
        // Nobody can pull pages away from under the others.
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK)?;
        Self::map(file, reserve)
    }

    /// Maps `reserve` bytes of a file that another process has made.
    ///
    /// # Errors
    /// Those of `mmap(2)`.
    pub(crate) fn map(file: OwnedFd, reserve: usize) -> io::Result<Self> {
        Self::map_as(file, reserve, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// The same, to load only: a store is a SIGSEGV.
    ///
    /// # Errors
    /// Those of `mmap(2)`.
    pub(crate) fn map_to_load(file: OwnedFd, reserve: usize) -> io::Result<Self> {
        Self::map_as(file, reserve, ProtFlags::READ)
    }

    fn map_as(file: OwnedFd, reserve: usize, protection: ProtFlags) -> io::Result<Self> {
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice disturbs no other memory.
        let start = unsafe { mmap(ptr::null_mut(), reserve, protection, flags, &file, 0) }?;
        let start = NonNull::new(start.cast()).expect("a mapping the kernel places is never at address 0");
        let pages = SharedPages { file, start, reserved: reserve, owner: incarnation() };
        // SAFETY: concerns the mapping just made only. A child that had it could store to it unnoticed.
        unsafe { madvise(start.as_ptr().cast(), reserve, Advice::LinuxDontFork) }?;
        // SAFETY: as above. Advice: the dump of a process that crashes would take memory for every page of the mapping,
        // also for those that have none, and of an RPC area that is more than a machine has.
        let _ = unsafe { madvise(start.as_ptr().cast(), reserve, Advice::LinuxDontDump) };
        // SAFETY: as above. Advice: a huge page would be protected and copied as one; kernels without them refuse.
        let _ = unsafe { madvise(start.as_ptr().cast(), reserve, Advice::LinuxNoHugepage) };
        Ok(pages)
    }

    /// From now on only the mappings that exist can be stored to: another process can map the file to load only.
    ///
    /// # Errors
    /// EINVAL before Linux 5.1.
    pub(crate) fn let_others_load_only(&self) -> io::Result<()> {
        Ok(rustix::fs::fcntl_add_seals(&self.file, SealFlags::FUTURE_WRITE)?)
    }

    /// The file behind it.
    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Makes sure that there is memory for a range, so that no store to it can fail. It reads as zeros where it had
    /// none.
    ///
    /// # Errors
    /// Those of `fallocate(2)`.
    pub(crate) fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        super::file::uninterrupted(|| rustix::fs::fallocate(&self.file, FallocateFlags::KEEP_SIZE, offset, len))
    }

    /// Gives the memory of a range back: it reads as zeros, and has to be allocated again.
    ///
    /// # Errors
    /// Those of `fallocate(2)`.
    pub(crate) fn release(&self, offset: u64, len: u64) -> io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        super::file::uninterrupted(|| rustix::fs::fallocate(&self.file, flags, offset, len))
    }

    /// Bytes of the file.
    ///
    /// # Errors
    /// Those of `fstat(2)`.
    pub(crate) fn file_len(&self) -> io::Result<u64> {
        Ok(u64::try_from(rustix::fs::fstat(&self.file)?.st_size).unwrap_or(0))
    }

    /// The first byte from an offset on, a multiple of a page, for which the file has memory; `None` if there is
    /// none. It moves the position of the file, which means nothing otherwise.
    ///
    /// # Errors
    /// Those of `lseek(2)`.
    pub(crate) fn memory_from(&self, offset: u64) -> io::Result<Option<u64>> {
        match rustix::fs::seek(&self.file, SeekFrom::Data(offset)) {
            Err(Errno::NXIO) => Ok(None),
            found => Ok(Some(found?)),
        }
    }

    /// Makes the file longer. It can't be made shorter.
    ///
    /// # Errors
    /// Those of `ftruncate(2)`.
    pub(crate) fn grow(&self, len: u64) -> io::Result<()> {
        Ok(super::file::set_len(&self.file, len)?)
    }

    /// Puts memory of this process's own in the place of the mapping, zeros to begin with: from then on it neither
    /// sees nor changes what the others have. In one step, for all threads.
    ///
    /// # Errors
    /// Those of `mmap(2)`.
    pub(crate) fn forsake(&self) -> io::Result<()> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        let start = self.start.as_ptr().cast();
        // SAFETY: exactly the mapping that `map` made. What is there instead is as long, loaded from and stored to as
        // before, and the words in it are valid as any bytes.
        let mapped = unsafe { mmap_anonymous(start, self.reserved, protection, flags | MapFlags::FIXED) };
        debug_assert!(mapped.is_err() || mapped == Ok(start));
        // SAFETY: as above. A child must not have what it would not give back.
        mapped.and_then(|_| unsafe { madvise(start, self.reserved, Advice::LinuxDontFork) })?;
        Ok(())
    }

    /// Bytes of address space.
    pub(crate) fn reserved(&self) -> usize {
        self.reserved
    }

    /// The first address.
    pub(crate) fn address(&self) -> usize {
        self.start.as_ptr() as usize
    }

    /// The address of a byte.
    pub(crate) fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset <= self.reserved);
        self.start.as_ptr().wrapping_add(offset)
    }

    /// Copies bytes out of the memory, which nobody should be storing to: what a store meanwhile leaves in the copy
    /// is not specified.
    pub(crate) fn copy_out(&self, offset: usize, into: &mut [u8]) {
        assert!(offset.checked_add(into.len()).is_some_and(|end| end <= self.reserved));
        // SAFETY: within the mapping, and the destination is Rust's own memory, so elsewhere.
        unsafe { copy::read_racy(self.at(offset), into) }
    }

    /// Copies bytes into the memory; up to 64 of them, where all is aligned to 8, in whole words.
    pub(crate) fn copy_in(&self, offset: usize, from: &[u8]) {
        assert!(offset.checked_add(from.len()).is_some_and(|end| end <= self.reserved));
        // SAFETY: as above, with the source elsewhere; no reference into the mapping exists but to atomic words.
        unsafe { copy::copy_cached(self.at(offset), from) }
    }

    /// Has the kernel store to the memory, as programs do: `read(2)` into it.
    #[cfg(test)]
    pub(crate) fn read_from(&self, file: &std::fs::File, offset: usize, len: usize) -> io::Result<usize> {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.reserved));
        // SAFETY: within the mapping, to which no reference exists but to atomic words.
        let done = unsafe { libc::read(std::os::fd::AsRawFd::as_raw_fd(file), self.at(offset).cast(), len) };
        usize::try_from(done).map_err(|_| io::Error::last_os_error())
    }

    /// The memory from byte `offset` as `count` words of 64 bits, which must not be used as others elsewhere.
    pub(crate) fn words(&self, offset: usize, count: usize) -> &[AtomicU64] {
        self.check::<AtomicU64>(offset, count);
        // SAFETY: within the mapping, aligned, valid as any bytes, and atomic, so that stores by others are no race.
        unsafe { slice::from_raw_parts(self.at(offset).cast_const().cast(), count) }
    }

    /// The same in words of 32 bits.
    pub(crate) fn halves(&self, offset: usize, count: usize) -> &[AtomicU32] {
        self.check::<AtomicU32>(offset, count);
        // SAFETY: as above.
        unsafe { slice::from_raw_parts(self.at(offset).cast_const().cast(), count) }
    }

    fn check<T>(&self, offset: usize, count: usize) {
        let end = count.checked_mul(size_of::<T>()).and_then(|bytes| bytes.checked_add(offset));
        assert!(offset.is_multiple_of(align_of::<T>()) && end.is_some_and(|end| end <= self.reserved));
    }
}

impl Drop for SharedPages {
    fn drop(&mut self) {
        if self.owner != incarnation() {
            // A forked child has no such mapping; something of its own may be there.
            return;
        }
        // SAFETY: exactly the mapping that `map` made, whose words and addresses nobody uses any more.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.reserved) };
        debug_assert!(unmapped.is_ok(), "munmap of a whole mapping: {unmapped:?}");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn two_mappings_are_one_memory() {
        let one = SharedPages::create("untorn-test", 8192, 1 << 20).unwrap();
        let two = SharedPages::map(one.file().try_clone_to_owned().unwrap(), 8192).unwrap();
        one.words(4096, 2)[1].store(0x0102_0304, Ordering::Relaxed);
        let mut bytes = [0; 16];
        two.copy_out(4096, &mut bytes);
        assert_eq!(bytes, [0, 0, 0, 0, 0, 0, 0, 0, 4, 3, 2, 1, 0, 0, 0, 0]);
        two.copy_in(4100, &[9]);
        assert_eq!(one.words(4096, 1)[0].load(Ordering::Relaxed), 9 << 32);
        assert_eq!([0, 4096].map(|from| one.memory_from(from).unwrap()), [Some(4096); 2]);
        one.grow(1 << 20).unwrap();
        assert_eq!(one.memory_from(8192).unwrap(), None);
        assert_eq!(two.file_len().unwrap(), 1 << 20);
        assert!(one.grow(4096).is_err(), "it was made shorter");
    }

    /// A dump that has them takes memory for the whole mapping.
    #[test]
    fn no_dump_of_a_crash_has_the_pages() {
        let pages = SharedPages::create("untorn-test", 4096, 4096).unwrap();
        let start = format!("{:x}-", pages.start.as_ptr() as usize);
        let mappings = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let own = mappings.lines().skip_while(|line| !line.starts_with(&start));
        let flags = own.into_iter().find(|line| line.starts_with("VmFlags:")).unwrap();
        assert!(flags.split_whitespace().any(|flag| flag == "dd"), "{flags}");
    }

    #[test]
    #[should_panic(expected = "self.reserved")]
    fn words_beyond_the_mapping_are_refused() {
        SharedPages::create("untorn-test", 4096, 4096).unwrap().words(4088, 2);
    }
}
