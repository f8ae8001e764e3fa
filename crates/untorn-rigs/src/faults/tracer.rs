//! A process under `ptrace(2)`: system calls that its filter names are looked at before the kernel sees them, and carried
//! out, answered or shortened.
//!
//! The answer to a call that is not carried out is what the program finds in its register, so an error is exactly what the
//! kernel would have said. A shortened write is a real one: the kernel writes fewer bytes and says how many.
//!
//! The process filters itself ([`Filter`], `seccomp(2)`), so it runs at full speed but for the calls that matter.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::process::Child;

use nix::errno::Errno;
use nix::libc::{self, user_regs_struct};
use nix::sys::ptrace::{self, Options};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch};

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

/// What becomes of a process's calls without anybody being asked, and of which the tracer is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Filter {
    /// These are not carried out and return an errno, or 0.
    pub(super) answered: BTreeMap<i64, u32>,
    /// Of these the tracer is asked; of all that are not answered, if there are none.
    pub(super) asked: BTreeSet<i64>,
}

impl Filter {
    /// Lays it over this thread and those that it will start, for good. With no tracer, calls that one would be asked about
    /// fail.
    ///
    /// # Errors
    /// What `seccomp(2)` says.
    pub(super) fn lay(&self) -> io::Result<()> {
        let one = |numbers: &[i64], others, these| {
            let rules = numbers.iter().map(|number| (*number, Vec::new())).collect();
            let filter = SeccompFilter::new(rules, others, these, TargetArch::x86_64).map_err(io::Error::other)?;
            let program = BpfProgram::try_from(filter).map_err(io::Error::other)?;
            seccompiler::apply_filter(&program).map_err(io::Error::other)
        };
        // Of what several filters say of a call, an errno counts before a question.
        if self.asked.is_empty() {
            // This one lays further filters, and is answered by none.
            one(&[libc::SYS_seccomp, libc::SYS_prctl], SeccompAction::Trace(0), SeccompAction::Allow)?;
        } else {
            let asked: Vec<i64> = self.asked.iter().copied().collect();
            one(&asked, SeccompAction::Allow, SeccompAction::Trace(0))?;
        }
        for (number, errno) in &self.answered {
            one(&[*number], SeccompAction::Allow, SeccompAction::Errno(*errno))?;
        }
        Ok(())
    }
}

/// Traces `child`, which has one thread that matters and waits for input, and lets it go with `start` once it is traced; then
/// asks `policy` about the calls that its filter says, of it and of the threads it starts, until it has ended.
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
    let options = Options::PTRACE_O_TRACESYSGOOD
        | Options::PTRACE_O_TRACESECCOMP
        | Options::PTRACE_O_TRACECLONE
        | Options::PTRACE_O_EXITKILL;
    match ptrace::seize(leader, options) {
        Ok(()) => Ok(()),
        Err(Errno::EPERM | Errno::ENOSYS) => Err(Error::missing(
            "permission to trace a child process (ptrace)",
            "allow the system call ptrace in the container, and set /proc/sys/kernel/yama/ptrace_scope to 1 or less",
        )),
        Err(errno) => Err(failed("trace the workload", errno)),
    }
}

fn failed(what: &str, errno: Errno) -> Error {
    Error::system(what)(errno.into())
}

/// Every stop of every thread, until the process has ended.
fn follow(leader: Pid, policy: &mut dyn FnMut(&Entry) -> Action) -> Result<End> {
    // Threads in a shortened call, with the registers it began with.
    let mut shortened: BTreeMap<Pid, user_regs_struct> = BTreeMap::new();
    loop {
        // Of other threads' children this one knows nothing, so several can trace at once.
        let stop = waitpid(None, Some(WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD));
        let gone_on = match stop {
            Ok(WaitStatus::Exited(thread, code)) if thread == leader => return Ok(End::Exited(code)),
            Ok(WaitStatus::Signaled(thread, signal, _)) if thread == leader => return Ok(End::Killed(signal as i32)),
            Ok(WaitStatus::PtraceEvent(thread, _, libc::PTRACE_EVENT_SECCOMP)) => {
                decide(thread, policy).and_then(|before| match before {
                    Some(before) => {
                        shortened.insert(thread, before);
                        ptrace::syscall(thread, None)
                    }
                    None => ptrace::cont(thread, None),
                })
            }
            Ok(WaitStatus::PtraceSyscall(thread)) => {
                let restored = shortened.remove(&thread).map_or(Ok(()), |before| restore(thread, &before));
                restored.and_then(|()| ptrace::cont(thread, None))
            }
            Ok(WaitStatus::PtraceEvent(thread, ..)) => ptrace::cont(thread, None),
            Ok(WaitStatus::Stopped(thread, signal)) => ptrace::cont(thread, signal),
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(errno) => return Err(failed("wait for the workload", errno)),
        };
        match gone_on {
            // Another thread may have ended the process meanwhile.
            Ok(()) | Err(Errno::ESRCH) => {}
            Err(errno) => return Err(failed("resume the workload", errno)),
        }
    }
}

/// A thread is about to make a call. The registers are given back if they must be restored after it.
fn decide(thread: Pid, policy: &mut dyn FnMut(&Entry) -> Action) -> nix::Result<Option<user_regs_struct>> {
    let before = ptrace::getregs(thread)?;
    let entry = Entry {
        number: before.orig_rax.cast_signed(),
        arguments: [before.rdi, before.rsi, before.rdx, before.r10, before.r8, before.r9],
        thread: thread.as_raw(),
    };
    let mut changed = before;
    match policy(&entry) {
        Action::Run => Ok(None),
        Action::Answer(value) => {
            // No call has this number, so the kernel does nothing and leaves the result alone.
            changed.orig_rax = u64::MAX;
            changed.rax = value.cast_unsigned();
            ptrace::setregs(thread, changed)?;
            Ok(None)
        }
        Action::Shorten(count) => {
            changed.rdx = count;
            ptrace::setregs(thread, changed)?;
            Ok(Some(before))
        }
    }
}

/// A call leaves its arguments as they were, and compilers count on it.
fn restore(thread: Pid, before: &user_regs_struct) -> nix::Result<()> {
    let mut after = ptrace::getregs(thread)?;
    after.rdx = before.rdx;
    ptrace::setregs(thread, after)
}
