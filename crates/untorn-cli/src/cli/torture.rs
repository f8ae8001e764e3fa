//! The arguments of `untorn torture`, and of the processes that it starts.

use std::path::PathBuf;

use clap::Args;
use untorn::{Durability, EngineKind};
use untorn_rigs::block::FileSystem;

use super::{Form, Log, durabilities, engines};

/// Arguments of `torture`.
#[derive(Debug, Args)]
pub(crate) struct Torture {
    /// The engine to torture.
    #[arg(long, value_parser = engines(), default_value = "auto")]
    pub(crate) engine: EngineKind,
    /// For how long, at most [default: 10; with `--medium block`, until there are enough images].
    #[arg(long, value_name = "S")]
    pub(crate) seconds: Option<u64>,
    /// Repeat the operations of an earlier run [default: a new seed, which is printed].
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// What fails: `process` kills the writing process; `block` cuts the power of the disk under a real file system, as
    /// root; `dax` cuts the power of an emulated machine with persistent memory, with QEMU.
    #[arg(long, value_parser = ["process", "dax", "block"], default_value = "process")]
    pub(crate) medium: String,
    /// Where to put the files [default: the system's directory for temporary files; with `--medium block`, /dev/shm].
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// With `--medium block`, how many disks to check [default: 100]; with `--medium dax`, how many power cuts [default:
    /// 10].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) images: Option<u64>,
    /// With `--medium block` and `dax`, the file systems: ext4, xfs, and on disks btrfs.
    #[arg(long, value_name = "FS", value_delimiter = ',', default_value = "ext4,xfs")]
    pub(crate) fs: Vec<FileSystem>,
    /// With `--medium block`, a disk that acknowledges its latest flush without carrying it out: must be caught.
    #[arg(long)]
    pub(crate) lying_disk: bool,
    /// With `--medium block` and `dax`, where to keep a disk with a violation [default: the system's directory for
    /// temporary files].
    #[arg(long, value_name = "DIR")]
    pub(crate) keep: Option<PathBuf>,
    /// With `--medium dax`, the kernel: a version (6.12), a package file, or a directory into which one was unpacked
    /// [default: the distribution's own].
    #[arg(long, value_name = "VERSION|PATH")]
    pub(crate) kernel: Option<String>,
    /// With `--medium block`, check a disk again that was kept.
    #[arg(long, value_name = "DIR")]
    pub(crate) replay: Option<PathBuf>,
    /// Have the writer store plainly into the file as memory, and commit, instead of calling write; with `--engine
    /// hybrid-log`, which is the default then.
    #[arg(long)]
    pub(crate) map: bool,
    /// Have the writer map a region of a store, store to it plainly, allocate and free pages, and commit it by
    /// pmsync.
    #[arg(long, conflicts_with = "map")]
    pub(crate) region: bool,
    /// Keep redundancy of the file, covered, scrubbed and repaired while it is written; pages of it are damaged between two
    /// lives of the writer, and have to be given back.
    #[arg(long, conflicts_with_all = ["map", "region"])]
    pub(crate) redundancy: bool,
    /// Writer threads in the process that is killed.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=16))]
    pub(crate) threads: u8,
    /// When a write is durable [default: what suits the medium; with `--medium block`, each in turn].
    #[arg(long, value_parser = durabilities())]
    pub(crate) durability: Option<Durability>,
    #[command(flatten)]
    pub(crate) log: Log,
    #[command(flatten)]
    pub(crate) form: Form,
}

/// Arguments of the torture's writer process.
#[derive(Debug, Args)]
pub(crate) struct TortureWriter {
    /// The tortured file.
    pub(crate) file: PathBuf,
    /// Seed of the operations.
    #[arg(long)]
    pub(crate) seed: u64,
    /// The engine.
    #[arg(long, value_parser = engines())]
    pub(crate) engine: EngineKind,
    /// The durability.
    #[arg(long, value_parser = durabilities())]
    pub(crate) durability: Durability,
    #[command(flatten)]
    pub(crate) log: Log,
    /// The number of each thread's first operation.
    #[arg(long, value_delimiter = ',', required = true)]
    pub(crate) start: Vec<u64>,
    /// Have the kernel write back dirty pages at random times that follow from this seed.
    #[arg(long)]
    pub(crate) write_back: Option<u64>,
    /// Open the file, which recovers it, and then wait to be killed.
    #[arg(long)]
    pub(crate) idle: bool,
    /// Create the file first.
    #[arg(long, conflicts_with = "idle")]
    pub(crate) create: bool,
    /// Refuse to run unless the file is mapped with MAP_SYNC.
    #[arg(long)]
    pub(crate) demand_map_sync: bool,
    /// Store plainly into the file as memory.
    #[arg(long)]
    pub(crate) map: bool,
    /// Store plainly into a region of a store.
    #[arg(long, conflicts_with = "map")]
    pub(crate) region: bool,
    /// Cover, scrub and repair the file meanwhile.
    #[arg(long, conflicts_with_all = ["map", "region"])]
    pub(crate) redundancy: bool,
    /// The process to die with.
    #[arg(long)]
    pub(crate) parent: i32,
}

/// Arguments of the verification of one life. The reports come on standard input.
#[derive(Debug, Args)]
pub(crate) struct TortureVerify {
    /// The tortured file.
    pub(crate) file: PathBuf,
    /// Seed of the operations.
    #[arg(long)]
    pub(crate) seed: u64,
    /// The engine.
    #[arg(long, value_parser = engines())]
    pub(crate) engine: EngineKind,
    /// The durability.
    #[arg(long, value_parser = durabilities())]
    pub(crate) durability: Durability,
    /// How many threads wrote, each from operation 1 on.
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=16))]
    pub(crate) threads: u8,
    /// Refuse to verify unless the file is mapped with MAP_SYNC.
    #[arg(long)]
    pub(crate) demand_map_sync: bool,
    /// It is a store, and what was written a region of it.
    #[arg(long)]
    pub(crate) region: bool,
}
