//! Forged logs of a write cache: an honest one with changes, sealed as the format requires, and replayed.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use twox_hash::XxHash3_64;
use untorn::testing::storage::{Barrier, Identity, MediumClass};
use untorn::write_cache::CacheOptions;
use untorn::write_cache::{BackingDir, BackingFile, CreateAttrs, Named};
use untorn::{Durability, Error, Result};
use untorn_sim::SimMedium;

use crate::forge::{Run, changes, field, one_of, put, raw, seal, word};
use crate::input::Input;
use crate::pair::{Honest, PAGE};

mod entries;

const LOG: &str = "/log";
/// The files, by inode number; the last one has nothing in an honest log.
const NAMES: [&str; 3] = ["/slow/one", "/slow/two", "/slow/other"];
/// The name that the first of them has in the end.
const MOVED: &str = "/slow/moved";
const ENTRY: usize = 64;
const STRIDE: usize = 64 + ENTRY;
const FILES: usize = 4;
const SLOTS: usize = 24;
const TAIL_AT: usize = 2 * PAGE;
const TABLE_AT: usize = 3 * PAGE;
const ENTRIES_AT: usize = TABLE_AT + 2 * FILES * PAGE;
/// The most a log is stretched to.
const MAX_LEN: u64 = 1 << 20;

/// The fields of superblock, tail line, table line and entry.
const SUPERBLOCK: [Run; 3] = [(8, 4, 2), (32, 8, 3), (56, 4, 3)];
const TAIL: [Run; 1] = [(0, 8, 1)];
const LINE: [Run; 5] = [(0, 8, 6), (48, 4, 2), (56, 8, 4), (4008, 8, 7), (4080, 4, 4)];
const HEADER: [Run; 3] = [(0, 8, 4), (32, 4, 4), (48, 8, 1)];

/// A change that was made to a file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Done {
    Write(u64, Vec<u8>),
    Length(u64),
}

/// Files that only record the changes made to them, so that they may have any length.
#[derive(Clone, Default)]
struct Shelf(Arc<Mutex<Shelved>>);

struct Shelved {
    done: BTreeMap<u64, Vec<Done>>,
    names: BTreeMap<PathBuf, u64>,
    /// Inode numbers of files that were removed.
    removed: Vec<u64>,
    /// Inode numbers of files that were renamed, with their new names.
    renamed: Vec<(u64, PathBuf)>,
}

impl Default for Shelved {
    fn default() -> Self {
        let names = NAMES.iter().map(PathBuf::from).zip(1..).collect();
        Shelved { done: BTreeMap::new(), names, removed: Vec::new(), renamed: Vec::new() }
    }
}

/// Inode number of a file that was made again for the number `uid` of the table.
fn made_for(uid: u64) -> u64 {
    uid.wrapping_add(1000)
}

impl Shelf {
    fn all(&self) -> MutexGuard<'_, Shelved> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn done(&self) -> BTreeMap<u64, Vec<Done>> {
        self.all().done.clone()
    }

    fn note(&self, inode: u64, done: Done) {
        self.all().done.entry(inode).or_default().push(done);
    }

    fn file(&self, inode: u64) -> Arc<dyn BackingFile> {
        Arc::new(Book { shelf: self.clone(), inode })
    }
}

struct Book {
    shelf: Shelf,
    inode: u64,
}

impl BackingFile for Book {
    fn identity(&self) -> Result<Identity> {
        let birth = if self.inode <= NAMES.len() as u64 { 9 } else { 10 };
        Ok(Identity { device: 1, inode: self.inode, generation: 7, birth })
    }

    fn create_attrs(&self) -> Result<Option<CreateAttrs>> {
        Ok(Some(CreateAttrs { mode: 0o644, uid: 3, gid: 4 }))
    }

    fn len(&self) -> Result<u64> {
        let done = self.shelf.done();
        Ok(done.get(&self.inode).into_iter().flatten().fold(0, |len, done| match done {
            Done::Write(at, bytes) => len.max(at.saturating_add(bytes.len() as u64)),
            Done::Length(len) => *len,
        }))
    }

