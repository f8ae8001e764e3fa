//! A process under `ptrace(2)`: each system call it makes is looked at before the kernel sees it, and carried out, answered
//! or shortened.
//!
//! The answer to a call that is not carried out is what the program finds in its register, so an error is exactly what the
//! kernel would have said. A shortened write is a real one: the kernel writes fewer bytes and says how many.

use std::collections::HashMap;
use std::io;
use std::process::Child;

use nix::errno::Errno;
use nix::libc::user_regs_struct;
use nix::sys::ptrace::{self, Options};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::error::{Error, Result};

/// A system call that is about to be made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    /// Its number (`SYS_...`).
    pub(super) number: i64,
    /// Its arguments.
    pub(super) arguments: [u64; 6],
    /// The thread that makes it.
    pub(super) thread: i32,
}

/// What becomes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// The kernel carries it out.
    Run,
    /// It is not carried out, and returns this: a result, or an errno below 0.
    Answer(i64),
    /// The kernel carries it out with this as its third argument, the count of bytes.
    Shorten(u64),
}

/// How a traced process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// By itself, with this code.
    Exited(i32),
    /// By this signal.
    Killed(i32),
}

/// What a thread does when it stops next.
enum Next {
    /// It enters a call.
    Enters,
    /// It returns from one, to which this is done.
    Returns(Action, user_regs_struct),
}

/// Traces `child`, which has one thread that matters and waits for input, and lets it go with `start` once it is traced; then asks
/// `policy` about every call of it and of the threads it starts, until it has ended.
///
/// The calling thread becomes the tracer, and waits for every child it has.
///
/// # Errors
/// What `ptrace(2)` says; the child is killed then.
pub(super) fn trace(
    child: &mut Child,
    start: impl FnOnce() -> io::Result<()>,
    policy: &mut dyn FnMut(&Entry) -> Action,
) -> Result<End> {
    let leader = Pid::from_raw(child.id().cast_signed());
    let outcome = attach(leader).and_then(|()| {
        start().map_err(Error::system("start the workload"))?;
        follow(leader, policy)
    });
    if outcome.is_err() {
        // It is gone already, or it ends now; there is nothing to be said about either.
        let _ = child.kill();
        let _ = child.wait();
    }
    outcome
}

fn attach(leader: Pid) -> Result<()> {
    let options = Options::PTRACE_O_TRACESYSGOOD | Options::PTRACE_O_TRACECLONE | Options::PTRACE_O_EXITKILL;
    match ptrace::seize(leader, options) {
        Ok(()) => {}
        Err(Errno::EPERM | Errno::ENOSYS) => {
            return Err(Error::missing(
                "the right to trace a child process (ptrace)",
                "allow it in the container (the system call ptrace), and in /proc/sys/kernel/yama/ptrace_scope (1 or less)",
            ));
        }
        Err(errno) => return Err(failed("trace the workload", errno)),
    }
    ptrace::interrupt(leader).map_err(|errno| failed("stop the workload", errno))
}

fn failed(what: &str, errno: Errno) -> Error {
    Error::system(what)(errno.into())
}

/// Every stop of every thread, until the process has ended.
fn follow(leader: Pid, policy: &mut dyn FnMut(&Entry) -> Action) -> Result<End> {
    let mut threads: HashMap<Pid, Next> = HashMap::new();
    loop {
        // Of other threads' children this one knows nothing, so several can trace at once.
        let stop = waitpid(None, Some(WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD));
        let (thread, signal) = match stop {
            Ok(WaitStatus::Exited(thread, code)) if thread == leader => return Ok(End::Exited(code)),
            Ok(WaitStatus::Signaled(thread, signal, _)) if thread == leader => return Ok(End::Killed(signal as i32)),
            Ok(WaitStatus::Exited(thread, _) | WaitStatus::Signaled(thread, _, _)) => {
                threads.remove(&thread);
                continue;
            }
            Ok(WaitStatus::PtraceSyscall(thread)) => {
                match step(thread, threads.remove(&thread).unwrap_or(Next::Enters), policy) {
                    Ok(next) => drop(threads.insert(thread, next)),
                    // Another thread has ended the process meanwhile.
                    Err(Errno::ESRCH) => continue,
                    Err(errno) => return Err(failed("look at a call of the workload", errno)),
                }
                (thread, None)
            }
            Ok(WaitStatus::PtraceEvent(thread, _, _)) => (thread, None),
            Ok(WaitStatus::Stopped(thread, signal)) => (thread, Some(signal)),
            Ok(_) | Err(Errno::EINTR) => continue,
            Err(errno) => return Err(failed("wait for the workload", errno)),
        };
        match ptrace::syscall(thread, signal) {
            Ok(()) | Err(Errno::ESRCH) => {}
            Err(errno) => return Err(failed("go on with the workload", errno)),
        }
    }
}

/// A thread at the beginning or the end of a call.
fn step(thread: Pid, next: Next, policy: &mut dyn FnMut(&Entry) -> Action) -> nix::Result<Next> {
    match next {
        Next::Enters => {
            let before = ptrace::getregs(thread)?;
            let entry = Entry {
                number: before.orig_rax.cast_signed(),
                arguments: [before.rdi, before.rsi, before.rdx, before.r10, before.r8, before.r9],
                thread: thread.as_raw(),
            };
            let action = policy(&entry);
            let mut changed = before;
            match action {
                Action::Run => {}
                // No call has this number, so the kernel does nothing.
                Action::Answer(_) => changed.orig_rax = u64::MAX,
                Action::Shorten(count) => changed.rdx = count,
            }
            if action != Action::Run {
                ptrace::setregs(thread, changed)?;
            }
            Ok(Next::Returns(action, before))
        }
        Next::Returns(action, before) => {
            if action != Action::Run {
                let mut after = ptrace::getregs(thread)?;
                // A call leaves its arguments as they were, and compilers count on it.
                after.rdx = before.rdx;
                if let Action::Answer(value) = action {
                    after.rax = value.cast_unsigned();
                }
                ptrace::setregs(thread, after)?;
            }
            Ok(Next::Enters)
        }
    }
}
