//! `untorn follow`: a local copy of a replica.

use std::io::Write;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde_json::json;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use untorn_replicate::{Error, FollowOptions, Followed, Follower, FollowerStatus};

use super::info::seconds;
use crate::cli;
use crate::exit::{Exit, Result};
use crate::output::{self, Reader};
use crate::size;

/// The longest sleep without looking whether a signal came.
const PATIENCE: Duration = Duration::from_millis(100);

/// The longest pause between tries while the store fails.
const LONGEST: Duration = Duration::from_secs(30);

/// Applies the commits of a replica to a local file.
pub(crate) fn run(args: &cli::Follow) -> Result<Exit> {
    let stop = crate::signals::Stop::on(&[SIGINT, SIGTERM, SIGHUP])?;
    let told = stop.flag();
    let interval = Duration::from_millis(args.interval.max(1));
    let mut follower = Follower::open(&args.key.url(&args.url), &args.file, &FollowOptions::new())?;
    let mut reader = tell(args, "following", &Followed::default(), &follower.status())?;
    let mut pause = interval;
    while !told.load(Ordering::Acquire) {
        match follower.poll() {
            Ok(found) => {
                if (found.commits > 0 || found.is_restart) && reader == Reader::Listening {
                    reader = tell(args, "followed", &found, &follower.status())?;
                }
                if found.is_current && args.once {
                    break;
                }
                let is_more = found.commits > 0 || found.is_restart;
                pause = if is_more || args.once { Duration::ZERO } else { interval };
            }
            // The store may be back soon.
            Err(Error::Store(error)) if !args.once => {
                // If stderr is closed, the copy follows all the same.
                let _ = writeln!(std::io::stderr(), "untorn: {error}; trying again");
                pause = (pause * 2).clamp(PATIENCE, LONGEST);
            }
            Err(error) => return Err(error.into()),
        }
        let until = Instant::now() + pause;
        while !told.load(Ordering::Acquire) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            std::thread::sleep(left.min(PATIENCE));
        }
    }
    let status = follower.close()?;
    tell(args, "ended", &Followed::default(), &status)?;
    Ok(Exit::Clean)
}

fn tell(args: &cli::Follow, state: &str, found: &Followed, status: &FollowerStatus) -> Result<Reader> {
    if args.form.json {
        return output::json_to_reader(&json!({
            "path": args.file.display().to_string(),
            "url": args.url,
            "state": state,
            "epoch": status.epoch,
            "commit": status.commit,
            "time": status.time.map(seconds),
            "behind": {
                "commits": found.commits,
                "bytes": found.bytes,
                "seconds": found.lag.map(|lag| lag.as_secs_f64()),
            },
            "restarted": found.is_restart,
            "commits": status.commits,
            "bytes": status.bytes,
        }));
    }
    let file = args.file.display();
    let text = match state {
        "followed" => {
            let what = match found.is_restart {
                true => "a snapshot".to_owned(),
                false => output::count(found.commits, "commit", "commits"),
            };
            let lag = found.lag.map(|lag| format!(", {:.3} s behind", lag.as_secs_f64())).unwrap_or_default();
            format!("{file}: commit {}: {what}, {}{lag}\n", status.commit, size::show(found.bytes))
        }
        "ended" => {
            let commits = output::count(status.commits, "commit", "commits");
            format!("{file}: ended at commit {} in epoch {}; applied {commits}\n", status.commit, status.epoch)
        }
        _ => format!("following {} with {file}: commit {} in epoch {}\n", args.url, status.commit, status.epoch),
    };
    output::bytes(text.as_bytes())
}
