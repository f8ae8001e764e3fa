//! A double-entry ledger in an [`AtomicFile`]: transactions, `sync`, and recovery after a crash.
//!
//! ```sh
//! cargo run --release -p untorn --example ledger -- PATH
//! ```
//!
//! Each transfer is one transaction: two balances, a journal entry, and the number of entries. The program posts two
//! transfers and syncs. Then a child process posts one more and dies before its `sync`. After the file is opened again,
//! the ledger is that of the last `sync`. Each run posts more.
//!
//! Exit codes: 0 if the ledger is consistent; 1 if it is not, or if a call fails; 2 without a path.

use std::path::Path;
use std::process::{Command, ExitCode, abort};
use std::{env, error, io};

use untorn::{AtomicFile, Durability, Error, Options};

const ACCOUNTS: [&str; 3] = ["bank", "rent", "food"];
/// Bytes 0 to 7 are the number of journal entries. Each part begins on a page of its own.
const BALANCES: u64 = 4096;
const JOURNAL: u64 = 8192;
/// An entry is the account that pays, the account that receives, and the amount.
const ENTRY: u64 = 3 * 8;

fn read(file: &AtomicFile, offset: u64) -> untorn::Result<u64> {
    let mut bytes = [0; 8];
    file.read_at(&mut bytes, offset)?;
    Ok(u64::from_le_bytes(bytes))
}

fn balance(file: &AtomicFile, account: u64) -> untorn::Result<i64> {
    Ok(read(file, BALANCES + account * 8)?.cast_signed())
}

/// Moves an amount between two different accounts. The writes are visible together and become durable at `sync`.
fn post(file: &AtomicFile, from: u64, to: u64, amount: u64) -> untorn::Result<()> {
    let entries = read(file, 0)?;
    let at = JOURNAL + entries * ENTRY;
    if at + ENTRY > file.len() {
        file.resize(file.len() * 2)?;
    }
    let mut tx = file.transaction();
    tx.write_at(&(balance(file, from)? - amount.cast_signed()).to_le_bytes(), BALANCES + from * 8)?;
    tx.write_at(&(balance(file, to)? + amount.cast_signed()).to_le_bytes(), BALANCES + to * 8)?;
    for (i, field) in [from, to, amount].into_iter().enumerate() {
        tx.write_at(&field.to_le_bytes(), at + i as u64 * 8)?;
    }
    tx.write_at(&(entries + 1).to_le_bytes(), 0)?;
    tx.commit()
}

/// Adds the journal up and compares the sums with the balances. Returns the number of entries.
fn check(file: &AtomicFile) -> Result<u64, Box<dyn error::Error>> {
    let entries = read(file, 0)?;
    let mut sums = [0; ACCOUNTS.len()];
    for entry in 0..entries {
        let at = JOURNAL + entry * ENTRY;
        let (from, to, amount) = (read(file, at)?, read(file, at + 8)?, read(file, at + 16)?.cast_signed());
        for (account, change) in [(from, -amount), (to, amount)] {
            let sum = sums.get_mut(account as usize);
            *sum.ok_or_else(|| format!("journal entry {entry} names account {account}, which does not exist"))? +=
                change;
        }
    }
    for (account, (name, sum)) in ACCOUNTS.iter().zip(sums).enumerate() {
        let balance = balance(file, account as u64)?;
        if balance != sum {
            return Err(format!("{name} has {balance}, but its {entries} journal entries add up to {sum}").into());
        }
        println!("  {name:>4} {balance:>6}");
    }
    Ok(entries)
}

fn run(path: &Path, is_child: bool) -> Result<(), Box<dyn error::Error>> {
    // With this durability only `sync` commits, on persistent memory too.
    let options = Options::new().durability(Durability::PerCommit);
    if is_child {
        let file = options.open(path)?;
        post(&file, 0, 2, 1_000_000)?;
        abort();
    }
    let file = match options.create(path, 1 << 16) {
        Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::AlreadyExists => options.open(path)?,
        created => created?,
    };
    println!("The ledger has {} entries.", check(&file)?);
    post(&file, 0, 1, 700)?;
    post(&file, 0, 2, 45)?;
    let commit = file.sync()?;
    println!("Posted two transfers; commit {commit} makes both durable:");
    let synced = check(&file)?;
    file.close()?;

    println!("A child process posts a transfer of 1000000 and dies before its sync.");
    let status = Command::new(env::current_exe()?).arg(path).arg("--crash").status()?;
    if status.code().is_some() {
        return Err(format!("the child did not die by a signal, but ended with {status}").into());
    }
    let file = options.open(path)?;
    println!("Opened the ledger again; recovery was needed: {}.", file.info().recovery.was_needed);
    let found = check(&file)?;
    if found != synced {
        return Err(format!("the ledger has {found} entries; the last sync had {synced}").into());
    }
    println!("The ledger has the {found} entries of the last sync, and its balances add up.");
    Ok(file.close()?)
}

fn main() -> ExitCode {
    let mut args = env::args_os().skip(1);
    let Some(path) = args.next() else {
        eprintln!("ledger: no path given; usage: ledger PATH (the ledger's file; created if it does not exist)");
        return ExitCode::from(2);
    };
    let is_child = args.next().is_some_and(|arg| arg == "--crash");
    let failed = |error| eprintln!("ledger: {error}");
    run(Path::new(&path), is_child).map_err(failed).map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS)
}
