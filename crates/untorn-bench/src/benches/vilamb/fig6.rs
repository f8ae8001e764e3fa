//! `vilamb-fig6`: latencies of transactions that allocate, overwrite and free objects (§4.4).

use std::time::Duration;

use untorn::redundancy::ProtectOptions;
use untorn::testing::storage::Medium;
use untorn::{AtomicFile, Durability, EngineKind, Options};

use super::{Benchmark, Covering, Job, Outcome, Progress, Result, compare_periods, together};
use crate::args::Pattern;
use crate::benches::benchmark::on_medium;
use crate::compare::{Contender, Point, Setting, Store, Worker, X};
use crate::raw::Target;

pub(crate) const BENCHMARK: Benchmark = Benchmark::new(
    "vilamb-fig6",
    "Vilamb, figure 6: latencies of transactions that allocate, overwrite and free objects of 64 bytes to 4 KiB",
    &["size", "threads", "period", "system", "len", "seconds", "ops", "seed"],
    run,
)
.of_len(256 << 20);

const PERIODS: [f64; 3] = [1.0, 5.0, 10.0];

const NOTE: &str = "the paper has transactions of libpmemobj, a million of each kind in 10 GB. Here a transaction is \
                    a write of untorn's engine `reflection`, durable on return: of the object (overwrite), of the \
                    object and its header (allocation), or of the header (freeing). untorn-Ns has redundancy with a \
                    period of N seconds in the background, untorn-at-once covers each write of the data file before \
                    the next";

/// Bytes of the header of an object.
const HEADER: u64 = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Allocate,
    Overwrite,
    Free,
}

impl Kind {
    const ALL: [(Kind, &'static str); 3] =
        [(Kind::Allocate, "allocation"), (Kind::Overwrite, "overwrite"), (Kind::Free, "freeing")];
}

/// Transactions on a file with an engine.
struct Transactions {
    covering: Covering,
    kind: Kind,
}

impl Contender for Transactions {
    fn name(&self) -> String {
        match self.covering {
            // The same engine: what is compared is its redundancy.
            Covering::Never => "no-redundancy".to_owned(),
            Covering::Every(seconds) => format!("untorn-{seconds}s"),
            Covering::AtOnce => "untorn-at-once".to_owned(),
        }
    }

    fn durability(&self) -> String {
        "each transaction on return, whole".to_owned()
    }

    fn set_up(&self, setting: &Setting) -> Result<Box<dyn Store>> {
        on_medium!(setting.kind, target => self.make(target.medium(), setting))
    }
}

impl Transactions {
    fn make<M: Medium + 'static>(&self, medium: M, setting: &Setting) -> Result<Box<dyn Store>> {
        let is_pmem = crate::rig::is_pmem(setting.kind);
        let durability = if is_pmem { Durability::PerWrite } else { Durability::PerCommit };
        let options = Options::new().engine(EngineKind::Reflection).durability(durability);
        let options = match self.covering {
            Covering::Never => options,
            Covering::Every(seconds) => {
                options.redundancy(ProtectOptions::new().period(Duration::from_secs_f64(seconds)))
            }
            Covering::AtOnce => options.redundancy(ProtectOptions::new().period(Duration::ZERO)),
        };
        let len = setting.records * (HEADER + setting.size as u64);
        let file = options.create_on(medium, setting.dir.join("data"), len.next_multiple_of(4096))?;
        if self.covering != Covering::Never {
            file.sync_redundancy()?;
        }
        Ok(Box::new(Objects { file, kind: self.kind, size: setting.size, syncs: !is_pmem }))
    }
}

struct Objects {
    file: AtomicFile,
    kind: Kind,
    size: usize,
    /// Whether a write is followed by a commit.
    syncs: bool,
}

impl Store for Objects {
    fn worker(&self, _: usize) -> Result<Box<dyn Worker + '_>> {
        let bytes = vec![0xa5; HEADER as usize + self.size];
        Ok(Box::new(move |place: u64| -> Result<()> {
            let at = place * bytes.len() as u64;
            match self.kind {
                Kind::Allocate => self.file.write_at(&bytes, at)?,
                Kind::Overwrite => self.file.write_at(&bytes[HEADER as usize..], at + HEADER)?,
                Kind::Free => self.file.write_at(&bytes[..HEADER as usize], at)?,
            }
            if self.syncs {
                self.file.sync()?;
            }
            Ok(())
        }))
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(self.file.close()?)
    }
}

fn run(job: &Job<'_>, progress: &mut Progress<'_>) -> Result<Outcome> {
    let mut outcomes = Vec::new();
    for (kind, name) in Kind::ALL {
        let mut points = Vec::new();
        for size in job.args.choose(&job.args.sizes, &[64, 256, 1024, 4096]) {
            for threads in job.args.choose(&job.args.threads, &[1]) {
                let records = job.file_len() / (HEADER + size as u64);
                let x = X::number("object", " B", size as f64);
                let pattern = Pattern::Random;
                points.push(Point { workload: name.to_owned(), x, records, size, threads, pattern });
            }
        }
        let contender = |covering| Box::new(Transactions { covering, kind }) as Box<dyn Contender>;
        outcomes.push(compare_periods(job, &PERIODS, contender, &points, progress));
    }
    together(outcomes, &[NOTE])
}
