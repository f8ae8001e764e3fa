//! Forged commit logs: honest ones with changes, sealed as the format requires, and read.

use std::path::PathBuf;
use std::sync::LazyLock;

use twox_hash::XxHash3_64;
use untorn::commits::{Commit, CommitStream};
use untorn::testing::storage::MediumClass;
use untorn::{AtomicFile, Durability, Options, Result};
use untorn_sim::SimMedium;

use crate::forge::{Run, changes, field, one_of, put, raw, seal, word};
use crate::input::Input;
use crate::pair::{Honest, LEN, PATH, bytes, replace, sidecar};

/// Records begin at multiples of this.
const LINE: usize = 64;
/// The most a file of a log is stretched to.
const MAX_LEN: u64 = 1 << 19;
/// Where the copies of the control and of the confirmation are.
const CONTROL_AT: [usize; 2] = [0, 1024];
const CONFIRMED_AT: [usize; 2] = [2048, 3072];

/// Where a control says how large the log may be.
const LIMIT_AT: usize = 56;

/// The fields of the control, of the confirmation, of a segment's first line and of a record's head.
const CONTROL: [Run; 1] = [(0, 8, 12)];
const CONFIRMED: [Run; 1] = [(0, 8, 3)];
const SEGMENT: [Run; 1] = [(0, 8, 5)];
const HEAD: [Run; 2] = [(0, 8, 6), (48, 4, 2)];

/// A machine with a file and its log, of which control and first segment are forged.
struct Logged {
    control: Honest,
    segment: Vec<u8>,
    segment_path: PathBuf,
    options: Options,
    file: Vec<u8>,
    commits: Vec<Commit>,
}

/// One for each engine and durability, closed and killed.
static LOGGED: LazyLock<Vec<Logged>> = LazyLock::new(|| {
    let mut all = Vec::new();
    for engine in untorn::testing::ENGINES {
        for durability in [Durability::PerCommit, Durability::PerWrite] {
            for closed in [true, false] {
                let options = Options::new().engine(engine).durability(durability).log_size(512 << 10);
                let options = options.record_area(2, 16).checkpoint_threads(0);
                all.push(build(options, closed).expect("writing an unforged file succeeds"));
            }
        }
    }
    all
});

fn contents(file: &AtomicFile) -> Result<Vec<u8>> {
    let mut bytes = vec![0; file.len() as usize];
    file.read_at(&mut bytes, 0).map(|()| bytes)
}

fn build(options: Options, closed: bool) -> Result<Logged> {
    let medium = SimMedium::new(MediumClass::Block);
    medium.install(PATH, &[7; LEN]);
    let file = options.clone().commit_log(64 << 10).open_on(medium.clone(), PATH)?;
    let from = file.last_commit().number;
    for (at, fill, len) in [(10, 1, 100), (5000, 2, 6000), (0, 3, 1)] {
        file.write_at(&vec![fill; len], at)?;
        file.sync()?;
    }
    file.resize(LEN as u64 - 50)?;
    file.sync()?;
    file.write_at(&[4; 20], 9000)?;
    file.sync()?;
    let (held, mut stream, mut commits) = (contents(&file)?, file.commits(from)?, Vec::new());
    while let Some(commit) = stream.next()? {
        commits.push(commit);
    }
    let state = if closed {
        file.close()?;
        medium.crash_state()
    } else {
        medium.crash_state()
    };
    let control = sidecar(&medium)?.with_extension("commits");
    let segment_path = PathBuf::from(format!("{}.{:016x}", control.display(), 0));
    let segment = bytes(&medium, &segment_path)?;
    Ok(Logged { control: Honest::take(state, control)?, segment, segment_path, options, file: held, commits })
}

fn xxh3(seed: u64, bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot_with_seed(seed, bytes)
}

/// The forged bytes of a log.
struct Forged {
    control: Vec<u8>,
    segment: Vec<u8>,
}

impl Forged {
    fn uuid(&self) -> Vec<u8> {
        self.control.get(16..32).unwrap_or(&[0; 16]).to_vec()
    }

    /// The places of the records of the segment.
    fn records(&self) -> Vec<usize> {
        let is_head = |at: &usize| self.segment.get(*at..*at + 8) == Some(b"UNTORNCR");
        (LINE..self.segment.len()).step_by(LINE).filter(is_head).collect()
    }

    /// Seals the record at a place: its head, then its body if it has room.
    fn seal_record(&mut self, at: usize) {
        let seed = xxh3(0, &self.uuid()) ^ xxh3(2, &(at as u64).to_le_bytes());
        seal(&mut self.segment, at..at + 56, seed);
        let (check, count) = (word(&self.segment, at + 56), word(&self.segment, at + 48) & 0xffff_ffff);
        let table = at + LINE;
        let Some(end) = (count as usize).checked_mul(16).map(|len| table + len) else { return };
        let Some(mut sum) = self.segment.get(table..end).map(|table| xxh3(check, table)) else { return };
        let mut next = end;
        for range in 0..count as usize {
            let len = word(&self.segment, table + 16 * range + 8) as usize;
            let Some(behind) = next.checked_add(len).filter(|behind| *behind <= self.segment.len()) else { return };
            if len > 0 {
                sum = xxh3(sum, &self.segment[next..behind]);
            }
            next = behind;
        }
        put(&mut self.segment, next, sum, 8);
    }

