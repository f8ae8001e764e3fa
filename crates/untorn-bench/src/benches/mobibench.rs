//! `libnvmmio-fig12`: Mobibench's transactions of one row on SQLite (§4.3.1 of the Libnvmmio paper).
//!
//! The workloads follow Mobibench's database part: one table of a key and a text, and transactions that each insert,
//! update or delete one row. Every system does the same transactions in each round, so the tables stay equal.

use std::path::Path;
use std::time::Duration;

use rusqlite::Connection;

use super::Progress;
use super::benchmark::{Benchmark, Outcome};
use super::databases::{Plan, Worker, notes, run_in_turns, scratch};
use crate::args::System;
use crate::error::{Error, Result};
use crate::offsets::mix;
use crate::report::Row;
use crate::sqlite;

/// Rows by default, and in a quick run.
const RECORDS: u64 = 2000;
const QUICK_RECORDS: u64 = 120;

/// Bytes of a row's text.
const TEXT: usize = 100;

const PAPER: &str = "the paper: Mobibench on NOVA with each journal, and on Libnvmmio over NOVA without one, \
                     transactions per second on NVDIMM-N and Optane memory; here the file system of --dir";

const OFF: &str = "off: SQLite without a journal; a crash within a transaction may leave the database corrupt";

const SYSTEMS: [System; 5] = [System::Untorn, System::Delete, System::Truncate, System::Wal, System::Off];

/// `libnvmmio-fig12`.
pub(super) const LIBNVMMIO_FIG12: Benchmark = Benchmark::new(
    "libnvmmio-fig12",
    "Fig. 12 of the Libnvmmio paper: Mobibench's inserts, updates and deletes of one row on SQLite",
    &["system", "page-size", "records", "seconds", "ops", "seed"],
    |job, progress| {
        let plan = Plan::new(job.args, &SYSTEMS, &[4096], &[1])?;
        let records = job.args.records.unwrap_or(if job.args.quick { QUICK_RECORDS } else { RECORDS });
        let dir = scratch(job.args)?;
        let rows = run(&plan, dir.path(), records, progress)?;
        let notes = notes().into_iter().chain([PAPER.to_owned()]);
        let off = plan.systems.contains(&System::Off).then(|| OFF.to_owned());
        Ok(Outcome { rows, notes: notes.chain(off).collect() })
    },
);

/// A workload of Mobibench.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Insert,
    Update,
    Delete,
}

impl Kind {
    const ALL: [Kind; 3] = [Kind::Insert, Kind::Update, Kind::Delete];

    fn as_str(self) -> &'static str {
        match self {
            Kind::Insert => "mobibench-insert",
            Kind::Update => "mobibench-update",
            Kind::Delete => "mobibench-delete",
        }
    }
}

/// Measures the three workloads one after the other: the rows that are inserted are updated, and then deleted.
fn run(plan: &Plan, dir: &Path, records: u64, progress: &mut Progress<'_>) -> Result<Vec<Row>> {
    let total = (plan.pages.len() * Kind::ALL.len()) as u64;
    let (mut rows, mut done) = (Vec::new(), 0);
    // One round more warms up.
    let steps = (records / (plan.rounds as u64 + 1)).clamp(1, plan.ops);
    for &page_size in &plan.pages {
        let path = |system: System| dir.join(format!("mobibench-{page_size}-{system}"));
        for &system in &plan.systems {
            let table = "CREATE TABLE tblMyList (id INTEGER PRIMARY KEY, Value TEXT NOT NULL)";
            sqlite::open(&path(system), system, page_size)?.execute_batch(table)?;
        }
        let all = steps * (plan.rounds as u64 + 1);
        for kind in Kind::ALL {
            progress(done, total, &format!("{}, pages of {page_size} B", kind.as_str()));
            done += 1;
            let connect = |&system: &System| {
                let database = sqlite::open(&path(system), system, page_size)?;
                Ok(vec![Client { database, kind, done: 0, rows: all, seed: plan.seed }])
            };
            let mut clients = plan.systems.iter().map(connect).collect::<Result<Vec<_>>>()?;
            let tallies = run_in_turns(&mut clients, plan.rounds, 1, (Duration::MAX, steps))?;
            check(&clients, plan, if kind == Kind::Delete { 0 } else { all })?;
            rows.extend(plan.rows(kind.as_str(), page_size, 1, tallies, 1.0));
        }
    }
    progress(total, total, "done");
    Ok(rows)
}

