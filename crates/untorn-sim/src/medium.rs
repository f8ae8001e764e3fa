//! [`SimMedium`]: a machine's file system in memory.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use untorn::testing::storage::{Access, Barrier, Medium, MediumClass, NameChange, Names};
use untorn::{Error, Result};

use crate::content::{Content, PAGE};
use crate::crash::CrashState;
use crate::file::SimFile;
use crate::instant::{Hook, Step, Verdict};
use crate::names::{Node, Place};
use crate::schedule;
use crate::world::{Counters, Fault, Inode, World};

/// A simulated file system that knows which of its bytes a crash could take.
///
/// A clone is another handle to the same machine. Paths are resolved from one root; relative and absolute are the same.
///
/// ```
/// use std::path::Path;
/// use untorn::testing::storage::{Barrier, Medium, MediumClass, MediumFile};
/// use untorn_sim::SimMedium;
/// const DONE: Barrier = Barrier::new("example.done");
///
/// let medium = SimMedium::new(MediumClass::Block);
/// let file = medium.create(Path::new("f"), 512, 512)?;
/// file.sync(DONE)?;
/// medium.sync_dir(DONE, Path::new("/"))?;
/// file.write(0, b"new")?;
/// let mut seen = std::collections::BTreeSet::new();
/// for choice in medium.crash_state().choices(100).expect("one sector, two versions") {
///     let after = medium.crash_state().image(&choice).boot();
///     let mut bytes = [0; 3];
///     after.open(Path::new("f"), untorn::testing::storage::Access::Read, 0)?.read(0, &mut bytes)?;
///     seen.insert(bytes);
/// }
/// assert_eq!(Vec::from_iter(seen), [[0; 3], *b"new"]);
/// # Ok::<(), untorn::Error>(())
/// ```
#[derive(Clone)]
pub struct SimMedium {
    pub(crate) world: Arc<Mutex<World>>,
}

pub(crate) fn errno(operation: &'static str, path: &Path, code: i32) -> Error {
    Error::io(operation, path, std::io::Error::from_raw_os_error(code))
}

pub(crate) const ENOENT: i32 = 2;
pub(crate) const EIO: i32 = 5;
pub(crate) const ENOSPC: i32 = 28;
const EEXIST: i32 = 17;
const ENOTDIR: i32 = 20;
const EISDIR: i32 = 21;

impl SimMedium {
    /// An empty file system with nothing pending.
    pub fn new(class: MediumClass) -> Self {
        SimMedium::of(World::new(class))
    }

