//! Creating a store and opening one.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex};

use super::directory::{Directory, Slot};
use super::format::{MapPlace, NODES_AT, Node, PAGE, Superblock, map_sum};
use super::space::Space;
use super::store::Store;
use super::{Core, Region, Settings, barriers};
use crate::engine::handle_state::HandleState;
use crate::error::{Error, Result};
use crate::format::dual_copy::DualCopy;
use crate::format::sidecar::parent;
use crate::options::{ExclusionCheck, Order};
use crate::storage::{self, Access, LockKind, Medium, MediumClass, MediumFile};

/// Makes a store without regions. The name must be free.
///
/// It is made under another name and then renamed, so that a crash leaves a whole store or none.
///
/// # Errors
/// EEXIST if the name is taken, [`Error::InUse`] if another process is making it.
pub(crate) fn create<M: Medium>(medium: &M, path: &Path, settings: &Settings) -> Result<()> {
    storage::create_whole(medium, path, settings_reserve(), |file| {
        let mut superblock =
            Superblock { uuid: medium.unique()?, seq: 0, nodes: settings.nodes, session: 0, map: None };
        file.set_len(superblock.first() * PAGE)?;
        if medium.class() == MediumClass::PersistentMemory {
            file.allocate(0, superblock.first() * PAGE)?;
        }
        superblock.write(file)?;
        file.sync(barriers::CREATE_FILE)
    })
    // Its name is made durable by the open that follows.
}

/// The longest that a store without regions is.
const fn settings_reserve() -> u64 {
    (NODES_AT + super::MAX_NODES as u64) * PAGE
}

impl<M: Medium> Store<M> {
    /// Opens a store; nobody else may have it open, but others that only read if this one does. The admission, if
    /// there is one, is asked as soon as the store is locked, and told the session before one is begun.
    ///
    /// # Errors
    /// [`Error::InUse`]; those of the admission; [`Error::Corrupt`] and [`Error::Unsupported`] for what is no store
    /// that this code knows.
    pub(crate) fn open(
        medium: Arc<M>,
        path: &Path,
        settings: Settings,
        exclusion: Option<&dyn ExclusionCheck>,
    ) -> Result<Self> {
        let (access, lock) = match settings.read_only {
            true => (Access::Read, LockKind::Shared),
            false => (Access::ReadWrite, LockKind::Exclusive),
        };
        let file = medium.open(path, access, settings.max_len)?;
        // Any file may have the name: it is a store before anything is stored to it.
        Superblock::read(&file, path)?;
        if !file.try_lock(lock)? {
            return Err(Error::InUse { path: path.to_owned(), holder: storage::lock_holder(&file) });
        }
        exclusion.map_or(Ok(()), ExclusionCheck::check_exclusion)?;
        file.sync(barriers::ATTACH_FILE)?;
        medium.sync_dir(barriers::ATTACH_NAME, &parent(path))?;
        // Who only looks changes nothing that what it sees would have to be durable for, and what cannot be dropped
        // from a cache would have to be written.
        let distrusts = !settings.read_only;
        if distrusts {
            file.distrust_cache(barriers::ATTACH_CACHE, 0, file.len().min(NODES_AT * PAGE))?;
        }
        let mut superblock = Superblock::read(&file, path)?;
        let pages = file.len() / PAGE;
        if file.len() > settings.max_len {
            let (len, most) = (file.len(), settings.max_len);
            let least = format!("more than the maximum of {most} it was opened with");
            let what = format!("the store has {len} bytes, {least}; open it with a larger max_len");
            return Err(Error::Invalid { path: path.to_owned(), what });
        }
        let least = superblock.map.map_or(0, |map| map.pages).max(superblock.first());
        if pages < least {
            let what = format!(
                "the store was truncated: it has {} bytes and should have at least {}",
                file.len(),
                least.saturating_mul(PAGE)
            );
            return Err(Error::Corrupt { path: path.to_owned(), offset: Some(file.len()), what });
        }
        let map = read_map(&file, &superblock, pages)?;
        let was_clean = map.is_some();
        if !was_clean && distrusts {
            file.distrust_cache(barriers::ATTACH_CACHE, 0, file.len())?;
        }
        let class = medium.class();
        if class == MediumClass::PersistentMemory && !settings.read_only {
            // A crash may have taken space back, and so may a copy that left out zeros.
            file.allocate(0, file.len())?;
        }
        let directory = read_directory(&file, path, &superblock, was_clean)?;
        let uncounted = if was_clean { 0 } else { directory.count() } + directory.damage().count();
        let handle_state = HandleState::new(path, settings.read_only);
        let handle_state = handle_state.map_err(|error| Error::io("prepare to open", path, error))?;
        if !settings.read_only {
            let step = exclusion
                .map_or(Ok(1), |exclusion| exclusion.take_over_session(&superblock.uuid, superblock.session))?;
            superblock.session = superblock.session.wrapping_add(step);
            // After a crash too: what is left of a torn "clean" must not be completed by a later one.
            superblock.map = None;
            superblock.write(&file)?;
            medium.fence(barriers::OPEN, &[&file])?;
            handle_state.accept_writes();
        }
        let order = settings.order.unwrap_or(match class {
            MediumClass::PersistentMemory => Order::TwoFence,
            MediumClass::Block => Order::OneFence,
        });
        Ok(Store::new(Core {
            handle_state,
            medium,
            class,
            file,
            settings,
            order,
            naming: Mutex::default(),
            directory: Mutex::new(directory),
            uncounted: AtomicUsize::new(uncounted),
            holds: Mutex::default(),
            space: Mutex::new(map.unwrap_or_else(|| Space::unknown(pages, superblock.first()))),
            superblock: Mutex::new(superblock),
            was_clean,
            untidy: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        }))
    }
}

