//! The demo's second half: simulated power cuts.
//!
//! The transfers run on a simulated block device. The power may fail before each call that changes the device; then any
//! subset of the unflushed sectors survives. The demo opens and audits each resulting image. Both writers run the same
//! code as on real files. The plain one is the library's passthrough engine: write in place, then flush.

use std::collections::HashSet;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use untorn::testing::storage::MediumClass;
use untorn::{AtomicFile, Durability, EngineKind, Options};
use untorn_sim::{Image, Rng as SimRng, SimMedium, Verdict};

use super::bank::{Audit, Bank};
use crate::cli::Writer;
use crate::exit::Result;
use crate::rng::Rng;

/// The bank for the power cuts: small, so that there is time for many images.
const BANK: Bank = Bank { accounts: 8, receipt: 8 << 10 };
/// Distinct images per writer.
const IMAGES: u64 = 1000;
/// Time limit for each writer's power cuts; a slow machine audits fewer images.
pub(crate) const BUDGET: Duration = Duration::from_millis(2500);
/// The minimum number of images, however slow the machine is.
const FEWEST_IMAGES: u64 = 200;
/// Transfers per simulated machine.
const TRANSFERS: u64 = 4;
/// Random images per instant, in addition to the two in which everything and nothing survives.
const SAMPLES: usize = 2;

/// The progress bar's steps for both writers.
pub(crate) const STEPS: u64 = 2 * IMAGES / BAR_UNIT;
/// Images per step of the progress bar. One kill takes about as long as this many images.
const BAR_UNIT: u64 = 20;

/// The results of one writer's power cuts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    /// Number of distinct images audited.
    pub(crate) images: u64,
    /// Number of torn images.
    pub(crate) torn: u64,
    /// Number of images without a transfer whose flush had returned.
    pub(crate) lost: u64,
    /// A description of the first tear.
    pub(crate) example: Option<String>,
}

/// An image, and the last transfer whose flush had returned when the power failed.
struct Cut {
    image: Image,
    flushed: u64,
}

/// Cuts the power of one simulated machine after another.
pub(crate) fn run(writer: Writer, seed: u64, bar: &ProgressBar) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    let mut seen = HashSet::new();
    let mut rng = Rng::new(seed);
    let start = Instant::now();
    let before = bar.position();
    let goes_on = |images| images < FEWEST_IMAGES || images < IMAGES && start.elapsed() < BUDGET;
    while goes_on(outcome.images) {
        for cut in one_machine(writer, rng.next())? {
            if !goes_on(outcome.images) {
                break;
            }
            if !seen.insert(cut.image.digest()) {
                continue;
            }
            let audit = start_up(cut.image, writer)?;
            outcome.images += 1;
            outcome.lost += u64::from(audit.number < cut.flushed);
            if let Some(what) = audit.torn {
                outcome.torn += 1;
                outcome.example.get_or_insert(what);
            }
            bar.set_position(before + outcome.images / BAR_UNIT);
        }
    }
    bar.set_position(before + STEPS / 2);
    Ok(outcome)
}

fn path() -> &'static Path {
    Path::new("bank")
}

fn open(medium: &SimMedium, writer: Writer) -> untorn::Result<AtomicFile> {
    let engine = match writer {
        Writer::Plain => EngineKind::Passthrough,
        Writer::Untorn => EngineKind::Auto,
    };
    Options::new().engine(engine).durability(Durability::PerCommit).open_on(medium.clone(), path())
}

/// Runs some transfers on a new machine and collects images of a power cut before every change.
fn one_machine(writer: Writer, seed: u64) -> Result<Vec<Cut>> {
    let medium = SimMedium::new(MediumClass::Block);
    medium.install(path(), &BANK.opening());
    let file = open(&medium, writer)?;
    let flushed = Arc::new(AtomicU64::new(0));
    let cuts = Arc::new(Mutex::new(Vec::new()));
    hook(&medium, seed, &flushed, &cuts);
    let mut rng = Rng::new(seed);
    let mut balances = BANK.balances(&BANK.opening());
    for number in 1..=TRANSFERS {
        let transfer = BANK.transfer(number, &balances, &mut rng);
        transfer.apply(&mut balances);
        let mut transaction = file.transaction();
        transfer.stores(BANK, &balances, |offset, bytes| transaction.write_at(bytes, offset))?;
        transaction.commit()?;
        file.sync()?;
        flushed.store(number, Ordering::SeqCst);
    }
    file.close()?;
    medium.clear_hook();
    let mut cuts = cuts.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(std::mem::take(&mut *cuts))
}

/// Installs a hook that collects images before each change.
fn hook(medium: &SimMedium, seed: u64, flushed: &Arc<AtomicU64>, cuts: &Arc<Mutex<Vec<Cut>>>) {
    let (flushed, cuts) = (flushed.clone(), cuts.clone());
    let mut rng = SimRng::new(seed);
    medium.set_hook(Box::new(move |instant| {
        if instant.step.changes() {
            let state = instant.crash_state();
            let mut choices = vec![state.everything(), state.nothing()];
            choices.extend((0..SAMPLES).map(|_| state.sample(&mut rng)));
            let flushed = flushed.load(Ordering::SeqCst);
            let new = choices.iter().map(|choice| Cut { image: state.image(choice), flushed });
            cuts.lock().unwrap_or_else(PoisonError::into_inner).extend(new);
        }
        Verdict::Allow
    }));
}

/// Boots a machine from an image, opens the bank (which recovers untorn's), and audits it.
fn start_up(image: Image, writer: Writer) -> Result<Audit> {
    let medium = image.boot();
    let file = open(&medium, writer)?;
    let mut bytes = vec![0; file.len() as usize];
    file.read_at(&mut bytes, 0)?;
    Ok(BANK.audit(&bytes))
}