/// Every system has so many rows.
fn check(clients: &[Vec<Client>], plan: &Plan, rows: u64) -> Result<()> {
    for (client, system) in clients.iter().flatten().zip(&plan.systems) {
        let found: i64 = client.database.query_row("SELECT count(*) FROM tblMyList", [], |row| row.get(0))?;
        if found.unsigned_abs() != rows {
            let what = format!("the table has {found} rows, and not {rows}");
            return Err(Error::Inconsistent { system: system.as_str(), what });
        }
    }
    Ok(())
}

/// A connection with one workload.
struct Client {
    database: Connection,
    kind: Kind,
    done: u64,
    rows: u64,
    seed: u64,
}

impl Worker for Client {
    fn step(&mut self) -> Result<()> {
        let number = self.done;
        self.done += 1;
        let changed = match self.kind {
            Kind::Insert => {
                let sql = "INSERT INTO tblMyList (id, Value) VALUES (?, ?)";
                self.database.prepare_cached(sql)?.execute((number as i64, text(b'a', number)))?
            }
            Kind::Update => {
                let id = mix(self.seed ^ mix(number)) % self.rows;
                let sql = "UPDATE tblMyList SET Value = ? WHERE id = ?";
                self.database.prepare_cached(sql)?.execute((text(b'A', number), id as i64))?
            }
            Kind::Delete => {
                self.database.prepare_cached("DELETE FROM tblMyList WHERE id = ?")?.execute([number as i64])?
            }
        };
        match changed {
            1 => Ok(()),
            other => Err(Error::Database { what: format!("{} {number} changed {other} rows", self.kind.as_str()) }),
        }
    }
}

/// A text that differs from one transaction to the next.
fn text(first: u8, number: u64) -> String {
    String::from_utf8_lossy(&[first + (number % 26) as u8; TEXT]).into_owned()
}

#[cfg(test)]
mod tests {
    use crate::Args;
    use crate::report::Row;

    #[test]
    fn mobibench_runs_on_every_journal_and_without_one() {
        let dir = tempfile::tempdir().unwrap();
        let args = Args { dir: Some(dir.path().to_owned()), seconds: Some(0.1), ..Args::default() };
        let args = Args { records: Some(40), page_sizes: vec![4096], ..args };
        let report = crate::run("libnvmmio-fig12", &args, &mut |_, _, _| ()).unwrap();
        let row = |row: &Row| match row {
            Row::Database(row) => (row.workload, row.system, row.ops, row.ops_per_s, row.ratio_to_untorn),
            other => panic!("{other:?}"),
        };
        let rows: Vec<_> = report.rows.iter().map(row).collect();
        assert_eq!(rows.len(), 3 * 5);
        // Three rounds of ten transactions; ten more warm up.
        assert!(rows.iter().all(|row| row.2 == 30 && row.3 > 0.0), "{rows:?}");
        for system in ["untorn", "delete", "truncate", "wal", "off"] {
            let of_system = rows.iter().filter(|row| row.1 == system);
            let workloads: Vec<&str> = of_system.map(|row| row.0).collect();
            assert_eq!(workloads, ["mobibench-insert", "mobibench-update", "mobibench-delete"], "{system}");
        }
        assert!(rows.iter().filter(|row| row.1 == "untorn").all(|row| row.4 == 1.0));
        assert!(report.notes.iter().any(|note| note.contains("without a journal")), "{:?}", report.notes);
    }

    #[test]
    fn a_database_without_a_journal_is_for_one_figure() {
        let args = Args { systems: vec!["off".to_owned()], ..Args::default() };
        for name in ["ycsb", "tpcc"] {
            let error = crate::run(name, &args, &mut |_, _, _| ()).unwrap_err().to_string();
            assert!(error.contains("\"off\"") && error.contains("libnvmmio-fig12"), "{error}");
        }
    }
}