    fn read(&self, _: u64, _: &mut [u8]) -> Result<usize> {
        Ok(0)
    }

    fn write(&self, offset: u64, src: &[u8]) -> Result<()> {
        self.shelf.note(self.inode, Done::Write(offset, src.to_vec()));
        Ok(())
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.shelf.note(self.inode, Done::Length(len));
        Ok(())
    }

    fn sync(&self, _: Barrier) -> Result<()> {
        Ok(())
    }
}

impl BackingDir for Shelf {
    fn open(&self, path: &Path) -> Result<Option<Arc<dyn BackingFile>>> {
        let found = self.all().names.get(path).copied();
        Ok(found.map(|inode| self.file(inode)))
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        Ok(self.all().names.contains_key(path))
    }

    fn named(&self, path: &Path) -> Result<Named> {
        match self.open(path)? {
            Some(file) => Ok(Named::File(file.identity()?)),
            None => Ok(Named::Nothing),
        }
    }

    fn candidates(&self, dir: &Path, inode: u64) -> Result<Vec<OsString>> {
        let all = self.all();
        let named = all.names.iter().filter(|(name, number)| **number == inode && name.parent() == Some(dir));
        Ok(named.filter_map(|(name, _)| name.file_name().map(OsString::from)).collect())
    }

    fn names(&self, dir: &Path) -> Result<Vec<OsString>> {
        let all = self.all();
        let here = all.names.keys().filter(|path| path.parent() == Some(dir));
        Ok(here.filter_map(|path| path.file_name().map(OsString::from)).collect())
    }

    fn directory(&self, dir: &Path) -> Result<Option<Identity>> {
        let there = Identity { device: 1, inode: 77, generation: 0, birth: 1 };
        Ok((dir == Path::new("/slow")).then_some(there))
    }

    fn make(&self, path: &Path, _: &CreateAttrs) -> Result<Arc<dyn BackingFile>> {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let inode = made_for(name.rsplit('-').next().and_then(|uid| uid.parse().ok()).unwrap_or_default());
        let taken = self.all().names.insert(path.to_owned(), inode);
        assert_eq!(taken, None, "a file is created under the name of another");
        Ok(self.file(inode))
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        let mut all = self.all();
        assert!(!all.names.contains_key(to), "a name is taken from another file");
        let Some(inode) = all.names.remove(from) else {
            return Err(Error::io("rename", from, std::io::Error::from_raw_os_error(2)));
        };
        all.names.insert(to.to_owned(), inode);
        all.renamed.push((inode, to.to_owned()));
        Ok(())
    }

    fn remove(&self, path: &Path) -> Result<()> {
        let mut all = self.all();
        let removed = all.names.remove(path);
        all.removed.extend(removed);
        Ok(())
    }

    fn sync_dir(&self, _: Barrier, _: &Path) -> Result<()> {
        Ok(())
    }
}

/// A machine with a log that was left in use.
struct HonestLog {
    honest: Honest,
    /// The changes that a replay of it makes, or would have made before the tail passed them.
    done: BTreeMap<u64, Vec<Done>>,
}

/// Files that are written through come first, then atomic ones.
static HONEST: LazyLock<Vec<HonestLog>> = LazyLock::new(|| {
    let both = [Durability::PerWrite, Durability::PerCommit];
    let of = |atomic| both.map(|durability| build(durability, atomic).expect("creating an unforged log succeeds"));
    [false, true].into_iter().flat_map(of).collect()
});

fn options(durability: Durability) -> CacheOptions {
    let size = (ENTRIES_AT + SLOTS * STRIDE) as u64;
    let options = CacheOptions::new().size(size).entry_size(ENTRY as u32).max_files(FILES as u32);
    options.durability(durability).background(false)
}

