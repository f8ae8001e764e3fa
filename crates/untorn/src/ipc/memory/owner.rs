//! Starting to serve: creating a working copy, or taking over where another process left it.

use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::backing::{Backing, Before, Opener, REPLACED};
use super::control::{CLOSED, Control, OPEN, PAGE};
use super::server::Server;
use crate::error::{Error, Result};
use crate::ipc::connection::{event, notify};
use crate::ipc::membership::KILLED_OWNER_TIMEOUT;
use crate::ipc::message::is_shortage_number;
use crate::ipc::rendezvous::Rendezvous;
use crate::sys::shared::SharedPages;

/// How long the backing may say that it is in use when a process that had it may have just died. After a
/// certain death the limit is [`KILLED_OWNER_TIMEOUT`]: a file that is taken for lost is poisoned for all.
const CLOSING_OWNER_TIMEOUT: Duration = Duration::from_secs(1);

/// A serving thread of this process; dropping it ends the serving in good order.
pub(super) struct Owner {
    stop: Arc<OwnedFd>,
    resigned: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Owner {
    /// Whether it has ended by itself.
    pub(super) fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Whether it has ended by itself, for want of descriptors to let others in.
    pub(super) fn resigned(&self) -> bool {
        self.resigned.load(Ordering::SeqCst)
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        notify(&self.stop);
        if let Some(thread) = self.thread.take() {
            // A panic in it was caught there.
            let _ = thread.join();
        }
    }
}

/// Begins a new shared memory of what the opener opens and serves it. The place says that nobody else takes part.
///
/// # Errors
/// Those of the opener; [`Error::Io`], [`Error::Invalid`].
pub(super) fn begin(rendezvous: &Arc<Rendezvous>, opener: &Arc<dyn Opener>, reserve: u64) -> Result<Owner> {
    let failed = |error| Error::io("create a working copy of", rendezvous.path(), error);
    let backing = open(rendezvous, opener, None, CLOSING_OWNER_TIMEOUT)?;
    let len = backing.len();
    let reserved = reserve.max(len).max(1).div_ceil(PAGE as u64);
    let bytes = reserved.checked_mul(PAGE as u64).and_then(|bytes| usize::try_from(bytes).ok());
    let Some(bytes) = bytes.filter(|_| reserved <= 1 << 40) else {
        let what = format!("cannot reserve {reserve} bytes of address space; open it with a smaller reserve");
        return Err(Error::Invalid { path: rendezvous.path().to_owned(), what });
    };
    let control = Control::create(len, reserved).map_err(failed)?;
    control.set_commit(backing.last_commit());
    control.set_backing(backing.identity());
    control.set_negotiated(&backing.negotiated());
    control.set_sessions(backing.session(), backing.session());
    let view = SharedPages::create("untorn-working", len.next_multiple_of(PAGE as u64), bytes).map_err(failed)?;
    start(rendezvous, Arc::new(control), view, Ok(backing), opener.part())
}

/// Goes on with the serving where a process left it. The place says that this one may.
///
/// # Errors
/// [`Error::Io`]: then another process has to.
pub(super) fn take_over(
    rendezvous: &Arc<Rendezvous>,
    control: &Arc<Control>,
    pages: &SharedPages,
    opener: &Arc<dyn Opener>,
) -> Result<Owner> {
    // Nobody who waits to store has to wait for the rest.
    control.recover();
    control.set_gate(if control.rolling_back() { CLOSED } else { OPEN });
    let file = pages.file().try_clone_to_owned();
    let view = file.and_then(|file| SharedPages::map(file, pages.reserved()));
    let view = view.and_then(|view| note_present(control, &view).map(|()| view));
    let view = view.map_err(|error| Error::io("take over", rendezvous.path(), error))?;
    let opened = open(rendezvous, opener, Some(&Before::new(control)), KILLED_OWNER_TIMEOUT);
    let opened = match opened {
        // That is this process's, and says nothing of the file.
        Err(error) if is_shortage_number(error.errno()) => return Err(error),
        opened => opened,
    };
    let backing = opened.map_err(|error| error.to_string()).and_then(|backing| left_alone(control, backing));
    let backing = backing.inspect_err(|cause| {
        // Somebody has to serve, or those who wait for a page wait for ever. What they get is never committed.
        control.poison(cause);
    });
    if let Ok(backing) = &backing {
        control.set_commit(backing.last_commit());
        // A process that was killed when it had made it longer had made the room before, and could not say so any more.
        control.set_len(backing.len());
        // It has begun, so whoever finds the one before finds what was put in the place of the backing.
        control.set_sessions(backing.session(), backing.session());
    }
    start(rendezvous, Arc::clone(control), view, backing, opener.part())
}

/// Notes pages that were filled by a process that was killed before it could: who looks whether a page is in memory
/// must not miss one, for what is there may have been of a commit long ago.
fn note_present(control: &Control, view: &SharedPages) -> io::Result<()> {
    let (end, present) = (control.pages(), control.present());
    let mut page = 0;
    while page < end {
        if !present.get(page) {
            let Some(found) = view.memory_from(page * PAGE as u64)? else { break };
            page = found / PAGE as u64;
            if page >= end {
                break;
            }
            present.set(page);
        }
        page += 1;
    }
    Ok(())
}

/// The backing, if it is as the process left it that had it before. While nobody has it somebody else may open it who
/// does not take part; the pages in memory are then not what differs from the last commit.
fn left_alone(control: &Control, backing: Arc<dyn Backing>) -> std::result::Result<Arc<dyn Backing>, String> {
    let (found, last) = (backing.last_commit(), control.commit());
    if backing.identity() != control.backing() {
        return Err(REPLACED.to_owned());
    }
    if found != last && found != control.committing() {
        return Err(format!(
            "it is at commit {found}, but the processes that share it made commit {last}: another program changed it \
             while no process served it"
        ));
    }
    Ok(backing)
}

/// Opens the backing. A process that had it and is dying lets go of one lock after the other, this one last perhaps.
fn open(
    rendezvous: &Rendezvous,
    opener: &Arc<dyn Opener>,
    before: Option<&Before>,
    in_use_timeout: Duration,
) -> Result<Arc<dyn Backing>> {
    let since = Instant::now();
    loop {
        match catch_unwind(AssertUnwindSafe(|| opener.open(before))) {
            Ok(Err(Error::InUse { .. })) if since.elapsed() < in_use_timeout => thread::sleep(Duration::from_millis(2)),
            Ok(opened) => return opened.map(Arc::from),
            // Going on with the panic would leave the others with a process that serves and does not.
            Err(_) => {
                let cause = "the code that opens it panicked".to_owned();
                return Err(Error::Poisoned { path: rendezvous.path().to_owned(), cause });
            }
        }
    }
}

fn start(
    rendezvous: &Arc<Rendezvous>,
    control: Arc<Control>,
    view: SharedPages,
    backing: std::result::Result<Arc<dyn Backing>, String>,
    part: String,
) -> Result<Owner> {
    let failed = |error| Error::io("serve the processes that share", rendezvous.path(), error);
    let stop = Arc::new(event().map_err(failed)?);
    let resigned = Arc::new(AtomicBool::new(false));
    let server = Server::new(rendezvous, control, view, backing, part, (Arc::clone(&stop), Arc::clone(&resigned)))?;
    let thread =
        thread::Builder::new().name("untorn-server".to_owned()).spawn(move || server.serve()).map_err(failed)?;
    Ok(Owner { stop, resigned, thread: Some(thread) })
}
