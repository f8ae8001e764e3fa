//! One state for each open file of this process, found by the file's identity.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use super::{Engine, Shared};
use crate::error::{Error, Result};
use crate::medium::Identity;
use crate::options::Options;

/// Held by the shared state of an open file until the last of it is gone.
pub(crate) type Lease = Arc<()>;

/// What is known of a file that is or was open.
#[derive(Default)]
struct Entry {
    shared: Weak<Shared>,
    lease: Lease,
}

/// The lock is held while the file is opened, so that of two threads that open one file at once the second waits and
/// shares.
type Place = Arc<Mutex<Entry>>;

static OPEN: LazyLock<Mutex<HashMap<(u64, u64), Place>>> = LazyLock::new(Mutex::default);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic while a lock was held leaves a map or an entry, both whole at every instant.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The file's shared state, opening it with `open` if this process does not have it open yet.
///
/// # Errors
/// Those of `open`; [`Error::InUse`] if the file is open with options that contradict these.
pub(super) fn shared(
    path: &Path,
    identity: Identity,
    options: &Options,
    open: impl FnOnce() -> Result<Box<dyn Engine>>,
) -> Result<Arc<Shared>> {
    let place = {
        let mut map = lock(&OPEN);
        // Places nobody is looking at and whose file is closed for good are forgotten on the way.
        map.retain(|_, place| {
            Arc::strong_count(place) > 1 || {
                let entry = lock(place);
                entry.shared.strong_count() > 0 || Arc::strong_count(&entry.lease) > 1
            }
        });
        map.entry((identity.device, identity.inode)).or_default().clone()
    };
    let mut entry = lock(&place);
    if let Some(shared) = entry.shared.upgrade() {
        if !shared.engine.accepts(options) {
            let holder = "this process, with other options".to_owned();
            return Err(Error::InUse { path: path.to_owned(), holder });
        }
        return Ok(shared);
    }
    // The last handle may be gone and its thread still closing the file.
    while Arc::strong_count(&entry.lease) > 1 {
        std::thread::sleep(Duration::from_micros(50));
    }
    let shared = Arc::new(Shared { engine: open()?, _lease: entry.lease.clone() });
    entry.shared = Arc::downgrade(&shared);
    Ok(shared)
}