fn build(durability: Durability, atomic: bool) -> Result<HonestLog> {
    let medium = SimMedium::new(MediumClass::PersistentMemory);
    let shelf = Shelf::default();
    let cache = options(durability).create_on(medium.clone(), Arc::new(shelf.clone()), LOG)?;
    let files = [1, 2].map(|inode| {
        let (file, path) = (shelf.file(inode), Path::new(NAMES[inode as usize - 1]));
        if atomic { cache.attach_atomic(file, path) } else { cache.attach_write_through(file, path) }
    });
    let [one, two] = files;
    let (one, two) = (one?, two?);
    one.write_at(&[1; 40], 10)?;
    one.commit_later()?;
    cache.drain()?;
    one.write_at(&[2; 150], 30)?;
    one.commit_later()?;
    two.write_at(&[3; 64], 1000)?;
    two.set_len(1020)?;
    two.commit_later()?;
    one.write_at(&[4; 10], 0)?;
    // Changes of an epoch claim their entries twice, and nothing may be drained from here on.
    two.write_at(&[5; 200][..if atomic { 70 } else { 200 }], 1100)?;
    assert!(one.begin_rename(Path::new(MOVED))?, "rename succeeds");
    shelf.rename(Path::new(NAMES[0]), Path::new(MOVED))?;
    one.end_rename(true)?;
    two.prepare_unlink()?;
    cache.sync()?;
    if atomic {
        // A replay does nothing for an epoch that was open.
        two.write_at(&[6; 70], 0)?;
    }
    let honest = Honest::take(medium.crash_state(), PathBuf::from(LOG))?;
    let shelf = Shelf::default();
    CacheOptions::new().replay_on(honest.boot(), &shelf, LOG)?;
    let mut done = shelf.done();
    // The tail has passed this write. If both lines of the tail are damaged, it counts once more, and a process did
    // write it.
    done.entry(1).or_default().push(Done::Write(10, vec![1; 40]));
    Ok(HonestLog { honest, done })
}

/// The seal of the session that the log is in.
fn seed(log: &[u8], at: usize) -> u64 {
    let newer = [0, PAGE].into_iter().max_by_key(|at| word(log, at + 32)).unwrap_or_default();
    let uuid = log.get(newer + 16..newer + 32).unwrap_or(&[0; 16]);
    XxHash3_64::oneshot_with_seed(word(log, newer + 40), uuid) ^ (at as u64).rotate_left(32)
}

fn seal_superblock(log: &mut [u8], at: usize) {
    seal(log, at..at + 504, 0);
}

fn seal_tail(log: &mut [u8], at: usize) {
    let seed = seed(log, at);
    seal(log, at..at + 56, seed);
}

fn seal_line(log: &mut [u8], at: usize) {
    if let Some(check) = line_check(log, at) {
        put(log, at + 88, check, 8);
    }
}

/// The seal that a table line must have.
fn line_check(log: &[u8], at: usize) -> Option<u64> {
    let mut bytes = log.get(at..at + PAGE)?.to_vec();
    put(&mut bytes, 88, 0, 8);
    Some(XxHash3_64::oneshot_with_seed(seed(log, at), &bytes))
}

fn seal_entry(log: &mut [u8], at: usize) {
    if let Some(check) = entry_check(log, at) {
        put(log, at + 56, check, 8);
    }
}

/// The seal that an entry must have.
fn entry_check(log: &[u8], at: usize) -> Option<u64> {
    let len = (word(log, at + 32) & 0xffff_ffff) as usize;
    let (header, data) = (log.get(at..at + 56)?, log.get(at + 64..(at + 64).saturating_add(len))?);
    Some(XxHash3_64::oneshot_with_seed(XxHash3_64::oneshot_with_seed(seed(log, at), header), data))
}

