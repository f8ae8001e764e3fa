//! The numbers and struct layouts that C programs are compiled against. They may be added to and never change.

use std::ffi::{c_char, c_int, c_void};

macro_rules! constants {
    ($($(#[$doc:meta])* $name:ident = $value:expr;)+) => {
        $($(#[$doc])* pub const $name: i64 = $value;)+
        /// Every constant of the headers by name, for the test that compares them.
        pub const CONSTANTS: &[(&str, i64)] = &[$((stringify!($name), $name)),+];
    };
}

constants! {
    /// The file or a directory of its path does not exist.
    UNTORN_ENOENT = -(libc::ENOENT as i64);
    /// A read, write or flush failed on the device.
    UNTORN_EIO = -(libc::EIO as i64);
    /// Memory is used up.
    UNTORN_ENOMEM = -(libc::ENOMEM as i64);
    /// The caller may not do this to the file.
    UNTORN_EACCES = -(libc::EACCES as i64);
    /// The range does not lie within the file.
    UNTORN_EFAULT = -(libc::EFAULT as i64);
    /// The commit log is full, and keeps its oldest commits for a consumer.
    UNTORN_EAGAIN = -(libc::EAGAIN as i64);
    /// A commit is made, and was not acknowledged in time.
    UNTORN_ETIMEDOUT = -(libc::ETIMEDOUT as i64);
    /// Another process, or an incompatible handle of this one, has the file open.
    UNTORN_EBUSY = -(libc::EBUSY as i64);
    /// The file exists and was to be created.
    UNTORN_EEXIST = -(libc::EEXIST as i64);
    /// A directory is not a file.
    UNTORN_EISDIR = -(libc::EISDIR as i64);
    /// An argument no file could satisfy, or a null pointer.
    UNTORN_EINVAL = -(libc::EINVAL as i64);
    /// The device is full.
    UNTORN_ENOSPC = -(libc::ENOSPC as i64);
    /// The handle or the medium is for reading only.
    UNTORN_EROFS = -(libc::EROFS as i64);
    /// The quota is used up.
    UNTORN_EDQUOT = -(libc::EDQUOT as i64);
    /// A format, feature or option this version does not know.
    UNTORN_EOPNOTSUPP = -(libc::EOPNOTSUPP as i64);
    /// The sidecar is damaged.
    UNTORN_EBADMSG = -(libc::EBADMSG as i64);
    /// The file stands at a crash and a read-only handle may not repair it.
    UNTORN_EUCLEAN = -(libc::EUCLEAN as i64);
    /// The handle belongs to the parent process.
    UNTORN_EOWNERDEAD = -(libc::EOWNERDEAD as i64);
    /// A fault of untorn itself.
    UNTORN_EINTERNAL = -1001;
    /// An earlier flush failed, or a page of the file was lost.
    UNTORN_EPOISONED = -1002;
    /// The sidecar with committed bytes is not there.
    UNTORN_ESIDECAR_MISSING = -1003;
    /// The sidecar belongs to another file.
    UNTORN_ESIDECAR_MISMATCH = -1004;
    /// Another program changed the file.
    UNTORN_EMIXED_USE = -1005;
    /// Transactions of the handle are open.
    UNTORN_ETXOPEN = -1006;
    /// The snapshot has ended.
    UNTORN_ESNAPSHOT = -1007;
    /// Commits are not in the commit log any more, or the file has no log.
    UNTORN_ECOMMITS = -1008;

    /// Engine: chosen by the medium.
    UNTORN_ENGINE_AUTO = 0;
    /// Engine: reflection pages.
    UNTORN_ENGINE_REFLECTION = 1;
    /// Engine: none, for comparison.
    UNTORN_ENGINE_PASSTHROUGH = 2;
    /// Engine: a log for each block.
    UNTORN_ENGINE_HYBRID_LOG = 3;
    /// Engine: copy-on-write of whole pages.
    UNTORN_ENGINE_SHADOW = 4;
    /// Layout: by the length.
    UNTORN_LAYOUT_AUTO = 0;
    /// Layout: dense.
    UNTORN_LAYOUT_DENSE = 1;
    /// Layout: sparse.
    UNTORN_LAYOUT_SPARSE = 2;
    /// Durability: as the file was created, else by the medium.
    UNTORN_DURABILITY_AUTO = 0;
    /// Durability: each write is a commit.
    UNTORN_DURABILITY_PER_WRITE = 1;
    /// Durability: `untorn_sync` commits.
    UNTORN_DURABILITY_PER_COMMIT = 2;
    /// Order: one fence.
    UNTORN_ORDER_ONE_FENCE = 0;
    /// Order: two fences.
    UNTORN_ORDER_TWO_FENCE = 1;
    /// Hybrid log: undo or redo, by what the program did.
    UNTORN_LOG_HYBRID = 0;
    /// Hybrid log: always undo.
    UNTORN_LOG_UNDO = 1;
    /// Hybrid log: always redo.
    UNTORN_LOG_REDO = 2;
    /// Tracking of stores: the best there is.
    UNTORN_TRACKING_AUTO = 0;
    /// Tracking of stores: write protection.
    UNTORN_TRACKING_WRITE_PROTECT = 1;
    /// Tracking of stores: the page tables alone.
    UNTORN_TRACKING_PAGE_TABLE = 2;
    /// Reads gather.
    UNTORN_READ_GATHER = 0;
    /// Reads deploy.
    UNTORN_READ_DEPLOY = 1;
    /// Flag: open for reading only.
    UNTORN_READ_ONLY = 1;
    /// Flag: create the file if it does not exist.
    UNTORN_CREATE = 2;
    /// Flag: with `UNTORN_CREATE`, the file must not exist.
    UNTORN_EXCL = 4;
    /// Flag: do not check the digest of a cleanly closed file.
    UNTORN_NO_VERIFY = 8;
    /// Flag: a lost page is a SIGBUS.
    UNTORN_LOST_PAGE_SIGNAL = 16;
    /// Flag: hybrid log, no thread checkpoints.
    UNTORN_NO_CHECKPOINTERS = 32;
    /// Other processes that say so too may have the file open at once.
    UNTORN_SHARED = 64;
    /// Flag: a read of a covered page that is damaged fails.
    UNTORN_VERIFY_READS = 128;
    /// Flag: a read of a covered page that is damaged repairs it, or fails.
    UNTORN_REPAIR_READS = 256;
    /// Flag: closing keeps the sidecar.
    UNTORN_KEEP_SIDECAR = 512;
    /// Flag: the commit log keeps commits for its consumers.
    UNTORN_COMMIT_LOG_BLOCK = 2048;
    /// Flag: nothing goes home in the background.
    UNTORN_NO_DEPLOY_AHEAD = 1024;
    /// Flag: a commit returns once the consumers of the commit log have acknowledged it.
    UNTORN_COMMIT_LOG_AWAIT = 8192;
    /// Flag: nothing is served to other processes.
    UNTORN_NO_SERVE_SNAPSHOTS = 4096;
    /// Stripes of neighbours.
    UNTORN_STRIPES_CONSECUTIVE = 1;
    /// Stripes of pages far apart.
    UNTORN_STRIPES_SPREAD = 2;
    /// CRC-32C.
    UNTORN_CHECKSUM_CRC32C = 1;
    /// XXH3, 64 bits.
    UNTORN_CHECKSUM_XXH3 = 2;
    /// Flag: no thread covers.
    UNTORN_COVER_ON_DEMAND = 1;
    /// Flag: a repair takes back pages that other programs changed.
    UNTORN_REPAIR_FORCE = 1;
    /// A damaged page.
    UNTORN_DAMAGE_PAGE = 1;
    /// A page that may be damaged.
    UNTORN_DAMAGE_UNKNOWN = 2;
    /// A damaged parity page.
    UNTORN_DAMAGE_PARITY = 3;
    /// A damaged table of checksums.
    UNTORN_DAMAGE_TABLE = 4;
    /// Bytes of a message, the final zero included.
    UNTORN_MESSAGE_SIZE = 508;

    /// Deploy after the write.
    ATO_EAGER = 1;
    /// A flag of mapping: writes are durable when they are committed.
    ATO_PER_COMMIT = 0x0200_0000;
    /// Keep the sidecar.
    ATO_FAST = 0;
    /// Settle the file.
    ATO_SPATIAL = 1;

    /// The log of a file: undo or redo, by what the program did.
    NVM_LOG_HYBRID = 0;
    /// The log of a file: always undo.
    NVM_LOG_UNDO = 1;
    /// The log of a file: always redo.
    NVM_LOG_REDO = 2;
    /// A flag of open: the file is to be mapped atomically.
    O_ATOMIC = 0o1_000_000_000;

    /// A flag of `region_open`: together with other processes.
    REGION_SHARED = 0x4000_0000;

    /// The version of libpmem whose functions `untorn/libpmem.h` has.
    PMEM_MAJOR_VERSION = 1;
    /// The same.
    PMEM_MINOR_VERSION = 1;
    /// Flags of `pmem_map_file`: create the file or region.
    PMEM_FILE_CREATE = 1;
    /// Fail if there is one.
    PMEM_FILE_EXCL = 2;
    /// Allocate no space.
    PMEM_FILE_SPARSE = 4;
    /// A file without a name.
    PMEM_FILE_TMPFILE = 8;
    /// Flags of `pmem_memcpy`: the next drain persists.
    PMEM_F_MEM_NODRAIN = 1;
    /// Flag of `pmem_memcpy`: store past the cache.
    PMEM_F_MEM_NONTEMPORAL = 2;
    /// Flag of `pmem_memcpy`: store through the cache.
    PMEM_F_MEM_TEMPORAL = 4;
    /// Flag of `pmem_memcpy`: the memory combines writes.
    PMEM_F_MEM_WC = 8;
    /// Flag of `pmem_memcpy`: the memory writes back.
    PMEM_F_MEM_WB = 16;
    /// Flag of `pmem_memcpy`: nothing persists.
    PMEM_F_MEM_NOFLUSH = 32;
    /// All flags of `pmem_memcpy`.
    PMEM_F_MEM_VALID_FLAGS = 63;
}

/// `untorn_error`: why a call failed.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types, reason = "the name C programs use")]
pub struct untorn_error {
    /// 0 or a negative code.
    pub code: c_int,
    /// UTF-8, ends with a zero.
    pub message: [c_char; UNTORN_MESSAGE_SIZE as usize],
}

/// `untorn_options`: how to open a file. Zero in a field means its default.
#[repr(C)]
#[derive(Clone, Copy, Default)]
#[allow(non_camel_case_types, reason = "the name C programs use")]
pub struct untorn_options {
    /// Bytes of the struct as the program was compiled.
    pub size: u32,
    /// `UNTORN_ENGINE_*`.
    pub engine: u32,
    /// `UNTORN_LAYOUT_*`.
    pub layout: u32,
    /// `UNTORN_DURABILITY_*`.
    pub durability: u32,
    /// `UNTORN_ORDER_*`.
    pub order: u32,
    /// `UNTORN_READ_*`.
    pub read_policy: u32,
    /// `UNTORN_READ_ONLY` and the other flags.
    pub flags: u32,
    /// Zero.
    pub reserved: u32,
    /// Bytes of a file that is created.
    pub length: u64,
    /// Bytes the file may grow to while open; 0 for the default.
    pub max_len: u64,
    /// Hybrid log: the most bytes the log may take; 0 for the default.
    pub log_size: u64,
    /// Hybrid log: `UNTORN_LOG_*`.
    pub log_policy: u32,
    /// Hybrid log: share of writes in percent from which on redo is logged; 0 for the default.
    pub redo_from: u32,
    /// Hybrid log: threads that checkpoint; 0 for the default.
    pub checkpointers: u32,
    /// Maps: `UNTORN_TRACKING_*`.
    pub dirty_tracking: u32,
    /// Reflection: bytes in the sidecar from which on pages go home in the background; 0 for the default.
    pub deploy_ahead: u64,
    /// Bytes that the commit log may take; 0 for none, unless the file has one.
    pub commit_log: u64,
    /// With `UNTORN_COMMIT_LOG_BLOCK`: the milliseconds that a commit waits for the consumers of the log.
    pub commit_log_wait: u64,
    /// Bytes of memory for the pages that held snapshots keep; 0 for the default.
    pub snapshot_memory: u64,
}

/// `untorn_change`: bytes that a commit changed.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types, reason = "the name C programs use")]
pub struct untorn_change {
    /// Where they are in the file.
    pub offset: u64,
    /// How many there are.
    pub len: u64,
    /// The bytes as they are now.
    pub bytes: *const c_void,
}

/// `untorn_commit`: one commit of a stream.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types, reason = "the name C programs use")]
pub struct untorn_commit {
    /// Its number.
    pub number: u64,
    /// The number of the commit before it.
    pub previous: u64,
    /// When it was made, in nanoseconds since 1970; 0 if that is not known.
    pub time_ns: u64,
    /// The length of the file after it.
    pub len: u64,
    /// The shortest that the file was in it.
    pub shortest: u64,
    /// The changed ranges, ascending.
    pub changes: *const untorn_change,
    /// How many changes there are.
    pub change_count: usize,
}

/// `untorn_redundancy_options`: how to protect a mapping. Zero in a field means its default.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types, reason = "the name C programs use")]
pub struct untorn_redundancy_options {
    /// Bytes of the struct as the program was compiled.
    pub size: u32,
    /// Data pages of a stripe.
    pub stripe: u32,
    /// `UNTORN_STRIPES_*`.
    pub layout: u32,
    /// `UNTORN_CHECKSUM_*`.
    pub checksum: u32,
    /// `UNTORN_COVER_ON_DEMAND`.
    pub flags: u32,
    /// Pages covered at a time.
    pub batch: u32,
    /// Milliseconds between two passes of the thread that covers.
    pub period_ms: u64,
    /// Milliseconds between two scrubs by a thread.
    pub scrub_every_ms: u64,
    /// Bytes that such a scrub reads in a second, at most.
    pub scrub_rate: u64,
    /// Is told of damage.
    pub on_damage: Option<unsafe extern "C" fn(*mut c_void, u32, u64, u64)>,
    /// Its first argument.
    pub context: *mut c_void,
    /// The cap on uncovered pages; 0: the one that is kept with the file, or none.
    pub max_uncovered: u64,
}

/// `untorn_coverage`: how much of a mapping is covered.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types, reason = "the name C programs use")]
pub struct untorn_coverage {
    /// Bytes of the struct as the program was compiled.
    pub size: u32,
    /// 1 while a scrub is under way.
    pub is_scrubbed: u32,
    /// Pages of the file.
    pub pages: u64,
    /// Pages that were stored to since they were covered.
    pub uncovered: u64,
    /// Stripes.
    pub stripes: u64,
    /// Stripes with an uncovered page.
    pub vulnerable_stripes: u64,
    /// Pages that differed when the file was protected.
    pub unknown: u64,
    /// Damaged pages that could not be given back.
    pub lost: u64,
    /// Milliseconds since the oldest uncovered page is so, at most.
    pub oldest_uncovered_ms: u64,
    /// Pages that the scrub under way has looked at.
    pub looked: u64,
    /// Whole scrubs.
    pub scrubs: u64,
    /// When the last of them ended, in seconds since 1970.
    pub last_scrub: u64,
    /// Pages that were repaired.
    pub repaired: u64,
    /// Milliseconds between two passes of the thread that covers; 0 if it waits for the cap.
    pub period_ms: u64,
    /// The cap on uncovered pages; all ones if there is none.
    pub max_uncovered: u64,
    /// The most pages that were seen uncovered.
    pub peak_uncovered: u64,
}

impl Default for untorn_redundancy_options {
    fn default() -> Self {
        untorn_redundancy_options {
            size: 0,
            stripe: 0,
            layout: 0,
            checksum: 0,
            flags: 0,
            batch: 0,
            period_ms: 0,
            scrub_every_ms: 0,
            scrub_rate: 0,
            on_damage: None,
            context: std::ptr::null_mut(),
            max_uncovered: 0,
        }
    }
}
