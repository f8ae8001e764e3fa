//! One script, and what its database is afterwards.

use std::fs;
use std::future;
use std::io;
use std::path::Path;

use sqllogictest::{
    ColumnType, Control, DefaultColumnType, MakeConnection, QueryExpect, Record, RecordOutput, ResultMode, Runner,
    TestError, parse_with_name,
};

use super::session::{Board, Session};
use super::{Engine, LABEL, Report};

/// This many failures of a script are told, and then their number.
const MOST: usize = 10;

/// Results of more values are compared by their hash, unless the script says another number.
const HASH_THRESHOLD: usize = 8;

const DATABASE: &str = "script.db";

/// Runs a script on a new database.
pub(super) fn run(engine: &Engine, path: &Path) -> io::Result<Report> {
    let named = |error| io::Error::other(format!("{}: {error}", path.display()));
    let text = fs::read_to_string(path).map_err(named)?;
    let mut report = Report { scripts: 1, ..Report::default() };
    let place = tempfile::tempdir()?;
    let database = place.path().join(DATABASE);
    let board = Board::default();
    let mut failures = match parse_with_name(&adapted(&text), path.display().to_string()) {
        Err(error) => vec![at(&TestError::from(error))],
        Ok(records) => {
            let mut runner = Runner::new(|| future::ready(Session::start(engine, &database, board.clone())));
            runner.with_normalizer(String::clone);
            runner.with_hash_threshold(HASH_THRESHOLD);
            let failures = all_records(&mut runner, records, &board, &mut report);
            runner.shutdown();
            failures
        }
    };
    let mut left = Vec::new();
    if database.exists() {
        left.extend(plain(engine, place.path(), &board)?);
    }
    left.splice(0..0, board.lock().failures.drain(..));
    if failures.len() > MOST {
        let more = format!("{}: {} more failures", path.display(), failures.len() - MOST);
        failures.truncate(MOST);
        failures.push(more);
    }
    failures.extend(left.into_iter().map(|failure| format!("{}: {failure}", path.display())));
    report.failures = failures;
    Ok(report)
}

/// Runs the records up to a `halt`. Returns what differs.
fn all_records<M: MakeConnection<Conn = Session>>(
    runner: &mut Runner<Session, M>,
    records: Vec<Record<DefaultColumnType>>,
    board: &Board,
    report: &mut Report,
) -> Vec<String> {
    let mut failures = Vec::new();
    let valuewise = Record::Control(Control::ResultMode(ResultMode::ValueWise));
    for record in std::iter::once(valuewise).chain(records) {
        let counted = match &record {
            Record::Halt { .. } => break,
            Record::Statement { .. } => {
                board.lock().types = None;
                true
            }
            Record::Query { expected, .. } => {
                board.lock().types = match expected {
                    QueryExpect::Results { types, .. } => Some(types.iter().map(ColumnType::to_char).collect()),
                    QueryExpect::Error(_) => None,
                };
                true
            }
            Record::Include { loc, .. } | Record::System { loc, .. } | Record::Let { loc, .. } => {
                failures.push(format!("{loc}: a record of this kind is not run here"));
                continue;
            }
            _ => false,
        };
        let result = runner.run(record);
        match &result {
            _ if !counted => {}
            Ok(RecordOutput::Nothing) => report.skipped += 1,
            _ => report.records += 1,
        }
        failures.extend(result.err().map(|error| at(&error)));
    }
    failures
}

fn at(error: &TestError) -> String {
    format!("{}: {}", error.location(), error.kind())
}

/// Rewrites the parts of the dialect of SQLite's own program that the parser does not take: a remark after a condition,
/// a condition on `halt`, and white space in the empty line after a record. Each line stays where it is.
fn adapted(text: &str) -> String {
    let mut lines: Vec<String> = Vec::new();
    // Conditions directly above a line, and whether they hold.
    let (mut conditions, mut hold) = (0, true);
    for line in text.lines() {
        let mut words = line.split_whitespace();
        match (words.next(), words.next()) {
            (None, _) => lines.push(String::new()),
            (Some(condition @ ("skipif" | "onlyif")), Some(label)) => {
                hold &= (label == LABEL) == (condition == "onlyif");
                conditions += 1;
                lines.push(format!("{condition} {label}"));
                continue;
            }
            (Some("halt"), _) if conditions > 0 => {
                let above = lines.len() - conditions;
                lines[above..].iter_mut().for_each(String::clear);
                lines.push(if hold { line.to_owned() } else { String::new() });
            }
            _ => lines.push(line.to_owned()),
        }
        (conditions, hold) = (0, true);
    }
    lines.join("\n")
}

/// The signs that a closed database is no plain file: files beside it, and what a stock SQLite finds in it.
fn plain(engine: &Engine, place: &Path, board: &Board) -> io::Result<Vec<String>> {
    let mut failures = Vec::new();
    let mut databases = Vec::new();
    for entry in fs::read_dir(place)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if ["-journal", "-wal", "-shm"].iter().any(|end| name.ends_with(end)) {
            failures.push(format!("{name} is left after the last close"));
        } else if path.is_file() {
            databases.push((name, path));
        }
    }
    let stock = Engine { library: None, ..engine.clone() };
    for (name, path) in databases {
        let found = Board::default();
        let content = match Session::start(&stock, &path, found.clone()) {
            Ok(mut session) => {
                sqllogictest::DB::shutdown(&mut session);
                found.lock().contents.pop()
            }
            Err(refused) => {
                failures.push(format!("a stock SQLite, {name}: {refused}"));
                continue;
            }
        };
        failures.extend(found.lock().failures.drain(..).map(|failure| format!("a stock SQLite, {name}: {failure}")));
        if name == DATABASE && board.lock().contents.iter().any(|before| Some(before) != content.as_ref()) {
            failures.push(format!("a stock SQLite finds other rows in {name} than its last connections"));
        }
    }
    Ok(failures)
}

#[cfg(test)]
mod tests {
    use super::adapted;

    #[test]
    fn remarks_and_conditions_on_halt_are_adapted() {
        let text = "skipif mysql # not compatible\nquery I\n \t\nonlyif mssql\nhalt\n\nskipif mssql # here\nhalt\nend";
        assert_eq!(adapted(text), "skipif mysql\nquery I\n\n\n\n\n\nhalt\nend");
        assert_eq!(adapted("onlyif sqlite\nonlyif mssql\nhalt\nhalt"), "\n\n\nhalt");
    }
}
