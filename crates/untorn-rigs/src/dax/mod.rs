//! Power cuts on real DAX: a stock kernel in an emulated machine, ext4 or xfs with `-o dax=always` on an emulated
//! NVDIMM, and `kill -9` of the emulator during the work.
//!
//! The rig needs neither root nor KVM. It boots one machine, and saves its state before the machine has accessed the
//! memory under test. Each cycle resumes that state with its own image, writes until the cut, then resumes the same
//! state again to recover and verify. The host knows the acknowledged operations: each report has left the machine
//! before the writer continues.
//!
//! The rig tests the DAX path of detection, mapping, stores and recovery on real kernels, and the store order that
//! recovery relies on, as one processor executes it. It cannot expose a missing flush: the emulator has no volatile
//! cache, so every executed store survives. The simulated media of `untorn-sim` expose missing flushes.

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
