//! Short random reads of a snapshot in another process beside a writer: untorn, LMDB and redb in the same run.
//!
//! ```text
//! cargo run --release -p untorn-bench --features rivals --example readers [DIRECTORY] [ROUNDS]
//! ```
//!
//! Each store holds 64 MiB. A writer in this process commits 100 bytes at a random place a thousand times a second. One
//! or two readers take a snapshot and read 100 bytes at random places of it. Rounds of all stores alternate, so what
//! else the machine does falls on all alike. redb lets no other process open a file that is open for writing, so its
//! readers are threads of the writer's process; those of the others are processes.

use std::error::Error;
use std::hint::black_box;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use heed::byteorder::BigEndian;
use heed::types::{Bytes, U64};
use heed::{EnvFlags, EnvOpenOptions, WithTls};
use redb::{ReadableDatabase, TableDefinition};
use untorn::{AtomicFile, Durability, EngineKind, Options, Snapshot};

/// Records of each store. One of LMDB has a page of its own, with the header.
const RECORDS: u64 = 16_384;
const RECORD: usize = 4080;
/// Bytes of a read.
const READ: usize = 100;
/// Reads that count as the first of a snapshot.
const FIRST: u64 = 1000;
const WRITES_PER_SECOND: u64 = 1000;
const TABLE: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("records");

type Outcome<T> = Result<T, Box<dyn Error>>;

/// A generator of numbers that need not be good ones: xorshift64.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A record, and where in it a read begins.
    fn place(&mut self) -> (u64, usize) {
        let number = self.next();
        (number % RECORDS, (number >> 32) as usize % (RECORD - READ))
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Store {
    Untorn(EngineKind),
    Lmdb,
    Redb,
}

impl Store {
    const ALL: [Store; 4] =
        [Store::Untorn(EngineKind::Reflection), Store::Untorn(EngineKind::HybridLog), Store::Lmdb, Store::Redb];

    fn name(self) -> &'static str {
        match self {
            Store::Untorn(EngineKind::HybridLog) => "untorn, hybrid-log",
            Store::Untorn(_) => "untorn, reflection",
            Store::Lmdb => "LMDB",
            Store::Redb => "redb",
        }
    }

    fn place(self, dir: &Path) -> PathBuf {
        dir.join(self.name().replace(", ", "-"))
    }
}

/// A store that is open for writing.
enum Open {
    Untorn(AtomicFile),
    Lmdb(heed::Env<WithTls>, heed::Database<U64<BigEndian>, Bytes>),
    Redb(redb::Database),
}

fn environment(path: &Path, flags: EnvFlags) -> Outcome<heed::Env<WithTls>> {
    let mut options = EnvOpenOptions::new();
    options.map_size(1 << 30);
    // SAFETY: none of the flags that this example gives turns a check or a lock off.
    unsafe { options.flags(flags) };
    // SAFETY: only programs of this example have the file, each environment once.
    Ok(unsafe { options.open(path) }?)
}

impl Open {
    fn create(store: Store, path: &Path) -> Outcome<Open> {
        let record = |number: u64| vec![number as u8; RECORD];
        Ok(match store {
            Store::Untorn(engine) => {
                let options = Options::new().engine(engine).durability(Durability::PerCommit);
                let file = options.create(path, RECORDS * 4096)?;
                for number in 0..RECORDS {
                    file.write_at(&record(number), number * 4096)?;
                }
                file.sync()?;
                // As after any restart, the bytes are in the file.
                file.close()?;
                Open::Untorn(options.open(path)?)
            }
            Store::Lmdb => {
                std::fs::create_dir(path)?;
                let env = environment(path, EnvFlags::empty())?;
                let mut tx = env.write_txn()?;
                let database = env.create_database(&mut tx, None)?;
                for number in 0..RECORDS {
                    database.put(&mut tx, &number, record(number).as_slice())?;
                }
                tx.commit()?;
                Open::Lmdb(env, database)
            }
            Store::Redb => {
                let database = redb::Database::create(path)?;
                let tx = database.begin_write()?;
                {
                    let mut table = tx.open_table(TABLE)?;
                    for number in 0..RECORDS {
                        table.insert(number, record(number).as_slice())?;
                    }
                }
                tx.commit()?;
                Open::Redb(database)
            }
        })
    }

