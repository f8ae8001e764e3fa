//! A file that is scrubbed while a program stores to it: whatever is said to be damaged then is not.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use untorn::ProtectOptions;
use untorn_sim::Rng;

use super::shape::PAGE;
use super::{Place, Settings, done, io};
use crate::error::Result;

/// The fewest stores of a watch, however short.
const STORES: u64 = 100;
/// Bytes of one store.
const LEN: usize = 64;

/// What came of one watch.
#[derive(Clone, Debug)]
pub struct Watch {
    /// Where.
    pub place: Place,
    /// Stores that were made.
    pub stores: u64,
    /// Scrubs of the whole file.
    pub scrubs: u64,
    /// Pages that these compared.
    pub compared: u64,
    /// Pages and blocks that were accused.
    pub alarms: u64,
}

pub(super) fn watch(settings: &Settings, place: Place) -> Result<Watch> {
    let dir = io("make a directory", tempfile::tempdir_in(&settings.dir))?;
    let path = dir.path().join("watched");
    let mut rng = Rng::derive(settings.seed, 1 << 32 | place as u64);
    let mut bytes = vec![0; (settings.pages * PAGE) as usize];
    rng.fill(&mut bytes);
    io("write a file", std::fs::write(&path, &bytes))?;
    let file = io("open a file", File::options().write(true).open(&path))?;
    let protected = place.open(&ProtectOptions::new().period(Duration::from_millis(10)), &path)?;
    done("cover", protected.sync())?;

    let (start, stop, stores) = (Instant::now(), AtomicBool::new(false), AtomicU64::new(0));
    let mut outcome = Watch { place, stores: 0, scrubs: 0, compared: 0, alarms: 0 };
    let (stored, scrubbed) = std::thread::scope(|scope| {
        let storing = scope.spawn(|| {
            let result = (|| {
                let mut bytes = [0; LEN];
                while stores.load(Ordering::Relaxed) < STORES || start.elapsed() < settings.watch {
                    let offset = rng.below(settings.pages * PAGE - LEN as u64);
                    rng.fill(&mut bytes);
                    let announced = done("announce a store to", protected.announce(offset..offset + LEN as u64))?;
                    io("write to a file", file.write_all_at(&bytes, offset))?;
                    drop(announced);
                    stores.fetch_add(1, Ordering::Relaxed);
                }
                Ok(())
            })();
            stop.store(true, Ordering::Release);
            result
        });
        let scrubbed = (|| {
            loop {
                let is_last = stop.load(Ordering::Acquire);
                let report = done("scrub", protected.scrub())?;
                outcome.scrubs += 1;
                outcome.compared += report.checked;
                outcome.alarms += report.damage.len() as u64;
                if is_last {
                    return Ok(());
                }
            }
        })();
        let stored = storing.join().unwrap_or_else(|_| Err(super::died()));
        (stored, scrubbed)
    });
    stored?;
    scrubbed?;
    done("close", protected.close())?;
    outcome.stores = stores.into_inner();
    Ok(outcome)
}
