//! Power cuts under a real file system on a disk.
//!
//! A [`Recorder`] is a FUSE file system that exposes one file. A loop device makes a disk of it, a real file system is
//! mounted there, and the program under test runs on that. Every write and every flush that reaches the disk is in the
//! [`Log`]. From it [`Log::cut`] tells for any instant what the disk was bound to keep and what it was free to lose, and
//! [`Cut::draw`] picks one of the disks that a power cut at that instant may leave. [`write_image`] makes a file of it,
//! [`Mounted`] mounts it: the file system replays its own journal first, as it would after a real power cut.
//!
//! A [`SlowDisk`] is served in the same way, but keeps no log: it is as slow as a benchmark wants it to be.
//!
//! All of this needs root, `/dev/fuse`, loop devices and the file system's mkfs; [`FileSystem::require`] says what is
//! missing. Mounts are made in a mount namespace of their own ([`isolated`]), so even a killed rig leaves none behind.

mod crash;
mod device;
mod exposed;
mod filesystem;
mod log;
mod namespace;
mod recorder;
mod slow;
mod sparse;

pub use crash::{Cut, Fate, Patch};
pub use device::Mounted;
pub use filesystem::FileSystem;
pub use log::{Log, Position};
pub use namespace::isolated;
pub use recorder::{Clock, Recorder};
pub use slow::{Asked, SlowDisk, Speed};
pub use sparse::{copy_image, write_image};

/// What a disk writes whole or not at all, in bytes.
pub const SECTOR: u64 = 512;
