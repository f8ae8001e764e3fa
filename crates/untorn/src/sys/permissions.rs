//! The users that may write a file, as far as its inode tells: owner, group, mode and access control list.
//!
//! # Invariants
//! 1. Nothing is compared by what a name says. Everything comes from an open descriptor, so it is about the inode that
//!    is read and written afterwards.
//! 2. A list that cannot be read counts as letting nobody in when it is the measure, and the mask in the mode counts
//!    for it when it is measured. So an unreadable list refuses too much, never too little.

use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;

use rustix::fs::{FileType, Gid, Mode, Stat, Uid, XattrFlags};
use rustix::io::Errno;

/// The extended attribute that holds a file's access control list. Source: `acl(5)`, `linux/posix_acl_xattr.h`.
const ACCESS_LIST: &str = "system.posix_acl_access";

const VERSION: [u8; 4] = [2, 0, 0, 0];
const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;
const READ_WRITE: u16 = 6;
const WRITE: u16 = 2;

/// Set in the mode of a directory in which only the owner of a name may remove it.
const STICKY: u32 = 0o1000;

/// Owner, group, mode and access control list of an open file or directory.
#[derive(Clone, Debug)]
pub(crate) struct Permissions {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    mode: u32,
    list: Option<List>,
}

/// An access control list: (tag, permissions, id), in the kernel's order.
type List = Vec<(u16, u16, u32)>;

/// Users that may write besides the owner and root.
#[derive(Debug, Default)]
struct Writers {
    groups: Vec<u32>,
    users: Vec<u32>,
    other: bool,
}

impl Permissions {
    /// Those of an open file.
    ///
    /// # Errors
    /// Those of `fstat(2)` and `fgetxattr(2)`.
    pub(crate) fn of(file: BorrowedFd<'_>) -> io::Result<Self> {
        let list = read_list(|value| rustix::fs::fgetxattr(file, ACCESS_LIST, value))?;
        Ok(Permissions::new(&rustix::fs::fstat(file)?, list))
    }

    /// Those of the file that a path leads to.
    ///
    /// # Errors
    /// Those of `stat(2)` and `getxattr(2)`.
    pub(crate) fn at(path: &Path) -> io::Result<Self> {
        let list = read_list(|value| rustix::fs::getxattr(path, ACCESS_LIST, value))?;
        Ok(Permissions::new(&rustix::fs::stat(path)?, list))
    }

    /// Those of the directory that has this name; `None` if something else has it, be it a symbolic link to one.
    ///
    /// # Errors
    /// Those of `lstat(2)` and `lgetxattr(2)`.
    pub(crate) fn of_directory(path: &Path) -> io::Result<Option<Self>> {
        let found = rustix::fs::lstat(path)?;
        if FileType::from_raw_mode(found.st_mode) != FileType::Directory {
            return Ok(None);
        }
        let list = read_list(|value| rustix::fs::lgetxattr(path, ACCESS_LIST, value))?;
        Ok(Some(Permissions::new(&found, list)))
    }

    /// Those of a file of which only the inode could be examined.
    pub(crate) fn without_list(found: &Stat) -> Self {
        Permissions::new(found, None)
    }

    fn new(found: &Stat, list: Option<List>) -> Self {
        Permissions { uid: found.st_uid, gid: found.st_gid, mode: found.st_mode & 0o7777, list }
    }

    /// The mode, for people.
    pub(crate) fn mode(&self) -> u32 {
        self.mode
    }

    pub(crate) fn is_sticky(&self) -> bool {
        self.mode & STICKY != 0
    }

    fn writers(&self) -> Writers {
        let Some(list) = &self.list else {
            let groups = if self.mode & 0o020 != 0 { vec![self.gid] } else { Vec::new() };
            return Writers { groups, users: Vec::new(), other: self.mode & 0o002 != 0 };
        };
        let mask = list.iter().find(|entry| entry.0 == MASK).map_or(7, |entry| entry.1);
        let named = |wanted: u16| {
            let writing = list.iter().filter(move |(tag, may, _)| *tag == wanted && may & mask & WRITE != 0);
            writing.map(|entry| entry.2)
        };
        let owning = named(GROUP_OBJ).map(|_| self.gid);
        let other = list.iter().any(|(tag, may, _)| *tag == OTHER && may & WRITE != 0);
        Writers { groups: owning.chain(named(GROUP)).collect(), users: named(USER).collect(), other }
    }

