//! The handler of SIGBUS, and the one it was installed over.
//!
//! # Safety
//! What runs in the handler is async-signal-safe: system calls, atomic words, no lock, no allocation, no panic. It
//! changes memory in one place only, a page of a mapping whose owner asked for it (see [`super::MappingWatch`]).
#![allow(unsafe_code)]

use std::ffi::{c_int, c_short, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use rustix::thread::{MembarrierCommand, membarrier};

use super::table::{Visit, visit};
use crate::sys::{OnceForAll, page_size};

/// The head of `siginfo_t` as the kernel fills it for a fault; libc does not name all of it. Source: `sigaction(2)`,
/// `asm-generic/siginfo.h`.
#[repr(C)]
struct FaultInfo {
    signal: c_int,
    errno: c_int,
    code: c_int,
    address: *mut c_void,
    /// With BUS_MCEERR_AR: how many low bits of the address mean nothing.
    address_lsb: c_short,
}

/// What SIGBUS did before; null until the handler is installed. Leaked, since a handler may be reading it.
static PREVIOUS: AtomicPtr<libc::sigaction> = AtomicPtr::new(ptr::null_mut());

/// Installs the handler, once in the life of the process.
///
/// # Errors
/// What `sigaction(2)` says.
pub(super) fn install() -> io::Result<()> {
    static INSTALLED: OnceForAll = OnceForAll::new();
    INSTALLED.run(install_now)
}

fn install_now() -> io::Result<()> {
    // The handler needs both, and the first call of either may do more than is safe there. A kernel without the barrier
    // says so, now and in the handler; see `make_visible`.
    let _ = (page_size(), membarrier(MembarrierCommand::RegisterPrivateExpedited));
    // Known before the handler can run.
    let before = action(None)?;
    if before.sa_sigaction == on_sigbus as *const () as usize {
        // This process was forked while a thread of its parent was at the end of this function, which had noted the
        // previous handler by then. Noting this one in its place would have it call itself for ever.
        return Ok(());
    }
    PREVIOUS.store(Box::into_raw(Box::new(before)), Ordering::Release);
    // The environment that the previous handler asked for, as far as it is not ours to choose.
    let mut ours = before;
    ours.sa_sigaction = on_sigbus as *const () as usize;
    // A signal that comes in the middle of serving a fault waits: its handler might fault on a page of the same kind,
    // with SIGBUS blocked, which kills. Those that a fault raises are as the previous handler wants them.
    for signal in 1..=libc::SIGRTMAX() {
        let raised = [libc::SIGSEGV, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGABRT, libc::SIGSYS];
        if !raised.contains(&signal) {
            // SAFETY: a set of the stack's; a number that stands for no signal is refused, which harms nothing.
            unsafe { libc::sigaddset(&mut ours.sa_mask, signal) };
        }
    }
    ours.sa_flags = (before.sa_flags & (libc::SA_NODEFER | libc::SA_RESTART)) | libc::SA_SIGINFO | libc::SA_ONSTACK;
    let replaced = action(Some(&ours))?;
    if replaced.sa_sigaction != before.sa_sigaction {
        // Another thread installed one in between.
        PREVIOUS.store(Box::into_raw(Box::new(replaced)), Ordering::Release);
    }
    Ok(())
}

/// Sets what SIGBUS does, if there is something to set, and returns what it did.
fn action(new: Option<&libc::sigaction>) -> io::Result<libc::sigaction> {
    let new = new.map_or(ptr::null(), ptr::from_ref);
    let mut old = MaybeUninit::uninit();
    // SAFETY: both pointers are good for the call, and the handler set here is one of this module's, the default one,
    // or one that the program had set itself.
    if unsafe { libc::sigaction(libc::SIGBUS, new, old.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded and has filled it.
    Ok(unsafe { old.assume_init() })
}

extern "C" fn on_sigbus(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: every thread has an errno, at an address that stays.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let before = unsafe { errno.read() };
    // SAFETY: the kernel hands a filled `siginfo_t` to a handler installed with SA_SIGINFO, which is as large at least.
    let fault = unsafe { info.cast::<FaultInfo>().read() };
    let mended = matches!(fault.code, libc::BUS_ADRERR | libc::BUS_OBJERR | libc::BUS_MCEERR_AR)
        && visit(fault.address as usize).is_some_and(|visit| {
            // Only the kernel's refusal to hand a page out is the keeper's to see to; a page that failed is lost.
            (fault.code == libc::BUS_ADRERR && visit.serve(fault.address as usize)) || mend(&visit, &fault)
        });
    // SAFETY: as above. The interrupted code may be about to read it.
    unsafe { errno.write(before) };
    if !mended {
        pass_on(signal, fault.code, info, context);
    }
}

/// Notes the loss and puts zeros in the place of the page. False if the kernel has no memory for that.
fn mend(visit: &Visit, fault: &FaultInfo) -> bool {
    // A failed DIMM may take more than a page with it, and then the address says no more than which of these it was.
    let lsb = if fault.code == libc::BUS_MCEERR_AR { fault.address_lsb.clamp(0, 40) as u32 } else { 0 };
    let unit = page_size().max(1 << lsb);
    let first = fault.address as usize & !(unit - 1);
    let start = first.max(visit.start);
    let end = first.saturating_add(unit).min(visit.end);
    visit.note((start - visit.start) as u64);
    make_visible();
    let protection = if visit.writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
    let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
    // SAFETY: the pages lie in a watched range, which belongs to its watch and stays mapped while this visit lasts. Its
    // bytes are only ever accessed through raw pointers, by code that expects them to change.
    unsafe { mmap_anonymous(ptr::without_provenance_mut(start), end - start, protection, flags) }.is_ok()
}

/// Makes every thread of the process see what this one has stored, before they go on.
///
/// Without it a thread could ask whether a page was lost, early, while its own store before that is still on its way to
/// the page, and the page be replaced in between. The kernel interrupts each running thread: what it has done by then
/// found the page as it was, and what it does from then on sees the note. Where the kernel lacks the call the time that
/// a system call takes has to do, which no CPU runs ahead of itself for.
fn make_visible() {
    let _ = membarrier(MembarrierCommand::PrivateExpedited);
}

/// Does what would have been done without this handler.
fn pass_on(signal: c_int, code: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // A fault comes again when the handler returns; what was sent, by `kill(2)` or as advice, does not.
    let repeats = code > 0 && code != libc::BUS_MCEERR_AO;
    // SAFETY: null, or a leaked action, complete before its address was stored.
    let previous = unsafe { PREVIOUS.load(Ordering::Acquire).cast_const().as_ref() };
    let Some(previous) = previous else { return die(repeats) };
    match previous.sa_sigaction {
        libc::SIG_IGN if !repeats => {}
        // The kernel does not let a fault be ignored.
        libc::SIG_DFL | libc::SIG_IGN => die(repeats),
        address => {
            if previous.sa_flags & libc::SA_RESETHAND != 0 {
                reset();
            }
            // The handler itself is responsible for what it does; it is called as the kernel would.
            if previous.sa_flags & libc::SA_SIGINFO != 0 {
                // SAFETY: the program installed this address as a handler of three arguments.
                let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
                    unsafe { std::mem::transmute(address) };
                handler(signal, info, context);
            } else {
                // SAFETY: the program installed this address as a handler of one argument.
                let handler: extern "C" fn(c_int) = unsafe { std::mem::transmute(address) };
                handler(signal);
            }
        }
    }
}

/// The default action, which ends the process: at once when the handler returns and the fault repeats, or by a signal
/// of its own.
fn die(repeats: bool) {
    reset();
    if !repeats {
        // SAFETY: sends this thread a signal.
        unsafe { libc::raise(libc::SIGBUS) };
    }
}

/// Gives SIGBUS its default action.
fn reset() {
    // SAFETY: all zeros is a valid action: the default one, with no flags and an empty mask.
    let default: libc::sigaction = unsafe { std::mem::zeroed() };
    // It cannot fail for this signal; if it did, the fault would only come again.
    let _ = action(Some(&default));
}
