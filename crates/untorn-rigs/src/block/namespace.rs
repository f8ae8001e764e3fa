//! Mounts that nobody else sees, and that end with the process.

use std::io;
use std::path::Path;
use std::thread;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use crate::error::{Error, Result};

/// Runs `work` on a thread with a mount namespace of its own. Processes and threads that it starts share the namespace;
/// the rest of this process does not. When the last of them ends, by whatever signal, the kernel unmounts all that was
/// mounted there.
pub fn isolated<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T> {
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            enter()?;
            Ok(work())
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn enter() -> Result<()> {
    match unshare(CloneFlags::CLONE_NEWNS) {
        Ok(()) => {}
        Err(nix::Error::EPERM) => {
            return Err(Error::missing(
                "the right to mount (CAP_SYS_ADMIN)",
                "run it as root, outside a confined container",
            ));
        }
        Err(error) => return Err(Error::io("make a mount namespace for", Path::new("/"), io::Error::from(error))),
    }
    let nothing = None::<&str>;
    mount(nothing, "/", nothing, MsFlags::MS_REC | MsFlags::MS_PRIVATE, nothing)
        .map_err(|error| Error::io("keep mounts private below", Path::new("/"), io::Error::from(error)))
}
