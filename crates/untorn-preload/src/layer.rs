//! What the layer does for each call, whatever its name: tell whether it is about a managed file, and ask the server.

use core::ffi::{CStr, c_char, c_int};
use core::sync::atomic::{AtomicBool, Ordering};

use libc::{iovec, stat};
use untorn_wire::{
    AttributesSet, Closed, Demote, DemoteAll, DemoteDescriptor, Exit, FileId, Hello, LastName, Leave, MARK, Managed,
    ManagedReply, Move, MoveDirectory, Moved, Open, Operation, PLAIN, Refused, Reopen, SomeUnnamed, Status,
    StatusReply, TakeBack, Unnamed, UnnamedIn, is_chosen as is_chosen_by,
};

use crate::client::{self, Memory, ask, ask_with, ask_within_reach};
use crate::path::Path;
use crate::settings::{may_be_managed, see, seen, settings};
use crate::{beside, known, raw};

/// Sets errno and returns -1.
pub(crate) fn fail(errno: c_int) -> i64 {
    // SAFETY: the address is this thread's own.
    unsafe { *raw::errno() = errno };
    -1
}

/// A result as the C library returns it.
pub(crate) fn returned(result: Result<i64, c_int>) -> i64 {
    result.unwrap_or_else(fail)
}

/// A result as the C library returns it; `None` if the file has become a plain one, for the C library to go on.
pub(crate) fn served(result: Result<i64, c_int>) -> Option<i64> {
    if result == Err(PLAIN) { None } else { Some(returned(result)) }
}

/// Whether the kernel keeps our mark with a descriptor.
pub(crate) fn is_marked(fd: c_int) -> bool {
    raw::fcntl(fd, raw::GETSIG, 0) == Ok(MARK)
}

/// Whether calls on a descriptor are to be served.
#[inline]
pub(crate) fn managed(fd: c_int) -> bool {
    seen() && fd >= 0 && (is_marked(fd) || known::is_known(fd) && !is_plain(fd))
}

/// Whether the file of a descriptor that has lost its mark is the kernel's. If nobody can say, it is not: what was
/// written to it may be in the log only.
#[cold]
fn is_plain(fd: c_int) -> bool {
    let managed = raw::fstat(fd).map(|status| ask(&Managed { file: id(&status) }, None));
    let plain = !matches!(managed, Ok(Err(_) | Ok(ManagedReply { managed: true, .. })));
    if plain {
        known::forget(fd);
    }
    plain
}

/// Says that the layer is in this process.
pub(crate) fn hello() {
    if ask(&Hello {}, None).is_ok_and(|reply| reply.asked_before) {
        // What it wrote before an `exec` may be in an open epoch: its end has to be told, though it holds nothing any
        // more.
        see();
    }
}

/// Tells the server what a program was told no to. The errno of it.
pub(crate) fn refuse(call: &CStr, why: &CStr, fd: c_int) -> c_int {
    refuse_at(call, why, fd, c"")
}

/// The same of a path.
pub(crate) fn refuse_at(call: &CStr, why: &CStr, fd: c_int, path: &CStr) -> c_int {
    let [[call], [why], [path]] = [call, why, path].map(named);
    let fd = Some(fd).filter(|fd| *fd >= 0);
    // Whether anybody hears it or not, the answer is no.
    let _ = ask_with(&Refused {}, fd, whole(&[call, why, path]), Memory::NONE);
    libc::ENOTSUP
}

/// Whether what cannot be served is handed to the kernel, instead of refused.
#[inline]
pub(crate) fn boosts() -> bool {
    settings().is_some_and(|settings| settings.boost)
}

/// Makes the file of a descriptor a plain one, if it is managed, before the kernel sees the call: for the mode that
/// does so.
///
/// # Errors
/// That of bringing to the file what was written.
pub(crate) fn demote(call: &CStr, fd: c_int) -> Result<(), c_int> {
    if managed(fd) {
        let name = named(call);
        // A process that was handed a managed one has to have it demoted.
        ask_with(&DemoteDescriptor {}, Some(fd), whole(&name), Memory::NONE)?;
        // The C library may close it without us from now on, and the number be another file's.
        known::forget(fd);
    }
    Ok(())
}

