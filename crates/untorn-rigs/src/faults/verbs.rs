//! The verbs whose processes are killed: what stands before each, what it does, and what may stand after it.

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use rustix::fs::XattrFlags;
use untorn::options::Prefer;
use untorn::redundancy::ProtectOptions;
use untorn::{AtomicFile, AtomicMap, EngineKind, Error, Options, Result};

use super::backups::{self, Kind};

/// Bytes of the file.
pub(super) const LEN: u64 = 64 << 10;

/// Another length.
const LONGER: u64 = 100_000;

/// The effect of a command of the tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Create,
    Write(EngineKind),
    WriteKeeping(EngineKind),
    WriteProtected(EngineKind),
    Map,
    Settle(EngineKind),
    Switch(EngineKind),
    Protect(EngineKind),
    Unprotect(EngineKind),
    Grow(EngineKind),
    Shrink(EngineKind),
    GrowProtected(EngineKind),
    TrustSidecar,
    TrustFile,
    Adopt(EngineKind),
    AdoptProtected(EngineKind),
    Prune,
    Copy(Kind),
    Restore,
    RestoreOver,
}

use EngineKind::{HybridLog, Reflection};

impl Verb {
    pub(super) const ALL: &[Verb] = &[
        Verb::Create,
        Verb::Write(Reflection),
        Verb::Write(HybridLog),
        Verb::WriteKeeping(Reflection),
        Verb::WriteKeeping(HybridLog),
        Verb::WriteProtected(Reflection),
        Verb::WriteProtected(HybridLog),
        Verb::Map,
        Verb::Settle(Reflection),
        Verb::Settle(HybridLog),
        Verb::Switch(Reflection),
        Verb::Switch(HybridLog),
        Verb::Protect(Reflection),
        Verb::Protect(HybridLog),
        Verb::Unprotect(Reflection),
        Verb::Unprotect(HybridLog),
        Verb::Grow(Reflection),
        Verb::Grow(HybridLog),
        Verb::Shrink(Reflection),
        Verb::Shrink(HybridLog),
        Verb::GrowProtected(Reflection),
        Verb::TrustSidecar,
        Verb::TrustFile,
        Verb::Adopt(Reflection),
        Verb::Adopt(HybridLog),
        Verb::AdoptProtected(Reflection),
        Verb::Prune,
        Verb::Copy(Kind::New),
        Verb::Copy(Kind::Over),
        Verb::Copy(Kind::Increment),
        Verb::Copy(Kind::Since),
        Verb::Copy(Kind::Resumable),
        Verb::Restore,
        Verb::RestoreOver,
    ];
}

/// Those whose system calls are made to fail.
pub(super) const FAILING: [Verb; 7] = [
    Verb::Copy(Kind::New),
    Verb::Copy(Kind::Over),
    Verb::Copy(Kind::Increment),
    Verb::Copy(Kind::Since),
    Verb::Copy(Kind::Resumable),
    Verb::Restore,
    Verb::RestoreOver,
];

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verb::Create => f.write_str("create"),
            Verb::Write(engine) => write!(f, "write-{engine}"),
            Verb::WriteKeeping(engine) => write!(f, "write-keeping-{engine}"),
            Verb::WriteProtected(engine) => write!(f, "write-protected-{engine}"),
            Verb::Map => f.write_str("map"),
            Verb::Settle(engine) => write!(f, "settle-{engine}"),
            Verb::Switch(engine) => write!(f, "switch-to-{engine}"),
            Verb::Protect(engine) => write!(f, "protect-{engine}"),
            Verb::Unprotect(engine) => write!(f, "unprotect-{engine}"),
            Verb::Grow(engine) => write!(f, "grow-{engine}"),
            Verb::Shrink(engine) => write!(f, "shrink-{engine}"),
            Verb::GrowProtected(engine) => write!(f, "grow-protected-{engine}"),
            Verb::TrustSidecar => f.write_str("trust-sidecar"),
            Verb::TrustFile => f.write_str("trust-file"),
            Verb::Adopt(engine) => write!(f, "adopt-{engine}"),
            Verb::AdoptProtected(engine) => write!(f, "adopt-protected-{engine}"),
            Verb::Prune => f.write_str("prune"),
            Verb::Copy(kind) => f.write_str(kind.name()),
            Verb::Restore => f.write_str("restore"),
            Verb::RestoreOver => f.write_str("restore-over"),
        }
    }
}

impl FromStr for Verb {
    type Err = String;

    fn from_str(word: &str) -> std::result::Result<Self, String> {
        let known = Verb::ALL.iter().find(|verb| verb.to_string() == word);
        known.copied().ok_or_else(|| format!("{word:?} is not a verb that this rig kills"))
    }
}

pub(super) fn data(dir: &Path) -> PathBuf {
    dir.join("data")
}

