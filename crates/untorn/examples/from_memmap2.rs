//! A program that used the crate memmap2, moved over to [`AtomicMap`].
//!
//! ```sh
//! cargo run --release -p untorn --example from_memmap2 -- PATH [TEXT]...
//! ```
//!
//! The program counts the bytes of its arguments in a mapped file: how many there are of each value, and how many in
//! all. With memmap2 a crash could leave half of an update, because the kernel writes dirty pages back when it likes.
//! With untorn the file is always that of the last commit. A comment `was:` shows each line that changed.
//!
//! Exit codes: 0 if the counts add up; 1 if they do not, or if a call fails; 2 without a path.

use std::path::Path;
use std::process::ExitCode;

// was: use memmap2::MmapMut;
use untorn::AtomicMap;

/// The total is on the first page, and the 256 counts are on the second.
const COUNTS: usize = 4096;
const LEN: u64 = 8192;

// was: -> std::io::Result<MmapMut>
fn map(path: &Path) -> untorn::Result<AtomicMap> {
    // was: let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
    //      file.set_len(LEN)?;
    //      // SAFETY: no other program changes the file while it is mapped.
    //      unsafe { MmapMut::map_mut(&file) }
    if path.exists() { AtomicMap::open(path) } else { AtomicMap::create(path, LEN) }
}

/// Unchanged: both maps are slices of bytes.
fn get(map: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|i| map[at + i]))
}

fn add(map: &mut [u8], at: usize) {
    let count = get(map, at) + 1;
    map[at..at + 8].copy_from_slice(&count.to_le_bytes());
}

/// Returns the total. The counts must add up to it.
fn check(map: &[u8]) -> Result<u64, String> {
    let total = get(map, 0);
    let sum = (0..256).map(|value| get(map, COUNTS + value * 8)).fold(0, u64::wrapping_add);
    if sum == total { Ok(total) } else { Err(format!("the counts add up to {sum}, but the total is {total}")) }
}

fn run(path: &Path, texts: impl Iterator<Item = String>) -> Result<(), Box<dyn std::error::Error>> {
    let mut map = map(path)?;
    if (map.len() as u64) < LEN {
        return Err(format!("{} has {} bytes, fewer than {LEN}; pass another path", path.display(), map.len()).into());
    }
    println!("{} bytes counted so far.", check(&map)?);
    for text in texts {
        for byte in text.bytes() {
            add(&mut map, COUNTS + usize::from(byte) * 8);
            add(&mut map, 0);
        }
        // was: map.flush()?;
        map.commit()?; // all counts of the text, or after a crash none
        println!("Counted the {} bytes of {text:?}: {} in all.", text.len(), check(&map)?);
    }
    // was: drop(map);
    map.settle()?; // a plain file again, which programs with memmap2 may use; `close` is faster
    Ok(())
}

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    let Some(path) = args.next() else {
        eprintln!(
            "from_memmap2: no path given; usage: from_memmap2 PATH [TEXT]... (the counts; created if they do not exist)"
        );
        return ExitCode::from(2);
    };
    let texts = args.map(|text| text.to_string_lossy().into_owned());
    let failed = |error| eprintln!("from_memmap2: {error}");
    run(Path::new(&path), texts).map_err(failed).map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS)
}
