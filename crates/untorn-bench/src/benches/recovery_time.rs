//! `recovery-time`: how long it takes to open a file after a crash, by the bytes that its engine has logged.
//!
//! A *crash image* is the file and its sidecar as a killed process leaves them: copies of both, made while the file is
//! open and no thread works on it. Before each timed opening the benchmark puts the image back in place.

use std::fs::{File, FileTimes};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::XattrFlags;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use untorn::options::{Durability, LogPolicy};
use untorn::{AtomicFile, EngineKind, Options};

use super::Progress;
use super::benchmark::{Benchmark, Job, Outcome, on_medium};
use crate::args::Pattern;
use crate::compare::{Point, Single, X, run_singles};
use crate::error::{Error, Result};
use crate::plot::Metric;
use crate::raw::{Raw, Target};

/// Pages logged by default: 1, 16 and 256 MiB.
const DIRTY: [u64; 3] = [256, 4096, 65_536];

const PAGE: usize = 4096;

/// The length of the file by default.
const LEN: u64 = 256 << 20;

/// Pages of one commit.
const EPOCH: u64 = 256;

/// Bytes of one call of the raw limit.
const PIECE: usize = 1 << 20;

/// The bytes before the epochs that recovery must bring back, and those of these epochs.
const OLD: u8 = 0x11;
const NEW: u8 = 0x77;

const NOTE: &str = "ratio: the rate of openings to that of read+write, which reads the logged bytes and writes them \
                    home with as many threads; reflection and shadow copy their pages home when they close the file";

const PAPER: &str = "the Libnvmmio paper describes recovery by several threads and measures none; Libnvmmio's public \
                     code has no recovery";

/// `recovery-time`.
pub(super) const BENCHMARK: Benchmark = Benchmark::new(
    "recovery-time",
    "opening a file after a crash, by the bytes logged (pages of --dirty) and the processors of recovery (--threads)",
    &["engine", "threads", "dirty", "len", "seconds"],
    |job, progress| on_medium!(job.detected.kind, target => run(target, job, progress)),
)
.of_len(LEN)
.plotting(Metric::MedianMs);

fn run<T: Target>(target: T, job: &Job<'_>, progress: &mut Progress<'_>) -> Result<Outcome> {
    let processors = Processors::now()?;
    let most = processors.count();
    let default: &[usize] = if most > 1 { &[1, most] } else { &[1] };
    let threads = job.args.choose(&job.args.threads, default);
    job.args.validate(&[], &threads, job.file_len())?;
    if let Some(many) = threads.iter().find(|&&threads| threads > most) {
        return Err(Error::usage(format!("--threads is {many}, but this process has {most} processors")));
    }
    let fit: Vec<u64> = DIRTY.into_iter().filter(|&dirty| dirty * PAGE as u64 <= job.file_len()).collect();
    let dirty = job.args.choose(&job.args.dirty, if fit.is_empty() { &[1] } else { &fit });
    let engines = [EngineKind::Reflection, EngineKind::HybridLog, EngineKind::Shadow];
    let engines = if job.args.engines.is_empty() { engines.to_vec() } else { job.args.engines.clone() };
    let made = tempfile::Builder::new().prefix("untorn-bench-").tempdir_in(job.dir());
    let dir = made.map_err(|source| Error::io("create a directory in", &job.dir(), source))?;
    let (total, mut done) = ((dirty.len() * threads.len()) as u64, 0);
    let mut outcome = Outcome { rows: Vec::new(), notes: vec![NOTE.to_owned(), PAPER.to_owned()] };
    for &pages in &dirty {
        check_space(job, pages, engines.len())?;
        let place = dir.path().join(pages.to_string());
        progress(done, total, &format!("crash images of {pages} pages"));
        let mut systems: Vec<Box<dyn Single>> = vec![Box::new(ReadWrite::make(target, &place, pages)?)];
        for &engine in &engines {
            systems.push(Box::new(Opening::make(target, &place.join(engine.as_str()), engine, pages)?));
        }
        for &threads in &threads {
            let mib = pages as f64 * PAGE as f64 / f64::from(1 << 20);
            progress(done, total, &format!("{mib} MiB, processors: {threads}"));
            done += 1;
            let workload = format!("opening after a crash, processors: {threads}");
            let x = X::number("logged", " MiB", mib);
            let (records, pattern) = (pages, Pattern::Sequential);
            let point = Point { workload, x, records, size: PAGE, threads, pattern };
            let _limited = processors.limited_to(threads)?;
            outcome.rows.extend(run_singles(job, &point, &mut systems, rounds(job, pages))?);
        }
        drop(systems);
        std::fs::remove_dir_all(&place).map_err(|source| Error::io("remove", &place, source))?;
    }
    // A panel of the plot has the rows of one number of processors.
    outcome.rows.sort_by_key(|row| match row {
        crate::report::Row::Comparison(row) => row.threads,
        _ => 0,
    });
    progress(total, total, "done");
    Ok(outcome)
}

