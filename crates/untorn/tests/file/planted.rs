//! Another user plants files of untorn's own beside a file, and gains nothing: every kind of directory, every planted
//! thing, every way of opening.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, getxattr, mknodat};
use rustix::io::Errno;
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use twox_hash::XxHash3_64;
use untorn::options::Prefer;
use untorn::redundancy::ProtectOptions;
use untorn::{AtomicFile, AtomicMap, EngineKind, Options, Result};

use crate::common::{Failures, PAGE, attempt, limit, names, put_word, sidecar_of};
use crate::forged::{UUID, seal_superblock};

pub(crate) const ATTACKER: u32 = 65_534;
pub(crate) const VICTIM: u32 = 1_234;
pub(crate) const MEMBER: u32 = 1_235;
pub(crate) const GROUP: u32 = 4_321;

/// Bytes of the file, bytes that the caller writes, and bytes of the attacker: each tells itself from the others.
const THEIRS: &[u8] = b"attacker's bytes";
pub(crate) const SECRET: &[u8] = b"the caller's secret";
const LEN: usize = 4 * PAGE;

/// Offsets in a superblock.
const DEVICE: usize = 64;
pub(crate) const LEFT: usize = 111;
pub(crate) const STAMP: usize = 112;
pub(crate) const FRESH: u8 = 1;
pub(crate) const OPEN: u8 = 2;
const CLEAN: u8 = 3;

pub(crate) fn original() -> Vec<u8> {
    b"bytes of the file".iter().copied().cycle().take(LEN).collect()
}

/// Runs `go` on a thread that is this user, in this group, and no other.
pub(crate) fn as_user<T: Send>(user: u32, group: u32, go: impl FnOnce() -> T + Send) -> T {
    let (user, group) = (rustix::fs::Uid::from_raw(user), rustix::fs::Gid::from_raw(group));
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            set_thread_groups(&[]).unwrap();
            set_thread_res_gid(group, group, group).unwrap();
            set_thread_res_uid(user, user, user).unwrap();
            go()
        });
        thread.join().unwrap()
    })
}

/// A directory of root's with these permissions, in which the attacker may search.
pub(crate) fn directory(mode: u32, group: u32) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    chown(dir.path(), None, Some(group)).unwrap();
    fs::set_permissions(dir.path(), Permissions::from_mode(mode)).unwrap();
    dir
}

/// A file of this owner that nobody else may open.
fn private_file(dir: &Path, owner: u32) -> PathBuf {
    let path = dir.join("file");
    fs::write(&path, original()).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    chown(&path, Some(owner), Some(owner)).unwrap();
    path
}

/// A sidecar with valid slices of the attacker's, and a redundancy file of another file.
pub(crate) struct Forged {
    pub(crate) sidecar: Vec<u8>,
    redundancy: Vec<u8>,
}

impl Forged {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("template");
        fs::write(&path, original()).unwrap();
        let file = Options::new().engine(EngineKind::Reflection).open(&path).unwrap();
        file.write_at(THEIRS, 0).unwrap();
        file.write_at(&THEIRS.repeat(PAGE / THEIRS.len()), PAGE as u64).unwrap();
        file.sync().unwrap();
        let sidecar = fs::read(sidecar_of(&path)).unwrap();
        file.close().unwrap();
        let path = dir.path().join("protected");
        fs::write(&path, THEIRS.repeat(LEN / THEIRS.len())).unwrap();
        ProtectOptions::new().open(&path).unwrap().close().unwrap();
        let redundancy = fs::read(sidecar_of(&path).with_extension("redundancy")).unwrap();
        assert!(sidecar.windows(THEIRS.len()).any(|bytes| bytes == THEIRS));
        Forged { sidecar, redundancy }
    }

    /// Made for this file: with its device, inode, size and time, and no birth time, which nothing contradicts.
    pub(crate) fn for_file(bytes: &[u8], file: &fs::Metadata, stamp: usize, left: Option<u8>) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        for copy in [0, 1] {
            let at = copy * PAGE;
            for (n, word) in [file.dev(), file.ino(), 0, 0].into_iter().enumerate() {
                put_word(&mut bytes, at + DEVICE + 8 * n, word);
            }
            put_word(&mut bytes, at + stamp, file.size());
            put_word(&mut bytes, at + stamp + 8, (file.mtime() * 1_000_000_000 + file.mtime_nsec()) as u64);
            if let Some(left) = left {
                bytes[at + LEFT] = left;
            }
            seal_superblock(&mut bytes, copy);
            if left == Some(FRESH) {
                // Never used: its retirement lines have session 0.
                let line = 2 * PAGE + 512 * copy;
                put_word(&mut bytes, line + 24, 0);
                let check = XxHash3_64::oneshot_with_seed(XxHash3_64::oneshot(&bytes[UUID]), &bytes[line..line + 56]);
                put_word(&mut bytes, line + 56, check);
            }
        }
        bytes
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Plant {
    FreshWithSlices,
    FreshWithout,
    Open,
    Clean,
    Unfinished,
    Spill,
    Redundancy,
    UnfinishedRedundancy,
    LinkForDirectory,
    LinkForSidecar,
    HardLink,
    Pipe,
    EmptyDirectory,
}

