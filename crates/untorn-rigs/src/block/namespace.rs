//! Mounts that only this process and its children see, and that end with them.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Stdio};
use std::thread;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use super::filesystem::program;
use crate::error::{Error, Result};

/// Runs `work` on a thread with its own mount namespace. Processes and threads that it starts share the namespace; the
/// rest of this process does not. When the last of them ends, even by SIGKILL, the kernel unmounts everything mounted
/// there.
pub fn isolated<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T> {
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            enter()?;
            let _held = Holder::start()?;
            Ok(work())
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// A process that holds the namespace until this process has ended.
///
/// The kernel unmounts a killed process's private mounts before it closes its files. If one of those files served the
/// disk below such a mount, the process would wait for itself forever.
struct Holder(Child);

impl Holder {
    fn start() -> Result<Self> {
        // It reads until the other end of the pipe is closed, by Drop or by the kernel when this process ends. It has
        // its own process group, so that it survives an interrupt from the terminal.
        let mut cat = program("cat")?;
        let child = cat.stdin(Stdio::piped()).stdout(Stdio::null()).process_group(0).spawn();
        child.map(Holder).map_err(|error| Error::io("run", Path::new("cat"), error))
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        // It now exits by itself; a failed wait only leaves a zombie.
        let _ = self.0.wait();
    }
}

fn enter() -> Result<()> {
    match unshare(CloneFlags::CLONE_NEWNS) {
        Ok(()) => {}
        Err(nix::Error::EPERM) => {
            return Err(Error::missing(
                "permission to mount (CAP_SYS_ADMIN)",
                "run it as root, outside a restricted container",
            ));
        }
        Err(error) => return Err(Error::io("create a mount namespace for", Path::new("/"), io::Error::from(error))),
    }
    let nothing = None::<&str>;
    // Shared in the end, with nobody but copies of this namespace: a program under `untorn run` has one, and would keep
    // a disk in use that is unmounted here.
    for how in [MsFlags::MS_PRIVATE, MsFlags::MS_SHARED] {
        mount(nothing, "/", nothing, MsFlags::MS_REC | how, nothing)
            .map_err(|error| Error::io("make mounts private below", Path::new("/"), io::Error::from(error)))?;
    }
    Ok(())
}
