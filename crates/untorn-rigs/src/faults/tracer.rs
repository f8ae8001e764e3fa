//! A process under `ptrace(2)`. The tracer sees the system calls named by its filter before the kernel does, and lets
//! the kernel execute them, answers them, or shortens them.
//!
//! The program finds the tracer's answer in its register, so an error is exactly what the kernel would return. A
//! shortened write is real: the kernel writes fewer bytes and returns their number.
//!
//! The process filters itself ([`Filter`], `seccomp(2)`), so it runs at full speed except for the filtered calls.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::process::Child;

use nix::errno::Errno;
use nix::libc::{self, user_regs_struct};
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, kill};
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

/// How to handle a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// The kernel executes it.
    Run,
    /// The kernel does not execute it. It returns this: a result, or a negative errno.
    Answer(i64),
    /// The kernel does not execute it: the process is killed by SIGKILL.
    Kill,
    /// The kernel executes it with this third argument, the number of bytes.
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

/// The filter of a process: the calls it answers itself, and the calls it passes to the tracer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Filter {
    /// These calls are not executed, and return an errno or 0.
    pub(super) answered: BTreeMap<i64, u32>,
    /// These calls go to the tracer. If the list is empty, all calls that are not answered go there.
    pub(super) asked: BTreeSet<i64>,
}

impl Filter {
    /// Installs it permanently for this thread and the threads it starts. Without a tracer, the calls that go to the
    /// tracer fail.
    ///
    /// # Errors
    /// The error of `seccomp(2)`.
    pub(super) fn lay(&self) -> io::Result<()> {
        let one = |numbers: &[i64], others, these| {
            let rules = numbers.iter().map(|number| (*number, Vec::new())).collect();
            let filter = SeccompFilter::new(rules, others, these, TargetArch::x86_64).map_err(io::Error::other)?;
            let program = BpfProgram::try_from(filter).map_err(io::Error::other)?;
            seccompiler::apply_filter(&program).map_err(io::Error::other)
        };
        // If several filters match a call, an errno takes precedence over tracing.
        if self.asked.is_empty() {
            // This call installs further filters; no filter may answer it.
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

/// Traces `child`, which has one relevant thread and waits for input. Calls `start` once it is traced, then asks
/// `policy` about the filtered calls of the child and of its threads until it has ended.
///
/// The calling thread becomes the tracer, and waits for every child it has.
///
/// # Errors
/// The error of `ptrace(2)`; the child is then killed.
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
        // The child has ended already, or ends now; errors don't matter.
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

/// Handles every stop of every thread until the process has ended.
fn follow(leader: Pid, policy: &mut dyn FnMut(&Entry) -> Action) -> Result<End> {
    // Threads in a shortened call, with the registers it began with.
    let mut shortened: BTreeMap<Pid, user_regs_struct> = BTreeMap::new();
    loop {
        // This thread does not see other threads' children, so several threads can trace at once.
        let stop = waitpid(None, Some(WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD));
        let gone_on = match stop {
            Ok(WaitStatus::Exited(thread, code)) if thread == leader => return Ok(End::Exited(code)),
            Ok(WaitStatus::Signaled(thread, signal, _)) if thread == leader => return Ok(End::Killed(signal as i32)),
            Ok(WaitStatus::PtraceEvent(thread, _, libc::PTRACE_EVENT_SECCOMP)) => decide(leader, thread, policy)
                .and_then(|before| match before {
                    Some(before) => {
                        shortened.insert(thread, before);
                        ptrace::syscall(thread, None)
                    }
                    None => ptrace::cont(thread, None),
                }),
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

/// Handles a call that a thread is about to make. Returns the registers if they must be restored after it.
fn decide(leader: Pid, thread: Pid, policy: &mut dyn FnMut(&Entry) -> Action) -> nix::Result<Option<user_regs_struct>> {
    let before = ptrace::getregs(thread)?;
    let entry = Entry {
        number: before.orig_rax.cast_signed(),
        arguments: [before.rdi, before.rsi, before.rdx, before.r10, before.r8, before.r9],
        thread: thread.as_raw(),
    };
    let mut changed = before;
    match policy(&entry) {
        Action::Run => Ok(None),
        Action::Kill => {
            // A thread that stopped before its call never makes it.
            kill(leader, Signal::SIGKILL)?;
            Ok(None)
        }
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

/// Restores the registers of the arguments: a call does not change them, and compilers rely on that.
fn restore(thread: Pid, before: &user_regs_struct) -> nix::Result<()> {
    let mut after = ptrace::getregs(thread)?;
    after.rdx = before.rdx;
    ptrace::setregs(thread, after)
}
