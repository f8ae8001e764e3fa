//! A place in a commit log that outlives the stream.

use std::fmt;
use std::str::FromStr;

use super::stream::CommitStream;

/// A commit, and the commit log that it is of: what a reader keeps to go on later, in another process too.
///
/// A number alone does not tell whether the log began anew meanwhile, at this very commit: another program may have
/// changed the file while it was closed, and no commit tells of that. A position can be kept as text, `COMMIT@LOG`.
///
/// ```
/// # fn main() -> untorn::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("ledger");
/// use untorn::{Options, commits::{CommitStream, LogPosition}};
/// let file = Options::new().commit_log(1 << 20).create(&path, 4096)?;
/// let kept = file.commits(file.last_commit().number)?.log_position().to_string();
/// file.write_at(b"hello", 100)?;
/// file.sync()?;
/// let position: LogPosition = kept.parse().unwrap();
/// let mut stream = CommitStream::resume(&path, &position)?; // any process
/// assert_eq!(stream.next()?.unwrap().changes[0].range, 100..105);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LogPosition {
    pub(crate) log: [u8; 16],
    pub(crate) commit: u64,
}

impl LogPosition {
    /// The number of the commit.
    pub fn commit(&self) -> u64 {
        self.commit
    }
}

impl fmt::Display for LogPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{:032x}", self.commit, u128::from_be_bytes(self.log))
    }
}

/// A text that is no [`LogPosition`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoPosition;

impl fmt::Display for NoPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a position in a commit log has the form COMMIT@LOG: a number, and 32 hexadecimal digits")
    }
}

impl std::error::Error for NoPosition {}

impl FromStr for LogPosition {
    type Err = NoPosition;

    fn from_str(text: &str) -> Result<Self, NoPosition> {
        let (commit, log) = text.split_once('@').ok_or(NoPosition)?;
        let are_digits = |text: &str, base| text.chars().all(|digit| digit.is_digit(base));
        if log.len() != 32 || !are_digits(log, 16) || !are_digits(commit, 10) {
            return Err(NoPosition);
        }
        let log = u128::from_str_radix(log, 16).map_err(|_| NoPosition)?.to_be_bytes();
        Ok(LogPosition { log, commit: commit.parse().map_err(|_| NoPosition)? })
    }
}

impl CommitStream {
    /// The place of the stream: [`resume`](CommitStream::resume) goes on from there.
    pub fn log_position(&self) -> LogPosition {
        LogPosition { log: self.log(), commit: self.position() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_come_back_from_their_text() {
        let position = LogPosition { log: [0xa7; 16], commit: 12 };
        let text = format!("12@{}", "a7".repeat(16));
        assert_eq!((position.to_string(), text.parse()), (text.clone(), Ok(position)));
        let log = "0".repeat(32);
        for bad in ["", "12", "@", "12@", &format!("@{log}"), &format!("+1@{log}"), &format!("1@+{}", &log[1..])] {
            assert_eq!(bad.parse::<LogPosition>(), Err(NoPosition), "{bad}");
        }
        assert_eq!(format!("99999999999999999999@{log}").parse::<LogPosition>(), Err(NoPosition));
    }
}