/// The free map of a clean close, if there is one and it is whole.
fn read_map<F: MediumFile>(file: &F, superblock: &Superblock, pages: u64) -> Result<Option<Space>> {
    let first = superblock.first();
    let Some(place) = superblock.map.filter(|place| place.pages >= first) else { return Ok(None) };
    let bytes = MapPlace::bytes(place.pages);
    // In this order nothing overflows: the file has more pages than the map says, and the map lies in them.
    if place.at < first || place.at >= place.pages || bytes > (place.pages - place.at) * PAGE {
        return Ok(None);
    }
    let mut map = vec![0; bytes as usize];
    file.read(place.at * PAGE, &mut map)?;
    if map_sum(&map) != place.sum {
        return Ok(None);
    }
    let words = map.chunks_exact(8).map(|word| word.iter().rev().fold(0, |sum, &byte| sum << 8 | u64::from(byte)));
    let mut space = Space::known(words.collect(), place.pages, first);
    // Somebody made the file longer; what was added is free.
    space.extend(pages);
    Ok(Some(space))
}

fn read_directory<M: Medium>(
    file: &M::File,
    path: &Path,
    superblock: &Superblock,
    counted: bool,
) -> Result<Directory<M>> {
    let mut directory = Directory::new();
    let mut page = [0; PAGE as usize];
    for node in NODES_AT..superblock.first() {
        file.read(node * PAGE, &mut page[..8])?;
        if page[..8] == [0; 8] {
            directory.push(Slot::Free);
            continue;
        }
        file.read(node * PAGE, &mut page)?;
        let slot = match Node::decode(&page) {
            Ok(None) => Slot::Free,
            Ok(Some((Node { name, uid, max_pages }, _))) => {
                if directory.find(&name).is_some() {
                    Slot::Broken(format!("two region nodes have the name {name:?}; the second is at page {node}"))
                } else {
                    Slot::Region(Arc::new(Region::new(node, name, uid, max_pages, counted)))
                }
            }
            Err(what) => Slot::Broken(format!("page {node} holds a {what}")),
        };
        if let Slot::Broken(what) = &slot {
            tracing::warn!(store = %path.display(), what, "found a damaged region node");
        }
        directory.push(slot);
    }
    Ok(directory)
}
