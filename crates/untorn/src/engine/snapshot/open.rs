//! Making a store and opening one.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use rustix::io::Errno;

use super::format::{MapPlace, NODES_AT, Node, PAGE, Superblock, map_sum};
use super::space::Space;
use super::store::Store;
use super::{Core, Region, Settings, Slot, barriers};
use crate::engine::standing::Standing;
use crate::error::{Error, Result};
use crate::medium::{Access, LockKind, Medium, MediumClass, MediumFile};
use crate::options::Order;

/// Makes a store without regions. The name must be free.
///
/// It is made under another name and then renamed, so that a crash leaves a whole store or none.
///
/// # Errors
/// EEXIST if the name is taken, [`Error::InUse`] if another process is making it.
pub(crate) fn create<M: Medium>(medium: &M, path: &Path, settings: &Settings) -> Result<()> {
    let taken = || Err(Error::io("create", path, Errno::EXIST));
    if medium.exists(path)? {
        return taken();
    }
    let mut name = path.file_name().map_or_else(OsString::new, OsString::from);
    name.push(".new");
    let unfinished = path.with_file_name(name);
    let file = claim(medium, path, &unfinished)?;
    let made = || {
        let mut superblock = Superblock { uuid: medium.unique()?, seq: 0, nodes: settings.nodes, map: None };
        file.set_len(superblock.first() * PAGE)?;
        if medium.class() == MediumClass::PersistentMemory {
            file.allocate(0, superblock.first() * PAGE)?;
        }
        superblock.write(&file)?;
        file.sync(barriers::CREATE_FILE)?;
        // Only who has claimed the other name makes this one.
        if medium.exists(path)? { taken() } else { medium.rename(&unfinished, path) }
    };
    made().inspect_err(|_| {
        // If it cannot be removed either, the first error is the one that helps.
        let _ = medium.unlink(&unfinished);
    })
    // Its name is made durable by the open that follows.
}

/// Creates the file under which a store is being made, and locks it; one that was left by a crash is removed first.
fn claim<M: Medium>(medium: &M, path: &Path, unfinished: &Path) -> Result<M::File> {
    let in_use = || {
        let holder = format!("another process, which is making it as {}", unfinished.display());
        Err(Error::InUse { path: path.to_owned(), holder })
    };
    for _ in 0..16 {
        match medium.create(unfinished, 0, settings_reserve()) {
            Ok(file) if file.try_lock(LockKind::Exclusive)? => return Ok(file),
            Ok(_) => return in_use(),
            Err(Error::Io { source, .. }) if source.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
        match medium.open(unfinished, Access::ReadWrite, 0) {
            Ok(left) if left.try_lock(LockKind::Exclusive)? => medium.unlink(unfinished)?,
            Ok(_) => return in_use(),
            // It was finished meanwhile.
            Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    in_use()
}

/// The longest that a store without regions is.
const fn settings_reserve() -> u64 {
    (NODES_AT + super::MAX_NODES as u64) * PAGE
}

impl<M: Medium> Store<M> {
    /// Opens a store; nobody else may have it open.
    ///
    /// # Errors
    /// [`Error::InUse`]; [`Error::Corrupt`] and [`Error::Unsupported`] for what is no store that this code knows.
    pub(crate) fn open(medium: Arc<M>, path: &Path, settings: Settings) -> Result<Self> {
        let file = medium.open(path, Access::ReadWrite, settings.max_len)?;
        if !file.try_lock(LockKind::Exclusive)? {
            return Err(Error::InUse { path: path.to_owned(), holder: "another process, or this one".to_owned() });
        }
        file.sync(barriers::ATTACH_FILE)?;
        medium.sync_dir(barriers::ATTACH_NAME, &directory_of(path))?;
        file.distrust_cache(barriers::ATTACH_CACHE, 0, file.len().min(NODES_AT * PAGE))?;
        let mut superblock = Superblock::read(&file, path)?;
        let pages = file.len() / PAGE;
        if file.len() > settings.max_len {
            let (len, most) = (file.len(), settings.max_len);
            let what = format!("it has {len} bytes and was opened to have {most} at most; open it for more");
            return Err(Error::Invalid { path: path.to_owned(), what });
        }
        let least = superblock.map.map_or(0, |map| map.pages).max(superblock.first());
        if pages < least {
            let what = format!(
                "it has {} bytes and should have {} at least: it was cut short",
                file.len(),
                least.saturating_mul(PAGE)
            );
            return Err(Error::Corrupt { path: path.to_owned(), offset: Some(file.len()), what });
        }
        let map = read_map(&file, &superblock, pages)?;
        let was_clean = map.is_some();
        if !was_clean {
            file.distrust_cache(barriers::ATTACH_CACHE, 0, file.len())?;
        }
        let class = medium.class();
        if class == MediumClass::PersistentMemory {
            // A crash may have taken space back, and so may a copy that left out zeros.
            file.allocate(0, file.len())?;
        }
        let directory = read_directory(&file, path, &superblock, was_clean)?;
        // After a crash too: what is left of a torn "clean" must not be completed by a later one.
        superblock.map = None;
        superblock.write(&file)?;
        medium.fence(barriers::OPEN, &[&file])?;
        let standing = Standing::new(path, false).map_err(|error| Error::io("prepare to open", path, error))?;
        standing.accept_writes();
        let order = settings.order.unwrap_or(match class {
            MediumClass::PersistentMemory => Order::TwoFence,
            MediumClass::Block => Order::OneFence,
        });
        Ok(Store::new(Core {
            standing,
            medium,
            class,
            file,
            settings,
            order,
            naming: Mutex::default(),
            directory: Mutex::new(directory),
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
) -> Result<Vec<Slot<M>>> {
    let mut directory: Vec<Slot<M>> = Vec::new();
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
                if directory.iter().filter_map(Slot::region).any(|other| other.name == name) {
                    Slot::Broken(format!("two region nodes have the name {name:?}, the second at page {node}"))
                } else {
                    Slot::Region(Arc::new(Region::new(node, name, uid, max_pages, counted)))
                }
            }
            Err(what) => Slot::Broken(format!("page {node} is a {what}")),
        };
        if let Slot::Broken(what) = &slot {
            tracing::warn!(store = %path.display(), what, "a damaged region node");
        }
        directory.push(slot);
    }
    Ok(directory)
}

fn directory_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}
