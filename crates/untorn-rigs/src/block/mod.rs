//! Power cuts under a real file system on a disk.
//!
//! 1. A [`Recorder`] is a FUSE file system that exposes one file. A loop device turns it into a disk with a real file
//!    system, and the program under test runs on that. The [`Log`] has every write and flush that reaches the disk.
//! 2. [`Log::cut`] tells for any instant what the disk had to keep and what it could lose.
//! 3. [`Cut::draw`] picks one of the disks that a power cut at that instant may leave.
//! 4. [`write_image`] writes that disk to a file, and [`Mounted`] mounts it. The file system first replays its own
//!    journal, as after a real power cut.
//!
//! A [`SlowDisk`] is served in the same way, but keeps no log: its speed is limited, for benchmarks.
//!
//! All of this needs root, `/dev/fuse`, loop devices and the file system's mkfs; [`FileSystem::require`] reports what
//! is missing. The mounts are in a separate mount namespace ([`isolated`]), so even a killed rig leaves none behind.

mod crash;
mod device;
mod exposed;
mod filesystem;
mod log;
mod namespace;
mod recorder;
mod slow;
mod sparse;

pub use crash::{Cut, Patch, ReplayOutcome};
pub use device::Mounted;
pub use filesystem::FileSystem;
pub use log::{Log, Position};
pub use namespace::isolated;
pub use recorder::{Clock, Recorder};
pub use slow::{Asked, SlowDisk, Speed};
pub use sparse::{copy_image, write_image};

/// The bytes of a sector, which a disk writes atomically.
pub const SECTOR: u64 = 512;
