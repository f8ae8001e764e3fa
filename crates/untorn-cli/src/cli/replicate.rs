//! Arguments of `replicate`, `follow`, `take-over` and `replicas`, and the state that `restore` is asked for.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use clap::{Args, ValueEnum};
use untorn_replicate::{WhenBehind, store};

use super::Form;
use super::prune::age;
use crate::size;

pub(super) const AFTER_RESTORE: &str = "\
Exit codes: 0 restored, durably; 2 the backup or replica is damaged, and nothing was restored; 64 usage, or the \
backups are no chain; 74 I/O error, FILE exists or is open, or nothing so old is kept

Examples:
  untorn restore /backups/ledger.monday ledger
  untorn restore /backups/ledger.monday /backups/ledger.tuesday ledger
  untorn restore --force /backups/ledger.monday ledger
  untorn restore file:///mnt/usb/ledger ledger --at '2026-11-29 06:07:08'
  untorn restore file:///mnt/usb/ledger ledger --at @1795932428.0330863
  untorn restore file:///mnt/usb/app.db /tmp/ltx --ltx";

pub(super) const AFTER_REPLICATE: &str = "\
Exit codes: 0 everything was shipped, with --once; 1 the file needs a decision, lacks commits of the replica, or \
another writer took the replica over; 2 corrupt; 64 usage; 74 I/O error

Examples:
  untorn commits ledger --start 256M
  untorn replicate ledger file:///mnt/usb/ledger
  untorn replicate ledger file:///mnt/usb/ledger --once --json
  untorn replicate ledger journal index file:///mnt/usb/books
  untorn replicate ledger file:///mnt/usb/ledger --sync replicated
  untorn replicate ledger 's3://bucket/ledger?region=eu-central-1' --key /etc/untorn/key

Credentials come from environment variables: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, \
AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, GOOGLE_APPLICATION_CREDENTIALS, NATS_USER and \
NATS_PASSWORD, and others of the same clouds. Another server is named by ?endpoint=URL.

If one of several files can no longer be shipped, the others go on, and the code is that of the first failure.

After a signal the rest is shipped, and the command ends by that signal: a shell reports 143 for SIGTERM and 130 for \
Ctrl-C. A store that does not answer for 10 seconds is given up: the code is 74, and what was not shipped is shipped \
the next time. A second signal, or one before everything was shipped once, ends the command at once.";

pub(super) const AFTER_FOLLOW: &str = "\
Exit codes: 0 ended by a signal, or with --once up to date; 1 FILE has commits that are not of the replica; 2 \
corrupt; 64 usage; 74 I/O error, or there is no replica

Examples:
  untorn follow file:///mnt/usb/ledger copy
  untorn follow file:///mnt/usb/ledger copy --once --json";

pub(super) const AFTER_TAKE_OVER: &str = "\
Exit codes: that of PROGRAM, or 128 plus the number of the signal that ended it. If PROGRAM was not started: 1 FILE \
has commits that are not of the replica, or another writer was quicker; 2 corrupt; 64 usage; 74 I/O error. 1 also if \
another writer took the replica over meanwhile; 74 if the rest could not be shipped. After a signal a store that does \
not answer for 10 seconds is given up

Examples:
  untorn take-over file:///mnt/usb/ledger ledger -- ./server ledger
  untorn take-over file:///mnt/usb/ledger ledger --wait -- ./server ledger
  untorn take-over file:///mnt/usb/app.db app.db --sync replicated -- ./server app.db";

pub(super) const AFTER_REPLICAS: &str = "\
Exit codes: 0 done; 2 corrupt; 64 usage; 74 I/O error, or there is no replica

Example:
  untorn replicas file:///mnt/usb/ledger";

/// The fate of commits when the store is far behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum When {
    /// They wait.
    Wait,
    /// They go on, and the replica goes on with a snapshot.
    Snapshot,
}

impl From<When> for WhenBehind {
    fn from(when: When) -> Self {
        match when {
            When::Wait => WhenBehind::Wait,
            When::Snapshot => WhenBehind::Snapshot,
        }
    }
}

