//! Arguments of `untorn torture` and of the processes it starts.

use std::path::PathBuf;

use clap::Args;
use untorn::{Durability, EngineKind};
use untorn_rigs::block::FileSystem;

use super::words::{durabilities, engines};
use super::{Form, Log};

/// Arguments of `torture`.
#[derive(Debug, Args)]
pub(crate) struct Torture {
    /// The engine to test.
    #[arg(long, value_parser = engines(), default_value = "auto")]
    pub(crate) engine: EngineKind,
    /// Maximum duration in seconds [default: 10; with `--medium block`, until enough images are checked].
    #[arg(long, value_name = "S")]
    pub(crate) seconds: Option<u64>,
    /// Seed of the operations, to repeat those of an earlier run [default: a new seed, which is printed].
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// The kind of crash: `process` kills the writing process; `block` cuts the power of the disk under a real file
    /// system and needs root; `dax` cuts the power of an emulated machine with persistent memory and needs QEMU.
    #[arg(long, value_parser = ["process", "dax", "block"], default_value = "process")]
    pub(crate) medium: String,
    /// Directory for the files [default: the system's temporary directory; with `--medium block`, /dev/shm].
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// With `--medium block`, the number of disk images to check [default: 100]; with `--medium dax`, the number of
    /// power cuts [default: 10].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) images: Option<u64>,
    /// With `--medium block` or `dax`, the file systems, comma-separated: ext4, xfs and, with `block` only, btrfs.
    #[arg(long, value_name = "FS", value_delimiter = ',', default_value = "ext4,xfs")]
    pub(crate) fs: Vec<FileSystem>,
    /// With `--medium block`, use a disk that acknowledges its latest flush without performing it. The test must find
    /// violations.
    #[arg(long)]
    pub(crate) lying_disk: bool,
    /// With `--medium block` or `dax`, where to keep a disk image with a violation [default: the system's temporary
    /// directory].
    #[arg(long, value_name = "DIR")]
    pub(crate) keep: Option<PathBuf>,
    /// With `--medium dax`, the kernel: a version (6.12), a package file, or a directory with an unpacked package
    /// [default: the distribution's own].
    #[arg(long, value_name = "VERSION|PATH")]
    pub(crate) kernel: Option<String>,
    /// With `--medium block`, check a kept disk image again.
    #[arg(long, value_name = "DIR")]
    pub(crate) replay: Option<PathBuf>,
    /// Let the writer store into a mapping of the file and commit, instead of calling write. Needs `--engine
    /// hybrid-log`, which is then the default.
    #[arg(long)]
    pub(crate) map: bool,
    /// Let the writer map a region of a store, store into it, allocate and free pages, and commit with pmsync.
    #[arg(long, conflicts_with = "map")]
    pub(crate) region: bool,
    /// Protect the file with redundancy, which is updated, scrubbed and repaired during the writes. The test damages
    /// pages between two runs of the writer, and repair must restore them.
    #[arg(long, conflicts_with_all = ["map", "region"])]
    pub(crate) redundancy: bool,
    /// Number of writer threads in the process that is killed.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=16))]
    pub(crate) threads: u8,
    /// When a write becomes durable [default: chosen by medium; with `--medium block`, both in turn].
    #[arg(long, value_parser = durabilities())]
    pub(crate) durability: Option<Durability>,
    #[command(flatten)]
    pub(crate) log: Log,
    #[command(flatten)]
    pub(crate) form: Form,
}

/// Arguments of the writer process of `torture`.
#[derive(Debug, Args)]
pub(crate) struct TortureWriter {
    /// The file under test.
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
    /// Make the kernel write back dirty pages at random times derived from this seed.
    #[arg(long)]
    pub(crate) write_back: Option<u64>,
    /// Open the file, which recovers it, then wait to be killed.
    #[arg(long)]
    pub(crate) idle: bool,
    /// Create the file first.
    #[arg(long, conflicts_with = "idle")]
    pub(crate) create: bool,
    /// Refuse to run unless the file is mapped with MAP_SYNC.
    #[arg(long)]
    pub(crate) demand_map_sync: bool,
    /// Store into a mapping of the file.
    #[arg(long)]
    pub(crate) map: bool,
    /// Store into a mapped region of a store.
    #[arg(long, conflicts_with = "map")]
    pub(crate) region: bool,
    /// Update redundancy, scrub and repair the file during the writes.
    #[arg(long, conflicts_with_all = ["map", "region"])]
    pub(crate) redundancy: bool,
    /// The parent process; the writer exits with it.
    #[arg(long)]
    pub(crate) parent: i32,
}

/// Arguments of the verification of one run. The writer's reports arrive on standard input.
#[derive(Debug, Args)]
pub(crate) struct TortureVerify {
    /// The file under test.
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
    /// Number of threads that wrote, each starting at operation 1.
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=16))]
    pub(crate) threads: u8,
    /// Refuse to verify unless the file is mapped with MAP_SYNC.
    #[arg(long)]
    pub(crate) demand_map_sync: bool,
    /// The file is a store, and the writer wrote to a region of it.
    #[arg(long)]
    pub(crate) region: bool,
}