    /// Changes something. Returns whether no seal was forged.
    fn change(&mut self, input: &mut Input<'_>) -> bool {
        match input.byte() % 9 {
            0 => {
                field(&mut self.control, &CONTROL, CONTROL_AT, input, |bytes, at| seal(bytes, at..at + 120, 0));
                false
            }
            1 => {
                let seed = xxh3(1, &self.uuid());
                field(&mut self.control, &CONFIRMED, CONFIRMED_AT, input, |bytes, at| seal(bytes, at..at + 24, seed));
                false
            }
            2 => {
                field(&mut self.segment, &SEGMENT, [0, 0], input, |bytes, at| seal(bytes, at..at + 56, 0));
                false
            }
            3..=5 => {
                let records = self.records();
                if records.is_empty() {
                    return true;
                }
                let at = *input.pick(&records);
                match input.byte() % 3 {
                    0 => {
                        let (field, width) = one_of(&HEAD, input);
                        put(&mut self.segment, at + field, input.number(), width);
                    }
                    // A range, or what follows the table.
                    1 => put(&mut self.segment, at + LINE + 8 * input.below(8) as usize, input.number(), 8),
                    _ => {
                        // A copy of another record.
                        let from = *input.pick(&records);
                        let copy = self.segment[from..(from + 4 * LINE).min(self.segment.len())].to_vec();
                        let end = (at + copy.len()).min(self.segment.len());
                        self.segment[at..end].copy_from_slice(&copy[..end - at]);
                    }
                }
                self.seal_record(at);
                false
            }
            6 => {
                let bytes = if input.byte().is_multiple_of(2) { &mut self.control } else { &mut self.segment };
                bytes.resize(input.below(MAX_LEN) as usize, 0);
                true
            }
            7 => {
                let len = self.control.len();
                raw(&mut self.control, 0, len, input);
                true
            }
            _ => {
                let len = self.segment.len().min(16 << 10);
                raw(&mut self.segment, 0, len, input);
                true
            }
        }
    }
}

/// Forges a commit log as the input says, and opens its file. An error is a right answer. A stream gives commits in
/// order, with ranges that fit. If no seal was forged, the file stays as it is, and each commit is one that was made.
pub fn commits(input: &[u8]) {
    let mut input = Input::new(input);
    let honest = input.pick(&LOGGED);
    let mut forged = Forged { control: honest.control.bytes.clone(), segment: honest.segment.clone() };
    let count = input.below(12);
    let mut unforged = true;
    if count > 0 {
        unforged = changes(&mut input, count, |input| forged.change(input));
    }
    let medium = honest.control.with(&forged.control);
    replace(&medium, &honest.segment_path, &honest.segment, &forged.segment).expect("the medium accepts any bytes");
    let Ok(file) = honest.options.open_on(medium.clone(), PATH) else {
        assert!(!unforged, "a file is refused for damage of its commit log");
        return;
    };
    let Ok(held) = contents(&file) else { return };
    assert!(!unforged || held == honest.file, "damage of a commit log changed the file");
    let ours = |commit: &Commit| honest.commits.contains(commit);
    for from in [0, input.number(), honest.commits[0].previous] {
        drop(file.changed_since(from));
        if let Ok(stream) = file.commits(from) {
            read(stream, from, unforged.then_some(&ours));
        }
    }
    // A log that may be larger than memory takes its space with the next commit.
    let is_large = |at: usize| word(&forged.control, at + LIMIT_AT) > MAX_LEN;
    if CONTROL_AT.into_iter().any(is_large) {
        return;
    }
    let before = file.last_commit().number;
    if file.write_at(&[9; 9], 100).and_then(|()| file.sync()).is_ok() {
        let mut written = [0; 9];
        assert!(file.read_at(&mut written, 100).is_err() || written == [9; 9], "a write is not there");
        if let Ok(stream) = file.commits(before) {
            read(stream, before, None);
        }
    }
    drop(file.close());
}

/// Reads a stream to its end, or to its first error.
fn read(mut stream: CommitStream, from: u64, known: Option<&dyn Fn(&Commit) -> bool>) {
    let mut last = from;
    let mut count = 0;
    while let Ok(Some(commit)) = stream.next() {
        assert!(commit.number > last && commit.previous <= last, "commit {} after {last}", commit.number);
        last = commit.number;
        let mut end = 0;
        for change in &commit.changes {
            let range = &change.range;
            assert!(range.start >= end && range.start < range.end && range.end <= commit.len, "{range:?}");
            assert_eq!(change.bytes.len() as u64, range.end - range.start);
            end = range.end;
        }
        assert!(known.is_none_or(|known| known(&commit)), "a commit that was never made: {}", commit.number);
        count += 1;
        assert!(count <= MAX_LEN as usize / LINE, "a stream without an end");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::judge_made_up;

    /// A fuzzer whose seals are wrong would never get past the first check.
    #[test]
    fn a_forged_record_with_a_right_seal_is_read() {
        for honest in LOGGED.iter() {
            let mut forged = Forged { control: honest.control.bytes.clone(), segment: honest.segment.clone() };
            let records = forged.records();
            assert_eq!(records.len(), honest.commits.len());
            put(&mut forged.segment, records[1] + 24, 77_000_000_000, 8);
            forged.seal_record(records[1]);
            let medium = honest.control.with(&forged.control);
            replace(&medium, &honest.segment_path, &honest.segment, &forged.segment).unwrap();
            let file = honest.options.open_on(medium, PATH).unwrap();
            let mut stream = file.commits(honest.commits[0].previous).unwrap();
            assert_eq!(stream.next().unwrap().as_ref(), honest.commits.first());
            let second = stream.next().unwrap().unwrap();
            assert_eq!((second.number, &second.changes), (honest.commits[1].number, &honest.commits[1].changes));
            let since = std::time::UNIX_EPOCH + std::time::Duration::from_secs(77);
            assert_eq!(second.time, Some(since));
        }
    }

    #[test]
    fn made_up_changes_are_judged() {
        judge_made_up(untorn_testing::cases(300, 5000), 100, commits);
    }
}