/// The place where a sync of the file has its commits when it returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SyncTo {
    /// They are durable on this machine.
    Local,
    /// They are also in the store, and this writer still owns the replica.
    Replicated,
}

/// The key of an encrypted replica.
#[derive(Debug, Args)]
pub(crate) struct KeyFile {
    /// The file with the key of an encrypted replica: 32 random bytes, or 64 hexadecimal digits.
    #[arg(long, value_name = "FILE")]
    pub(crate) key: Option<PathBuf>,
}

impl KeyFile {
    /// The URL with the key.
    pub(crate) fn url(&self, url: &str) -> String {
        self.key.as_ref().map_or_else(|| url.to_owned(), |key| store::with_key(url, key))
    }
}

/// Arguments of `replicate`.
#[derive(Debug, Args)]
pub(crate) struct Replicate {
    /// The files. The replica of each of several is URL/NAME, where NAME is the name of the file.
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// The replica: file:///DIRECTORY, s3://BUCKET/PREFIX, az://CONTAINER/PREFIX, gs://BUCKET/PREFIX or
    /// nats://HOST:PORT/STREAM/SUBJECT.
    pub(crate) url: String,
    /// End when everything that is committed now was shipped.
    #[arg(long)]
    pub(crate) once: bool,
    /// Milliseconds between shipments; commits in between go into one object.
    #[arg(long, value_name = "MS", default_value_t = 250)]
    pub(crate) interval: u64,
    /// How far back states can be restored; a number with the suffix s, m, h or d. Older objects are deleted.
    #[arg(long, value_name = "AGE", value_parser = age, default_value = "30d")]
    pub(crate) retain: Duration,
    /// How far a sync of the file by any program waits: until its commits are durable on this machine, or until they
    /// are in the store, too. The file's commit log keeps the choice, also after the end of the replication; to change
    /// it, no program may have the file open [default: as it is].
    #[arg(long, value_enum, value_name = "WHERE")]
    pub(crate) sync: Option<SyncTo>,
    /// How to treat commits when the store is so far behind that the commit log is full. They wait, and fail after the
    /// time of `untorn commits --block`; or they go on, and the replica goes on with a snapshot [default: wait if the
    /// log blocks].
    #[arg(long, value_enum, value_name = "WHAT")]
    pub(crate) when_behind: Option<When>,
    /// Begin a new replica where the file had one that is gone. Without this it is an error: the disk of the store may
    /// not be mounted.
    #[arg(long)]
    pub(crate) new: bool,
    /// Ship a snapshot first, although the replica goes on. Restorations of later commits need nothing before it: that
    /// mends a replica whose store has lost an object.
    #[arg(long)]
    pub(crate) snapshot: bool,
    /// Seconds after which a replication with nothing to ship asks the store whether another writer took the replica
    /// over. Each time is one request [default: it learns that when it ships next].
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) confirm: Option<u64>,
    /// Print the state every so many seconds, with how far the replica is behind [default: at the start and the end,
    /// and when it changes].
    #[arg(long, value_name = "SECONDS", conflicts_with = "once", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) report: Option<u64>,
    /// The name of the consumer of the commit log. A file with several replicas needs one for each.
    #[arg(long, value_name = "NAME", default_value = "replica")]
    pub(crate) consumer: String,
    #[command(flatten)]
    pub(crate) key: KeyFile,
    #[command(flatten)]
    pub(crate) form: Form,
}

/// Arguments of `follow`.
#[derive(Debug, Args)]
pub(crate) struct Follow {
    /// The replica.
    pub(crate) url: String,
    /// The local copy.
    pub(crate) file: PathBuf,
    /// Milliseconds between polls that find nothing. Such a poll is one request.
    #[arg(long, value_name = "MS", default_value_t = 250)]
    pub(crate) interval: u64,
    /// End when the copy is up to date.
    #[arg(long)]
    pub(crate) once: bool,
    #[command(flatten)]
    pub(crate) key: KeyFile,
    #[command(flatten)]
    pub(crate) form: Form,
}

