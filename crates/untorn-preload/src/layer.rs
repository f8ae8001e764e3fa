//! What the layer does for each call, whatever its name: tell whether it is about a managed file, and ask the server.

use core::ffi::{CStr, c_char, c_int};
use core::sync::atomic::{AtomicBool, Ordering};

use libc::{iovec, stat};
use untorn_wire::{MARK, Operation, PLAIN, Reply, Request, is_chosen as is_chosen_by};

use crate::client::{self, Memory};
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
    let managed = raw::fstat(fd).map(|status| ask(Operation::Managed, None, of_file(&status)));
    let plain = !matches!(managed, Ok(Err(_) | Ok(Reply { managed: 1, .. })));
    if plain {
        known::forget(fd);
    }
    plain
}

/// Says that the layer is in this process.
pub(crate) fn hello() {
    if ask(Operation::Hello, None, Request::default()).is_ok_and(|reply| reply.value == 1) {
        // What it wrote before an `exec` may be in an open epoch: its end has to be told, though it holds nothing any
        // more.
        see();
    }
}

/// Asks the server; `None` if this process has not the right to, and so is like any program outside: nothing that it
/// opens is managed.
fn ask_within_reach(
    operation: Operation,
    fd: Option<c_int>,
    request: Request,
    out: Memory<'_>,
) -> Option<Result<Reply, c_int>> {
    client::ask_within_reach(&Request { operation: operation as u32, ..request }, fd, out)
}

/// Asks the server, without memory of the program's.
pub(crate) fn ask(operation: Operation, fd: Option<c_int>, request: Request) -> Result<Reply, c_int> {
    ask_with(operation, fd, request, Memory::NONE, Memory::NONE)
}

/// Asks the server.
pub(crate) fn ask_with(
    operation: Operation,
    fd: Option<c_int>,
    request: Request,
    out: Memory<'_>,
    into: Memory<'_>,
) -> Result<Reply, c_int> {
    client::ask(&Request { operation: operation as u32, ..request }, fd, out, into)
}

/// Tells the server what a program was told no to. The errno of it.
pub(crate) fn refuse(call: &CStr, why: &CStr, fd: c_int) -> c_int {
    refuse_at(call, why, fd, c"")
}

/// The same of a path.
pub(crate) fn refuse_at(call: &CStr, why: &CStr, fd: c_int, path: &CStr) -> c_int {
    let piece =
        |text: &CStr| iovec { iov_base: text.as_ptr().cast_mut().cast(), iov_len: text.to_bytes_with_nul().len() };
    let pieces = [piece(call), piece(why), piece(path)];
    let payload = pieces.iter().map(|piece| piece.iov_len).sum::<usize>();
    let request = Request { payload: payload as u64, ..Request::default() };
    let fd = Some(fd).filter(|fd| *fd >= 0);
    // Whether anybody hears it or not, the answer is no.
    let _ = ask_with(Operation::Refused, fd, request, Memory::new(&pieces, payload), Memory::NONE);
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
        ask_to_demote(call, Some(fd), Request::default())?;
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
        ask_to_demote(call, None, of_file(status))
    } else {
        Ok(())
    }
}

/// The same of all files.
///
/// # Errors
/// That of bringing to one of them what was written.
pub(crate) fn demote_all(call: &CStr) -> Result<(), c_int> {
    ask_to_demote(call, None, Request { number: 1, ..Request::default() })
}

/// A name of a file is about to be removed; if it stays, the file is to be demoted.
///
/// # Errors
/// That of bringing to it what was written, where that has to be.
pub(crate) fn about_to_be_removed(status: &stat) -> Result<(), c_int> {
    if is_regular(status) && may_be_managed(status.st_dev, status.st_ino) {
        let answer = ask_within_reach(Operation::Leave, None, of_file(status), Memory::NONE);
        return answer.map_or(Ok(()), |answer| answer.map(drop));
    }
    Ok(())
}

/// A file lost its last name: nothing can be recovered to it any more. If nobody can say so, its last close finds it
/// out.
pub(crate) fn was_removed(status: &stat) {
    if is_regular(status) && may_be_managed(status.st_dev, status.st_ino) {
        let _ = ask(Operation::Unnamed, None, of_file(status));
    }
}

/// The same of a file that something was left of in its directory, though nobody may have it open.
pub(crate) fn was_removed_from(directory: c_int, status: &stat) {
    let _ = ask(Operation::Unnamed, Some(directory), of_file(status));
}

/// Some files may have, which nobody told the server of.
///
/// # Errors
/// EIO if it is gone.
pub(crate) fn some_lost_their_names() -> Result<(), c_int> {
    ask(Operation::Unnamed, None, Request { number: 1, ..Request::default() }).map(drop)
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
    let piece = [iovec { iov_base: name.as_ptr().cast_mut().cast(), iov_len: name.len() }];
    let request = Request { payload: name.len() as u64, ..of_file(status) };
    let memory = Memory::new(&piece, name.len());
    let answer = ask_within_reach(Operation::Move, Some(directory), request, memory);
    answer.map_or(Ok(false), |answer| answer.map(|reply| reply.managed == 1))
}

