//! The table of mounts, `/proc/self/mountinfo`. Reading it asks no server anything, so it works beside one that hangs.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use super::{AttachError, FILE_SYSTEM, Result};

/// One line of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mounted {
    /// The mount's number.
    pub(super) id: u64,
    /// The minor number of the file system's device; for FUSE, the connection's number.
    pub(super) minor: u32,
    /// The place of the mount.
    pub(super) mountpoint: PathBuf,
    /// The type.
    pub(super) file_system: OsString,
}

impl Mounted {
    /// Whether it is a mount of untorn.
    pub(super) fn is_ours(&self) -> bool {
        self.file_system == FILE_SYSTEM
    }
}

fn read() -> Result<Vec<u8>> {
    fs::read("/proc/self/mountinfo")
        .map_err(|source| AttachError::system("read the table of mounts, /proc/self/mountinfo", source))
}

/// The mount at a path, which has no symbolic links: the one that covers others there.
pub(super) fn at(path: &Path) -> Result<Option<Mounted>> {
    Ok(parse(&read()?).filter(|mount| mount.mountpoint == path).last())
}

/// The mount with this number.
pub(super) fn with_id(id: u64) -> Result<Option<Mounted>> {
    Ok(parse(&read()?).find(|mount| mount.id == id))
}

/// A path without symbolic links. Its last part is not followed if it is no link, so no server is asked for it.
pub(super) fn resolve(path: &Path) -> Result<PathBuf> {
    let failed = |source: io::Error| AttachError::system(format!("find {}", path.display()), source);
    if let Some(name) = path.file_name() {
        let parent = path.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new("."));
        let resolved = parent.canonicalize().map_err(failed)?.join(name);
        // readlink(2) of a directory is refused by the kernel alone.
        if fs::read_link(&resolved).is_err() {
            return Ok(resolved);
        }
    }
    path.canonicalize().map_err(failed)
}

/// The lines of a table; those that are no lines of one are left out.
fn parse(table: &[u8]) -> impl Iterator<Item = Mounted> {
    table.split(|byte| *byte == b'\n').filter_map(line)
}

/// `36 35 98:0 / /mnt rw,noatime master:1 - ext3 /dev/root rw`: the optional fields end at the dash.
fn line(line: &[u8]) -> Option<Mounted> {
    let mut fields = line.split(|byte| *byte == b' ');
    let id = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
    let device = fields.nth(1)?;
    let minor = std::str::from_utf8(device).ok()?.split_once(':')?.1.parse().ok()?;
    let mountpoint = unescaped(fields.nth(1)?).into();
    let file_system = fields.skip_while(|field| *field != b"-").nth(1)?;
    Some(Mounted { id, minor, mountpoint, file_system: OsStr::from_bytes(file_system).to_owned() })
}

/// The table writes space, tab, newline and backslash as a backslash and three octal digits.
fn unescaped(field: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, after)) = rest.split_first() {
        let octal = (first == b'\\').then(|| after.get(..3)).flatten();
        let octal = octal.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        bytes.push(octal.unwrap_or(first));
        rest = if octal.is_some() { &after[3..] } else { after };
    }
    OsString::from_vec(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_mount_at_a_path_covers_the_others() {
        let table = b"22 1 0:21 / / rw shared:1 - ext4 /dev/root rw\n\
            30 22 0:40 / /a\\040b\\134c rw,nosuid shared:2 master:1 - fuse.untorn untorn rw,user_id=0\n\
            31 30 0:41 / /a\\040b\\134c rw - tmpfs x rw\n\
            torn line\n";
        let found: Vec<Mounted> = parse(table).collect();
        assert_eq!(found.len(), 3);
        assert_eq!((found[1].minor, found[1].mountpoint.as_path()), (40, Path::new("/a b\\c")));
        assert_eq!(found.iter().map(|mount| mount.id).collect::<Vec<_>>(), [22, 30, 31]);
        assert!(found[1].is_ours() && !found[2].is_ours());
    }

    #[test]
    fn a_path_is_resolved_up_to_its_last_part() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().canonicalize().unwrap();
        fs::create_dir(real.join("d")).unwrap();
        std::os::unix::fs::symlink(real.join("d"), real.join("link")).unwrap();
        std::os::unix::fs::symlink(&real, real.join("up")).unwrap();
        assert_eq!(resolve(&real.join("link")).unwrap(), real.join("d"));
        assert_eq!(resolve(&real.join("up/d")).unwrap(), real.join("d"));
        assert_eq!(resolve(&real.join("d/..")).unwrap(), real);
        assert_eq!(resolve(&real.join("missing")).unwrap(), real.join("missing"));
        assert!(resolve(&real.join("missing/d")).is_err());
    }
}