/// Changes something. Returns whether nothing was sealed anew, so that no changed line or entry can be believed.
fn change(log: &mut Vec<u8>, input: &mut Input<'_>) -> bool {
    match input.byte() % 16 {
        0 => field(log, &SUPERBLOCK, [0, PAGE], input, seal_superblock),
        1 => field(log, &TAIL, [TAIL_AT, TAIL_AT + 512], input, seal_tail),
        2 => {
            let slot = input.below(FILES as u64) as usize;
            let copies = [0, 1].map(|copy| TABLE_AT + (2 * slot + copy) * PAGE);
            field(log, &LINE, copies, input, seal_line);
        }
        3..=5 => {
            let (slot, (at, width)) = (input.below(SLOTS as u64) as usize, one_of(&HEADER, input));
            let (value, entry) = (input.number(), ENTRIES_AT + slot * STRIDE);
            put(log, entry + at, value, width);
            seal_entry(log, entry);
        }
        6 => {
            log.resize(input.below(MAX_LEN) as usize, 0);
            return true;
        }
        8.. => entries::change(log, input),
        _ => {
            let len = log.len();
            raw(log, 0, len, input);
            return true;
        }
    }
    false
}

/// Forges a log as the input says, replays it twice, and uses it. An error is a right answer. Otherwise all of this
/// must hold:
///
/// - Nothing panics.
/// - No write is longer than the log, or ends where no file can.
/// - A replay writes only to files that a line of the table names.
/// - A replay removes a file only if a line lets it leave, or puts another file over it.
/// - A replay renames a file only to a name that its line gives it, or to a name beside that.
/// - A replay does only what a whole entry of the log says, to the file that the entry names.
/// - If nothing was sealed anew, a replay does only what a process wrote.
/// - The second replay does nothing that the first one did not do.
/// - A log that opens afterwards can be used.
pub fn log(input: &[u8]) {
    let mut input = Input::new(input);
    let HonestLog { honest, done: honestly_done } = input.pick(&HONEST);
    let mut log = honest.bytes.clone();
    let count = 1 + input.below(16);
    let unforged = changes(&mut input, count, |input| change(&mut log, input));
    let medium = honest.with(&log);
    // Lines are pages, wherever a forged superblock puts the table's end.
    let is_new = |line: &[u8]| matches!(word(line, 48) & 0xffff_ffff, 4 | 5 | 9 | 10);
    let named = |inode: u64| {
        log.chunks(PAGE).any(|line| word(line, 24) == inode || is_new(line) && made_for(word(line, 0)) == inode)
    };
    let leaves = |line: &[u8], inode: u64| {
        let state = word(line, 48) & 0xffff_ffff;
        matches!(state, 3 | 5 | 8 | 10) && word(line, 24) == inode || state > 5 && word(line, 4024) == inode
    };
    let gives = |line: &[u8], inode: u64, path: &Path| {
        let path = path.as_os_str().as_encoded_bytes();
        let is_it = word(line, 24) == inode || is_new(line) && made_for(word(line, 0)) == inode;
        // The path is one of a line's two names; each stands somewhere in the line.
        is_it && line.windows(path.len().max(1)).any(|bytes| bytes == path)
    };
    // The superblocks say where everything is, so the entries count only if the superblocks are unchanged.
    let said = (log.get(..2 * PAGE) == honest.bytes.get(..2 * PAGE)).then(|| entries::said(&log));
    let mut before: Option<BTreeMap<u64, Vec<Done>>> = None;
    for _ in 0..2 {
        let shelf = Shelf::default();
        drop(CacheOptions::new().replay_on(medium.clone(), &shelf, LOG));
        for (inode, done) in shelf.done() {
            assert!(named(inode), "the replay wrote to file {inode}, which the log does not name");
            for done in done {
                if let Done::Write(at, bytes) = &done {
                    assert!(at.checked_add(bytes.len() as u64).is_some_and(|end| end <= i64::MAX as u64), "{at}");
                    assert!(
                        bytes.len() <= log.len(),
                        "a replayed write of {} bytes is longer than the log",
                        bytes.len()
                    );
                }
                let known = honestly_done.get(&inode).is_some_and(|honest| honest.contains(&done));
                assert!(known || !unforged, "file {inode}: the replay did {done:?}, which was never logged");
                // A session that was set back makes old entries count again once it has been counted up.
                let again = before.as_ref().is_none_or(|before| before.get(&inode).is_some_and(|b| b.contains(&done)));
                assert!(again || said.is_none(), "file {inode}: only the second replay did {done:?}");
                let said = said.as_ref().is_none_or(|said| said.contains(&(inode, done.clone())));
                assert!(said, "file {inode}: no log entry contains {done:?}");
            }
        }
        for &inode in &shelf.all().removed {
            assert!(
                log.chunks(PAGE).any(|line| leaves(line, inode)),
                "the replay removed file {inode}, but no line of the log says so"
            );
        }
        for (inode, path) in &shelf.all().renamed {
            let beside = path.to_string_lossy().contains(".before-replay-");
            let given = log.chunks(PAGE).any(|line| gives(line, *inode, path));
            assert!(
                beside || given,
                "the replay renamed file {inode} to {}, which no line of the log says",
                path.display()
            );
        }
        before = Some(shelf.done());
    }
    serve(medium);
}