/// Small record areas: each page of one is a call.
pub(super) fn options() -> Options {
    Options::new().record_area(2, 8).log_size(1 << 20)
}

fn protection() -> ProtectOptions {
    ProtectOptions::new().on_demand()
}

/// The writes that stand before a verb, and the verb's own.
pub(super) const BEFORE: [(u64, u8, usize); 2] = [(100, b'a', 5000), (9000, b'b', 3000)];
const OWN: (u64, u8, usize) = (30_000, b'c', 9000);

pub(super) fn image(writes: &[(u64, u8, usize)], len: u64) -> Vec<u8> {
    let mut bytes = vec![0; len as usize];
    for &(offset, byte, count) in writes {
        bytes[offset as usize..][..count].fill(byte);
    }
    bytes
}

pub(super) fn write(file: &AtomicFile, (offset, byte, count): (u64, u8, usize)) -> Result<()> {
    file.write_at(&vec![byte; count], offset)?;
    file.sync().map(drop)
}

/// The states in which a file may be found; `None` if it need not exist.
pub(super) struct Allowed {
    states: Vec<Vec<u8>>,
    missing: bool,
}

/// A file that its last program closed with a sidecar, in which committed bytes stand.
fn kept(dir: &Path, engine: EngineKind, protects: bool) -> Result<()> {
    let mut options = options().engine(engine).keep_sidecar(true);
    if protects {
        options = options.redundancy(protection());
    }
    let file = options.create(data(dir), LEN)?;
    BEFORE.iter().try_for_each(|&piece| write(&file, piece))?;
    file.close()
}

fn io(path: &Path) -> impl Fn(std::io::Error) -> Error {
    let path = path.to_owned();
    move |error| Error::io("prepare", &path, error)
}

/// Copies a file with its mark and its time, as a backup does.
fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to).map_err(io(to))?;
    let mut mark = [0; 64];
    if let Ok(len) = rustix::fs::getxattr(from, "user.untorn", &mut mark) {
        rustix::fs::setxattr(to, "user.untorn", &mark[..len], XattrFlags::empty())
            .map_err(|errno| Error::io("mark", to, errno))?;
    }
    let modified = fs::metadata(from).and_then(|found| found.modified()).map_err(io(from))?;
    let file = fs::OpenOptions::new().write(true).open(to).map_err(io(to))?;
    file.set_modified(modified).map_err(io(to))
}

impl Verb {
    /// Makes what stands before it. Returns what may stand after it.
    pub(super) fn prepare(self, dir: &Path) -> Result<Allowed> {
        let path = &data(dir);
        let before = image(&BEFORE, LEN);
        let own = image(&[BEFORE[0], BEFORE[1], OWN], LEN);
        let states = match self {
            Verb::Create => {
                return Ok(Allowed { states: vec![Vec::new(), vec![0; LEN as usize]], missing: true });
            }
            Verb::Write(engine) | Verb::WriteKeeping(engine) => {
                kept(dir, engine, false)?;
                vec![before, own]
            }
            Verb::WriteProtected(engine) => {
                kept(dir, engine, true)?;
                vec![before, own]
            }
            Verb::Map => {
                kept(dir, HybridLog, false)?;
                vec![before, own]
            }
            Verb::Settle(engine) | Verb::Protect(engine) | Verb::Adopt(engine) => {
                kept(dir, engine, false)?;
                vec![before]
            }
            // From the other engine, which leaves a sidecar.
            Verb::Switch(engine) => {
                kept(dir, if engine == HybridLog { Reflection } else { HybridLog }, false)?;
                vec![before]
            }
            Verb::Unprotect(engine) | Verb::AdoptProtected(engine) => {
                kept(dir, engine, true)?;
                vec![before]
            }
            Verb::Copy(kind) => {
                backups::prepare(kind, dir)?;
                vec![before]
            }
            Verb::Restore | Verb::RestoreOver => {
                backups::prepare(Kind::New, dir)?;
                backups::back_up(Kind::New, dir, false)?;
                if self == Verb::Restore {
                    return Ok(Allowed { states: vec![before], missing: true });
                }
                fs::write(self.path(dir), b"old").map_err(io(path))?;
                vec![b"old".to_vec(), before]
            }
            Verb::Prune => {
                // Two removed files with all that goes with them, and one that keeps its own.
                for (name, protects) in [("gone", true), ("lost", false)] {
                    kept(dir, Reflection, protects)?;
                    let (gone, sidecars) = (dir.join(name), dir.join(".untorn"));
                    fs::rename(path, &gone).map_err(io(path))?;
                    let inode = fs::metadata(&gone).map_err(io(&gone))?.ino();
                    fs::write(sidecars.join(format!("{inode}.spill")), [7; 4096]).map_err(io(&sidecars))?;
                }
                kept(dir, HybridLog, true)?;
                for name in ["gone", "lost"] {
                    fs::remove_file(dir.join(name)).map_err(io(path))?;
                }
                vec![before]
            }
            Verb::Grow(engine) => {
                kept(dir, engine, false)?;
                vec![before, image(&BEFORE, LONGER)]
            }
            Verb::GrowProtected(engine) => {
                kept(dir, engine, true)?;
                vec![before, image(&BEFORE, LONGER)]
            }
            Verb::Shrink(engine) => {
                kept(dir, engine, false)?;
                vec![before.clone(), before[..20_000].to_vec()]
            }
            Verb::TrustSidecar | Verb::TrustFile => {
                kept(dir, Reflection, false)?;
                let mut bytes = fs::read(path).map_err(io(path))?;
                bytes[60_000..60_005].copy_from_slice(b"other");
                fs::write(path, &bytes).map_err(io(path))?;
                let file = fs::OpenOptions::new().write(true).open(path).map_err(io(path))?;
                let later = fs::metadata(path).and_then(|found| found.modified()).map_err(io(path))?;
                file.set_modified(later + Duration::from_secs(2)).map_err(io(path))?;
                let mut merged = before;
                merged[60_000..60_005].copy_from_slice(b"other");
                if self == Verb::TrustFile { vec![bytes] } else { vec![merged] }
            }
        };
        if let Verb::Adopt(_) | Verb::AdoptProtected(_) = self {
            let (from, to) = (dir.join(".untorn"), dir.join("restored"));
            fs::create_dir(&to).map_err(io(&to))?;
            copy(path, &to.join("data"))?;
            fs::create_dir(to.join(".untorn")).map_err(io(&to))?;
            for entry in fs::read_dir(&from).map_err(io(&from))? {
                let name = entry.map_err(io(&from))?.file_name();
                copy(&from.join(&name), &to.join(".untorn").join(&name))?;
            }
        }
        Ok(Allowed { states, missing: false })
    }