/// The same of a file that may be managed under another descriptor.
///
/// # Errors
/// That of bringing to the file what was written.
pub(crate) fn demote_file(call: &CStr, status: &stat) -> Result<(), c_int> {
    if is_regular(status) && may_be_managed(status.st_dev, status.st_ino) {
        ask_to_demote(call, &Demote { file: id(status) })
    } else {
        Ok(())
    }
}

/// The same of all files.
///
/// # Errors
/// That of bringing to one of them what was written.
pub(crate) fn demote_all(call: &CStr) -> Result<(), c_int> {
    ask_to_demote(call, &DemoteAll {})
}

/// A name of a file is about to be removed; if it stays, the file is to be demoted.
///
/// # Errors
/// That of bringing to it what was written, where that has to be.
pub(crate) fn about_to_be_removed(status: &stat) -> Result<(), c_int> {
    if is_regular(status) && may_be_managed(status.st_dev, status.st_ino) {
        let answer = ask_within_reach(&Leave { file: id(status) }, None, Memory::NONE);
        return answer.map_or(Ok(()), |answer| answer.map(drop));
    }
    Ok(())
}

/// A file lost its last name: nothing can be recovered to it any more. If nobody can say so, its last close finds it
/// out.
pub(crate) fn was_removed(status: &stat) {
    if is_regular(status) && may_be_managed(status.st_dev, status.st_ino) {
        let _ = ask(&Unnamed { file: id(status) }, None);
    }
}

/// The same of a file that something was left of in its directory, though nobody may have it open.
pub(crate) fn was_removed_from(directory: c_int, status: &stat) {
    let _ = ask(&UnnamedIn { file: id(status) }, Some(directory));
}

/// Some files may have, which nobody told the server of.
///
/// # Errors
/// EIO if it is gone.
pub(crate) fn some_lost_their_names() -> Result<(), c_int> {
    ask(&SomeUnnamed {}, None).map(drop)
}

/// Whether a file is one whose rename the log may be able to follow.
pub(crate) fn may_be_moved(status: &stat) -> bool {
    is_regular(status) && status.st_nlink == 1 && may_be_managed(status.st_dev, status.st_ino)
}

/// A file is about to get a name in a directory; whether it has to be said what became of that.
///
/// # Errors
/// That of bringing to it, or to what has the name, what was written, where that has to be.
pub(crate) fn about_to_be_moved(status: &stat, directory: c_int, name: &[u8]) -> Result<bool, c_int> {
    let name = piece(name);
    let answer = ask_within_reach(&Move { file: id(status) }, Some(directory), whole(&name));
    answer.map_or(Ok(false), |answer| answer.map(|reply| reply.followed))
}

/// A directory is about to be renamed.
///
/// # Errors
/// EOPNOTSUPP if that cannot be followed; that of what is done before.
pub(crate) fn about_to_move_directory(directory: c_int) -> Result<(), c_int> {
    let answer = ask_within_reach(&MoveDirectory {}, Some(directory), Memory::NONE);
    answer.map_or(Ok(()), |answer| answer.map(drop))
}

/// It has the name, or it has not got it.
///
/// # Errors
/// That of having the log say so.
pub(crate) fn was_moved(status: &stat, done: bool) -> Result<(), c_int> {
    ask(&Moved { file: id(status), done }, None).map(drop)
}

/// A descriptor of a file that is about to be opened with `flags`, if the server has its only description: opening it
/// would have to wait until what was written is durable there. The file is regular, and `open` would succeed.
pub(crate) fn reopened(status: &stat, flags: c_int) -> Option<c_int> {
    if !may_be_managed(status.st_dev, status.st_ino) || raw::is_limited() {
        return None;
    }
    let (reply, fd) = client::ask_for_descriptor(&Reopen { file: id(status), flags }, None);
    let usable = |fd: &c_int| {
        // The C library's streams of these numbers would go past us.
        *fd > libc::STDERR_FILENO && (flags & libc::O_CLOEXEC != 0 || raw::fcntl(*fd, libc::F_SETFD, 0).is_ok())
    };
    match fd.filter(|fd| reply.is_ok() && usable(fd)) {
        Some(fd) => {
            known::note(fd);
            see();
            beside::set_up();
            Some(fd)
        }
        None => {
            if let Some(fd) = fd {
                let _ = raw::close(fd);
            }
            // The server takes it for open again. It never came here if this process has as many descriptors as it may.
            if fd.is_some() || reply.is_ok_and(|reply| reply.reopened) {
                let _ = was_closed(status);
            }
            None
        }
    }
}