/// Arguments of `take-over`.
#[derive(Debug, Args)]
pub(crate) struct TakeOver {
    /// The replica. It is created if it does not exist and FILE does.
    pub(crate) url: String,
    /// The file.
    pub(crate) file: PathBuf,
    /// Wait until the owner hands the replica over, and follow it meanwhile. Only `take-over` hands over: `untorn
    /// replicate` and an owner that was killed never do.
    #[arg(long)]
    pub(crate) wait: bool,
    /// Run PROGRAM by itself: it uses FILE through the library.
    #[arg(long)]
    pub(crate) plain: bool,
    /// Replace a FILE that is not known to have only commits of the replica.
    #[arg(long)]
    pub(crate) force: bool,
    /// How far a sync of FILE by PROGRAM waits: until its commits are durable on this machine, or until they are in the
    /// store, too. The file's commit log keeps the choice [default: as it is, and local for a new log].
    #[arg(long, value_enum, value_name = "WHERE")]
    pub(crate) sync: Option<SyncTo>,
    /// Milliseconds between shipments, and between polls while it waits.
    #[arg(long, value_name = "MS", default_value_t = 250)]
    pub(crate) interval: u64,
    /// Seconds after which an idle writer asks the store whether it still owns the replica.
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) confirm: u64,
    /// Seconds between SIGTERM and SIGKILL for a PROGRAM that has lost the replica.
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    pub(crate) grace: u64,
    /// How far back states can be restored; a number with the suffix s, m, h or d. Older objects are deleted.
    #[arg(long, value_name = "AGE", value_parser = age, default_value = "30d")]
    pub(crate) retain: Duration,
    /// The size of a commit log that FILE gets if it has none; suffixes K, M, G, T are powers of 1024.
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "256M")]
    pub(crate) log_size: u64,
    #[command(flatten)]
    pub(crate) key: KeyFile,
    /// The program to run, and its arguments.
    #[arg(required = true, last = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    pub(crate) command: Vec<OsString>,
}

/// Arguments of the process that becomes the program of `take-over`.
#[derive(Debug, Args)]
pub(crate) struct Guarded {
    /// The process of `take-over`.
    pub(crate) parent: i32,
    #[arg(required = true, last = true, allow_hyphen_values = true)]
    pub(crate) command: Vec<OsString>,
}

/// Arguments of `replicas`.
#[derive(Debug, Args)]
pub(crate) struct Replicas {
    /// The replica.
    pub(crate) url: String,
    #[command(flatten)]
    pub(crate) key: KeyFile,
    #[command(flatten)]
    pub(crate) form: Form,
}

/// A state of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum At {
    Commit(u64),
    Time(SystemTime),
}

/// Above the error of a UNIX time that JSON gives: a double has 53 bits, of which whole seconds take 31 or 32.
const ROUNDING: Duration = Duration::from_micros(1);

impl At {
    /// Parses the number of a commit, or a time: in UTC, as `2026-11-29 06:07:08`, or as seconds since 1970, after `@`.
    /// Either may have a fraction. A time without one is the end of that second, because `untorn commits` prints whole
    /// seconds.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        if let Ok(commit) = text.parse() {
            return Ok(At::Commit(commit));
        }
        let since = since_1970(text).ok_or_else(|| {
            format!(
                "{text:?} is neither the number of a commit nor a time in UTC, such as 2026-11-29 06:07:08.25 or \
                 @1795932428.25"
            )
        })?;
        Ok(At::Time(SystemTime::UNIX_EPOCH + since))
    }
}

