//! `redundancy-kernels`: the checksum of a page and the parity of four pages, compared with a plain read of the same
//! uncached memory: sequentially, as a scrub reads, and at random, as a program stores.

use std::hint::black_box;
use std::time::Instant;

use untorn::testing::simd::{crc32c_ways, parity_ways, read_ways};

use super::Progress;
use super::benchmark::{Benchmark, Outcome};
use crate::args::{Args, Pattern};
use crate::error::{Error, Result};
use crate::offsets::{Offsets, Region};
use crate::report::{KernelRow, Row};
use crate::stats::{median, pairwise};

const PAGE: usize = 4096;
/// The default number of pages per stripe.
const STRIPE: usize = 4;

/// The default bytes per slice: long for the clock, short for other programs on the processor.
const SLICE: usize = 2 << 20;
/// The default number of rounds.
const ROUNDS: usize = 201;
const FEWEST_ROUNDS: usize = 15;

/// The kernel for a block of memory, and the place of its parity.
type Kernel = dyn Fn(&[u8], &mut [u8]);

struct Arm {
    way: &'static str,
    run: Box<Kernel>,
}

/// `redundancy-kernels`.
pub(super) const BENCHMARK: Benchmark = Benchmark::new(
    "redundancy-kernels",
    "checksums and parity of uncached memory, compared with reading it",
    &["pattern", "len", "seconds", "ops"],
    |job, progress| {
        job.args.validate(&[], &[], job.file_len())?;
        Ok(Outcome { rows: run(job.args, job.file_len(), progress)?, notes: Vec::new() })
    },
)
.of_len(256 << 20);

fn run(args: &Args, len: u64, progress: &mut Progress<'_>) -> Result<Vec<Row>> {
    let least = STRIPE * PAGE;
    if len < least as u64 {
        return Err(Error::usage(format!("--len is {len}, less than one stripe; use {least} or more")));
    }
    progress(0, 1, "filling memory");
    let memory: Vec<u8> = (0..len as usize + PAGE).map(|at| (at / 7) as u8).collect();
    let start = memory.as_ptr().align_offset(PAGE).min(PAGE);
    let memory = &memory[start..start + len as usize];
    // The widest read, as the reference for the others.
    let widest = read_ways()[0];
    let read = Arm {
        way: widest.name,
        run: Box::new(move |bytes, _| {
            black_box((widest.run)(bytes));
        }),
    };
    let sums = crc32c_ways().into_iter().map(|way| Arm {
        way: way.name,
        run: Box::new(move |bytes: &[u8], _: &mut [u8]| {
            black_box((way.run)(bytes));
        }),
    });
    let parities = parity_ways().into_iter().map(|way| Arm {
        way: way.name,
        run: Box::new(move |bytes: &[u8], parity: &mut [u8]| {
            let pages: [&[u8]; STRIPE] = std::array::from_fn(|nth| &bytes[nth * PAGE..][..PAGE]);
            (way.run)(black_box(parity), &pages);
        }),
    });
    let kernels: [(&'static str, usize, Vec<Arm>); 2] =
        [("crc32c", PAGE, sums.collect()), ("parity", STRIPE * PAGE, parities.collect())];
    let patterns = args.choose(&args.patterns, &[Pattern::Sequential, Pattern::Random]);
    let total = (kernels.len() * patterns.len()) as u64;
    let share = args.seconds.map(|seconds| seconds / total as f64);
    let (mut rows, mut done) = (Vec::new(), 0);
    for &pattern in &patterns {
        for (kernel, size, ways) in &kernels {
            progress(done, total, &format!("{kernel}, {pattern}"));
            let case = Case { kernel, size: *size, pattern, read: &read, ways };
            rows.extend(time(args, share, memory, &case));
            done += 1;
        }
    }
    progress(total, total, "done");
    Ok(rows)
}

/// One kernel over one walk.
struct Case<'a> {
    kernel: &'static str,
    /// Bytes of a block.
    size: usize,
    pattern: Pattern,
    read: &'a Arm,
    ways: &'a [Arm],
}

fn time(args: &Args, seconds: Option<f64>, memory: &[u8], case: &Case<'_>) -> Vec<Row> {
    let &Case { kernel, size, pattern, read, ways } = case;
    let blocks = memory.len() / size;
    let slice = args.ops.unwrap_or((SLICE / size) as u64).min(blocks as u64);
    let region = Region { base: 0, len: (blocks * size) as u64 };
    // Use every block once before repeating one, across all arms: by then it has left the caches.
    let mut walk = Offsets::each_page(pattern, region, size, 0);
    let mut parity = vec![0; PAGE];
    let arms: Vec<&Arm> = std::iter::once(read).chain(ways).collect();
    let mut times = vec![Vec::new(); arms.len()];
    let start = Instant::now();
    for round in 0.. {
        let is_enough = match seconds {
            Some(seconds) => start.elapsed().as_secs_f64() >= seconds && round > FEWEST_ROUNDS,
            None => round > if args.quick { FEWEST_ROUNDS } else { ROUNDS },
        };
        if is_enough {
            break;
        }
        for turn in 0..arms.len() {
            let at = if round % 2 == 0 { turn } else { arms.len() - 1 - turn };
            let begun = Instant::now();
            for _ in 0..slice {
                let block = walk.next() as usize;
                (arms[at].run)(black_box(&memory[block..block + size]), &mut parity);
            }
            // The first round warms up the code.
            if round > 0 {
                times[at].push(begun.elapsed().as_secs_f64() * 1e9 / slice as f64);
            }
        }
    }
    let row = |(way, ns): (&Arm, &Vec<f64>)| {
        let ratio = pairwise(ns, &times[0]);
        Row::Kernel(KernelRow {
            kernel,
            pattern: pattern.as_str(),
            way: way.way,
            read: read.way,
            size,
            ns: median(ns),
            read_ns: median(&times[0]),
            ratio: ratio.median,
            ratio_low: ratio.low,
            ratio_high: ratio.high,
            pairs: ns.len(),
        })
    };
    ways.iter().zip(&times[1..]).map(row).collect()
}