/// An image is copied for each round, which takes much longer than an opening.
fn rounds(job: &Job<'_>, pages: u64) -> usize {
    match job.args.seconds {
        Some(seconds) => ((seconds * 2.0) as usize).max(3),
        None if job.args.quick => 3,
        None if pages <= 4096 => 9,
        None => 5,
    }
}

/// Fails if the images and the files do not fit.
fn check_space(job: &Job<'_>, pages: u64, engines: usize) -> Result<()> {
    let dir = job.dir();
    let space = rustix::fs::statvfs(&dir).map_err(|source| Error::io("read the free space of", &dir, source))?;
    // An engine has its closed file, and its image with a log; the engine that runs has one log more, and the limit has
    // two files.
    let need = (engines as u64 * 3 + 4) * pages * PAGE as u64 + (64 << 20);
    let free = space.f_bavail * space.f_frsize;
    if free < need { Err(Error::NoSpace { dir, need, free }) } else { Ok(()) }
}

/// The processors that this thread and those that it starts may use.
struct Processors(CpuSet);

/// Allows all of them again when it is dropped.
struct Limited<'p>(&'p Processors);

fn affinity_failed(source: rustix::io::Errno) -> Error {
    Error::io("set the processors of", Path::new("this thread"), source)
}

impl Processors {
    fn now() -> Result<Self> {
        sched_getaffinity(None).map(Processors).map_err(affinity_failed)
    }

    fn count(&self) -> usize {
        self.0.count() as usize
    }

    fn limited_to(&self, count: usize) -> Result<Limited<'_>> {
        let mut few = CpuSet::new();
        (0..CpuSet::MAX_CPU).filter(|&cpu| self.0.is_set(cpu)).take(count).for_each(|cpu| few.set(cpu));
        sched_setaffinity(None, &few).map_err(affinity_failed)?;
        Ok(Limited(self))
    }
}

impl Drop for Limited<'_> {
    fn drop(&mut self) {
        // These processors were allowed before, so the call cannot fail.
        let _ = sched_setaffinity(None, &self.0.0);
    }
}

/// The limit: reads the bytes of a log and writes them to their file, with a thread for each processor.
struct ReadWrite<R> {
    log: R,
    home: R,
    len: u64,
}

impl<R: Raw> ReadWrite<R> {
    fn make<T: Target<Raw = R>>(target: T, dir: &Path, pages: u64) -> Result<Self> {
        std::fs::create_dir_all(dir).map_err(|source| Error::io("create", dir, source))?;
        let len = pages * PAGE as u64;
        let (log, home) = (target.raw(&dir.join("log"), len)?, target.raw(&dir.join("home"), len)?);
        for raw in [&log, &home] {
            (0..pages).try_for_each(|page| raw.write(&[NEW; PAGE], page * PAGE as u64))?;
            raw.fence()?;
        }
        Ok(ReadWrite { log, home, len })
    }

    fn part(&self, from: u64, to: u64) -> Result<()> {
        let mut bytes = vec![0; PIECE];
        for offset in (from..to).step_by(PIECE) {
            let piece = &mut bytes[..PIECE.min((to - offset) as usize)];
            self.log.read(piece, offset)?;
            self.home.write(piece, offset)?;
        }
        self.home.fence()?;
        Ok(())
    }
}

impl<R: Raw> Single for ReadWrite<R> {
    fn name(&self) -> String {
        "read+write".to_owned()
    }

    fn durability(&self) -> String {
        "the bytes in their file, by a fence or fdatasync of each thread; nothing is atomic".to_owned()
    }

    fn prepare(&mut self) -> Result<()> {
        Ok(())
    }

    fn go(&mut self) -> Result<()> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from) as u64;
        let share = self.len.div_ceil(threads).next_multiple_of(PAGE as u64);
        let limit = &*self;
        std::thread::scope(|scope| {
            let start = |from: u64| scope.spawn(move || limit.part(from, (from + share).min(limit.len)));
            let parts: Vec<_> = (0..limit.len).step_by(share as usize).map(start).collect();
            parts.into_iter().try_for_each(|part| part.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        })
    }

    fn finish(&mut self) -> Result<()> {
        Ok(())
    }
}