    pub(crate) fn of(world: World) -> Self {
        SimMedium { world: Arc::new(Mutex::new(world)) }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, World> {
        // A panic under the lock comes from a hook or from an engine's bug being reported; the world is read after it
        // only to report on it.
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets another virtual thread run, then enters a call: the hook sees the state, and may refuse the call.
    pub(crate) fn enter(&self, step: Step, barrier: Option<Barrier>, path: &Path) -> Result<MutexGuard<'_, World>> {
        let (world, verdict) = self.admit(step, barrier, path);
        verdict.plain()?;
        Ok(world)
    }

    /// The same for a call that may also fail in part.
    pub(crate) fn admit(&self, step: Step, barrier: Option<Barrier>, path: &Path) -> (MutexGuard<'_, World>, Verdict) {
        schedule::point();
        let mut world = self.lock();
        let verdict = world.before(step, barrier, path);
        (world, verdict)
    }

    /// Makes one barrier do nothing from now on, also in machines booted from this one's crash states.
    pub fn mutate(&self, barrier: Barrier) {
        self.lock().muted = Some(barrier);
    }

    /// Leaves the disk room for this many pages more, of all files together; `None` is room for any number. On a full
    /// disk every call fails with ENOSPC that would give space to a page that has none, make a file, or mark one.
    pub fn leave_room(&self, pages: Option<u64>) {
        let mut world = self.lock();
        world.capacity = pages.map_or(u64::MAX, |pages| world.used() + pages);
    }

    /// Makes it a file system without extended attributes.
    pub fn without_attributes(self) -> Self {
        self.lock().has_attributes = false;
        self
    }

    /// Whether a full disk has refused a new file, or a new mark, since the start.
    pub fn refused_new(&self) -> bool {
        self.lock().refused_new
    }

    /// Calls `hook` before every call from now on.
    pub fn set_hook(&self, hook: Hook) {
        self.lock().hook = Some(hook);
    }

    /// Removes the hook.
    pub fn clear_hook(&self) {
        self.lock().hook = None;
    }

    /// The operations since the start.
    pub fn counters(&self) -> Counters {
        self.lock().counters
    }

    /// Rules of the medium that were broken since the start.
    pub fn faults(&self) -> Vec<Fault> {
        self.lock().faults.clone()
    }

    /// Barriers passed since the start, muted ones included, each once.
    pub fn reached(&self) -> Vec<Barrier> {
        self.lock().reached.clone()
    }

    /// The state that a crash now could leave.
    pub fn crash_state(&self) -> CrashState {
        CrashState::of(&self.lock())
    }

    /// Puts a file with these bytes in place, durable and without passing a barrier: the world before a test begins.
    /// Pages of zeros become holes. The directory must exist.
    pub fn install(&self, path: impl AsRef<Path>, bytes: &[u8]) {
        let mut content = Content::hole(bytes.len() as u64);
        for (index, page) in bytes.chunks(PAGE as usize).enumerate() {
            if page.iter().any(|&byte| byte != 0) {
                content.write(index as u64 * PAGE, page);
            }
        }
        self.lock().install(path.as_ref(), content);
    }

    /// Restores a backup of the whole file system in which this file has another inode number. Content, marks and times
    /// are as programs see them now, and durable. No file may be open.
    pub fn restore(&self, path: impl AsRef<Path>) {
        self.lock().restore(path.as_ref());
    }

    /// Damages a file at rest: its bytes are others from now on, in every crash too, and its time stays. No such
    /// file, no damage. Pending stores there are left as they are.
    pub fn rot(&self, path: impl AsRef<Path>, offset: u64, bytes: &[u8]) {
        self.damage(path, |inode| {
            inode.volatile.write(offset, bytes);
            inode.durable.write(offset, bytes);
        });
    }

    /// Makes the medium lose the page of a file that has this byte. From now on the page cannot be read until it is
    /// written whole, which gives it another place, or until a power cut, after which it reads as garbage. No such
    /// file, no loss.
    pub fn lose(&self, path: impl AsRef<Path>, offset: u64) {
        let garbage: Vec<u8> = self.page(&path, offset).iter().map(|byte| byte ^ 0x5a).collect();
        self.rot(&path, offset / PAGE * PAGE, &garbage);
        self.damage(path, |inode| inode.bad.extend([offset / PAGE]));
    }

    /// Has the device take nothing for the page of a file that has this byte: on a disk the cache takes it, and each
    /// flush of it fails. A power cut forgets it. No such file, no refusal.
    pub fn refuse(&self, path: impl AsRef<Path>, offset: u64) {
        self.damage(path, |inode| inode.refused.extend([offset / PAGE]));
    }

    /// Makes the device write nothing more to the page of a file that has this byte, and report success. The cache
    /// shows later writes, and [`read_stored`](untorn::testing::storage::MediumFile::read_stored) shows the page's
    /// present bytes. Memory, which has no such cache, shows that to all. A power cut forgets it. No such file, no
    /// wear.
    pub fn wear(&self, path: impl AsRef<Path>, offset: u64) {
        let held = self.page(&path, offset);
        self.damage(path, |inode| inode.worn.extend([(offset / PAGE, held)]));
    }

    /// Changes a file at rest, if there is one.
    fn damage(&self, path: impl AsRef<Path>, change: impl FnOnce(&mut Inode)) {
        let mut world = self.lock();
        if let Some(Node::File(number)) = world.names.volatile.find(path.as_ref()) {
            change(world.inode(number));
            world.version += 1;
        }
    }

    /// The page of a file that has this byte, as far as there is one.
    fn page(&self, path: impl AsRef<Path>, offset: u64) -> Vec<u8> {
        let bytes = self.peek(path).unwrap_or_default();
        let page = bytes.chunks(PAGE as usize).nth((offset / PAGE) as usize);
        page.unwrap_or_default().to_vec()
    }

    /// The bytes of a file as programs see them, without passing through [`Medium`]; `None` if there is no such file.
    pub fn peek(&self, path: impl AsRef<Path>) -> Option<Vec<u8>> {
        let world = self.lock();
        let Some(Node::File(number)) = world.names.volatile.find(path.as_ref()) else { return None };
        let content = &world.files.get(&number)?.volatile;
        let mut bytes = vec![0; content.len as usize];
        content.read(0, &mut bytes);
        Some(bytes)
    }

    fn handle(&self, world: &mut World, number: u64, path: &Path, access: Access, reserve: u64) -> SimFile {
        let inode = world.inode(number);
        inode.handles += 1;
        let reserve = reserve.max(inode.volatile.len);
        let id = world.next_handle;
        world.next_handle += 1;
        SimFile::new(self.clone(), number, id, path, access, reserve)
    }

    /// The place of a path whose directory must exist.
    fn place(world: &World, operation: &'static str, path: &Path) -> Result<Place> {
        world.names.volatile.locate(path).ok_or_else(|| errno(operation, path, ENOENT))
    }

    fn change_names(world: &mut World, sets: Vec<(Place, Option<Node>)>) {
        let call = world.clock;
        world.names.change(call, sets);
        world.version += 1;
    }
}

impl Medium for SimMedium {
    type File = SimFile;