/// A directory is about to be renamed.
///
/// # Errors
/// EOPNOTSUPP if that cannot be followed; that of what is done before.
pub(crate) fn about_to_move_directory(directory: c_int) -> Result<(), c_int> {
    let answer = ask_within_reach(Operation::MoveDirectory, Some(directory), Request::default(), Memory::NONE);
    answer.map_or(Ok(()), |answer| answer.map(drop))
}

/// It has the name, or it has not got it.
///
/// # Errors
/// That of having the log say so.
pub(crate) fn was_moved(status: &stat, done: bool) -> Result<(), c_int> {
    ask(Operation::Moved, None, Request { number: done.into(), ..of_file(status) }).map(drop)
}

/// A descriptor of a file that is about to be opened with `flags`, if the server has its only description: opening it
/// would have to wait until what was written is durable there. The file is regular, and `open` would succeed.
pub(crate) fn reopened(status: &stat, flags: c_int) -> Option<c_int> {
    if !may_be_managed(status.st_dev, status.st_ino) || raw::is_limited() {
        return None;
    }
    let request = Request { operation: Operation::Reopen as u32, flags, ..of_file(status) };
    let (reply, fd) = client::ask_for_descriptor(&request, None);
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
            if fd.is_some() || reply.is_ok_and(|reply| reply.managed == 1) {
                let _ = was_closed(status);
            }
            None
        }
    }
}

fn ask_to_demote(call: &CStr, fd: Option<c_int>, request: Request) -> Result<(), c_int> {
    let name = call.to_bytes_with_nul();
    let piece = [iovec { iov_base: name.as_ptr().cast_mut().cast(), iov_len: name.len() }];
    let (request, memory) = (Request { payload: name.len() as u64, ..request }, Memory::new(&piece, name.len()));
    if fd.is_some() {
        // Whoever was handed one that is managed has to have it demoted.
        return ask_with(Operation::Demote, fd, request, memory, Memory::NONE).map(drop);
    }
    ask_within_reach(Operation::Demote, None, request, memory).map_or(Ok(()), |answer| answer.map(drop))
}

/// The kernel took less of a write to a file than this process put into the log.
///
/// # Errors
/// That of bringing to the file what was written before.
#[cold]
pub(crate) fn take_back(device: u64, inode: u64) -> Result<(), c_int> {
    ask(Operation::TakeBack, None, Request { device, inode, ..Request::default() }).map(drop)
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
    ask(Operation::Open, Some(fd), Request { number: truncate.into(), ..Request::default() })?;
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
    let Some(reply) = ask_within_reach(Operation::Open, Some(fd), Request::default(), Memory::NONE) else {
        return Ok(false);
    };
    let boosted = reply?.managed == 1;
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

fn of_file(status: &stat) -> Request {
    Request { device: status.st_dev, inode: status.st_ino, ..Request::default() }
}

/// Whether the server has a file among its own. If nobody can say, a file that the board has is not opened.
fn is_managed_file(status: &stat) -> Result<bool, c_int> {
    match ask(Operation::Managed, None, of_file(status)) {
        Ok(reply) => Ok(reply.managed == 1),
        Err(_) if client::board().is_none() => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Whether a file is under the engine, with a sidecar in its directory.
pub(crate) fn is_covered(status: &stat) -> bool {
    is_regular(status)
        && may_be_managed(status.st_dev, status.st_ino)
        && ask(Operation::Managed, None, of_file(status)).is_ok_and(|reply| reply.value >= 1)
}

/// Whether a file is under the engine, and has no other name in the directory with its sidecar, which is `directory`.
pub(crate) fn has_last_name_in(status: &stat, directory: &stat) -> bool {
    let request = Request { number: directory.st_ino, ..of_file(status) };
    is_regular(status)
        && may_be_managed(status.st_dev, status.st_ino)
        && ask(Operation::Managed, None, request).is_ok_and(|reply| reply.value == 2)
}

/// Length and time of the last change of a file, where the kernel does not know them.
pub(crate) fn overlay(status: &stat) -> Result<Option<Reply>, c_int> {
    if settings().is_none() || !is_regular(status) || !may_be_managed(status.st_dev, status.st_ino) {
        return Ok(None);
    }
    Ok(Some(ask(Operation::Status, None, of_file(status))?).filter(|reply| reply.managed == 1))
}

/// How long the file of a managed descriptor is.
pub(crate) fn length(fd: c_int) -> Result<i64, c_int> {
    match overlay(&raw::fstat(fd)?)? {
        Some(reply) => Ok(reply.value),
        // The server may have taken it for a plain one since the kernel was asked.
        None => raw::fstat(fd).map(|status| status.st_size),
    }
}

/// The program set a file's times, or another attribute that a sync makes durable.
pub(crate) fn attributes_were_set(status: &stat) -> Result<(), c_int> {
    if is_regular(status) && may_be_managed(status.st_dev, status.st_ino) {
        ask(Operation::Times, None, of_file(status))?;
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
    ask(Operation::Closed, None, of_file(status)).map(drop)
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
        let _ = ask(Operation::Exit, None, Request::default());
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
