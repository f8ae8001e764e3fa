//! Power cuts on real DAX: a stock kernel in an emulated machine, ext4 or xfs with `-o dax=always` on an emulated NVDIMM,
//! and `kill -9` of the emulator in the middle of the work.
//!
//! It needs neither root nor KVM. One machine is booted and its state is saved before it has looked at the memory under
//! test; each cycle then goes on from there over an image of its own, writes until the cut, and recovers and verifies in
//! the same machine gone on anew. What was acknowledged is known outside: each report has left the machine before the
//! writer goes on.
//!
//! What it shows: the DAX path of detection, mapping, stores and recovery on real kernels, and the order that recovery
//! relies on as far as one processor executed it. What it cannot: a missing flush. The emulator has no volatile cache, so
//! whatever was executed survives. The simulated media of `untorn-sim` show missing flushes.

mod console;
mod cpio;
mod guest;
mod image;
mod initramfs;
mod kernel;
mod lab;
mod modules;
mod outcome;
mod qmp;
mod rig;
mod tools;
mod version;
mod vm;

pub use guest::Face;
pub use image::FileSystem;
pub use kernel::Kernel;
pub use outcome::{Cycle, Outcome, Refusal};
pub use rig::{Settings, run};
pub use tools::missing;
