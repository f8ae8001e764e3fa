//! The sidecar: untorn's own file beside the data file.
//!
//! `DIR/.untorn/INODE` holds, in this order: two superblocks, two retirement lines, the lanes of records, and from
//! [`Geometry::chunks_at`] on the chunks of meta pages and reflection pages. untorn never trusts it by its name alone:
//! the superblock names the data file by inode, generation and birth time, and the data file carries the sidecar's UUID
//! as a mark.

pub(crate) mod admit;
pub(crate) mod adopt;
pub(crate) mod attach;
pub(crate) mod data;
pub(crate) mod leftovers;
pub(crate) mod number;
pub(crate) mod redundancy;
pub(crate) mod retirement;
pub(crate) mod space;
pub(crate) mod state;
pub(crate) mod superblock;

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::format::record::LINE;
use crate::options::Layout;
use crate::storage::companion::directories_of;
use crate::storage::{Identity, MarkState, Medium, MediumFile};

/// The longest file untorn serves, 64 PiB: what a sidecar says beyond it is nonsense, and below it no sum overflows.
pub(crate) const MAX_LEN: u64 = 1 << 56;

/// Sequence numbers count commits or writes of a line; one beyond this was never reached.
pub(crate) const MAX_NUMBER: u64 = 1 << 62;

/// The highest number a file may be opened with: however long it stays open, nothing it numbers comes near
/// [`MAX_NUMBER`], beyond which recovery would not believe it.
pub(crate) const MAX_NUMBER_AT_OPEN: u64 = MAX_NUMBER / 2;

/// Bytes of a page, of the data file and of the sidecar.
pub(crate) const PAGE: u64 = 4096;

/// Reflection pages of a chunk, by the layout of the sidecar.
pub(crate) const DENSE_PAGES: u64 = 512;
pub(crate) const SPARSE_PAGES: u64 = 256;

/// Pages of a chunk of a sidecar, of which the first, a meta page, says which bytes of the others count.
pub(crate) fn chunk_pages(layout: Layout) -> u64 {
    1 + if layout == Layout::Sparse { SPARSE_PAGES } else { DENSE_PAGES }
}

/// The barriers of creating and opening a sidecar.
pub(crate) mod barriers {
    use crate::storage::barrier::barriers;
    barriers! {
        /// A new sidecar is whole before its final name points to it.
        CREATE_FILE = "sidecar.create.file";
        /// The sidecar's name is durable before the data file's mark names it, and before any commit.
        CREATE_NAME = "sidecar.create.name";
        /// The directory `.untorn` is durable, for the same reason.
        CREATE_DIRECTORY = "sidecar.create.directory";
        /// Bytes that a killed process left in the page cache are durable before the open relies on them, and before
        /// the older of two copies is overwritten because a newer one was read. The data file's own length and the mark
        /// of a new sidecar are durable before any commit: a file that comes back without its mark beside an active
        /// sidecar is refused.
        ATTACH_FILES = "sidecar.attach.files";
        /// The superblocks and the retirement lines are read from the medium, not from pages that a failed flush left
        /// in the cache: they decide everything that follows, and the older of two copies is overwritten.
        ATTACH_LINES = "sidecar.attach.lines";
        /// After a crash, both files are read from the medium as a whole: the result of recovery is durable, and stays
        /// so when the records it came from are dropped.
        ATTACH_CACHE = "sidecar.attach.cache";
        /// A sidecar that is given up says "settled" before the data file loses its mark. A crash in between would
        /// leave one that claims the file, and a file that does not carry its mark.
        REMOVE_STATE = "sidecar.remove.state";
        /// The mark is gone before the sidecar is: a marked file without its sidecar is refused.
        REMOVE_MARK = "sidecar.remove.mark";
        /// The superblock says "open" before the first store: otherwise a crash would leave one that says "closed
        /// cleanly" over bytes that changed since.
        OPEN = "sidecar.open";
    }
}

/// The barriers of an adoption.
pub(crate) mod adoption_barriers {
    use crate::storage::barrier::barriers;
    barriers! {
        /// A redundancy file names the file that adopts it before it stands at that file's place: there, one that names
        /// another file is set aside.
        REDUNDANCY = "sidecar.adopt.redundancy";
        /// What goes with a sidecar has its new name before the sidecar has: by the sidecar it is found. The sidecar
        /// has its new name before a commit: without adoption a file finds no other.
        NAMES = "sidecar.adopt.names";
    }
}

/// Where things are in a sidecar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    /// Rings of records.
    pub(crate) lanes: u32,
    /// Lines of 64 bytes in each.
    pub(crate) slots: u32,
}

impl Geometry {
    /// Byte offset of the first lane, behind two superblocks and a page for the retirement lines.
    pub(crate) const LANES_AT: u64 = 3 * PAGE;

    /// Byte offset of the first chunk: a whole number of pages, so that reflection pages are aligned.
    pub(crate) fn chunks_at(self) -> u64 {
        (Self::LANES_AT + u64::from(self.lanes) * u64::from(self.slots) * LINE).next_multiple_of(PAGE)
    }
}