    fn class(&self) -> MediumClass {
        self.lock().class
    }

    fn open(&self, path: &Path, access: Access, reserve: u64) -> Result<SimFile> {
        let mut world = self.enter(Step::Open, None, path)?;
        match world.names.volatile.find(path) {
            Some(Node::File(number)) => Ok(self.handle(&mut world, number, path, access, reserve)),
            Some(Node::Dir(_)) => {
                Err(Error::NotAFile { path: path.to_owned(), found: untorn::report::FileKind::Directory })
            }
            None => Err(errno("open", path, ENOENT)),
        }
    }

    fn create_new(&self, path: &Path, len: u64, reserve: u64, _like: Option<&SimFile>) -> Result<SimFile> {
        let mut world = self.enter(Step::Create, None, path)?;
        let place = Self::place(&world, "create", path)?;
        if world.names.volatile.get(place.dir, &place.name).is_some() {
            return Err(errno("create", path, EEXIST));
        }
        world.has_space_for_new(path)?;
        let number = world.add_file(len);
        Self::change_names(&mut world, vec![(place, Some(Node::File(number)))]);
        Ok(self.handle(&mut world, number, path, Access::ReadWrite, reserve))
    }

    fn names(&self) -> &dyn Names {
        self
    }

    fn fence(&self, barrier: Barrier, files: &[&SimFile]) -> Result<()> {
        let path = files.first().map_or(PathBuf::new(), |file| file.path().to_owned());
        let (mut world, verdict) = self.admit(Step::Fence, Some(barrier), &path);
        let numbers: Vec<u64> = files.iter().map(|file| file.number()).collect();
        world.flush_files(verdict, &path, &numbers, |world| world.fence(schedule::thread(), barrier, &numbers))
    }

    fn order(&self) {
        // This stores nothing and calls no hook, but another thread may run here all the same.
        schedule::point();
        self.lock().order(schedule::thread());
    }

    fn makes_check(&self, check: Barrier) -> bool {
        // No step of a schedule: nothing is stored, and no other thread need run here.
        self.lock().passes(check)
    }