const PLANTS: [Plant; 13] = [
    Plant::FreshWithSlices,
    Plant::FreshWithout,
    Plant::Open,
    Plant::Clean,
    Plant::Unfinished,
    Plant::Spill,
    Plant::Redundancy,
    Plant::UnfinishedRedundancy,
    Plant::LinkForDirectory,
    Plant::LinkForSidecar,
    Plant::HardLink,
    Plant::Pipe,
    Plant::EmptyDirectory,
];

impl Plant {
    /// What the attacker does. It may write to `lair`.
    fn plant(self, file: &Path, lair: &Path, forged: &Forged) -> io::Result<()> {
        let found = fs::metadata(file)?;
        let side = sidecar_of(file);
        let dir = side.parent().unwrap();
        let open_to_all = |path: &Path, bytes: &[u8]| {
            let made = File::create(path)?;
            made.set_len(bytes.len() as u64)?;
            for (n, page) in bytes.chunks(PAGE).enumerate().filter(|(_, page)| **page != [0; PAGE][..page.len()]) {
                made.write_all_at(page, (n * PAGE) as u64)?;
            }
            fs::set_permissions(path, Permissions::from_mode(0o666))
        };
        let make_dir = || {
            fs::create_dir(dir)?;
            fs::set_permissions(dir, Permissions::from_mode(0o777))
        };
        let sidecar = |left| Forged::for_file(&forged.sidecar, &found, STAMP, left);
        if self == Plant::LinkForDirectory {
            open_to_all(&lair.join(found.ino().to_string()), &sidecar(Some(FRESH)))?;
            return symlink(lair, dir);
        }
        make_dir()?;
        match self {
            Plant::FreshWithSlices => open_to_all(&side, &sidecar(Some(FRESH))),
            Plant::FreshWithout => {
                // As a new one: without records and without slices.
                let mut bytes = sidecar(Some(FRESH));
                bytes[3 * PAGE..].fill(0);
                open_to_all(&side, &bytes)
            }
            Plant::Open => open_to_all(&side, &sidecar(None)),
            Plant::Clean => open_to_all(&side, &sidecar(Some(CLEAN))),
            Plant::Unfinished => open_to_all(&side.with_extension("new"), &sidecar(Some(FRESH))),
            Plant::Spill => open_to_all(&side.with_extension("spill"), &forged.sidecar),
            Plant::Redundancy => {
                let bytes = Forged::for_file(&forged.redundancy, &found, 120, None);
                open_to_all(&side.with_extension("redundancy"), &bytes)
            }
            Plant::UnfinishedRedundancy => open_to_all(&side.with_extension("redundancy.new"), b""),
            Plant::LinkForSidecar => {
                open_to_all(&lair.join("elsewhere"), &sidecar(Some(FRESH)))?;
                symlink(lair.join("elsewhere"), &side)
            }
            Plant::HardLink => {
                open_to_all(&side, &sidecar(Some(FRESH)))?;
                fs::hard_link(&side, dir.join("another"))
            }
            Plant::Pipe => Ok(mknodat(CWD, &side, FileType::Fifo, Mode::from_raw_mode(0o666), 0)?),
            Plant::EmptyDirectory | Plant::LinkForDirectory => Ok(()),
        }
    }
}

/// What the caller does with the file. Bytes that it reads are returned.
type Verb = (&'static str, fn(&Path) -> Result<Option<Vec<u8>>>);

pub(crate) fn all_of(file: &AtomicFile) -> Result<Option<Vec<u8>>> {
    let mut bytes = vec![0; file.len() as usize];
    file.read_at(&mut bytes, 0)?;
    Ok(Some(bytes))
}

fn write_with(options: &Options, path: &Path) -> Result<Option<Vec<u8>>> {
    let file = options.open(path)?;
    let before = all_of(&file)?;
    file.write_at(SECRET, 2 * PAGE as u64)?;
    file.sync()?;
    file.close()?;
    Ok(before)
}

const VERBS: [Verb; 12] = [
    ("read", |path| all_of(&Options::new().read_only(true).open(path)?)),
    ("write", |path| write_with(&Options::new(), path)),
    ("write through the hybrid log", |path| write_with(&Options::new().engine(EngineKind::HybridLog), path)),
    ("write with redundancy", |path| write_with(&Options::new().redundancy(Default::default()), path)),
    ("map", |path| {
        let map = AtomicMap::open(path)?;
        let bytes = map.to_vec();
        map.close()?;
        Ok(Some(bytes))
    }),
    ("settle", |path| Options::new().open(path)?.settle().map(|()| None)),
    ("recover", |path| untorn::recover(path, &Options::new()).map(|_| None)),
    ("adopt", |path| untorn::recover(path, &Options::new().adopt(true)).map(|_| None)),
    ("trust the sidecar", |path| untorn::recover(path, &Options::new().prefer(Prefer::Sidecar)).map(|_| None)),
    ("inspect", |path| untorn::inspect(path).map(|_| None)),
    ("protect", |path| ProtectOptions::new().open(path)?.close().map(|()| None)),
    ("repair", |path| untorn::repair(path, &mut |_, _| true).map(|_| None)),
];

/// Whether bytes are somewhere within a page of others: most pages of a sidecar are zeros.
fn has(bytes: &[u8], wanted: &[u8]) -> bool {
    let pages = bytes.chunks(PAGE).filter(|page| **page != [0; PAGE][..page.len()]);
    pages.flat_map(|page| page.windows(wanted.len())).any(|part| part == wanted)
}

/// What the attacker can read under a directory.
fn readable(dir: &Path, found: &mut Vec<(PathBuf, Vec<u8>)>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let (path, kind) = (entry.path(), entry.file_type().unwrap());
        if kind.is_dir() {
            readable(&path, found);
        } else if kind.is_file() {
            found.extend(fs::read(&path).ok().map(|bytes| (path, bytes)));
        }
    }
}