/// A log that opens takes a write and brings it to its file, whatever was replayed from it.
fn serve(medium: SimMedium) {
    let shelf = Shelf::default();
    let Ok(cache) = CacheOptions::new().background(false).open_on(medium, Arc::new(shelf.clone()), LOG) else { return };
    let written = cache.attach_write_through(shelf.file(2), Path::new(NAMES[1])).and_then(|file| {
        file.write_at(&[9; 100], 5)?;
        file.sync()?;
        cache.drain()
    });
    let bytes = shelf.done().remove(&2).unwrap_or_default();
    let there = bytes.iter().any(|done| matches!(done, Done::Write(5, bytes) if bytes.first() == Some(&9)));
    assert!(written.is_err() || there, "a write succeeded but is not in its file");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::judge_made_up;

    /// A fuzzer whose seals are wrong would never get past the first check.
    #[test]
    fn resealed_changes_are_believed() {
        for HonestLog { honest, done } in HONEST.iter().take(2) {
            assert_eq!(done.keys().copied().collect::<Vec<_>>(), [1, 2]);
            let replayed = |log: &[u8]| {
                let shelf = Shelf::default();
                CacheOptions::new().replay_on(honest.with(log), &shelf, LOG).map(|_| shelf.done())
            };
            let entries = || (0..SLOTS).map(|slot| ENTRIES_AT + slot * STRIDE);
            let at = entries().find(|at| word(&honest.bytes, at + 24) == 1000).unwrap();
            let mut log = honest.bytes.clone();
            put(&mut log, at + 24, 5000, 8);
            assert!(!replayed(&log).unwrap()[&2].contains(&Done::Write(1000, vec![3; 64])), "it was damaged");
            seal_entry(&mut log, at);
            assert!(replayed(&log).unwrap()[&2].contains(&Done::Write(5000, vec![3; 64])));
            // The other file, by both copies of a line.
            let mut log = honest.bytes.clone();
            for line in (0..2 * FILES).map(|n| TABLE_AT + n * PAGE).filter(|at| word(&honest.bytes, at + 24) == 2) {
                put(&mut log, line + 24, 3, 8);
                seal_line(&mut log, line);
            }
            assert_eq!(replayed(&log).unwrap().keys().copied().collect::<Vec<_>>(), [1, 3]);
            // Entries that the tail has passed are done with, and a log of another session has no entries.
            let mut log = honest.bytes.clone();
            for copy in 0..2 {
                put(&mut log, TAIL_AT + copy * 512, 1000, 8);
                seal_tail(&mut log, TAIL_AT + copy * 512);
            }
            assert!(replayed(&log).unwrap().is_empty());
            let mut log = honest.bytes.clone();
            for copy in 0..2 {
                put(&mut log, copy * PAGE + 40, 99, 8);
                seal_superblock(&mut log, copy * PAGE);
            }
            assert!(replayed(&log).unwrap().is_empty());
        }
    }

    /// Without one change an epoch does not count, with it changed and sealed it does.
    #[test]
    fn resealed_epochs_are_believed_whole() {
        for HonestLog { honest, done } in HONEST.iter().skip(2) {
            assert!(done[&2].contains(&Done::Length(1020)) && !done[&2].contains(&Done::Write(0, vec![6; 64])));
            let replayed = |log: &[u8]| {
                let shelf = Shelf::default();
                CacheOptions::new().replay_on(honest.with(log), &shelf, LOG).unwrap();
                shelf.done().remove(&2).unwrap_or_default()
            };
            let entries = || (0..SLOTS).map(|slot| ENTRIES_AT + slot * STRIDE);
            let at = entries().find(|at| word(&honest.bytes, at + 24) == 1000).unwrap();
            let mut log = honest.bytes.clone();
            put(&mut log, at + 24, 5000, 8);
            assert_eq!(replayed(&log), [], "nor do later epochs");
            seal_entry(&mut log, at);
            assert!(replayed(&log).contains(&Done::Write(5000, vec![3; 64])));
            assert!(replayed(&log).contains(&Done::Length(1020)));
        }
    }

    /// A line that takes the number of another file and the old name of one that is to be renamed: what is made for
    /// it stands where that one was looked for, and must not be renamed in its stead.
    #[test]
    fn an_interposed_file_is_not_renamed() {
        for HonestLog { honest, .. } in HONEST.iter() {
            let mut log = honest.bytes.clone();
            for line in [TABLE_AT + 4 * PAGE, TABLE_AT + 5 * PAGE] {
                // New, never let leave, and of no file there is.
                for (at, value, width) in [(0, 2, 8), (24, 4, 8), (32, 7, 8), (40, 9, 8), (48, 4, 4), (56, 77, 8)] {
                    put(&mut log, line + at, value, width);
                }
                put(&mut log, line + 52, NAMES[0].len() as u64, 4);
                log[line + 96..][..NAMES[0].len()].copy_from_slice(NAMES[0].as_bytes());
                seal_line(&mut log, line);
            }
            let shelf = Shelf::default();
            CacheOptions::new().replay_on(honest.with(&log), &shelf, LOG).unwrap();
            let renamed = &shelf.all().renamed;
            let made = made_for(2);
            assert!(renamed.contains(&(made, PathBuf::from(NAMES[0]))), "the line was not believed: {renamed:?}");
            assert!(!renamed.contains(&(made, PathBuf::from(MOVED))), "{renamed:?}");
        }
    }

    /// Whole operations that are made up, of every length, must reach the files, or the searcher tries nothing but
    /// the first checks.
    #[test]
    fn consistent_forged_operations_are_replayed() {
        let HonestLog { honest, done: honestly_done } = &HONEST[0];
        let (mut others, mut longest) = (0, 0);
        for seed in 0..300 {
            let mut choices = vec![0; 40];
            untorn_sim::Rng::new(seed).fill(&mut choices);
            // An operation, by a choice between 5 and 7.
            choices[0] = 5;
            let mut log = honest.bytes.clone();
            entries::change(&mut log, &mut Input::new(&choices));
            let shelf = Shelf::default();
            drop(CacheOptions::new().replay_on(honest.with(&log), &shelf, LOG));
            let done: Vec<Done> = shelf.done().into_values().flatten().collect();
            let new =
                done.iter().filter(|done| !honestly_done.values().flatten().any(|honest| honest == *done)).count();
            others += usize::from(new > 0);
            longest = longest.max(new);
        }
        assert!(others > 30 && longest >= SLOTS / 4, "{others} operations were done, the longest of {longest} parts");
    }

    #[test]
    fn made_up_changes_are_judged() {
        judge_made_up(untorn_testing::cases(150, 600), 200, log);
    }
}
