//! Scrubs a file while threads of a program store to it: every reported damage is a false alarm.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use untorn::redundancy::{ProtectOptions, Protected, ScrubReport};
use untorn::{AtomicFile, EngineKind, Options};
use untorn_sim::Rng;

use super::shape::PAGE;
use super::{Place, Settings, done, io};
use crate::error::Result;

/// The minimum number of stores of a watch, however short.
const STORES: u64 = 100;
/// Bytes of one store.
const LEN: usize = 64;
/// Number of storing threads.
const THREADS: u64 = 2;
/// Stores of a thread per commit of an engine.
const COMMIT: u64 = 8;
/// The period of the passes.
const PERIOD: Duration = Duration::from_millis(10);

/// The results of one watch.
#[derive(Clone, Debug)]
pub struct Watch {
    /// The medium.
    pub place: Place,
    /// The engine through which threads store to the file; `None` if the program announces its stores.
    pub engine: Option<EngineKind>,
    /// Number of stores.
    pub stores: u64,
    /// Number of scrubs of the whole file.
    pub scrubs: u64,
    /// Number of pages compared, in the file and in its sidecar.
    pub compared: u64,
    /// Number of pages and blocks reported as damaged.
    pub alarms: u64,
}

/// How threads store to a watched file.
pub(super) const ENGINES: [Option<EngineKind>; 3] = [None, Some(EngineKind::Reflection), Some(EngineKind::HybridLog)];

/// A file to store to and scrub.
enum Watched {
    Plain { protected: Protected, file: File },
    Engine(AtomicFile),
}

impl Watched {
    fn open(place: Place, engine: Option<EngineKind>, path: &Path) -> Result<Self> {
        let options = ProtectOptions::new().period(PERIOD);
        Ok(match engine {
            None => {
                let file = io("open a file", File::options().write(true).open(path))?;
                Watched::Plain { protected: place.open(&options, path)?, file }
            }
            Some(engine) => {
                let options = Options::new().engine(engine).redundancy(options);
                Watched::Engine(place.open_with_engine(&options, path)?)
            }
        })
    }

    fn cover(&self) -> Result<()> {
        match self {
            Watched::Plain { protected, .. } => done("cover", protected.sync()),
            Watched::Engine(file) => done("cover", file.sync_redundancy()),
        }
    }

    fn store(&self, bytes: &[u8], offset: u64, commits: bool) -> Result<()> {
        match self {
            Watched::Plain { protected, file } => {
                let range = offset..offset + bytes.len() as u64;
                let announced = done("announce a store to", protected.announce(range))?;
                io("write to a file", file.write_all_at(bytes, offset))?;
                drop(announced);
            }
            Watched::Engine(file) => {
                done("write to", file.write_at(bytes, offset))?;
                if commits {
                    done("commit to", file.sync())?;
                }
            }
        }
        Ok(())
    }

    fn scrub(&self) -> Result<ScrubReport> {
        match self {
            Watched::Plain { protected, .. } => done("scrub", protected.scrub()),
            Watched::Engine(file) => done("scrub", file.scrub()),
        }
    }

    fn close(self) -> Result<()> {
        match self {
            Watched::Plain { protected, .. } => done("close", protected.close()),
            Watched::Engine(file) => done("close", file.close()),
        }
    }
}

pub(super) fn watch(settings: &Settings, place: Place, engine: Option<EngineKind>) -> Result<Watch> {
    let dir = io("create a directory", tempfile::tempdir_in(&settings.dir))?;
    let path = dir.path().join("watched");
    let mut rng = Rng::derive(settings.seed, 1 << 32 | place as u64);
    let mut bytes = vec![0; (settings.pages * PAGE) as usize];
    rng.fill(&mut bytes);
    io("write a file", std::fs::write(&path, &bytes))?;
    let watched = Watched::open(place, engine, &path)?;
    watched.cover()?;

    let (start, running, stores) = (Instant::now(), AtomicU64::new(THREADS), AtomicU64::new(0));
    let failed = AtomicBool::new(false);
    let mut outcome = Watch { place, engine, stores: 0, scrubs: 0, compared: 0, alarms: 0 };
    let store = |thread: u64| -> Result<()> {
        let mut rng = Rng::derive(settings.seed, (2 + thread) << 32 | place as u64);
        let mut bytes = [0; LEN];
        for nth in 1_u64.. {
            let goes_on = nth <= STORES || start.elapsed() < settings.watch;
            if !goes_on || failed.load(Ordering::Relaxed) {
                break;
            }
            let offset = rng.below(settings.pages * PAGE - LEN as u64);
            rng.fill(&mut bytes);
            watched.store(&bytes, offset, nth % COMMIT == 0)?;
            stores.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    };
    let (stored, scrubbed) = std::thread::scope(|scope| {
        let spawn = |thread| {
            let (store, running) = (&store, &running);
            scope.spawn(move || {
                let result = store(thread);
                running.fetch_sub(1, Ordering::Release);
                result
            })
        };
        let storing: Vec<_> = (0..THREADS).map(spawn).collect();
        let scrubbed = (|| {
            loop {
                // A panicked thread never reports its end; the join reports the panic.
                let is_last = running.load(Ordering::Acquire) == 0 || storing.iter().all(|thread| thread.is_finished());
                let report = watched.scrub()?;
                outcome.scrubs += 1;
                outcome.compared += report.checked + report.sidecar_checked;
                outcome.alarms += report.damage.len() as u64;
                if is_last {
                    return Ok(());
                }
            }
        })();
        failed.store(true, Ordering::Relaxed);
        let join = |thread: std::thread::ScopedJoinHandle<'_, Result<()>>| {
            thread.join().unwrap_or_else(|_| Err(super::died()))
        };
        let joined: Vec<Result<()>> = storing.into_iter().map(join).collect();
        (joined.into_iter().collect::<Result<()>>(), scrubbed)
    });
    stored?;
    scrubbed?;
    watched.close()?;
    outcome.stores = stores.into_inner();
    Ok(outcome)
}
