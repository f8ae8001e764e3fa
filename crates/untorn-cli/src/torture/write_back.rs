//! Triggers write-back by the kernel at random times.
//!
//! The kernel may write any dirty page to the disk at any time. By default it waits for seconds, so in a short run no
//! unflushed page would ever reach the disk.

use std::fs::{self, File};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::fs::{Advice, fadvise};

use super::keep::SIDECARS;
use crate::rng::Rng;

/// Makes the kernel write back random parts of the file and of its sidecars, without a flush, until the process ends.
pub(crate) fn forever(file: &Path, seed: u64) -> ! {
    let mut rng = Rng::new(seed);
    loop {
        for path in beside(file) {
            // A file may have been removed meanwhile; then there is nothing to write back.
            let Ok(file) = File::open(&path) else { continue };
            let Ok(metadata) = file.metadata() else { continue };
            let start = rng.below(metadata.len().max(1));
            let len = NonZero::new(rng.below(metadata.len().max(1)));
            // POSIX_FADV_DONTNEED starts the write-back of dirty pages and does not evict mapped pages.
            let _ = fadvise(&file, start, len, Advice::DontNeed);
        }
        thread::sleep(Duration::from_micros(rng.between(200, 3000)));
    }
}

/// The data file and the files in the sidecar directory.
fn beside(file: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(file.with_file_name(SIDECARS)).into_iter().flatten().flatten();
    std::iter::once(file.to_owned()).chain(entries.map(|entry| entry.path())).collect()
}