    /// Whether anybody but the owner and root may write.
    pub(crate) fn lets_others_write(&self) -> bool {
        let Writers { groups, users, other } = self.writers();
        other || !groups.is_empty() || !users.is_empty()
    }

    /// Whether everybody may write.
    pub(crate) fn lets_all_write(&self) -> bool {
        self.writers().other
    }

    /// Whether no group but this one may write, and no user by name.
    pub(crate) fn is_written_only_by(&self, group: u32) -> bool {
        let Writers { groups, users, other } = self.writers();
        !other && users.is_empty() && groups.iter().all(|writing| *writing == group)
    }

    /// Whether the list lets this user write, by name.
    pub(crate) fn lets_user_write(&self, uid: u32) -> bool {
        self.writers().users.contains(&uid)
    }

    /// Whether the owning group may write.
    pub(crate) fn lets_its_group_write(&self) -> bool {
        self.writers().groups.contains(&self.gid)
    }

    /// Whether everybody that may write this file, its owner aside, may write that one too.
    pub(crate) fn writers_are_among_those_of(&self, that: &Permissions) -> bool {
        let (ours, theirs) = (self.writers(), that.writers());
        // With permissions for all, the owning group may still have none.
        let by_all = |group: u32| theirs.other && group != that.gid && that.list.is_none();
        let user_may = |uid: &u32| theirs.other || *uid == 0 || *uid == that.uid || theirs.users.contains(uid);
        (!ours.other || theirs.other)
            && ours.groups.iter().all(|group| theirs.groups.contains(group) || by_all(*group))
            && ours.users.iter().all(user_may)
    }
}

/// Reads a list; `None` if there is none, or the file system has no such lists.
fn read_list(mut get: impl FnMut(&mut [u8]) -> rustix::io::Result<usize>) -> io::Result<Option<List>> {
    let mut short = [0; 256];
    let mut long = Vec::new();
    let bytes = match get(&mut short) {
        Ok(len) => &short[..len],
        Err(Errno::RANGE) => {
            long.resize(64 << 10, 0); // The longest value of an attribute (`xattr(7)`).
            let len = get(&mut long)?;
            &long[..len]
        }
        Err(Errno::NODATA | Errno::NOTSUP | Errno::NOSYS | Errno::PERM) => return Ok(None),
        Err(errno) => return Err(errno.into()),
    };
    let Some(entries) = bytes.strip_prefix(&VERSION) else { return Ok(None) };
    let word = |entry: &[u8], at: usize| u16::from_le_bytes([entry[at], entry[at + 1]]);
    let id = |entry: &[u8]| u32::from_le_bytes([entry[4], entry[5], entry[6], entry[7]]);
    Ok(Some(entries.chunks_exact(8).map(|entry| (word(entry, 0), word(entry, 2), id(entry))).collect()))
}

fn list_bytes(list: &List) -> Vec<u8> {
    let entry = |(tag, may, id): &(u16, u16, u32)| {
        let mut bytes = [0; 8];
        bytes[..2].copy_from_slice(&tag.to_le_bytes());
        bytes[2..4].copy_from_slice(&may.to_le_bytes());
        bytes[4..].copy_from_slice(&id.to_le_bytes());
        bytes
    };
    VERSION.iter().copied().chain(list.iter().flat_map(entry)).collect()
}

/// What a companion of a file shall be like: the same owner, group and writers, and nobody else may even open it. A
/// user that may only read the file could otherwise keep a lock on the companion for ever.
fn like_companion(of: &Permissions) -> (u32, Option<List>) {
    let each = |shift: u32| if of.mode >> shift & 0o2 != 0 { 0o6 << shift } else { 0 };
    let Some(list) = &of.list else { return (0o600 | each(3) | each(0), None) };
    let mask = list.iter().find(|entry| entry.0 == MASK).map_or(7, |entry| entry.1);
    let may = |tag: u16, given: u16| {
        let counts = if tag == OTHER { given } else { given & mask };
        if tag == USER_OBJ || counts & WRITE != 0 { READ_WRITE } else { 0 }
    };
    let named = |tag: u16| tag == USER || tag == GROUP;
    let kept: List = list
        .iter()
        .filter(|entry| entry.0 != MASK)
        .map(|&(tag, given, id)| (tag, may(tag, given), id))
        .filter(|&(tag, given, _)| !named(tag) || given != 0)
        .collect();
    let of_tag = |wanted: u16| kept.iter().find(|entry| entry.0 == wanted).map_or(0, |entry| u32::from(entry.1));
    if !kept.iter().any(|entry| named(entry.0)) {
        return (0o600 | of_tag(GROUP_OBJ) << 3 | of_tag(OTHER), None);
    }
    let other = of_tag(OTHER);
    let mut list = kept;
    // The kernel wants the mask between the groups and the others.
    let at = list.iter().position(|entry| entry.0 == OTHER).unwrap_or(list.len());
    list.insert(at, (MASK, READ_WRITE, u32::MAX));
    (0o660 | other, Some(list))
}

