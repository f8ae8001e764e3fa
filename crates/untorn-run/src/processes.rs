//! The processes of a run, and how each of them ended: because it wanted to, or not.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::holders;

struct Process {
    /// None once its end was seen: a run may have any number of processes, and descriptors are few.
    handle: Option<Arc<OwnedFd>>,
    /// It said that it is about to end.
    exiting: bool,
    /// So many of its threads said that it is about to become another program, and nothing after that.
    becoming: u32,
    /// Which program it runs.
    program: u64,
}

/// The processes that ever connected, by number.
#[derive(Default)]
pub(crate) struct Processes {
    all: Mutex<HashMap<u32, Process>>,
    /// Programs that there were.
    programs: AtomicU64,
}

impl Processes {
    fn lock(&self) -> MutexGuard<'_, HashMap<u32, Process>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a process. Returns what its end can be awaited on if it was not known yet.
    ///
    /// # Errors
    /// Those of `pidfd_open(2)`: it is gone already.
    pub(crate) fn meet(&self, process: u32) -> io::Result<Option<Arc<OwnedFd>>> {
        let mut all = self.lock();
        // A number is used again after its process has ended.
        if all.get_mut(&process).is_some_and(|known| !known.has_ended()) {
            return Ok(None);
        }
        let number = i32::try_from(process).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidInput)?;
        let handle = Arc::new(pidfd_open(number, PidfdFlags::empty())?);
        let met = Process { handle: Some(handle.clone()), exiting: false, becoming: 0, program: self.new_program() };
        all.insert(process, met);
        Ok(Some(handle))
    }

    /// A process says that it ends because it wants to.
    pub(crate) fn exits(&self, process: u32) {
        if let Some(process) = self.lock().get_mut(&process) {
            process.exiting = true;
        }
    }

    fn new_program(&self) -> u64 {
        self.programs.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The program that a process runs, by a number that no other one has. It may have become it without a word, and
    /// has the number of the one before then.
    pub(crate) fn program(&self, process: u32) -> u64 {
        self.lock().get(&process).map_or(0, |process| process.program)
    }

    /// A process says that it runs a program with the layer, from its beginning on; the program.
    pub(crate) fn begins(&self, process: u32) -> u64 {
        let program = self.new_program();
        if let Some(process) = self.lock().get_mut(&process) {
            (process.becoming, process.program) = (0, program);
        }
        program
    }

    /// A thread of a program says that its process is about to become another one, or that it has not. What it said
    /// may be heard when the process is another one already, and is of no account then.
    pub(crate) fn becomes(&self, process: u32, program: u64, becoming: bool) {
        if let Some(process) = self.lock().get_mut(&process).filter(|process| process.program == program) {
            process.becoming = if becoming { process.becoming + 1 } else { process.becoming.saturating_sub(1) };
        }
    }

    /// Whether a process may have become a program without the layer.
    pub(crate) fn has_become(&self, process: u32) -> bool {
        self.lock().get(&process).is_some_and(|process| process.becoming > 0)
    }

    /// Whether a process ended without having said so: it was killed, or crashed. Not if it had become a program that
    /// cannot say so: that has written nothing.
    pub(crate) fn died(&self, process: u32) -> bool {
        self.lock().get_mut(&process).is_none_or(|process| !process.is_willing() && process.has_ended())
    }

    /// The same, and whether it is about to, which is waited for: others may know of its end already, by a lock that
    /// it had, or a pipe.
    pub(crate) fn dies(&self, process: u32) -> bool {
        self.died(process) || !self.is_willing(process) && holders::await_dying(process) || self.died(process)
    }

    /// Whether a process ends because it wants to, if it does.
    pub(crate) fn is_willing(&self, process: u32) -> bool {
        self.lock().get(&process).is_some_and(Process::is_willing)
    }

    /// The process that `handle` stands for has ended, and its handle is of no more use.
    pub(crate) fn ended(&self, process: u32, handle: &Arc<OwnedFd>) {
        if let Some(process) = self.lock().get_mut(&process)
            && process.handle.as_ref().is_some_and(|known| Arc::ptr_eq(known, handle))
        {
            process.handle = None;
        }
    }
}

impl Process {
    fn is_willing(&self) -> bool {
        self.exiting || self.becoming > 0
    }

    fn has_ended(&mut self) -> bool {
        let Some(handle) = &self.handle else { return true };
        let mut polled = [PollFd::from_borrowed_fd(handle.as_fd(), PollFlags::IN)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let ended = poll(&mut polled, Some(&at_once)).is_ok_and(|ready| ready > 0);
        if ended {
            self.handle = None;
        }
        ended
    }
}

/// Waits until a process has ended.
pub(crate) fn await_end(handle: &OwnedFd) {
    loop {
        let mut polled = [PollFd::from_borrowed_fd(handle.as_fd(), PollFlags::IN)];
        match poll(&mut polled, None) {
            Err(rustix::io::Errno::INTR) => {}
            _ => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn only_a_process_that_did_not_announce_its_exit_has_died() {
        let processes = Processes::default();
        for exiting in [false, true] {
            let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
            let handle = processes.meet(child.id()).unwrap().unwrap();
            assert!(processes.meet(child.id()).unwrap().is_none(), "known already");
            assert!(!processes.died(child.id()));
            if exiting {
                processes.exits(child.id());
            }
            child.kill().unwrap();
            await_end(&handle);
            assert_eq!(processes.died(child.id()), !exiting);
            child.wait().unwrap();
            assert_eq!(processes.died(child.id()), !exiting);
            processes.ended(child.id(), &handle);
            assert_eq!(processes.died(child.id()), !exiting);
            assert_eq!(Arc::strong_count(&handle), 1, "a descriptor is kept for a process that is gone");
        }
    }

    #[test]
    fn an_exec_of_a_silent_program_does_not_count_as_a_death() {
        let processes = Processes::default();
        for (becoming, died) in [
            (&[true][..], false),
            (&[true, false], true),
            // Of two threads the one that is faster fails.
            (&[true, true, false], false),
            (&[true, true, false, false], true),
        ] {
            let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
            let handle = processes.meet(child.id()).unwrap().unwrap();
            let program = processes.program(child.id());
            for becoming in becoming {
                processes.becomes(child.id(), program, *becoming);
            }
            assert_eq!(processes.has_become(child.id()), !died);
            child.kill().unwrap();
            await_end(&handle);
            assert_eq!(processes.died(child.id()), died);
            child.wait().unwrap();
        }
    }

    #[test]
    fn messages_of_the_earlier_program_are_ignored_after_exec() {
        let processes = Processes::default();
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let handle = processes.meet(child.id()).unwrap().unwrap();
        let earlier = processes.program(child.id());
        processes.becomes(child.id(), earlier, true);
        let program = processes.begins(child.id());
        assert_ne!(program, earlier);
        assert_eq!(processes.program(child.id()), program);
        assert!(!processes.has_become(child.id()));
        // A thread that did not live to see the other one's success had said it, too.
        processes.becomes(child.id(), earlier, true);
        assert!(!processes.has_become(child.id()));
        processes.becomes(child.id(), program, true);
        processes.becomes(child.id(), earlier, false);
        assert!(processes.has_become(child.id()));
        processes.becomes(child.id(), program, false);
        child.kill().unwrap();
        await_end(&handle);
        assert!(processes.died(child.id()));
        child.wait().unwrap();
    }

    #[test]
    fn a_process_that_never_connected_counts_as_died() {
        assert!(Processes::default().died(1));
    }
}