    fn path(self, dir: &Path) -> PathBuf {
        match self {
            Verb::Adopt(_) | Verb::AdoptProtected(_) => dir.join("restored/data"),
            Verb::Restore | Verb::RestoreOver => dir.join("again"),
            _ => data(dir),
        }
    }

    /// Does it.
    pub(super) fn run(self, dir: &Path) -> Result<()> {
        let path = self.path(dir);
        let changed = |options: Options, change: &dyn Fn(&AtomicFile) -> Result<()>| {
            let file = options.open(&path)?;
            change(&file)?;
            file.close()
        };
        match self {
            Verb::Create => options().create(&path, LEN)?.close(),
            Verb::Write(engine) | Verb::WriteProtected(engine) => {
                changed(options().engine(engine), &|file| write(file, OWN))
            }
            Verb::WriteKeeping(engine) => {
                changed(options().engine(engine).keep_sidecar(true), &|file| write(file, OWN))
            }
            Verb::Map => {
                let mut map: AtomicMap = options().map(&path)?;
                let (offset, byte, count) = OWN;
                map[offset as usize..][..count].fill(byte);
                map.close()
            }
            Verb::Settle(_) => options().open(&path)?.settle(),
            Verb::Switch(HybridLog) => {
                options().open(&path)?.settle()?;
                changed(options().engine(HybridLog), &|_| Ok(()))
            }
            Verb::Switch(engine) => changed(options().engine(engine), &|_| Ok(())),
            Verb::Protect(_) => untorn::protect(&path, &protection()).map(drop),
            Verb::Unprotect(_) => untorn::unprotect(&path).map(drop),
            Verb::Grow(engine) | Verb::GrowProtected(engine) => {
                changed(options().engine(engine), &|file| file.resize(LONGER))
            }
            Verb::Shrink(engine) => changed(options().engine(engine), &|file| file.resize(20_000)),
            Verb::TrustSidecar => untorn::recover(&path, &options().prefer(Prefer::Sidecar)).map(drop),
            Verb::TrustFile => untorn::recover(&path, &options().prefer(Prefer::File)).map(drop),
            Verb::Adopt(_) | Verb::AdoptProtected(_) => untorn::recover(&path, &options().adopt(true)).map(drop),
            Verb::Prune => untorn::prune(dir, Duration::ZERO, true).map(drop),
            Verb::Copy(kind) => backups::back_up(kind, dir, kind == Kind::Over),
            Verb::Restore | Verb::RestoreOver => backups::restore(dir, &path, self == Verb::RestoreOver),
        }
    }

