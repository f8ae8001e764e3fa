//! Prints what a replica costs in requests and bytes: by commit, by idle hour, and by restoration. The tables of
//! `docs/replication.md` come from it.
//!
//! ```sh
//! cargo run --release -p untorn-replicate --example costs [URL]
//! ```
//!
//! Without a URL the store is a directory. The protocol makes the same requests to every store, so the numbers of
//! requests and of bytes are those of a bucket, too.

use std::path::Path;
use std::time::{Duration, Instant};

use untorn::{AtomicFile, Options};
use untorn_replicate::store::Requests;
use untorn_replicate::{Replica, ReplicaOptions, RestoreOptions, restore};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Bytes that each commit changes. They do not compress.
const CHANGE: usize = 4096;
const COMMITS: u64 = 200;

fn main() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let base = std::env::args().nth(1).unwrap_or_else(|| format!("file://{}", dir.path().join("store").display()));
    commits(dir.path(), &base)?;
    restorations(dir.path(), &base)
}

/// The URL of a replica of its own.
fn place_of(base: &str, name: &str) -> String {
    let (place, query) =
        base.split_once('?').map_or((base, String::new()), |(place, query)| (place, format!("?{query}")));
    format!("{place}/{name}{query}")
}

/// Bytes that do not compress, by an xorshift generator.
struct Noise(u64);

impl Noise {
    fn fill(&mut self, bytes: &mut [u8]) {
        for piece in bytes.chunks_mut(8) {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            piece.copy_from_slice(&self.0.to_le_bytes()[..piece.len()]);
        }
    }
}

fn create(dir: &Path, name: &str, len: u64, noise: &mut Noise) -> Result<AtomicFile> {
    let file = Options::new().commit_log(64 << 20).create(dir.join(name), len)?;
    let mut bytes = vec![0; 1 << 20];
    for offset in (0..len).step_by(bytes.len()) {
        noise.fill(&mut bytes);
        file.write_at(&bytes, offset)?;
        file.sync()?;
    }
    Ok(file)
}

fn commit(file: &AtomicFile, number: u64, noise: &mut Noise) -> Result<()> {
    let mut bytes = [0; CHANGE];
    noise.fill(&mut bytes);
    file.write_at(&bytes, number * 7919 % 200 * 4096)?;
    file.sync()?;
    Ok(())
}

fn row(what: &str, requests: Requests, divisor: f64) {
    let part = |count: u64| count as f64 / divisor;
    println!(
        "| {what} | {:.2} | {:.2} | {:.2} | {:.0} | {:.0} |",
        part(requests.puts),
        part(requests.gets),
        part(requests.deletes + requests.lists + requests.others),
        part(requests.sent),
        part(requests.received)
    );
}

/// The costs of commits, and of doing nothing.
fn commits(dir: &Path, base: &str) -> Result<()> {
    let mut noise = Noise(0x9e37_79b9_7f4a_7c15);
    let file = create(dir, "commits", 1 << 20, &mut noise)?;
    println!("| for | PUT | GET | other | bytes sent | bytes received |\n|---|---|---|---|---|---|");
    let hourly = ReplicaOptions::new().interval(Duration::from_secs(3600));
    let replica = Replica::attach(&file, &place_of(base, "commits"), hourly)?;
    replica.sync_replicated()?;
    row("the start, with a snapshot of 1 MiB", replica.status().requests, 1.0);

    let before = replica.status().requests;
    for number in 0..COMMITS {
        commit(&file, number, &mut noise)?;
        replica.sync_replicated()?;
    }
    row("a commit of 4 KiB, acknowledged at once", replica.status().requests - before, COMMITS as f64);

    for group in [10, 100] {
        let before = replica.status().requests;
        for number in 0..COMMITS {
            commit(&file, number, &mut noise)?;
            if number % group == group - 1 {
                replica.sync_replicated()?;
            }
        }
        let what = format!("a commit of 4 KiB, {group} to an object");
        row(&what, replica.status().requests - before, COMMITS as f64);
    }
    replica.detach()?;

    let often = ReplicaOptions::new().interval(Duration::from_millis(10));
    let idle = Replica::attach(&file, &place_of(base, "commits"), often)?;
    idle.sync_replicated()?;
    let before = idle.status().requests;
    let begun = Instant::now();
    std::thread::sleep(Duration::from_secs(10));
    let hours = begun.elapsed().as_secs_f64() / 3600.0;
    row("an idle hour, by ten seconds of it", idle.status().requests - before, hours);
    idle.detach()?;
    Ok(())
}

/// The costs of restorations: by size, and by the number of objects behind the snapshot.
fn restorations(dir: &Path, base: &str) -> Result<()> {
    println!(
        "\n| restored | PUT | GET | other | bytes sent | bytes received | seconds |\n|---|---|---|---|---|---|---|"
    );
    for mebibytes in [1u64, 16, 64, 256] {
        restoration(dir, base, mebibytes, 100, false)?;
    }
    for commits in [100, 1000, 5000] {
        restoration(dir, base, 1, commits, true)?;
    }
    Ok(())
}

/// Commits are shipped one by one if `singly`, and in a few objects otherwise.
fn restoration(dir: &Path, base: &str, mebibytes: u64, commits: u64, singly: bool) -> Result<()> {
    let mut noise = Noise(mebibytes);
    let name = format!("size-{mebibytes}-{commits}-{singly}");
    let file = create(dir, &name, mebibytes << 20, &mut noise)?;
    let url = place_of(base, &name);
    let replica = Replica::attach(&file, &url, ReplicaOptions::new())?;
    replica.sync_replicated()?;
    for number in 0..commits {
        commit(&file, number, &mut noise)?;
        if singly {
            replica.sync_replicated()?;
        }
    }
    replica.detach()?;
    let begun = Instant::now();
    let made = restore(&url, &dir.join(format!("{name}.copy")), &RestoreOptions::new())?;
    let seconds = begun.elapsed().as_secs_f64();
    let Requests { puts, gets, deletes, lists, sent, received, .. } = made.requests;
    let (others, how) = (deletes + lists, if singly { "single commits" } else { "commits in groups" });
    println!("| {mebibytes} MiB, {commits} {how} | {puts} | {gets} | {others} | {sent} | {received} | {seconds:.2} |");
    Ok(())
}