/// One cell of the table: an error says what the attacker gained.
fn cell(owner: u32, dir: &Path, plant: Plant, (verb, go): Verb, forged: &Forged) -> std::result::Result<(), String> {
    let path = private_file(dir, owner);
    let lair = directory(0o777, 0);
    fs::write(lair.path().join("precious"), "a file of somebody's").unwrap();
    let planted = as_user(ATTACKER, ATTACKER, || plant.plant(&path, lair.path(), forged));
    let shut_out = fs::metadata(dir).unwrap().mode() & 0o022 == 0;
    if planted.is_err() != shut_out {
        return Err(format!("the attacker planted it: {planted:?}"));
    }
    let in_lair = names(lair.path());
    let outcome = attempt(|| as_user(owner, owner, || go(&path)))?;
    let after = attempt(|| fs::read(&path).unwrap())?;
    if outcome.as_ref().is_ok_and(|read| read.as_ref().is_some_and(|bytes| *bytes != original())) {
        return Err("it was read from what the attacker planted".to_owned());
    }
    if has(&after, THEIRS) || outcome.is_err() && after != original() {
        return Err("the file was changed".to_owned());
    }
    if names(lair.path()) != in_lair {
        return Err("files came or went where a symbolic link leads to".to_owned());
    }
    let mut found = Vec::new();
    as_user(ATTACKER, ATTACKER, || [dir, lair.path()].into_iter().for_each(|dir| readable(dir, &mut found)));
    if let Some((path, _)) = found.iter().find(|(_, bytes)| has(bytes, SECRET) || has(bytes, &original()[..100])) {
        return Err(format!("the attacker can read the caller's bytes in {}", path.display()));
    }
    // Without a plant nothing is refused, and nobody is shut out of a sticky directory. Some kernels let only root ask
    // for what a map needs.
    let marks = getxattr(&path, "user.untorn", &mut [0; 32]) != Err(Errno::NOTSUP);
    let open = shut_out || marks && fs::metadata(dir).unwrap().mode() & 0o1000 != 0;
    let allowed = verb != "repair" && (owner == 0 || verb != "map");
    if let (true, Err(error)) = (open && allowed, outcome) {
        return Err(format!("refused: {error}"));
    }
    Ok(())
}

/// Directory kinds, planted things and ways of opening: the attacker gains nothing in any combination. The short
/// variant has each pair of two of these.
#[test]
fn nothing_that_another_user_planted_is_believed() {
    untorn_testing::needs!("root");
    let _limit = limit(300, "opening what another user planted");
    let (forged, mut failures, mut cells) = (Forged::new(), Failures::default(), 0);
    let every = untorn_testing::cases(6, 1_usize);
    let kinds = [("own", 0o755, 0), ("sticky", 0o1777, 0), ("group", 0o2775, ATTACKER)];
    let places = kinds.into_iter().flat_map(|kind| [(kind, 0), (kind, VICTIM)]);
    for (place, ((kind, mode, group), owner)) in places.enumerate() {
        let tried = PLANTS.iter().enumerate().flat_map(|(n, plant)| VERBS.map(|verb| (n, *plant, verb)));
        for (n, (row, plant, verb)) in tried.enumerate() {
            if !(place + row + n % VERBS.len()).is_multiple_of(every) {
                continue;
            }
            let dir = directory(mode, group);
            match (owner, kind) {
                (VICTIM, "own") => chown(dir.path(), Some(owner), None).unwrap(),
                // As if the victim were a member of the group.
                (VICTIM, "group") => fs::set_permissions(dir.path(), Permissions::from_mode(0o2777)).unwrap(),
                _ => {}
            }
            cells += 1;
            if let Err(failure) = cell(owner, dir.path(), plant, verb, &forged) {
                failures.add(format!("{kind}, user {owner}, {plant:?}, {}: {failure}", verb.0));
            }
        }
    }
    failures.conclude(cells);
}