/// The directory of sidecars beside a data file: `.untorn`, or that of its owner where `.untorn` is a stranger's.
pub(crate) fn directory(data: &Path) -> PathBuf {
    directories_of(data).0
}

/// The directory of the data file.
pub(crate) fn parent(data: &Path) -> PathBuf {
    match data.parent() {
        Some(parent) if parent != Path::new("") => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// The sidecar of the data file with this inode number.
pub(crate) fn path(data: &Path, inode: u64) -> PathBuf {
    directory(data).join(inode.to_string())
}

/// The redundancy file of the data file with this inode number.
pub(crate) fn redundancy_file(data: &Path, inode: u64) -> PathBuf {
    path(data, inode).with_extension("redundancy")
}

/// Where the processes meet that share a file in the way that `kind` says. An inode number may come to another file
/// while some of those are left that shared the one before, so the time of the file's birth is in the name, or its
/// generation.
pub(crate) fn meeting_place(identity: Identity, kind: &str) -> String {
    let told_apart = if identity.birth == 0 { identity.generation } else { identity.birth };
    format!("{}-{told_apart:x}.{kind}", identity.inode)
}

/// How files are shared, as the names of the meeting places end.
pub(crate) const CALLS: &str = "calls";
pub(crate) const REGION: &str = "region";
pub(crate) const SHARE: &str = "share";

/// Whether a name in the directory of sidecars is that of a lock file with which processes meet that share a file.
/// Nobody may open one to look what it is: a process that closes any descriptor of it loses its locks.
fn is_meeting_place(name: &OsStr) -> bool {
    let name = name.as_encoded_bytes().strip_suffix(b".lock").unwrap_or_default();
    [CALLS, REGION, SHARE].iter().any(|kind| name.ends_with(format!(".{kind}").as_bytes()))
}

/// The files in the directory of sidecars that may be sidecars.
fn candidates<M: Medium>(medium: &M, data: &Path) -> Result<impl Iterator<Item = PathBuf>> {
    let (one, other) = directories_of(data);
    let mut found = Vec::new();
    for dir in [Some(one), other].into_iter().flatten() {
        // One that a stranger made may not be this user's to list.
        let names = match medium.list(&dir) {
            Err(Error::Io { source, .. }) if source.kind() == ErrorKind::PermissionDenied => continue,
            names => names?,
        };
        let names = names.into_iter().filter(|name| !is_meeting_place(name));
        found.extend(names.map(|name| dir.join(name)));
    }
    Ok(found.into_iter())
}

/// The sidecar of a file: at its place, or under another name with the UUID of its mark.
pub(crate) fn find_or_at<M: Medium>(
    medium: &M,
    path: &Path,
    data: &M::File,
    place: PathBuf,
) -> Result<Option<PathBuf>> {
    let mark = data.mark()?;
    match adopt::find(medium, path, data, mark) {
        // Without a mark its place is all that speaks for it.
        None if mark == MarkState::Unsupported && medium.exists(&place)? => Ok(Some(place)),
        found => Ok(found),
    }
}

/// Where records too large for a lane are put.
pub(crate) fn spill_path(sidecar: &Path) -> PathBuf {
    sidecar.with_extension("spill")
}

/// The files beside a sidecar that say nothing without it: they move and go with it, whatever its name.
fn companions(sidecar: &Path) -> [PathBuf; 2] {
    ["spill", "sidecar-redundancy"].map(|kind| sidecar.with_extension(kind))
}

/// The name that a sidecar is set aside under: its own file finds it there by its UUID.
fn aside(sidecar: &Path, uuid: &[u8; 16]) -> PathBuf {
    sidecar.with_extension(format!("{}.orphan", uuid_text(uuid)))
}

/// A UUID as text, in the usual form.
pub(crate) fn uuid_text(uuid: &[u8; 16]) -> String {
    let hex: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_reuse_an_inode_number_have_their_own_rendezvous() {
        let identity = |generation, birth| Identity { device: 1, inode: 7, generation, birth };
        let names = [identity(0, 0x1f), identity(0, 0x20), identity(5, 0), identity(6, 0)]
            .map(|identity| [CALLS, REGION, SHARE].map(|kind| meeting_place(identity, kind)));
        assert_eq!(names[0], ["7-1f.calls", "7-1f.region", "7-1f.share"]);
        for (index, one) in names.iter().enumerate() {
            assert!(names[..index].iter().all(|other| one.iter().zip(other).all(|(one, other)| one != other)));
            // Whoever looks for a sidecar under any name leaves its lock alone.
            assert!(one.iter().all(|name| is_meeting_place(OsStr::new(&format!("{name}.lock")))));
        }
        assert!(!["7", "7.new", "7-1f.share", "share.lock"].iter().any(|name| is_meeting_place(OsStr::new(name))));
    }
}
