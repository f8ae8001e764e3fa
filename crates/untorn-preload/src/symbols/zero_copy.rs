//! `sendfile` and `copy_file_range` with a managed descriptor: copied by way of memory.

use core::ffi::{c_int, c_uint, c_void};
use core::ptr::null_mut;

use libc::{off_t, size_t, ssize_t, stat};

use super::{calls, data};
use crate::layer::{boosts, demoted, fail, is_regular, managed, overlay};
use crate::raw::{self, word};

/// Bytes copied at a time, where there is memory for them.
const PIECE: usize = 1 << 20;
/// Where there is none, and for little.
const SMALL: usize = 8 << 10;

/// One end of a copy: a descriptor, at its own offset or at the program's.
struct End {
    fd: c_int,
    offset: *mut off_t,
    at: Option<off_t>,
}

impl End {
    /// # Safety
    /// The offset is null or the program's.
    unsafe fn new(fd: c_int, offset: *mut off_t) -> Self {
        // SAFETY: the caller's.
        End { fd, offset, at: unsafe { offset.as_ref() }.copied() }
    }

    fn read(&self, into: *mut c_void, count: usize) -> ssize_t {
        match self.at {
            // SAFETY: into our buffer.
            Some(at) => unsafe { data::pread(self.fd, into, count, at) },
            // SAFETY: into our buffer.
            None => unsafe { data::read(self.fd, into, count) },
        }
    }

    fn write(&self, from: *const c_void, count: usize) -> ssize_t {
        match self.at {
            // SAFETY: from our buffer.
            Some(at) => unsafe { data::pwrite(self.fd, from, count, at) },
            // SAFETY: from our buffer.
            None => unsafe { data::write(self.fd, from, count) },
        }
    }

    /// So many bytes were copied.
    fn advance(&mut self, count: ssize_t) {
        self.at = self.at.map(|at| at + count as off_t);
    }

    /// Where the next byte is.
    fn position(&self) -> off_t {
        // SAFETY: takes numbers.
        self.at.unwrap_or_else(|| unsafe { data::lseek(self.fd, 0, libc::SEEK_CUR) })
    }

    fn tell(&self) {
        if let Some(at) = self.at {
            // SAFETY: the program's offset, which was read above.
            unsafe { *self.offset = at };
        }
    }
}

/// Copies by way of memory.
fn by_memory(mut to: End, mut from: End, count: size_t) -> ssize_t {
    let mut small = [0_u8; SMALL];
    let large = if count > SMALL { map(count.min(PIECE)) } else { None };
    let (buffer, room) = large.unwrap_or((small.as_mut_ptr().cast(), SMALL));
    let mut done = 0;
    let mut outcome = 0;
    while done < count {
        let read = from.read(buffer, (count - done).min(room));
        if read <= 0 {
            outcome = read;
            break;
        }
        let written = to.write(buffer, read as usize);
        if written < read && from.at.is_none() {
            // What was not written was not taken either. On a pipe that is not so; it is no managed file then, and
            // its reader has what it has.
            // SAFETY: takes numbers.
            let _ = unsafe { data::lseek(from.fd, written.max(0) as off_t - read as off_t, libc::SEEK_CUR) };
        }
        if written < 0 {
            outcome = written;
            break;
        }
        done += written as usize;
        from.advance(written);
        to.advance(written);
        if written < read {
            break;
        }
    }
    from.tell();
    to.tell();
    if let Some((mapped, len)) = large {
        // SAFETY: mapped above, and used no more. It leaves errno as it is.
        let _ = unsafe { raw::result(libc::SYS_munmap, [mapped as usize, len, 0, 0, 0, 0]) };
    }
    if done == 0 { outcome } else { done as ssize_t }
}

/// Memory to copy by way of, which takes no allocator's lock.
fn map(len: usize) -> Option<(*mut c_void, usize)> {
    let protection = word(libc::PROT_READ | libc::PROT_WRITE);
    let flags = word(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: new memory, at no place of importance.
    let mapped = unsafe { raw::result(libc::SYS_mmap, [0, len, protection, flags, usize::MAX, 0]) };
    Some((mapped.ok()? as *mut c_void, len))
}

/// Status of a regular file, with the length that it has under untorn.
fn regular(fd: c_int) -> Result<stat, c_int> {
    let mut status = raw::fstat(fd)?;
    if status.st_mode & libc::S_IFMT == libc::S_IFDIR {
        return Err(libc::EISDIR);
    }
    if !is_regular(&status) {
        return Err(libc::EINVAL);
    }
    if let Some(reply) = overlay(&status)? {
        status.st_size = reply.len as i64;
    }
    Ok(status)
}

/// `copy_file_range`, with the kernel's checks (copy_file_range(2)).
fn copy_range(from: End, to: End, count: size_t, flags: c_uint) -> Result<ssize_t, c_int> {
    if flags != 0 {
        return Err(libc::EINVAL);
    }
    let (source, target) = (regular(from.fd)?, regular(to.fd)?);
    let access = |fd: c_int| raw::fcntl(fd, libc::F_GETFL, 0);
    let (reads, writes) = (access(from.fd)?, access(to.fd)?);
    if reads & libc::O_ACCMODE == libc::O_WRONLY
        || writes & libc::O_ACCMODE == libc::O_RDONLY
        || writes & libc::O_APPEND != 0
    {
        return Err(libc::EBADF);
    }
    let (first, second) = (from.position(), to.position());
    let ends = |at: off_t| (at as u64).checked_add(count as u64);
    if ends(first).is_none() || ends(second).is_none() {
        return Err(libc::EOVERFLOW);
    }
    if first < 0 || second < 0 {
        return Err(libc::EINVAL);
    }
    let count = count.min(usize::try_from(source.st_size.saturating_sub(first)).unwrap_or(0));
    let len = count as off_t;
    let same = (source.st_dev, source.st_ino) == (target.st_dev, target.st_ino);
    if same && second.saturating_add(len) > first && first.saturating_add(len) > second {
        return Err(libc::EINVAL);
    }
    Ok(by_memory(to, from, count))
}

calls! {
    [sendfile sendfile64](out: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t =
        if boosts() {
            demoted(c"sendfile", &[out]).map(|failed| failed as ssize_t)
        } else if managed(out) || managed(from) {
            // SAFETY: null is no offset.
            let to = unsafe { End::new(out, null_mut()) };
            // SAFETY: null, or the program's offset.
            let from = unsafe { End::new(from, offset) };
            Some(by_memory(to, from, count))
        } else {
            None
        };
    [copy_file_range](
        from: c_int, from_at: *mut off_t, to: c_int, to_at: *mut off_t, count: size_t, flags: c_uint
    ) -> ssize_t = if boosts() {
        demoted(c"copy_file_range", &[to]).map(|failed| failed as ssize_t)
    } else if managed(from) || managed(to) {
        // SAFETY: null, or the program's offset.
        let from = unsafe { End::new(from, from_at) };
        // SAFETY: as above.
        let to = unsafe { End::new(to, to_at) };
        Some(copy_range(from, to, count, flags).unwrap_or_else(|errno| fail(errno) as ssize_t))
    } else {
        None
    };
}
