//! Runs scripts of sqllogictest: `sqllogictest PYTHON LIBRARY DIR`. `cargo xtask sqlite --sqllogictest` starts it.
//!
//! With an empty LIBRARY the databases are opened with the VFS `unix`. Exit codes: 0 nothing differs; 1 something
//! does; 74 I/O error, or a directory without scripts.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use untorn_testing::sqllogictest::{self, Engine};

fn main() -> ExitCode {
    let arguments: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let [python, library, directory] = &arguments[..] else {
        eprintln!("usage: sqllogictest PYTHON LIBRARY DIR");
        return ExitCode::from(64);
    };
    let library = Some(library.clone()).filter(|library| library != Path::new(""));
    let start = Instant::now();
    let mut count = 0;
    let run = sqllogictest::run(&Engine { python: python.clone(), library }, directory, |path, report| {
        count += 1;
        let (seconds, failures) = (start.elapsed().as_secs(), report.failures.len());
        report.failures.iter().for_each(|failure| println!("FAILED {failure}"));
        eprintln!("{seconds} s: {count}, {}: {} records, {failures} failures", path.display(), report.records);
    });
    match run {
        Ok(report) => {
            let (scripts, records, skipped) = (report.scripts, report.records, report.skipped);
            let failures = report.failures.len();
            println!("sqllogictest: {scripts} scripts, {records} records, {skipped} skipped, {failures} failures");
            if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("sqllogictest: {error}");
            ExitCode::from(74)
        }
    }
}
