//! The process that the demo kills: it makes transfers until it dies.

use std::hint::black_box;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use memmap2::MmapMut;
use untorn::{AtomicFile, Durability, Options};

use super::bank::{Bank, Transfer};
use super::plain;
use crate::cli::{DemoWriter, Writer};
use crate::exit::{Exit, Failure, Result};
use crate::rng::Rng;
use crate::victim::{self, die_with_parent};

/// The minimum time between two flushes, for both writers. With a flush per transfer they would almost always wait for
/// the disk, and most kills would hit that wait.
const FLUSH_EVERY: Duration = Duration::from_millis(10);

/// A bank's file, written with plain mmap or with untorn.
trait Books {
    /// The whole file.
    fn image(&self) -> Result<Vec<u8>>;
    /// Performs one transfer.
    fn write(&mut self, transfer: &Transfer, balances: &[u64]) -> Result<()>;
    /// Makes all transfers so far durable.
    fn flush(&mut self) -> Result<()>;
}

/// Runs until killed.
pub(crate) fn run(args: &DemoWriter) -> Result<Exit> {
    die_with_parent(args.parent)?;
    match args.writer {
        Writer::Plain => transfer_forever(&mut Plain(plain::map(&args.file)?), args.seed),
        Writer::Untorn => transfer_forever(&mut Untorn(open(&args.file)?), args.seed),
    }
}

/// Opens the bank with untorn, for its writer and its auditor.
pub(crate) fn open(path: &Path) -> Result<AtomicFile> {
    Ok(Options::new().durability(Durability::PerCommit).open(path)?)
}

fn transfer_forever(books: &mut dyn Books, seed: u64) -> Result<Exit> {
    let mut reports = victim::reports()?;
    let image = books.image()?;
    let mut number = Bank::LARGE.audit(&image).number;
    let mut balances = Bank::LARGE.balances(&image);
    let mut rng = Rng::from_parts(&[seed, number]);
    let mut report = |number: u64| {
        reports
            .write_all(&number.to_le_bytes())
            .map_err(|error| Failure::io("cannot write a report to standard output", &error))
    };
    report(number)?;
    let mut flush_took = Duration::ZERO;
    loop {
        let start = Instant::now();
        // On a slow disk, flush less often, so that at least half of the time goes into transfers.
        while start.elapsed() < FLUSH_EVERY.max(flush_took) {
            number += 1;
            let transfer = Bank::LARGE.transfer(number, &balances, &mut rng);
            transfer.apply(&mut balances);
            books.write(&transfer, &balances)?;
        }
        let start = Instant::now();
        books.flush()?;
        flush_took = start.elapsed();
        report(number)?;
    }
}

/// Stores into a shared mapping, then msync.
struct Plain(MmapMut);

impl Books for Plain {
    fn image(&self) -> Result<Vec<u8>> {
        Ok(self.0.to_vec())
    }

    fn write(&mut self, transfer: &Transfer, balances: &[u64]) -> Result<()> {
        transfer.stores(Bank::LARGE, balances, |offset, bytes| {
            let offset = offset as usize;
            self.0[offset..offset + bytes.len()].copy_from_slice(bytes);
            // Prevents the compiler from merging or reordering the stores of a transfer.
            black_box(&mut self.0);
            Ok(())
        })
    }

    fn flush(&mut self) -> Result<()> {
        self.0.flush().map_err(|error| Failure::io("cannot flush the bank's mapping", &error))
    }
}

/// One transaction per transfer, then sync.
struct Untorn(AtomicFile);

impl Books for Untorn {
    fn image(&self) -> Result<Vec<u8>> {
        let mut image = vec![0; self.0.len() as usize];
        self.0.read_at(&mut image, 0)?;
        Ok(image)
    }

    fn write(&mut self, transfer: &Transfer, balances: &[u64]) -> Result<()> {
        let mut transaction = self.0.transaction();
        transfer.stores(Bank::LARGE, balances, |offset, bytes| transaction.write_at(bytes, offset))?;
        Ok(transaction.commit()?)
    }

    fn flush(&mut self) -> Result<()> {
        self.0.sync()?;
        Ok(())
    }
}