/// Gives a companion the owner, the group and the writers of the file that it goes with. Only writers of the file may
/// open it, even for reading. Does nothing where it is so already.
///
/// An ordinary user may not give a file away. If owner or group stay, or a list cannot be kept, the group gets no more
/// than everybody has, and nobody is let in who may not write the file.
///
/// # Errors
/// EPERM if the companion lets somebody in that may not write the file, and this process may not change that; those of
/// `fstat(2)`.
pub(crate) fn conform(companion: BorrowedFd<'_>, file: BorrowedFd<'_>) -> io::Result<()> {
    let (mut ours, theirs) = (Permissions::of(companion)?, Permissions::of(file)?);
    let (mut mode, list) = like_companion(&theirs);
    let same = |ours: &Permissions| (ours.uid, ours.gid, ours.mode & 0o777) == (theirs.uid, theirs.gid, mode);
    if same(&ours) && ours.list == list {
        return Ok(());
    }
    if ours.gid != theirs.gid && rustix::fs::fchown(companion, None, Some(Gid::from_raw(theirs.gid))).is_ok() {
        ours.gid = theirs.gid;
    }
    // A list that the directory gave the new file would let its entries in as soon as the group has permissions.
    if !(set_list(companion, &ours, list.as_ref()) && ours.gid == theirs.gid) {
        mode &= !0o060 | ((mode & 0o006) << 3);
    }
    if let Err(errno) = rustix::fs::fchmod(companion, Mode::from_raw_mode(mode)) {
        // Somebody else's file, or a file system without permissions of its own: it may stay if it lets nobody in that
        // the file keeps out.
        let found = Permissions::of(companion)?;
        let lets_in = found.mode & 0o077 & !mode;
        let keeps_out = found.gid == theirs.gid && lets_in & !theirs.mode == 0;
        if lets_in != 0 && !keeps_out {
            return Err(errno.into());
        }
    }
    if ours.uid != theirs.uid {
        // Last, for the permissions of another's file are not ours to set. Its maker may write the other one.
        let _ = rustix::fs::fchown(companion, Some(Uid::from_raw(theirs.uid)), None);
    }
    Ok(())
}

/// Gives a file this access control list, or none; false if that was not possible.
fn set_list(file: BorrowedFd<'_>, has: &Permissions, list: Option<&List>) -> bool {
    if has.list.as_ref() == list {
        return true;
    }
    match list {
        Some(list) => rustix::fs::fsetxattr(file, ACCESS_LIST, &list_bytes(list), XattrFlags::empty()).is_ok(),
        None => {
            matches!(rustix::fs::fremovexattr(file, ACCESS_LIST), Ok(()) | Err(Errno::NODATA | Errno::NOTSUP))
        }
    }
}