fn ask_to_demote(call: &CStr, request: &impl Operation) -> Result<(), c_int> {
    let name = named(call);
    ask_within_reach(request, None, whole(&name)).map_or(Ok(()), |answer| answer.map(drop))
}

/// Bytes that go along with a request.
fn piece(bytes: &[u8]) -> [iovec; 1] {
    [iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }]
}

/// A text, and the zero at its end.
fn named(text: &CStr) -> [iovec; 1] {
    piece(text.to_bytes_with_nul())
}

/// All bytes of pieces.
fn whole(pieces: &[iovec]) -> Memory<'_> {
    Memory::new(pieces, pieces.iter().map(|piece| piece.iov_len).sum())
}

/// The kernel took less of a write to a file than this process put into the log.
///
/// # Errors
/// That of bringing to the file what was written before.
#[cold]
pub(crate) fn take_back(device: u64, inode: u64) -> Result<(), c_int> {
    ask(&TakeBack { file: FileId { device, inode } }, None).map(drop)
}

/// In the mode that demotes: makes the descriptors' files plain ones. What the call fails with, if that fails.
pub(crate) fn demoted(call: &CStr, descriptors: &[c_int]) -> Option<i64> {
    descriptors.iter().find_map(|fd| demote(call, *fd).err()).map(fail)
}

/// Whether a status is one of a regular file.
pub(crate) fn is_regular(status: &stat) -> bool {
    status.st_mode & libc::S_IFMT == libc::S_IFREG
}

/// Whether the globs choose a descriptor's file, by the path that the kernel has for it.
#[inline(never)] // The path stands on the stack no longer than this takes.
pub(crate) fn is_chosen(fd: c_int) -> bool {
    let Some(settings) = settings().filter(|settings| !settings.globs.is_empty()) else { return false };
    let Some(path) = Path::named_by(fd) else { return false };
    is_chosen_by(settings.globs.iter().map(Vec::as_slice), |glob| fast_glob::glob_match(glob, path.bytes()))
}

/// File systems whose files are questions to the kernel: procfs, sysfs, both cgroups, debugfs, tracefs, securityfs,
/// configfs.
const NO_FILES: [i64; 8] =
    [0x9fa0, 0x6265_6572, 0x0027_e0eb, 0x6367_7270, 0x6462_6720, 0x7472_6163, 0x7363_6673, 0x6265_6570];

/// Makes a descriptor that was just opened a managed one, if its file is to be: chosen by a glob, by `O_ATOMIC`, or
/// managed already. Truncates its file then, if asked to. Whether it is managed.
///
/// # Errors
/// Why the file cannot be managed.
pub(crate) fn adopt(fd: c_int, atomic: bool, truncate: bool) -> Result<bool, c_int> {
    if settings().is_none() {
        return Ok(false);
    }
    let status = raw::fstat(fd)?;
    if !is_regular(&status) {
        return Ok(false);
    }
    if boosts() {
        return boost(fd);
    }
    // One without a name is chosen by none: memory (`memfd_create`) that processes share, or what was removed.
    let chosen = atomic
        || may_be_managed(status.st_dev, status.st_ino) && is_managed_file(&status)?
        || status.st_nlink > 0 && is_chosen(fd);
    if !chosen || raw::file_system(fd).is_ok_and(|kind| NO_FILES.contains(&kind)) {
        return Ok(false);
    }
    ask(&Open { truncate }, Some(fd))?;
    raw::fcntl(fd, raw::SETSIG, MARK)?;
    see();
    Ok(true)
}

/// Whether the kernel reads and writes for this process by itself.
static ASYNCHRONOUS: AtomicBool = AtomicBool::new(false);

/// No file that this process opens is boosted from now on. What it has open is to be demoted after this.
pub(crate) fn boost_no_more() {
    ASYNCHRONOUS.store(true, Ordering::SeqCst);
}

