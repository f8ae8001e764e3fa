//! What there is to choose from when a file is opened, each with the word that the tool and the JSON output use.

#[cfg(doc)]
use super::Options;
#[cfg(doc)]
use crate::error::Error;

/// Which engine makes commits atomic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EngineKind {
    /// The one that the file has a sidecar of; [`Reflection`](EngineKind::Reflection) for a file without one.
    Auto,
    /// A reflection page beside each file page, written alternately (the Acumen paper).
    Reflection,
    /// A log for each block, undo or redo, whose commit costs the same however much was written (the Libnvmmio paper): for
    /// programs that write a lot between syncs and commit by [`sync`](crate::AtomicFile::sync).
    HybridLog,
    /// Plain writes and a flush, with no atomicity at all: the canary that crash tests must convict.
    Passthrough,
}

/// What the hybrid-log engine logs: the bytes before a write, which then goes to the file itself, or the bytes of the
/// write, which go to the file after the commit (the Libnvmmio paper, §3.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum LogPolicy {
    /// The one that suits what the program did in the last epoch: redo from a share of writes on, undo below it (see
    /// [`Options::redo_from`]). On a block medium always redo. The default.
    #[default]
    Hybrid,
    /// Always undo: reads never look at the log. On persistent memory only, for the kernel writes the pages of a block
    /// medium back when it likes, and so before what would undo them.
    Undo,
    /// Always redo: a write costs no fence.
    Redo,
}

/// When a write is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Each write is one commit: durable, and only then visible, when the call returns. The default on persistent
    /// memory, save for [`EngineKind::HybridLog`].
    PerWrite,
    /// Writes join the open epoch, visible at once; [`AtomicFile::sync`](crate::AtomicFile::sync) commits the epoch. The
    /// default on a block medium, where a commit costs a device flush, and for [`EngineKind::HybridLog`] everywhere.
    PerCommit,
}

/// How many fences one atomic write costs on persistent memory; of the hybrid log, one commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Data and a record that certifies it by checksum, then one fence. The default: measured faster at every size
    /// from 64 bytes to 4 KiB.
    OneFence,
    /// Data, fence, record, fence: the order of the Acumen paper (§IV-C). No checksum over the data is needed. On a block
    /// medium the hybrid log pays for it with a second flush.
    TwoFence,
}

/// Where the bitmaps of the reflection pages live. The hybrid log has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Acumen's Eq. 1: a reflection page at a computed place for each file page, 512 to a meta page.
    Dense,
    /// The compact form: page number beside the bitmap, 256 to a meta page, reflection pages handed out on demand.
    Sparse,
    /// Dense up to 16 GiB, sparse above.
    Auto,
}

/// What a read of slices that are valid in the reflection page does. Reads of the hybrid log always gather.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadPolicy {
    /// Copies each slice from where it is valid. The default: a read never costs a fence.
    Gather,
    /// Deploys the page's slices into the file page first (the Acumen paper, §IV-C), so that later reads are plain
    /// copies.
    Deploy,
}

/// Which side is believed when a data file and its sidecar disagree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// The data file as it is; the sidecar and the committed bytes that only it holds are dropped.
    File,
    /// The sidecar: its committed bytes are laid over the data file.
    Sidecar,
}

/// What happens when a page of an open file is lost: the file was truncated by another program, its file system has no
/// space left for a page that is stored to, or the medium cannot read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum LostPage {
    /// The call that comes upon it fails with [`Error::Io`], which names the file and the offset, and the handle is
    /// poisoned as after a failed flush: reopening the file brings it to its last commit, or says why not. The process
    /// lives and its other files work on. The default.
    ///
    /// For this the library handles SIGBUS, from the first file opened on. A SIGBUS that is not about a file of its own
    /// goes to the handler that the program had installed before, or does what it did by default. A handler that the
    /// program installs *later* takes the library's place; it should call the one it replaces.
    #[default]
    Fail,
    /// The process gets the SIGBUS, to handle it or to die of it.
    Signal,
}

/// How an [`AtomicMap`](crate::AtomicMap) finds out which pages a program has stored to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum DirtyTracking {
    /// The best that the kernel, the medium and the process's rights allow. The default.
    #[default]
    Auto,
    /// The kernel write-protects what is committed and lifts the protection at the next store by itself (userfaultfd and
    /// PAGEMAP_SCAN, Linux 6.7): committed pages may stay in memory, where a next store to them costs least. Not on
    /// persistent memory (DAX), where kernels cannot do it safely. Memory is to be locked before a map is made, if at all
    /// (`mlockall(2)`), or with [`PageTable`](DirtyTracking::PageTable): `mlock(2)` of a map, part of which the kernel has
    /// dropped from memory meanwhile, was seen never to return (Linux 6.18).
    WriteProtect,
    /// By whose the pages are: one that was stored to belongs to the process, all others to the file. It works on every
    /// kernel, and in containers that forbid userfaultfd. What is committed goes to the file at once, so that its pages can
    /// be the file's again.
    PageTable,
}

macro_rules! words {
    ($type:ident, $what:literal, $($variant:ident = $word:literal),+) => {
        impl $type {
            /// The word the tool and the JSON output use.
            pub fn as_str(self) -> &'static str {
                match self { $($type::$variant => $word),+ }
            }
        }
        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }
        impl std::str::FromStr for $type {
            type Err = String;
            fn from_str(word: &str) -> std::result::Result<Self, String> {
                match word {
                    $($word => Ok($type::$variant),)+
                    _ => Err(format!(concat!("{:?} is no ", $what, "; use one of:", $(" ", $word),+), word)),
                }
            }
        }
    };
}

words!(
    EngineKind,
    "engine",
    Auto = "auto",
    Reflection = "reflection",
    HybridLog = "hybrid-log",
    Passthrough = "passthrough"
);
words!(LogPolicy, "logging policy", Hybrid = "hybrid", Undo = "undo", Redo = "redo");
words!(Durability, "durability", PerWrite = "write", PerCommit = "commit");
words!(Order, "order", OneFence = "one-fence", TwoFence = "two-fence");
words!(Layout, "layout", Dense = "dense", Sparse = "sparse", Auto = "auto");
words!(ReadPolicy, "read policy", Gather = "gather", Deploy = "deploy");
words!(LostPage, "way to learn of a lost page", Fail = "fail", Signal = "signal");
words!(DirtyTracking, "way to track stores", Auto = "auto", WriteProtect = "write-protect", PageTable = "page-table");
words!(Trust, "side to trust", File = "file", Sidecar = "sidecar");