    fn unique(&self) -> Result<[u8; 16]> {
        Ok(self.lock().unique())
    }

    fn now(&self) -> u64 {
        time_of(self.lock().clock)
    }

    fn commit_time(&self) -> u64 {
        self.now()
    }

    fn booted(&self) -> u64 {
        time_of(self.lock().booted)
    }

    fn relax(&self, round: u32) {
        schedule::relax(round);
    }
}

/// The time of a call, as a clock tells it: fifty milliseconds from one call to the next.
pub(crate) fn time_of(call: u64) -> u64 {
    call.saturating_mul(50_000_000)
}

impl Names for SimMedium {
    fn change(&self, change: NameChange<'_>) -> Result<()> {
        let (step, operation, barrier) = match change {
            NameChange::CreateDir(_) => (Step::CreateDir, "create the directory", None),
            NameChange::Rename(..) => (Step::Rename, "rename", None),
            NameChange::Unlink(_) => (Step::Unlink, "remove", None),
            NameChange::RemoveDirIfEmpty(_) => (Step::RemoveDir, "remove the directory", None),
            NameChange::SyncDir(barrier, _) => (Step::SyncDir, "flush the directory", Some(barrier)),
        };
        let path = change.path();
        let failed = |code| Err(errno(operation, path, code));
        let mut world = self.enter(step, barrier, path)?;
        let found = world.names.volatile.find(path);
        let place = |world: &World, path| Self::place(world, operation, path);
        match (change, found) {
            (NameChange::CreateDir(_), None) => {
                let place = place(&world, path)?;
                let number = world.next_dir;
                world.next_dir += 1;
                Self::change_names(&mut world, vec![(place, Some(Node::Dir(number)))]);
            }
            (NameChange::CreateDir(_), Some(Node::File(_))) => return failed(EEXIST),
            (NameChange::Rename(from, to), node) => {
                let (source, target) = (place(&world, from)?, place(&world, to)?);
                match node {
                    Some(Node::File(_)) if source == target => {}
                    Some(Node::File(_)) => Self::change_names(&mut world, vec![(source, None), (target, node)]),
                    Some(Node::Dir(_)) => return failed(EISDIR),
                    None => return failed(ENOENT),
                }
            }
            (NameChange::Unlink(_), node) => {
                let place = place(&world, path)?;
                match node {
                    Some(Node::File(_)) => Self::change_names(&mut world, vec![(place, None)]),
                    Some(Node::Dir(_)) => return failed(EISDIR),
                    None => return failed(ENOENT),
                }
            }
            (NameChange::RemoveDirIfEmpty(_), Some(Node::Dir(number)))
                if world.names.volatile.in_dir(number).next().is_none() =>
            {
                let place = place(&world, path)?;
                Self::change_names(&mut world, vec![(place, None)]);
            }
            // An existing directory, one that is not empty, and none to remove.
            (NameChange::CreateDir(_) | NameChange::RemoveDirIfEmpty(_), None | Some(Node::Dir(_))) => {}
            (NameChange::SyncDir(barrier, _), Some(Node::Dir(number))) => world.sync_dir(number, barrier),
            (NameChange::RemoveDirIfEmpty(_) | NameChange::SyncDir(..), Some(Node::File(_))) => return failed(ENOTDIR),
            (NameChange::SyncDir(..), None) => return failed(ENOENT),
        }
        Ok(())
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        let world = self.enter(Step::Exists, None, path)?;
        Ok(world.names.volatile.find(path).is_some())
    }

    fn list(&self, dir: &Path) -> Result<Vec<OsString>> {
        let world = self.enter(Step::List, None, dir)?;
        match world.names.volatile.find(dir) {
            Some(Node::Dir(number)) => {
                Ok(world.names.volatile.in_dir(number).map(|(name, _)| name.to_owned()).collect())
            }
            Some(Node::File(_)) => Err(errno("list", dir, ENOTDIR)),
            None => Ok(Vec::new()),
        }
    }
}
