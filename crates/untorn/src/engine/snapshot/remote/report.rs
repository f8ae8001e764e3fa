//! What a process keeps for snapshots of a file, as the text that it tells another one.
//!
//! One fact a line, words parted by one space; the first says what the line is. A reader passes over lines that it does
//! not know, so another version may say more.
//!
//! ```text
//! snapshot NUMBER PROCESS COMMIT LEN SINCE BYTES     SINCE in nanoseconds since 1970
//! bytes BYTES                                        kept for all of them together
//! metric NAME VALUE                                  a figure of the open file
//! ```

use std::fmt::Write;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use rustix::fs::MemfdFlags;

use super::{from_word, to_word};
use crate::engine::Shared;
use crate::engine::figures::Figures;
use crate::engine::snapshot::{HeldSnapshots, Snapshot, SnapshotInfo};

/// Bytes of a report, at most: a reader does not believe a longer one.
const LONGEST: u64 = 1 << 20;

/// Snapshots that a report lists, at most: the oldest. A line has fewer than 150 bytes.
const MOST: usize = 4096;

/// What a process keeps for snapshots of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) held: HeldSnapshots,
    pub(crate) figures: Option<Figures>,
}

/// What this process tells of a file that it has open.
pub(super) fn text(shared: &Shared) -> String {
    text_of(&Told { held: Snapshot::held(shared), figures: Some(Figures::of(&*shared.engine)) })
}

fn text_of(told: &Told) -> String {
    let mut text = String::new();
    for (number, held) in told.held.snapshots.iter().take(MOST).enumerate() {
        let SnapshotInfo { commit, len, since, process, bytes } = held;
        // Writing to a String cannot fail.
        let _ = writeln!(text, "snapshot {number} {process} {commit} {len} {} {bytes}", to_word(*since));
    }
    let _ = writeln!(text, "bytes {}", told.held.bytes);
    for (name, value) in told.figures.iter().flat_map(Figures::named) {
        let _ = writeln!(text, "metric {name} {value}");
    }
    text
}

/// A file without a name that holds the text.
///
/// # Errors
/// Those of `memfd_create(2)` and `write(2)`.
pub(super) fn to_file(text: &str) -> io::Result<OwnedFd> {
    let file = File::from(rustix::fs::memfd_create("untorn-report", MemfdFlags::CLOEXEC)?);
    file.write_all_at(text.as_bytes(), 0)?;
    Ok(file.into())
}

/// What such a file tells.
///
/// # Errors
/// Those of `read(2)`; `InvalidData` for a text that no process writes.
pub(super) fn from_file(file: OwnedFd) -> io::Result<Told> {
    let mut text = Vec::new();
    let file = File::from(file);
    // The descriptor shares its position with that of the process that wrote the text, which reads nothing.
    io::Seek::rewind(&mut &file)?;
    (&file).take(LONGEST + 1).read_to_end(&mut text)?;
    let text = String::from_utf8(text).ok().filter(|text| text.len() as u64 <= LONGEST);
    text.as_deref().and_then(parse).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// `None` for a line that begins like one of ours and is none.
fn parse(text: &str) -> Option<Told> {
    let mut told = Told::default();
    for line in text.lines() {
        let mut words = line.split(' ');
        let kind = words.next()?;
        let mut numbers = || words.by_ref().map(|word| word.parse().ok()).collect::<Option<Vec<u64>>>();
        match kind {
            "snapshot" => {
                let [_, process, commit, len, since, bytes] = *numbers()?.first_chunk()?;
                let (process, since) = (u32::try_from(process).ok()?, from_word(since));
                told.held.snapshots.push(SnapshotInfo { commit, len, since, process, bytes });
            }
            "metric" => {
                let (name, value) = (words.next()?, words.next()?.parse().ok()?);
                told.figures.get_or_insert_default().set(name, value);
            }
            "bytes" => told.held.bytes = *numbers()?.first()?,
            _ => {}
        }
    }
    Some(told)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(commit: u64, process: u32) -> SnapshotInfo {
        SnapshotInfo { commit, len: 8192, since: from_word(1_234_567_890_123_456_789), process, bytes: 4096 }
    }

    fn through_a_file(text: &str) -> io::Result<Told> {
        from_file(to_file(text).unwrap())
    }

    #[test]
    fn reports_come_back_and_others_are_refused() {
        let figures = Figures { commit: 5, dead_bytes: u64::MAX, ..Figures::default() };
        let held = HeldSnapshots { snapshots: vec![info(1, 4711), info(u64::MAX, 0)], bytes: 77 };
        let told = Told { held, figures: Some(figures) };
        assert_eq!(through_a_file(&text_of(&told)).unwrap(), told);
        let later = format!("metric commits 7\n{}snapshot", text_of(&told).replace("77\n", "77 and more\n"));
        for bad in [
            &later,
            "snapshot 1 2",
            "bytes",
            "bytes -1",
            "snapshot 0 4294967296 1 1 1 1",
            "bytes 1\u{0}",
            "metric len x",
            "metric len",
        ] {
            assert!(through_a_file(bad).is_err(), "{bad}");
        }
        assert_eq!(through_a_file("metric commits 7\n\nbytes 9 1\n").unwrap().held.bytes, 9, "of a later version");
        assert!(through_a_file(&"a\n".repeat(1 << 19)).is_ok());
        assert!(through_a_file(&"a\n".repeat((1 << 19) + 1)).is_err());
    }

    #[test]
    fn the_longest_report_is_believed() {
        let most = SnapshotInfo { commit: u64::MAX, len: u64::MAX, bytes: u64::MAX, ..info(0, u32::MAX) };
        let held = HeldSnapshots { snapshots: vec![most; MOST + 1], bytes: u64::MAX };
        let told = Told { held, figures: None };
        assert_eq!(through_a_file(&text_of(&told)).unwrap().held.snapshots.len(), MOST);
    }
}
