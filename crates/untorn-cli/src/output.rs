//! Output on stdout: one JSON object, or text.
//!
//! Rust starts with SIGPIPE ignored, so a reader that closed the pipe shows up here as a write error. That is not a
//! failure of the verb: it prints nothing more and exits with its own code.

use std::io::{self, IsTerminal, Write};
use std::time::SystemTime;

use serde::Serialize;

use crate::exit::{Failure, Result};

/// Whether the reader of stdout is still there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reader {
    /// It took the bytes.
    Listening,
    /// It closed the pipe; writing more is pointless.
    Gone,
}

/// Writes bytes to stdout and flushes them.
pub(crate) fn bytes(bytes: &[u8]) -> Result<Reader> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Ok(()) => Ok(Reader::Listening),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Reader::Gone),
        Err(error) => Err(Failure::io("cannot write to standard output", &error)),
    }
}

/// Writes text to stdout.
pub(crate) fn text(text: &str) -> Result<()> {
    bytes(text.as_bytes()).map(drop)
}

/// Writes one JSON object on one line.
pub(crate) fn json(value: &impl Serialize) -> Result<()> {
    json_to_reader(value).map(drop)
}

/// Like [`json`], and tells whether the reader is still there.
pub(crate) fn json_to_reader(value: &impl Serialize) -> Result<Reader> {
    let mut line = serde_json::to_string(value)
        .map_err(|error| Failure::io("cannot format the report as JSON", &io::Error::from(error)))?;
    line.push('\n');
    bytes(line.as_bytes())
}

/// Writes the report as JSON or as text.
pub(crate) fn report(as_json: bool, value: &impl Serialize, words: impl FnOnce() -> String) -> Result<()> {
    if as_json { json(value) } else { text(&words()) }
}

/// A time in UTC, as `2026-11-29 06:07:08`. Source: the proleptic Gregorian calendar, in years that begin in March.
pub(crate) fn time(time: SystemTime) -> String {
    let seconds = time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (days, second) = (seconds / 86400 + 719_468, seconds % 86400);
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (day, month) = (day - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    let year = era * 400 + year + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

/// The colours in use: only verdicts are coloured, never running text.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Colour {
    /// No problem.
    Good,
    /// The user has to act.
    Bad,
    /// A headline.
    Strong,
}

/// `text` in a colour if stdout is a terminal that wants it (<https://no-color.org>).
pub(crate) fn paint(colour: Colour, text: &str) -> String {
    if !wants_colour(io::stdout().is_terminal()) {
        return text.to_owned();
    }
    let code = match colour {
        Colour::Good => "32",
        Colour::Bad => "31",
        Colour::Strong => "1",
    };
    format!("\x1b[{code}m{text}\x1b[0m")
}

/// Whether a stream, given that it is a terminal or not, should carry colours.
pub(crate) fn wants_colour(terminal: bool) -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    terminal && !refused && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// `1 file`, `2 files`.
pub(crate) fn count(n: u64, one: &str, many: &str) -> String {
    if n == 1 { format!("1 {one}") } else { format!("{n} {many}") }
}

/// Breaks a paragraph between words into lines of at most 80 characters, because a terminal breaks lines anywhere.
pub(crate) fn fold(paragraph: &str) -> String {
    const WIDTH: usize = 80;
    let mut text = String::new();
    let mut width = 0;
    for word in paragraph.split_whitespace() {
        let len = word.chars().count();
        if width > 0 && width + 1 + len > WIDTH {
            text.push('\n');
            width = 0;
        } else if width > 0 {
            text.push(' ');
            width += 1;
        }
        text.push_str(word);
        width += len;
    }
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paragraphs_are_folded_between_words() {
        let text = fold(&"four ".repeat(40));
        assert!(text.lines().count() == 3 && text.lines().all(|line| line.len() <= 80 && line.ends_with("four")));
        let long = "x".repeat(200);
        assert_eq!(fold(&format!("a {long} b")), format!("a\n{long}\nb\n"));
    }

    #[test]
    fn counts_agree_with_their_nouns() {
        assert_eq!((count(1, "kill", "kills"), count(0, "kill", "kills")), ("1 kill".into(), "0 kills".into()));
    }

    #[test]
    fn times_are_those_of_the_calendar() {
        for (seconds, expected) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (1_764_394_431, "2025-11-29 05:33:51 UTC"),
            (4_107_542_399, "2100-02-28 23:59:59 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00 UTC"),
        ] {
            assert_eq!(time(SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(seconds)), expected);
        }
    }
}
