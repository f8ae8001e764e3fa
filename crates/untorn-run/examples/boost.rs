//! Runs a program with a log in front of the files that it writes: `boost LOG REPORT LAYER GLOB PROGRAM [ARGUMENT…]`. The log is
//! made if there is none, and replayed before the program runs if there is one; the report is written to REPORT as JSON.

use std::error::Error;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;

use untorn::{CacheOptions, Durability};
use untorn_run::{Launch, launch_with_log};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let mut next = |what| arguments.next().ok_or(format!("name {what}"));
    let (log, report, layer, glob, program) =
        (next("a log")?, next("a report")?, next("the layer")?, next("a glob")?, next("a program")?);
    let options = CacheOptions::new().size(8 << 20).max_files(64).durability(Durability::PerWrite);
    let cache = if Path::new(&log).exists() { options.open(&log)? } else { options.create(&log)? };
    let what = Launch {
        program,
        arguments: arguments.collect(),
        globs: vec![glob.into_string().map_err(|_| "the glob is not UTF-8")?],
        layer: layer.into(),
    };
    let ended = launch_with_log(&what, cache)?;
    std::fs::write(report, serde_json::to_vec(&ended.report)?)?;
    std::process::exit(ended.status.code().unwrap_or(128 + ended.status.signal().unwrap_or(0)))
}