/// The time that a text gives, since 1970.
fn since_1970(text: &str) -> Option<Duration> {
    let text = text.strip_suffix(" UTC").or_else(|| text.strip_suffix('Z')).unwrap_or(text);
    let (whole, fraction) = text.split_once('.').map_or((text, None), |(whole, fraction)| (whole, Some(fraction)));
    let nanoseconds = fraction.map_or(Some(999_999_999), nanoseconds)?;
    let Some(unix) = whole.strip_prefix('@') else { return Some(Duration::new(seconds(whole)?, nanoseconds)) };
    // Up to the last second of the year 9999, as in the other form.
    let seconds = digits(unix, 12).filter(|seconds| *seconds < 253_402_300_800)?;
    let is_rounded = fraction.is_some_and(|fraction| fraction.len() < 9);
    Some(Duration::new(seconds, nanoseconds) + if is_rounded { ROUNDING } else { Duration::ZERO })
}

/// The number that these digits are, `most` at most.
fn digits(text: &str, most: usize) -> Option<u64> {
    let is_plain = !text.is_empty() && text.len() <= most && text.bytes().all(|b| b.is_ascii_digit());
    if is_plain { text.parse().ok() } else { None }
}

/// The nanoseconds of a fraction of a second, by the digits after the point.
fn nanoseconds(fraction: &str) -> Option<u32> {
    digits(fraction, 9)?;
    format!("{fraction:0<9}").parse().ok()
}

/// Seconds since 1970 of a time in UTC. Source: the proleptic Gregorian calendar, in years that begin in March.
fn seconds(text: &str) -> Option<u64> {
    let (date, time) = text.split_once(['T', ' '])?;
    let numbers = |text: &str, separator| -> Option<[u64; 3]> {
        let parts: Vec<u64> = text.split(separator).filter_map(|part| digits(part, 4)).collect();
        (text.matches(separator).count() == 2).then(|| parts.try_into().ok()).flatten()
    };
    let ([year, month, day], [hour, minute, second]) = (numbers(date, '-')?, numbers(time, ':')?);
    let is_date = (1970..=9999).contains(&year) && (1..=12).contains(&month) && (1..=31).contains(&day);
    if !is_date || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1 - 719_468;
    Some(days * 86_400 + hour * 3600 + minute * 60 + second)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_a_commit_or_a_time() {
        let at = |seconds| Ok(At::Time(SystemTime::UNIX_EPOCH + Duration::new(seconds, 999_999_999)));
        assert_eq!(At::parse("42"), Ok(At::Commit(42)));
        for (text, seconds) in [
            ("1970-01-01 00:00:00", 0),
            ("2000-02-29T00:00:00Z", 951_782_400),
            ("2025-11-29 05:33:51 UTC", 1_764_394_431),
            ("2100-02-28 23:59:59", 4_107_542_399),
            ("2100-03-01T00:00:00", 4_107_542_400),
        ] {
            assert_eq!(At::parse(text), at(seconds), "{text}");
            assert_eq!(crate::output::time(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds))[..10], text[..10]);
        }
        for (text, seconds, nanoseconds) in [
            ("2025-11-29 05:33:51.25", 1_764_394_431, 250_000_000),
            ("2025-11-29T05:33:51.033086312Z", 1_764_394_431, 33_086_312),
            ("2025-11-29 05:33:51.0 UTC", 1_764_394_431, 0),
            ("@1764394431", 1_764_394_431, 999_999_999),
            ("@1764394431.033086312", 1_764_394_431, 33_086_312),
            ("@1764394431.0330863", 1_764_394_431, 33_087_300),
            ("@0.0", 0, 1000),
        ] {
            let time = SystemTime::UNIX_EPOCH + Duration::new(seconds, nanoseconds);
            assert_eq!(At::parse(text), Ok(At::Time(time)), "{text}");
        }
        let wrong = ["@", "@-1", "@1.", "@.5", "@1.1234567890", "@253402300800", "2026-11-29 06:07:08.", "1.5"];
        assert!(wrong.iter().all(|text| At::parse(text).is_err()));
        let wrong = ["", "-1", "now", "2026-11-29", "2026-13-01 00:00:00", "2026-1-1-1 0:0:0", "2026-+1-01 00:00:00"];
        assert!(wrong.iter().all(|text| At::parse(text).is_err()));
    }
}