/// Gives a new directory of companions the writers of the directory that it is in, and the owner of the data file if
/// the process may give it away.
///
/// In a sticky directory strangers make names side by side: the new one is sticky too, and nobody but its owner writes
/// to it.
///
/// # Errors
/// Those of `fstat(2)`.
pub(crate) fn conform_directory(directory: BorrowedFd<'_>, parent: &Permissions, owner: u32) -> io::Result<()> {
    let mut ours = Permissions::of(directory)?;
    let mut mode = ours.mode & 0o7755 & !STICKY;
    if parent.is_sticky() {
        mode |= STICKY;
    } else if parent.lets_others_write() {
        if ours.gid != parent.gid && rustix::fs::fchown(directory, None, Some(Gid::from_raw(parent.gid))).is_ok() {
            ours.gid = parent.gid;
        }
        if ours.gid == parent.gid && set_list(directory, &ours, parent.list.as_ref()) {
            // With a list, these are its mask.
            mode |= if parent.mode & 0o020 != 0 { 0o070 } else { 0 };
            mode |= if parent.mode & 0o002 != 0 { 0o007 } else { 0 };
        }
    }
    if mode != ours.mode {
        // A file system without permissions of its own refuses. The caller looks what it is like now.
        let _ = rustix::fs::fchmod(directory, Mode::from_raw_mode(mode));
    }
    if ours.uid != owner {
        // Only root may, and for everybody else it stays as it is.
        let _ = rustix::fs::fchown(directory, Some(Uid::from_raw(owner)), None);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(uid: u32, gid: u32, mode: u32, list: Option<List>) -> Permissions {
        Permissions { uid, gid, mode, list }
    }

    fn list(named: &[(u16, u16, u32)], group: u16, mask: u16, other: u16) -> Option<List> {
        let mut list = vec![(USER_OBJ, 6, u32::MAX)];
        list.extend(named.iter().filter(|entry| entry.0 == USER));
        list.push((GROUP_OBJ, group, u32::MAX));
        list.extend(named.iter().filter(|entry| entry.0 == GROUP));
        list.extend([(MASK, mask, u32::MAX), (OTHER, other, u32::MAX)]);
        Some(list)
    }

    #[test]
    fn a_companion_lets_in_the_writers_of_its_file_only() {
        for (mode, expected) in [(0o600, 0o600), (0o644, 0o600), (0o664, 0o660), (0o666, 0o666), (0o444, 0o600)] {
            assert_eq!(like_companion(&file(1, 1, mode, None)), (expected, None), "{mode:o}");
        }
        // Readers lose their entries, and those that the mask keeps from writing.
        let given = list(&[(USER, 6, 7), (USER, 4, 8), (GROUP, 7, 9)], 4, 6, 4);
        let wanted = list(&[(USER, 6, 7), (GROUP, 6, 9)], 0, 6, 0);
        assert_eq!(like_companion(&file(1, 1, 0o664, given)), (0o660, wanted));
        let masked = list(&[(USER, 6, 7)], 6, 4, 4);
        assert_eq!(like_companion(&file(1, 1, 0o644, masked)), (0o600, None));
    }

    #[test]
    fn writers_are_compared_by_user_group_and_list() {
        let own = file(1, 1, 0o600, None);
        let group = file(1, 5, 0o660, None);
        let all = file(1, 5, 0o666, None);
        let named = file(1, 5, 0o660, list(&[(USER, 6, 7)], 0, 6, 0));
        let masked = file(1, 5, 0o640, list(&[(USER, 6, 7)], 6, 4, 0));
        let other_group = file(1, 6, 0o660, None);
        let none_for_group = file(1, 6, 0o606, None);
        let yes = [(&own, &own), (&own, &group), (&group, &group), (&group, &all), (&named, &named), (&masked, &own)];
        for (a, b) in yes {
            assert!(a.writers_are_among_those_of(b), "{a:?} {b:?}");
        }
        let no = [
            (&group, &own),
            (&all, &group),
            (&named, &group),
            (&group, &named),
            (&other_group, &group),
            (&other_group, &none_for_group),
            (&group, &masked),
        ];
        for (a, b) in no {
            assert!(!a.writers_are_among_those_of(b), "{a:?} {b:?}");
        }
        assert!(!masked.lets_others_write() && named.lets_others_write() && named.lets_user_write(7));
    }

    #[test]
    fn a_list_reads_back_as_it_was_written() {
        let given = list(&[(USER, 6, 7), (GROUP, 2, 70_000)], 4, 7, 0).unwrap();
        let bytes = list_bytes(&given);
        assert_eq!(bytes.len(), 4 + 8 * given.len());
        let path = tempfile::NamedTempFile::new().unwrap();
        use std::os::fd::AsFd;
        let file = path.as_file().as_fd();
        match rustix::fs::fsetxattr(file, ACCESS_LIST, &bytes, XattrFlags::empty()) {
            Ok(()) => assert_eq!(Permissions::of(file).unwrap().list, Some(given)),
            Err(error) => untorn_testing::skip!("no access control lists here: {error}"),
        }
    }
}