    /// Whether what it reported as done is there.
    ///
    /// # Errors
    /// In words, what is missing.
    pub(super) fn is_done(self, dir: &Path) -> std::result::Result<(), String> {
        let now = image(&BEFORE, LEN);
        match self {
            Verb::Copy(kind) => backups::is_made(kind, dir, &now),
            _ if fs::read(self.path(dir)).is_ok_and(|bytes| bytes == now) => Ok(()),
            _ => Err("the file was reported as restored, and is not there".to_owned()),
        }
    }

    /// Whether the file is refused until somebody decides, so that the verb has to be repeated.
    fn decides(self) -> bool {
        matches!(self, Verb::TrustSidecar | Verb::TrustFile | Verb::Adopt(_) | Verb::AdoptProtected(_))
    }

    /// Whether the file has redundancy before the verb and after it.
    fn keeps_redundancy(self) -> bool {
        use Verb::{AdoptProtected, GrowProtected, Prune, WriteProtected};
        matches!(self, WriteProtected(_) | GrowProtected(_) | AdoptProtected(_) | Prune)
    }
}

/// Looks at the file as the next program does, and changes it.
///
/// # Errors
/// In words, what is wrong.
pub(super) fn survives(verb: Verb, dir: &Path, allowed: &Allowed) -> std::result::Result<(), String> {
    let path = verb.path(dir);
    let told = |what: &'static str| move |error: Error| format!("{what}: {error}");
    if !path.exists() {
        let repeats = verb == Verb::Restore;
        return match allowed.missing {
            true if repeats => verb.run(dir).map_err(told("repeating the verb")),
            true => Ok(()),
            false => Err("the file is gone".to_owned()),
        };
    }
    if let Verb::Copy(kind) = verb {
        backups::survives(kind, dir, &allowed.states[0])?;
    }
    let mut recovered = untorn::recover(&path, &options());
    if recovered.is_err() && verb.decides() {
        verb.run(dir).map_err(told("repeating the verb"))?;
        recovered = untorn::recover(&path, &options());
    }
    recovered.map_err(told("recovering"))?;
    let plain = fs::read(&path).map_err(|error| format!("reading the recovered file: {error}"))?;
    let file = options().open(&path).map_err(told("opening"))?;
    let mut held = vec![0; file.len() as usize];
    file.read_at(&mut held, 0).map_err(told("reading"))?;
    if !allowed.states.contains(&held) {
        return Err("the file holds bytes of no commit".to_owned());
    }
    if plain != held {
        return Err("the recovered file is not a plain one".to_owned());
    }
    if matches!(verb, Verb::Restore | Verb::RestoreOver) && held == image(&BEFORE, LEN) {
        backups::numbered(dir, &file)?;
    }
    if !held.is_empty() {
        write(&file, (held.len() as u64 / 2, b'z', 1)).map_err(told("writing"))?;
    }
    file.close().map_err(told("closing"))?;
    if verb.keeps_redundancy() && untorn::coverage(&path).map_err(told("reading the coverage"))?.is_none() {
        return Err("the file lost its redundancy".to_owned());
    }
    if verb == Verb::Prune {
        verb.run(dir).map_err(told("repeating the verb"))?;
        let left = fs::read_dir(dir.join(".untorn")).map_err(|error| format!("listing what is left: {error}"))?;
        let left: Vec<_> = left.filter_map(|entry| Some(entry.ok()?.file_name())).collect();
        if left.len() != 1 {
            return Err(format!("only the redundancy file of the file should be left, but there is {left:?}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A kill must never leave this: a file that is refused, or of no commit.
    #[test]
    fn a_refused_file_and_bytes_of_no_commit_are_convicted() {
        let verb = Verb::Write(HybridLog);
        let prepared = || {
            let dir = tempfile::tempdir().unwrap();
            let allowed = verb.prepare(dir.path()).unwrap();
            (dir, allowed)
        };
        let (dir, allowed) = prepared();
        survives(verb, dir.path(), &allowed).unwrap();
        let (dir, allowed) = prepared();
        if rustix::fs::removexattr(data(dir.path()), "user.untorn").is_ok() {
            // The state that a switch of engines once left.
            assert!(survives(verb, dir.path(), &allowed).unwrap_err().starts_with("recovering"));
        }
        let (dir, allowed) = prepared();
        fs::remove_dir_all(dir.path().join(".untorn")).unwrap();
        assert!(survives(verb, dir.path(), &allowed).is_err());
        let (dir, allowed) = prepared();
        verb.run(dir.path()).unwrap();
        survives(verb, dir.path(), &allowed).unwrap();
        let (dir, allowed) = prepared();
        verb.run(dir.path()).unwrap();
        let mut bytes = fs::read(data(dir.path())).unwrap();
        bytes[0] ^= 1;
        fs::write(data(dir.path()), bytes).unwrap();
        assert_eq!(survives(verb, dir.path(), &allowed).unwrap_err(), "the file holds bytes of no commit");
    }
}
