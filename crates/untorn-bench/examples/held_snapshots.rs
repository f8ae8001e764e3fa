//! The cost of held snapshots for a writer: commits a second with 0, 1 and 8 of them, for each engine.
//!
//! ```text
//! cargo run --release -p untorn-bench --example held_snapshots [DIRECTORY] [ROUNDS]
//! ```
//!
//! A commit writes 100 bytes at a random place of 64 MiB. The snapshots of a round are taken before it, of commits that
//! follow each other, so nearly each commit of the round changes a page for the first time and copies it. Rounds of all
//! kinds alternate.

use std::error::Error;
use std::time::{Duration, Instant};

use untorn::{AtomicFile, Durability, Options};

const LEN: u64 = 64 << 20;
const HELD: [usize; 3] = [0, 1, 8];
const TIME: Duration = Duration::from_millis(500);

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Commits at places that xorshift64 gives.
fn commit(file: &AtomicFile, state: &mut u64) -> Outcome<()> {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    file.write_at(&[*state as u8; 100], *state % (LEN - 100))?;
    file.sync()?;
    Ok(())
}

/// Commits a second while this many snapshots are held, and the bytes that were kept for them.
fn round(file: &AtomicFile, held: usize, state: &mut u64) -> Outcome<(f64, u64)> {
    let mut snapshots = Vec::new();
    for _ in 0..held {
        snapshots.push(file.snapshot()?);
        commit(file, state)?;
    }
    let since = Instant::now();
    let mut count = 0_u64;
    while since.elapsed() < TIME {
        for _ in 0..10 {
            commit(file, state)?;
        }
        count += 10;
    }
    Ok((count as f64 / since.elapsed().as_secs_f64(), file.snapshots().bytes))
}

fn main() -> Outcome<()> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let dir = match arguments.first() {
        Some(dir) => tempfile::tempdir_in(dir)?,
        None => tempfile::tempdir()?,
    };
    let rounds: usize = arguments.get(1).map_or(Ok(9), |rounds| rounds.parse())?;
    println!("commits of 100 bytes at random places of 64 MiB; medians of {rounds} rounds");
    println!(
        "{:<12} {:<12} {:>5} {:>10} {:>7} {:>14}",
        "engine", "durability", "held", "commits/s", "ratio", "kept, bytes"
    );
    let mut state = 88_172_645_463_325_252;
    for engine in untorn::testing::ENGINES {
        for durability in [Durability::PerWrite, Durability::PerCommit] {
            let options = Options::new().engine(engine).durability(durability);
            let file = options.create(dir.path().join(format!("{engine}-{durability}")), LEN)?;
            for at in (0..LEN).step_by(1 << 20) {
                file.write_at(&vec![7; 1 << 20], at)?;
            }
            file.sync()?;
            let mut found: [Vec<(f64, u64)>; HELD.len()] = Default::default();
            for _ in 0..rounds {
                for (held, found) in HELD.iter().zip(&mut found) {
                    found.push(round(&file, *held, &mut state)?);
                }
            }
            let medians = found.map(|mut rates| {
                rates.sort_by(|one, two| one.0.total_cmp(&two.0));
                rates[rates.len() / 2]
            });
            for (held, (rate, kept)) in HELD.iter().zip(medians) {
                let (engine, durability) = (engine.to_string(), durability.to_string());
                println!(
                    "{engine:<12} {durability:<12} {held:>5} {rate:>10.0} {:>7.2} {kept:>14}",
                    rate / medians[0].0
                );
            }
            file.close()?;
        }
    }
    Ok(())
}