/// An engine that opens a file after a crash.
struct Opening<T> {
    target: T,
    engine: EngineKind,
    options: Options,
    pages: u64,
    data: PathBuf,
    image: Vec<Image>,
    open: Option<AtomicFile>,
}

impl<T: Target> Opening<T> {
    fn make(target: T, dir: &Path, engine: EngineKind, pages: u64) -> Result<Self> {
        std::fs::create_dir_all(dir).map_err(|source| Error::io("create", dir, source))?;
        let data = dir.join("data");
        let options = Options::new().engine(engine).durability(Durability::PerCommit).log_policy(LogPolicy::Redo);
        // No thread may work on the file while its image is copied, or take home what recovery is to take home.
        let options = options.checkpoint_threads(0).deploy_ahead(None);
        let len = pages * PAGE as u64;
        let file = options.create_on(target.medium(), &data, len)?;
        fill(&file, pages, OLD)?;
        file.close()?;
        let file = options.open_on(target.medium(), &data)?;
        fill(&file, pages, NEW)?;
        let mut image = vec![Image::of(&data, &dir.join("image"))?];
        let side = dir.join(".untorn");
        let listed = std::fs::read_dir(&side).and_then(Iterator::collect::<std::io::Result<Vec<_>>>);
        for entry in listed.map_err(|source| Error::io("list", &side, source))? {
            if entry.file_type().is_ok_and(|kind| kind.is_file()) {
                image.push(Image::of(&entry.path(), &dir.join(format!("image{}", image.len())))?);
            }
        }
        drop(file);
        Ok(Opening { target, engine, options, pages, data, image, open: None })
    }
}

/// Writes every page, with a commit after every few.
fn fill(file: &AtomicFile, pages: u64, byte: u8) -> Result<()> {
    for page in 0..pages {
        file.write_at(&[byte; PAGE], page * PAGE as u64)?;
        if page % EPOCH == EPOCH - 1 {
            file.sync()?;
        }
    }
    file.sync()?;
    Ok(())
}

impl<T: Target> Single for Opening<T> {
    fn name(&self) -> String {
        format!("untorn-{}", self.engine)
    }

    fn durability(&self) -> String {
        "the last commit, whole".to_owned()
    }

    fn prepare(&mut self) -> Result<()> {
        self.image.iter().try_for_each(Image::restore)
    }

    fn go(&mut self) -> Result<()> {
        self.open = Some(self.options.open_on(self.target.medium(), &self.data)?);
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        let Some(file) = self.open.take() else { return Ok(()) };
        let mut page = [0; PAGE];
        for at in [0, self.pages / 2, self.pages - 1] {
            file.read_at(&mut page, at * PAGE as u64)?;
            if page != [NEW; PAGE] {
                let what = format!("page {at} has not the bytes of the last commit");
                return Err(Error::Inconsistent { system: self.engine.as_str(), what });
            }
        }
        file.close()?;
        Ok(())
    }
}

/// A file as it was: its bytes in another file, its mark and its time.
struct Image {
    path: PathBuf,
    copy: PathBuf,
    mark: Option<Vec<u8>>,
    modified: SystemTime,
}

/// The attribute that names a file's sidecar.
const MARK: &str = "user.untorn";

impl Image {
    fn of(path: &Path, copy: &Path) -> Result<Self> {
        let metadata = std::fs::metadata(path).map_err(|source| Error::io("look at", path, source))?;
        let modified = metadata.modified().map_err(|source| Error::io("look at", path, source))?;
        let mut mark = vec![0; 4096];
        let mark = match rustix::fs::getxattr(path, MARK, &mut mark[..]) {
            Ok(len) => Some(mark[..len].to_vec()),
            Err(_) => None,
        };
        let image = Image { path: path.to_owned(), copy: copy.to_owned(), mark, modified };
        let from = File::open(path).map_err(|source| Error::io("open", path, source))?;
        let to = File::create(copy).map_err(|source| Error::io("create", copy, source))?;
        copy_bytes(&from, &to).map_err(|source| Error::io("copy", path, source))?;
        Ok(image)
    }

    /// Puts the file back: the same inode if it is still there, its bytes, its holes, its mark and its time.
    fn restore(&self) -> Result<()> {
        let failed = |operation| move |source: std::io::Error| Error::io(operation, &self.path, source);
        if let Some(parent) = self.path.parent() {
            std::fs::create_dir_all(parent).map_err(failed("create the directory of"))?;
        }
        let options = File::options().write(true).create(true).truncate(true).clone();
        let file = options.open(&self.path).map_err(failed("restore"))?;
        if let Some(mark) = &self.mark {
            rustix::fs::fsetxattr(&file, MARK, mark, XattrFlags::empty()).map_err(|e| failed("mark")(e.into()))?;
        }
        let copy = File::open(&self.copy).map_err(|source| Error::io("open", &self.copy, source))?;
        copy_bytes(&copy, &file).map_err(failed("restore"))?;
        file.set_times(FileTimes::new().set_modified(self.modified)).map_err(failed("set the time of"))?;
        file.sync_all().map_err(failed("flush"))
    }
}