    /// Writes a record anew, or as much of it as the store can change by itself, and commits.
    fn write(&self, (number, from): (u64, usize), fill: u8) -> Outcome<()> {
        match self {
            Open::Untorn(file) => {
                file.write_at(&[fill; READ], number * 4096 + from as u64)?;
                file.sync()?;
            }
            Open::Lmdb(env, database) => {
                let mut tx = env.write_txn()?;
                database.put(&mut tx, &number, [fill; RECORD].as_slice())?;
                tx.commit()?;
            }
            Open::Redb(database) => {
                let tx = database.begin_write()?;
                tx.open_table(TABLE)?.insert(number, [fill; RECORD].as_slice())?;
                tx.commit()?;
            }
        }
        Ok(())
    }
}

/// The result of a reader: nanoseconds for each of the first reads, and for each of all.
#[derive(Clone, Copy)]
struct Figures {
    first: f64,
    all: f64,
}

/// Reads at random places until the time is over.
fn measure(seed: u64, time: Duration, mut read: impl FnMut(u64, usize, &mut [u8]) -> Outcome<()>) -> Outcome<Figures> {
    let mut numbers = Numbers(seed);
    let mut bytes = [0; READ];
    let since = Instant::now();
    let (mut count, mut first) = (0, 0.0);
    while since.elapsed() < time {
        for _ in 0..FIRST {
            let (number, from) = numbers.place();
            read(number, from, &mut bytes)?;
            black_box(&bytes);
        }
        count += FIRST;
        if count == FIRST {
            first = since.elapsed().as_nanos() as f64 / FIRST as f64;
        }
    }
    Ok(Figures { first, all: since.elapsed().as_nanos() as f64 / count as f64 })
}

fn measure_redb(database: &redb::Database, seed: u64, time: Duration) -> Outcome<Figures> {
    let tx = database.begin_read()?;
    let table = tx.open_table(TABLE)?;
    measure(seed, time, |number, from, bytes| {
        let value = table.get(number)?.ok_or("a record is missing")?;
        bytes.copy_from_slice(&value.value()[from..from + READ]);
        Ok(())
    })
}

/// The process of a reader: it takes a snapshot, says so, and measures once it is told to.
fn reader(store: &str, path: &Path, seed: u64, time: Duration) -> Outcome<()> {
    let begin = || -> Outcome<()> {
        println!("ready");
        std::io::stdin().read_exact(&mut [0])?;
        Ok(())
    };
    let figures = if store == "lmdb" {
        let env = environment(path, EnvFlags::READ_ONLY)?;
        let tx = env.read_txn()?;
        let database: heed::Database<U64<BigEndian>, Bytes> = env.open_database(&tx, None)?.ok_or("no database")?;
        begin()?;
        measure(seed, time, |number, from, bytes| {
            let value = database.get(&tx, &number)?.ok_or("a record is missing")?;
            bytes.copy_from_slice(&value[from..from + READ]);
            Ok(())
        })?
    } else {
        let snapshot = Snapshot::open(path)?;
        begin()?;
        measure(seed, time, |number, from, bytes| Ok(snapshot.read_at(bytes, number * 4096 + from as u64)?))?
    };
    println!("{} {}", figures.first, figures.all);
    Ok(())
}

/// Runs readers in processes of their own.
fn processes(store: Store, path: &Path, readers: u64, time: Duration) -> Outcome<Vec<Figures>> {
    let kind = if store == Store::Lmdb { "lmdb" } else { "untorn" };
    let mut children = Vec::new();
    for seed in 1..=readers {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["--reader", kind]).arg(path).arg(seed.to_string()).arg(time.as_millis().to_string());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut lines = BufReader::new(child.stdout.take().ok_or("no output")?).lines();
        if lines.next().transpose()?.as_deref() != Some("ready") {
            return Err("a reader failed".into());
        }
        children.push((child, lines));
    }
    for (child, _) in &mut children {
        child.stdin.as_mut().ok_or("no input")?.write_all(b"!")?;
    }
    let mut found = Vec::new();
    for (mut child, mut lines) in children {
        let line = lines.next().transpose()?.ok_or("a reader failed")?;
        let (first, all) = line.split_once(' ').ok_or("a reader said something else")?;
        found.push(Figures { first: first.parse()?, all: all.parse()? });
        child.wait()?;
    }
    Ok(found)
}

