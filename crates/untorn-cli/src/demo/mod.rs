//! `untorn demo`: shows in under 20 seconds that plain mmap tears and untorn does not.

mod bank;
mod kills;
mod plain;
mod power;
mod table;
mod writer;

use std::path::PathBuf;
use std::time::Instant;

use serde_json::json;

use crate::cli::{Demo, Writer};
use crate::exit::{Exit, Failure, Result};
use crate::{output, progress, rng};

pub(crate) use writer::run as writer;

// The help promises under 20 seconds; the rest is for starting processes. A busy machine takes longer.
const _: () = assert!(2 * (kills::BUDGET.as_millis() + power::BUDGET.as_millis()) <= 15_000);

/// All results of the demo.
struct Findings {
    plain: kills::Outcome,
    untorn: kills::Outcome,
    plain_power: power::Outcome,
    untorn_power: power::Outcome,
    seed: u64,
    seconds: f64,
    dir: PathBuf,
}

/// Runs the demo.
pub(crate) fn run(args: &Demo) -> Result<Exit> {
    let start = Instant::now();
    let parent = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    let dir = tempfile::Builder::new()
        .prefix("untorn-demo-")
        .tempdir_in(&parent)
        .map_err(|error| Failure::io_at("create a directory in", &parent, &error))?;
    let seed = rng::fresh_seed();
    let bar = progress::bar(2 * kills::KILLS + power::STEPS, "");
    bar.set_message("killing: mmap + msync");
    let plain = kills::run(dir.path(), Writer::Plain, seed, &bar)?;
    bar.set_message("killing: untorn");
    let untorn = kills::run(dir.path(), Writer::Untorn, seed, &bar)?;
    bar.set_message("power cuts: mmap + msync");
    let plain_power = power::run(Writer::Plain, seed, &bar)?;
    bar.set_message("power cuts: untorn");
    let untorn_power = power::run(Writer::Untorn, seed, &bar)?;
    bar.finish_and_clear();
    let seconds = start.elapsed().as_secs_f64();
    let found = Findings { plain, untorn, plain_power, untorn_power, seed, seconds, dir: parent };
    let object = json!({
        "plain": kills_object(&found.plain),
        "untorn": kills_object(&found.untorn),
        "power_cuts": {
            "plain": power_object(&found.plain_power),
            "untorn": power_object(&found.untorn_power),
        },
        "seed": seed,
        "seconds": (found.seconds * 10.0).round() / 10.0,
    });
    output::report(args.form.json, &object, || table::words(&found))?;
    Ok(if table::kept_promise(&found) { Exit::Clean } else { Exit::Attention })
}

fn kills_object(outcome: &kills::Outcome) -> serde_json::Value {
    json!({
        "kills": outcome.kills,
        "torn": outcome.torn,
        "lost": outcome.lost,
        "transfers": outcome.transfers,
        "example": outcome.example,
    })
}

fn power_object(outcome: &power::Outcome) -> serde_json::Value {
    json!({ "images": outcome.images, "torn": outcome.torn, "lost": outcome.lost, "example": outcome.example })
}
