//! Files that come to be whole: made under another name, and renamed when they are.

use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::{Access, LockKind, Medium, MediumFile};
use crate::error::{Error, Result};

/// The end of the name of a file in the making. It says whose file that is, because one that a crash left is removed:
/// a program may well have a file `store.new` beside its `store`.
const UNFINISHED: &str = ".untorn-new";

/// The longest part of a name that the name of a file in the making has: a name has 255 bytes at most.
const KEPT: usize = 200;

fn unfinished_name(name: &OsStr) -> OsString {
    let mut unfinished = OsString::from(".");
    unfinished.push(OsStr::from_bytes(&name.as_bytes()[..name.len().min(KEPT)]));
    unfinished.push(UNFINISHED);
    unfinished
}

/// The path under which a file is made that is to have this one.
pub(crate) fn unfinished(path: &Path) -> PathBuf {
    path.with_file_name(unfinished_name(path.file_name().unwrap_or_default()))
}

/// Whether a file of this name is still being made, or was left so by a crash.
pub fn is_unfinished(name: &OsStr) -> bool {
    name.as_bytes().ends_with(UNFINISHED.as_bytes())
}

/// Makes a file so that a crash leaves all of it or no file of this name. `fill` gets it empty, and makes durable
/// what it stores; it may grow to `reserve` bytes. The name is to be made durable by whoever opens the file.
///
/// # Errors
/// EEXIST if the name is taken, [`Error::InUse`] while another process is making it; those of `fill`, and then
/// nothing is left behind.
pub(crate) fn create_whole<M: Medium>(
    medium: &M,
    path: &Path,
    reserve: u64,
    fill: impl FnOnce(&M::File) -> Result<()>,
) -> Result<()> {
    create_by(medium, path, reserve, M::create, fill)
}

/// The same for a file that only its owner may open, from its first moment on.
pub(crate) fn create_private<M: Medium>(
    medium: &M,
    path: &Path,
    reserve: u64,
    fill: impl FnOnce(&M::File) -> Result<()>,
) -> Result<()> {
    create_by(medium, path, reserve, M::create_private, fill)
}

/// How a medium makes a file.
type Create<M> = fn(&M, &Path, u64, u64) -> Result<<M as Medium>::File>;

fn create_by<M: Medium>(
    medium: &M,
    path: &Path,
    reserve: u64,
    create: Create<M>,
    fill: impl FnOnce(&M::File) -> Result<()>,
) -> Result<()> {
    let taken = || Err(Error::io("create", path, Errno::EXIST));
    if medium.exists(path)? {
        return taken();
    }
    let unfinished = unfinished(path);
    let file = claim(medium, path, &unfinished, reserve, create)?;
    let made = || {
        fill(&file)?;
        // Only who has claimed the other name makes this one.
        if medium.exists(path)? { taken() } else { medium.rename(&unfinished, path) }
    };
    made().inspect_err(|_| {
        // If it cannot be removed either, the first error is the one that helps.
        let _ = medium.unlink(&unfinished);
    })
}

/// Creates the file under which another is being made, and locks it; one that was left by a crash is removed first.
fn claim<M: Medium>(medium: &M, path: &Path, unfinished: &Path, reserve: u64, create: Create<M>) -> Result<M::File> {
    let in_use = || {
        let holder = format!("another process, which is creating it as {}", unfinished.display());
        Err(Error::InUse { path: path.to_owned(), holder })
    };
    // A lock counts only if the name still means the file it was taken on: whoever had it before may have renamed or
    // removed it meanwhile. From then on only its holder does either.
    let holds = |file: &M::File| -> Result<bool> {
        match medium.open(unfinished, Access::Read, 0) {
            Ok(named) => Ok(named.identity()? == file.identity()?),
            Err(error) if is(&error, ErrorKind::NotFound) => Ok(false),
            Err(error) => Err(error),
        }
    };
    for _ in 0..16 {
        match create(medium, unfinished, 0, reserve) {
            Ok(file) if !file.try_lock(LockKind::Exclusive)? => return in_use(),
            Ok(file) => match holds(&file) {
                Ok(true) => return Ok(file),
                Ok(false) => continue,
                // A file that cannot be opened again is of no use to anybody, and it is this call's.
                Err(error) => {
                    let _ = medium.unlink(unfinished);
                    return Err(error);
                }
            },
            Err(error) if is(&error, ErrorKind::AlreadyExists) => {}
            Err(error) => return Err(error),
        }
        match medium.open(unfinished, Access::ReadWrite, 0) {
            Ok(left) if !left.try_lock(LockKind::Exclusive)? => return in_use(),
            Ok(left) if holds(&left)? => medium.unlink(unfinished)?,
            Ok(_) => {}
            // It was finished meanwhile.
            Err(error) if is(&error, ErrorKind::NotFound) => {}
            Err(error) => return Err(error),
        }
    }
    in_use()
}

fn is(error: &Error, kind: ErrorKind) -> bool {
    matches!(error, Error::Io { source, .. } if source.kind() == kind)
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::super::{Dax, MediumKind};
    use super::*;

    #[test]
    fn a_file_of_the_program_with_a_similar_name_stays() {
        let dir = tempfile::tempdir().unwrap();
        let medium = Dax::new(MediumKind::AssumedPmem);
        for name in ["store", &"s".repeat(255)] {
            let path = dir.path().join(name);
            let others =
                [".new", ".tmp", "~"].map(|end| dir.path().join(format!("{}{end}", &name[..name.len().min(9)])));
            others.iter().for_each(|other| std::fs::write(other, "mine").unwrap());
            create_whole(&medium, &path, 4096, |file| file.set_len(4096)).unwrap();
            assert!(others.iter().all(|other| std::fs::read(other).unwrap() == b"mine"));
            assert_eq!(std::fs::metadata(&path).unwrap().len(), 4096);
            // What a crash left under the other name does not stand in the way.
            std::fs::remove_file(&path).unwrap();
            let left = dir.path().join(unfinished_name(OsStr::new(name)));
            std::fs::write(&left, "left").unwrap();
            create_whole(&medium, &path, 4096, |_| Ok(())).unwrap();
            assert!(!left.exists() && is_unfinished(left.file_name().unwrap()));
        }
    }

    #[test]
    fn one_of_many_creators_of_a_name_wins_with_a_whole_file() {
        let dir = tempfile::tempdir().unwrap();
        let medium = Dax::new(MediumKind::AssumedPmem);
        for round in 0..20_u8 {
            let path = dir.path().join(format!("file-{round}"));
            let start = Barrier::new(4);
            let made: usize = std::thread::scope(|scope| {
                let make = |who: u8| {
                    let (medium, path, start) = (&medium, &path, &start);
                    move || {
                        start.wait();
                        let fill = |file: &<Dax as Medium>::File| {
                            file.set_len(4096)?;
                            file.allocate(0, 4096)?;
                            file.write(0, &[who; 4096])
                        };
                        create_whole(medium, path, 4096, fill).is_ok()
                    }
                };
                let threads: Vec<_> = (1..=4).map(|who| scope.spawn(make(who))).collect();
                threads.into_iter().map(|thread| usize::from(thread.join().unwrap())).sum()
            });
            assert!(made <= 1, "{made} made one file");
            if made == 1 {
                let bytes = std::fs::read(&path).unwrap();
                assert!(bytes.len() == 4096 && bytes.iter().all(|&byte| byte == bytes[0] && byte > 0));
            }
        }
    }
}
