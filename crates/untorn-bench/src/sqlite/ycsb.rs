//! YCSB on a table of SQLite: each operation is a transaction of its own.

use rusqlite::{Connection, params_from_iter};

use crate::error::Result;
use crate::workloads::generator;
use crate::workloads::ycsb::{FIELDS, Operation, fields, name};

/// Records that one transaction of the load inserts.
pub(crate) const GROUP: u64 = 1000;

/// Makes the table.
pub(crate) fn create(database: &Connection) -> Result<()> {
    let columns: Vec<_> = (0..FIELDS).map(|field| format!("field{field} TEXT NOT NULL")).collect();
    database.execute_batch(&format!(
        "CREATE TABLE usertable (ycsb_key TEXT PRIMARY KEY, {}) WITHOUT ROWID",
        columns.join(", ")
    ))?;
    Ok(())
}

/// Inserts the records from `first` on, each transaction with a group of them.
pub(crate) fn load(database: &mut Connection, first: u64, count: u64, seed: u64) -> Result<()> {
    let mut rng = generator(seed, first);
    for group in (first..first + count).step_by(GROUP as usize) {
        let transaction = database.transaction()?;
        for key in group..(group + GROUP).min(first + count) {
            insert(&transaction, key, &fields(&mut rng))?;
        }
        transaction.commit()?;
    }
    Ok(())
}

fn insert(database: &Connection, key: u64, fields: &[String; FIELDS]) -> Result<()> {
    let marks = ["?"; FIELDS + 1].join(", ");
    let mut statement = database.prepare_cached(&format!("INSERT INTO usertable VALUES ({marks})"))?;
    let name = name(key);
    statement.execute(params_from_iter(std::iter::once(&name).chain(fields)))?;
    Ok(())
}

/// Bytes of all fields of a record; 0 if there is none.
fn read(database: &Connection, key: u64) -> Result<usize> {
    let mut statement = database.prepare_cached("SELECT * FROM usertable WHERE ycsb_key = ?")?;
    let mut rows = statement.query([name(key)])?;
    let mut bytes = 0;
    while let Some(row) = rows.next()? {
        for field in 0..FIELDS {
            bytes += row.get_ref(field + 1)?.as_str().map_or(0, str::len);
        }
    }
    Ok(bytes)
}

fn update(database: &Connection, key: u64, field: usize, value: &str) -> Result<usize> {
    let mut statement =
        database.prepare_cached(&format!("UPDATE usertable SET field{field} = ? WHERE ycsb_key = ?"))?;
    Ok(statement.execute((value, name(key)))?)
}

/// Does an operation. Returns the bytes that it read.
///
/// # Errors
/// Those of SQLite.
pub(crate) fn perform(database: &mut Connection, operation: &Operation) -> Result<usize> {
    match operation {
        Operation::Read { key } => read(database, *key),
        Operation::Update { key, field, value } => update(database, *key, *field, value).map(|_| 0),
        Operation::Insert { key, fields } => insert(database, *key, fields).map(|()| 0),
        Operation::Scan { from, count } => {
            let sql = "SELECT * FROM usertable WHERE ycsb_key >= ? ORDER BY ycsb_key LIMIT ?";
            let mut statement = database.prepare_cached(sql)?;
            let mut rows = statement.query((name(*from), count))?;
            let mut bytes = 0;
            while let Some(row) = rows.next()? {
                for field in 0..FIELDS {
                    bytes += row.get_ref(field + 1)?.as_str().map_or(0, str::len);
                }
            }
            Ok(bytes)
        }
        // As YCSB does it: a read, and an update after it.
        Operation::Modify { key, field, value } => {
            let bytes = read(database, *key)?;
            update(database, *key, *field, value)?;
            Ok(bytes)
        }
    }
}