/// Copies a file in pieces. A piece of zeros stays a hole.
fn copy_bytes(from: &File, to: &File) -> std::io::Result<()> {
    let len = from.metadata()?.len();
    to.set_len(len)?;
    let mut bytes = vec![0; PIECE];
    for offset in (0..len).step_by(PIECE) {
        let piece = &mut bytes[..PIECE.min((len - offset) as usize)];
        from.read_exact_at(piece, offset)?;
        for (page, at) in piece.chunks(PAGE).zip((offset..).step_by(PAGE)) {
            if page.iter().any(|&byte| byte != 0) {
                to.write_all_at(page, at)?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use untorn::testing::storage::{MediumKind, detect};

    use super::*;
    use crate::args::Args;
    use crate::report::Row;

    #[test]
    fn every_engine_recovers_what_it_logged() {
        for kind in [MediumKind::AssumedPmem, MediumKind::Volatile] {
            let dir = tempfile::tempdir().unwrap();
            let args = Args { dir: Some(dir.path().to_owned()), dirty: vec![3, 600], ..Args::default() };
            let args = Args { threads: vec![1], seconds: Some(0.1), file_len: Some(1 << 24), ..args };
            let mut detected = detect(dir.path()).unwrap();
            detected.kind = kind;
            let report = super::super::run_on(&BENCHMARK, &args, &detected, &mut |_, _, _| ()).unwrap();
            let row = |row: &Row| match row {
                Row::Comparison(row) => (row.system.clone(), row.records, row.latency_ns.p50, row.latency_ns.ops),
                other => panic!("{other:?}"),
            };
            let rows: Vec<_> = report.rows.iter().map(row).collect();
            let names = ["read+write", "untorn-reflection", "untorn-hybrid-log", "untorn-shadow"];
            let expected = [3, 600].into_iter().flat_map(|pages| names.map(|name| (name.to_owned(), pages)));
            let found: Vec<_> = rows.iter().map(|row| (row.0.clone(), row.1)).collect();
            assert_eq!(found, expected.collect::<Vec<_>>());
            assert!(rows.iter().all(|row| row.2 > 0 && row.3 == 3), "{rows:?}");
            assert!(report.to_svg().contains("milliseconds"));
            assert!(dir.path().read_dir().unwrap().next().is_none(), "files are left behind");
        }
    }

    #[test]
    fn an_image_has_what_recovery_needs() {
        let dir = tempfile::tempdir().unwrap();
        let target = crate::raw::Block(MediumKind::Volatile);
        for engine in [EngineKind::Reflection, EngineKind::HybridLog, EngineKind::Shadow] {
            let mut opening = Opening::make(target, &dir.path().join(engine.as_str()), engine, 40).unwrap();
            opening.prepare().unwrap();
            let home = std::fs::read(&opening.data).unwrap();
            assert!(home.contains(&OLD), "{engine}: nothing is left to recover");
            opening.go().unwrap();
            assert!(opening.open.as_ref().unwrap().info().recovery.was_needed, "{engine}: the file was closed");
            // Only the log is copied home at once.
            let is_home = std::fs::read(&opening.data).unwrap().iter().all(|&byte| byte == NEW);
            assert_eq!(is_home, engine == EngineKind::HybridLog, "{engine}");
            opening.finish().unwrap();
            assert!(std::fs::read(&opening.data).unwrap().iter().all(|&byte| byte == NEW), "{engine}");
            // Without its log the file is refused or old.
            opening.image.truncate(1);
            opening.prepare().unwrap();
            assert!(opening.go().is_err() || opening.finish().is_err(), "{engine}: the image's log is not used");
        }
    }

    #[test]
    fn processors_are_limited_for_a_while() {
        let processors = Processors::now().unwrap();
        {
            let _limited = processors.limited_to(1).unwrap();
            assert_eq!(Processors::now().unwrap().count(), 1);
        }
        assert_eq!(Processors::now().unwrap().count(), processors.count());
        let args = Args { threads: vec![processors.count() + 1], ..Args::default() };
        let error = crate::run("recovery-time", &args, &mut |_, _, _| ()).unwrap_err().to_string();
        assert!(error.contains("processors"), "{error}");
    }
}