/// Has a regular file's descriptor that was just opened boosted, if that is to be and can be. The server marks it.
fn boost(fd: c_int) -> Result<bool, c_int> {
    // The C library's streams of these numbers would go past us.
    if fd <= libc::STDERR_FILENO {
        return Ok(false);
    }
    let flags = raw::fcntl(fd, libc::F_GETFL, 0)?;
    if ASYNCHRONOUS.load(Ordering::Relaxed)
        || flags & libc::O_ACCMODE == libc::O_RDONLY
        || raw::is_limited()
        || !is_chosen(fd)
    {
        return Ok(false);
    }
    if raw::file_system(fd).is_ok_and(|kind| NO_FILES.contains(&kind)) {
        return Ok(false);
    }
    // Who has the file was made to let go of it, before it was opened.
    let Some(reply) = ask_within_reach(&Open { truncate: false }, Some(fd), Memory::NONE) else {
        return Ok(false);
    };
    let boosted = reply?.managed;
    if boosted {
        known::note(fd);
        see();
        beside::set_up();
    }
    // Asked last: either this sees it, or whoever demotes all files finds this one among them.
    if boosted && ASYNCHRONOUS.load(Ordering::SeqCst) {
        demote(c"io_uring_setup", fd)?;
        return Ok(false);
    }
    Ok(boosted)
}

fn id(status: &stat) -> FileId {
    FileId { device: status.st_dev, inode: status.st_ino }
}

/// Whether the server has a file among its own. If nobody can say, a file that the board has is not opened.
fn is_managed_file(status: &stat) -> Result<bool, c_int> {
    match ask(&Managed { file: id(status) }, None) {
        Ok(reply) => Ok(reply.managed),
        Err(_) if client::board().is_none() => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Whether a file is under the engine, with a sidecar in its directory.
pub(crate) fn is_covered(status: &stat) -> bool {
    is_regular(status)
        && may_be_managed(status.st_dev, status.st_ino)
        && ask(&Managed { file: id(status) }, None).is_ok_and(|reply| reply.has_sidecar)
}

/// Whether a file is under the engine, and has no other name in the directory with its sidecar, which is `directory`.
pub(crate) fn has_last_name_in(status: &stat, directory: &stat) -> bool {
    let request = LastName { file: id(status), directory: directory.st_ino };
    is_regular(status)
        && may_be_managed(status.st_dev, status.st_ino)
        && ask(&request, None).is_ok_and(|reply| reply.last)
}

/// Length and time of the last change of a file, where the kernel does not know them.
pub(crate) fn overlay(status: &stat) -> Result<Option<StatusReply>, c_int> {
    if settings().is_none() || !is_regular(status) || !may_be_managed(status.st_dev, status.st_ino) {
        return Ok(None);
    }
    Ok(Some(ask(&Status { file: id(status) }, None)?).filter(|reply| reply.differs))
}

/// How long the file of a managed descriptor is.
pub(crate) fn length(fd: c_int) -> Result<i64, c_int> {
    match overlay(&raw::fstat(fd)?)? {
        Some(reply) => Ok(reply.len as i64),
        // The server may have taken it for a plain one since the kernel was asked.
        None => raw::fstat(fd).map(|status| status.st_size),
    }
}

/// The program set a file's times, or another attribute that a sync makes durable.
pub(crate) fn attributes_were_set(status: &stat) -> Result<(), c_int> {
    if is_regular(status) && may_be_managed(status.st_dev, status.st_ino) {
        ask(&AttributesSet { file: id(status) }, None)?;
    }
    Ok(())
}

/// The file of a managed descriptor that is about to be closed; `None` for any other.
pub(crate) fn about_to_close(fd: c_int) -> Option<stat> {
    if managed(fd) { raw::fstat(fd).ok() } else { None }
}

/// A descriptor of a file was closed. If it was the last, this commits what was written, or lets the file rest.
///
/// # Errors
/// That of the commit.
pub(crate) fn was_closed(status: &stat) -> Result<(), c_int> {
    ask(&Closed { file: id(status) }, None).map(drop)
}

/// Closes a descriptor of a file of which the server would have none. It may have been the last one, and have kept
/// the server from letting go of the file.
pub(crate) fn close_refused(fd: c_int) {
    let status = raw::fstat(fd).ok().filter(is_regular);
    let _ = raw::close(fd);
    if let Some(status) = status.filter(|status| may_be_managed(status.st_dev, status.st_ino)) {
        let _ = was_closed(&status);
    }
}

/// This process ends because it wants to.
pub(crate) fn exits() {
    // Where files are boosted what was written stays written, however the process ends.
    if seen() && !boosts() {
        let _ = ask(&Exit {}, None);
    }
}

/// A string of the program's.
///
/// # Safety
/// `text` is null or a string that ends in a zero.
pub(crate) unsafe fn text<'a>(text: *const c_char) -> Option<&'a CStr> {
    // SAFETY: the caller's.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) })
}
