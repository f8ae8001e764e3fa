//! The reports of the process under test: one line of text per operation.

use std::fmt;
use std::str::FromStr;

/// The state of the handle after a failed operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Handle {
    /// There is no handle: the operation failed to create it, or ended it.
    Gone,
    /// It refuses further writes; it shows these bytes.
    Poisoned(Option<u64>),
    /// It accepts writes; it shows these bytes.
    Usable(Option<u64>),
}

/// One line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Report {
    /// An operation succeeded.
    Done,
    /// A read succeeded and returned these bytes.
    Saw(u64),
    /// An operation failed.
    Failed {
        /// The errno of the error.
        errno: i32,
        handle: Handle,
        message: String,
    },
    /// The file was reopened after a failure without a usable handle, and shows these bytes.
    Reopened(u64),
    /// There was no file to open, so it is created again.
    Absent,
    /// The file cannot be opened, although no call fails any more.
    Stuck(String),
    /// The result of `untorn::inspect`.
    Inspected(String),
    /// The settled, plain file holds these bytes.
    Settled(u64),
}

fn seen(shows: &Option<u64>) -> String {
    shows.map_or_else(|| "-".to_owned(), |digest| format!("{digest:x}"))
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Report::Done => write!(f, "done"),
            Report::Saw(digest) => write!(f, "saw {digest:x}"),
            Report::Failed { errno, handle, message } => match handle {
                Handle::Gone => write!(f, "failed {errno} gone - {message}"),
                Handle::Poisoned(shows) => write!(f, "failed {errno} poisoned {} {message}", seen(shows)),
                Handle::Usable(shows) => write!(f, "failed {errno} usable {} {message}", seen(shows)),
            },
            Report::Reopened(digest) => write!(f, "reopened {digest:x}"),
            Report::Absent => write!(f, "absent"),
            Report::Stuck(message) => write!(f, "stuck {message}"),
            Report::Inspected(state) => write!(f, "inspected {state}"),
            Report::Settled(digest) => write!(f, "settled {digest:x}"),
        }
    }
}

impl FromStr for Report {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let unknown = || format!("{line:?} is not a report");
        let digest = |word: &str| u64::from_str_radix(word, 16).map_err(|_| unknown());
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        Ok(match word {
            "done" => Report::Done,
            "saw" => Report::Saw(digest(rest)?),
            "failed" => {
                let mut words = rest.splitn(4, ' ');
                let mut next = || words.next().ok_or_else(unknown);
                let errno = next()?.parse().map_err(|_| unknown())?;
                let kind = next()?;
                let shows = Some(next()?).filter(|word| *word != "-").map(digest).transpose()?;
                let handle = match kind {
                    "gone" => Handle::Gone,
                    "poisoned" => Handle::Poisoned(shows),
                    "usable" => Handle::Usable(shows),
                    _ => return Err(unknown()),
                };
                Report::Failed { errno, handle, message: next()?.to_owned() }
            }
            "reopened" => Report::Reopened(digest(rest)?),
            "absent" => Report::Absent,
            "stuck" => Report::Stuck(rest.to_owned()),
            "inspected" => Report::Inspected(rest.to_owned()),
            "settled" => Report::Settled(digest(rest)?),
            _ => return Err(unknown()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_read_as_it_was_written() {
        let failed = |handle| Report::Failed { errno: 5, handle, message: "cannot sync it".to_owned() };
        for report in [
            Report::Done,
            Report::Saw(0xfedc_0000_0000_0001),
            failed(Handle::Gone),
            failed(Handle::Poisoned(None)),
            failed(Handle::Usable(Some(7))),
            Report::Reopened(0),
            Report::Absent,
            Report::Stuck("cannot open it".to_owned()),
            Report::Inspected("Clean".to_owned()),
            Report::Settled(9),
        ] {
            assert_eq!(report.to_string().parse(), Ok(report));
        }
        for line in ["", "d", "saw", "saw x", "failed 5 gone", "failed 5 lost - it"] {
            assert!(line.parse::<Report>().is_err(), "{line}");
        }
    }
}
