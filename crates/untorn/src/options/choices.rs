//! The choices for opening a file, each with its name in the tool and the JSON output.

#[cfg(doc)]
use super::Options;
#[cfg(doc)]
use crate::error::Error;

/// The engine that makes commits atomic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EngineKind {
    /// The engine of the file's sidecar. For a file without one it is [`HybridLog`](EngineKind::HybridLog) on a disk
    /// with [`Durability::PerCommit`], where its commit writes least, and [`Reflection`](EngineKind::Reflection)
    /// elsewhere and for a file with redundancy, which covers the sidecar of that engine.
    Auto,
    /// A reflection page beside each file page, written alternately (the Acumen paper).
    Reflection,
    /// An undo or redo log for each block. A commit costs the same however much was written (the Libnvmmio paper). It
    /// suits programs that write a lot between syncs and commit by [`sync`](crate::AtomicFile::sync).
    HybridLog,
    /// Copy-on-write of whole pages, as NOVA does it: a write copies each page that it touches, with the new bytes in
    /// it, to the place of the two that is free. It is the baseline of the Acumen paper: sound as the others, and for
    /// small writes it stores far more than [`Reflection`](EngineKind::Reflection).
    Shadow,
    /// Plain writes and a flush, without any atomicity: the canary that crash tests must convict.
    Passthrough,
}

/// What the hybrid-log engine logs (the Libnvmmio paper, §3.4). Undo logs the old bytes, and the write then goes to the
/// file itself. Redo logs the new bytes, which go to the file after the commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum LogPolicy {
    /// Chooses by what the program did in the last epoch: redo if the share of writes reached a threshold, undo below
    /// it (see [`Options::redo_threshold_percent`]). On a block medium always redo. The default.
    #[default]
    Hybrid,
    /// Always undo: reads never look at the log. It needs persistent memory: the kernel may write pages of a block
    /// medium back before the log that would undo them.
    Undo,
    /// Always redo: a write costs no fence.
    Redo,
}

/// When a write is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Each write is one commit: durable when the call returns, and visible only then. The default on persistent
    /// memory, except for [`EngineKind::HybridLog`].
    PerWrite,
    /// Writes join the open epoch and are visible at once; [`AtomicFile::sync`](crate::AtomicFile::sync) commits the
    /// epoch. The default on a block medium, where a commit costs a device flush, and for [`EngineKind::HybridLog`]
    /// everywhere.
    PerCommit,
}

/// The number of fences that one atomic write costs on persistent memory; for the hybrid log, one commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Data and a record with its checksum, then one fence. The default: measured faster at every size from 64 bytes to
    /// 4 KiB.
    OneFence,
    /// Data, fence, record, fence: the order of the Acumen paper (§IV-C). It needs no checksum over the data. On a
    /// block medium the hybrid log pays a second flush for it.
    TwoFence,
}

/// The layout of the bitmaps of reflection pages. The hybrid log has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Acumen's Eq. 1: each file page has a reflection page at a computed place, 512 to a meta page.
    Dense,
    /// The compact layout: the page number beside the bitmap, 256 to a meta page, and reflection pages allocated on
    /// demand.
    Sparse,
    /// Dense up to 16 GiB, sparse above.
    Auto,
}

/// What a read does with slices that are valid in the reflection page. Reads of the hybrid log always gather.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadPolicy {
    /// Copies each slice from its valid place. The default: a read never costs a fence.
    Gather,
    /// First deploys the page's slices into the file page (the Acumen paper, §IV-C), so that later reads are plain
    /// copies.
    Deploy,
}

/// The side to believe when a data file and its sidecar disagree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prefer {
    /// Keeps the data file as it is, and drops the sidecar with the committed bytes that only it holds.
    File,
    /// Writes the sidecar's committed bytes over the data file.
    Sidecar,
}

/// What happens when a page of an open file is lost. A page is lost when another program truncates the file, when the
/// file system has no space for a page that is stored to, or when the medium cannot read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum LostPage {
    /// The call that accesses the page fails with [`Error::Io`], which names the file and the offset. The handle is
    /// then poisoned, as after a failed flush: reopening the file brings it to its last commit, or fails with the
    /// reason. The process goes on, and so do its other files. The default.
    ///
    /// For this the library installs a SIGBUS handler when the process opens its first file. It passes a SIGBUS that is
    /// not about one of its files to the handler that the program had installed before, or to the default action. A
    /// handler that the program installs *later* replaces the library's; it should call the handler that it replaces.
    #[default]
    Fail,
    /// The process gets the SIGBUS, and handles it or dies.
    Signal,
}

/// How an [`AtomicMap`](crate::AtomicMap) finds the pages that a program has stored to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum DirtyTracking {
    /// The best method that the kernel, the medium and the process's rights allow. The default.
    #[default]
    Auto,
    /// The kernel write-protects committed pages, and lifts the protection at the next store by itself (userfaultfd and
    /// PAGEMAP_SCAN, Linux 6.7). Committed pages may stay in memory, where the next store to them costs least.
    ///
    /// - It is not available on persistent memory (DAX), where kernels cannot do it safely.
    /// - A program that locks memory must do so before it creates a map (`mlockall(2)`), or use
    ///   [`PageTable`](DirtyTracking::PageTable). `mlock(2)` of a map whose pages the kernel had partly dropped was
    ///   seen never to return (Linux 6.18).
    WriteProtect,
    /// A page that was stored to is private to the process; all others are the file's. It works on every kernel, and in
    /// containers that forbid userfaultfd. A commit writes its pages to the file at once, so that they can be the
    /// file's again. Where it looks for stores, a commit takes 26 ns for each page in memory; before Linux 6.7 it takes
    /// 5 ns for each page that is not there, too.
    PageTable,
}

impl EngineKind {
    /// Whether each page of a file has a reflection page in the sidecar.
    pub(crate) fn has_reflection_pages(self) -> bool {
        matches!(self, EngineKind::Reflection | EngineKind::Shadow)
    }
}

macro_rules! words {
    ($type:ident, $what:literal, $($variant:ident = $word:literal),+) => {
        impl $type {
            /// The name in the tool and the JSON output.
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
                    _ => Err(format!(concat!("{:?} is not a known ", $what, "; use one of:", $(" ", $word),+), word)),
                }
            }
        }
    };
}
pub(super) use words;

words!(
    EngineKind,
    "engine",
    Auto = "auto",
    Reflection = "reflection",
    HybridLog = "hybrid-log",
    Shadow = "shadow",
    Passthrough = "passthrough"
);
words!(LogPolicy, "logging policy", Hybrid = "hybrid", Undo = "undo", Redo = "redo");
words!(Durability, "durability", PerWrite = "write", PerCommit = "commit");
words!(Order, "order", OneFence = "one-fence", TwoFence = "two-fence");
words!(Layout, "layout", Dense = "dense", Sparse = "sparse", Auto = "auto");
words!(ReadPolicy, "read policy", Gather = "gather", Deploy = "deploy");
words!(LostPage, "lost-page mode", Fail = "fail", Signal = "signal");
words!(DirtyTracking, "dirty tracking", Auto = "auto", WriteProtect = "write-protect", PageTable = "page-table");
words!(Prefer, "trust choice", File = "file", Sidecar = "sidecar");