/// Readers of a store while a thread writes. Returns what they measured and the commits a second.
fn round(store: Store, open: &Open, path: &Path, readers: u64, time: Duration) -> Outcome<(Vec<Figures>, f64)> {
    let (done, commits) = (AtomicBool::new(false), AtomicU64::new(0));
    let write = || {
        let mut numbers = Numbers(commits.load(Ordering::Relaxed) + 77);
        let since = Instant::now();
        while !done.load(Ordering::Relaxed) {
            let place = numbers.place();
            open.write(place, numbers.next() as u8).map_err(|error| error.to_string())?;
            let count = commits.fetch_add(1, Ordering::Relaxed) + 1;
            let due = Duration::from_nanos(count * 1_000_000_000 / WRITES_PER_SECOND);
            thread::sleep(due.saturating_sub(since.elapsed()));
        }
        Ok::<f64, String>(commits.load(Ordering::Relaxed) as f64 / since.elapsed().as_secs_f64())
    };
    thread::scope(|scope| {
        let writer = scope.spawn(write);
        let found = match open {
            Open::Redb(database) => {
                let begin =
                    |seed| scope.spawn(move || measure_redb(database, seed, time).map_err(|error| error.to_string()));
                let threads: Vec<_> = (1..=readers).map(begin).collect();
                threads.into_iter().map(|thread| thread.join().map_err(|_| "a reader panicked")?).collect()
            }
            _ => processes(store, path, readers, time).map_err(|error| error.to_string()),
        };
        done.store(true, Ordering::Relaxed);
        let rate = writer.join().map_err(|_| "the writer panicked")??;
        Ok((found?, rate))
    })
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() -> Outcome<()> {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let text = |index: usize| arguments.get(index).and_then(|argument| argument.to_str());
    if text(0) == Some("--reader") {
        let (Some(store), Some(seed), Some(millis)) = (text(1), text(3), text(4)) else { return Err("usage".into()) };
        return reader(store, Path::new(&arguments[2]), seed.parse()?, Duration::from_millis(millis.parse()?));
    }
    let dir = match arguments.first() {
        Some(dir) => tempfile::tempdir_in(dir)?,
        None => tempfile::tempdir()?,
    };
    let rounds: usize = text(1).map_or(Ok(7), str::parse)?;
    let time = Duration::from_millis(500);
    let mut stores = Vec::new();
    for store in Store::ALL {
        let path = store.place(dir.path());
        stores.push((store, Open::create(store, &path)?, path));
    }
    println!("{READ}-byte reads at random places of 64 MiB beside a writer; medians of {rounds} rounds");
    println!("{:<20} {:>7} {:>15} {:>13} {:>9}", "store", "readers", "first reads, ns", "all reads, ns", "commits/s");
    for readers in [1, 2] {
        let mut found: Vec<(Vec<Figures>, Vec<f64>)> = stores.iter().map(|_| Default::default()).collect();
        for _ in 0..rounds {
            for ((store, open, path), found) in stores.iter().zip(&mut found) {
                let (figures, rate) = round(*store, open, path, readers, time)?;
                found.0.extend(figures);
                found.1.push(rate);
            }
        }
        let all = |found: &[Figures]| median(found.iter().map(|figures| figures.all).collect());
        let rivals: Vec<f64> = found[2..].iter().map(|(figures, _)| all(figures)).collect();
        for ((store, ..), (figures, rates)) in stores.iter().zip(&found) {
            let first = median(figures.iter().map(|figures| figures.first).collect());
            let all = all(figures);
            print!("{:<20} {readers:>7} {first:>15.0} {all:>13.0} {:>9.0}", store.name(), median(rates.clone()));
            if let Store::Untorn(_) = store {
                print!("   {:.2} x LMDB, {:.2} x redb", all / rivals[0], all / rivals[1]);
            }
            println!();
        }
    }
    Ok(())
}
