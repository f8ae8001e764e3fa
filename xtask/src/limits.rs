//! `cargo xtask limits`: what a file costs that is one of many, or long, and how fast a scrub reads.

use std::error::Error;
use std::fmt::Write;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use untorn::redundancy::ProtectOptions;
use untorn::{AtomicFile, AtomicMap, Durability, Options};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;

/// The user that a process of root's becomes.
const ORDINARY: u32 = 1000;
/// Bytes of each of the many files.
const SMALL: u64 = 64 * KIB;
/// Pages of a long file that are stored to.
const TOUCHED: u64 = 16;
const LENGTHS: [u64; 5] = [MIB, 64 * MIB, GIB, 16 * GIB, 64 * GIB];
const COMMITS: usize = 200;
/// The longest map of which every page is in memory.
const DENSE: u64 = GIB;
const ROUNDS: usize = 3;

/// Measure how many files a process can have open, what long files cost, and how fast a scrub reads.
///
/// Exit codes: 0 done; 74 I/O error.
#[derive(Args)]
#[command(after_help = "Example:\n  cargo xtask limits --dir /dev/shm --only handles,tables,commits")]
pub(crate) struct Arguments {
    /// Directory for the files, which are removed at the end
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// Measure only these, comma-separated
    #[arg(long, value_delimiter = ',', default_value = "handles,tables,commits,scrub")]
    only: Vec<Part>,
    /// Number of files that one process opens
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    files: usize,
    /// Mebibytes of the scrubbed file
    #[arg(long, value_name = "MIB", default_value_t = 1024, value_parser = clap::value_parser!(u64).range(1..))]
    scrub_mib: u64,
    /// The process with the many files, which this starts
    #[arg(long, hide = true)]
    opens_files: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// An ordinary user's process opens files, and commits to each; root measures as user 1000
    Handles,
    /// Page tables and memory of a file of 10 TiB without data
    Tables,
    /// The time of a commit of 8 bytes, by the length of the file
    Commits,
    /// A scrub beside `dd iflag=direct`, in turns
    Scrub,
}

pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    let measured = match arguments.opens_files {
        true => handles(&arguments.dir, arguments.files),
        false => all(arguments),
    };
    match measured {
        Ok(table) => {
            print!("{table}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("limits: {error}");
            ExitCode::from(74)
        }
    }
}

fn all(arguments: &Arguments) -> Result<String> {
    let dir = tempfile::tempdir_in(&arguments.dir)?;
    let mut table = "| what | measured |\n|---|---|\n".to_owned();
    for part in &arguments.only {
        table += &match part {
            Part::Handles => in_ordinary_process(dir.path(), arguments.files)?,
            Part::Tables => tables(dir.path())?,
            Part::Commits => commits(dir.path())?,
            Part::Scrub => scrub(dir.path(), arguments.scrub_mib * MIB)?,
        };
    }
    Ok(table)
}

/// Has an ordinary user's process open the files, with the usual limit of locked memory and as many descriptors as it
/// may have.
fn in_ordinary_process(dir: &Path, files: usize) -> Result<String> {
    let dir = dir.join("handles");
    fs::create_dir(&dir)?;
    let limits = "ulimit -l 8192 && ulimit -n \"$(ulimit -Hn)\" && exec \"$0\" \"$@\"";
    let mut command = Command::new("/bin/sh");
    command.args(["-c", limits]).arg(std::env::current_exe()?).args(["limits", "--opens-files", "--dir"]);
    command.arg(&dir).arg(format!("--files={files}"));
    if fs::metadata("/proc/self")?.uid() == 0 {
        let parent = dir.parent().unwrap_or(&dir);
        for place in [parent, &dir] {
            chown(place, Some(ORDINARY), Some(ORDINARY))?;
        }
        command.uid(ORDINARY).gid(ORDINARY);
    }
    let output = command.output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("the process of an ordinary user: {}: {}", output.status, said.trim()).into());
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// Opens files, of each engine in turn, and commits to each, until it is refused.
fn handles(dir: &Path, files: usize) -> Result<String> {
    let small = |number: usize| {
        let engine = untorn::testing::ENGINES[number % 3];
        Options::new().engine(engine).durability(Durability::PerCommit).record_area(2, 8)
    };
    let open = |number: usize| {
        let file = small(number).create(dir.join(number.to_string()), SMALL)?;
        file.write_at(&number.to_le_bytes(), 4090)?;
        file.sync().map(|_| file)
    };
    // The first one makes what all files share.
    let first = open(files)?;
    let before = Usage::now()?;
    let mut opened: Vec<AtomicFile> = Vec::with_capacity(files);
    let refused = loop {
        if opened.len() == files {
            break None;
        }
        match open(opened.len()) {
            Ok(file) => opened.push(file),
            Err(error) => break Some(error),
        }
    };
    let (now, count) = (Usage::now()?, opened.len());
    let each = |now: u64, before: u64| now.saturating_sub(before).div_ceil(count.max(1) as u64);
    let row = format!(
        "| files of {} open in one process of user {} | {count} of {files}{} |\n\
         | each of them takes | {} descriptors, {} KiB of memory, {} KiB of page tables, {} KiB of address space |\n\
         | threads of the process | {} |\n",
        size(SMALL),
        fs::metadata("/proc/self")?.uid(),
        refused.map(|error| format!(", then: {error}")).unwrap_or_default(),
        each(now.descriptors, before.descriptors),
        each(now.memory, before.memory),
        each(now.tables, before.tables),
        each(now.addresses, before.addresses),
        now.threads,
    );
    opened.into_iter().chain([first]).try_for_each(AtomicFile::settle)?;
    Ok(row)
}

/// What this process has; memory in KiB.
struct Usage {
    descriptors: u64,
    memory: u64,
    tables: u64,
    addresses: u64,
    threads: u64,
}

impl Usage {
    fn now() -> Result<Usage> {
        let status = fs::read_to_string("/proc/self/status")?;
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
            number.ok_or_else(|| format!("/proc/self/status has no {name}"))
        };
        Ok(Usage {
            descriptors: fs::read_dir("/proc/self/fd")?.count() as u64,
            memory: field("VmRSS:")?,
            tables: field("VmPTE:")?,
            addresses: field("VmSize:")?,
            threads: field("Threads:")?,
        })
    }
}

/// A file of 10 TiB without data, or of 1 TiB where the file system has none as long.
fn tables(dir: &Path) -> Result<String> {
    let path = dir.join("long");
    let file = File::create(&path)?;
    let len = [10 * TIB, TIB].into_iter().find(|len| file.set_len(*len).is_ok());
    let len = len.ok_or("the file system has no files of 1 TiB")?;
    let before = Usage::now()?;
    let taken = || Usage::now().map(|now| now.tables.saturating_sub(before.tables));
    let offsets = || (0..TOUCHED).map(|number| len / TOUCHED * number);

    let mut map = Options::new().map(&path)?;
    let untouched = taken()?;
    for offset in offsets() {
        map[offset as usize] = 1;
    }
    map.commit()?;
    let touched = taken()?;
    map.settle()?;
    Ok(format!(
        "| page tables of an `AtomicMap` of {}, untouched | {untouched} KiB |\n\
         | the same with {TOUCHED} pages stored to | {touched} KiB |\n",
        size(len)
    ))
}

/// The time of a commit of 8 bytes at places all over the file.
fn commits(dir: &Path) -> Result<String> {
    let mut table = String::new();
    for engine in untorn::testing::ENGINES {
        let by_length = by_length(&LENGTHS, |len| {
            let path = dir.join("file");
            let file = Options::new().engine(engine).durability(Durability::PerCommit).create(&path, len)?;
            let time = median_commits(len, |offset, bytes| {
                file.write_at(&bytes, offset)?;
                file.sync()?;
                Ok(())
            })?;
            file.settle()?;
            fs::remove_file(&path)?;
            Ok(time)
        })?;
        let _ = writeln!(
            table,
            "| first and later commits of 8 bytes, `AtomicFile`, `{}` | {by_length} |",
            engine.as_str()
        );
    }
    type Prepare = fn(&mut AtomicMap);
    let kinds: [(&str, &[u64], Prepare); 3] = [
        ("sparse", &LENGTHS, |_| ()),
        ("every page in memory", &LENGTHS, |map| {
            std::hint::black_box(map.iter().step_by(4096).fold(0_u8, |sum, byte| sum.wrapping_add(*byte)));
        }),
        ("every page in memory, after `as_mut_ptr`", &LENGTHS, |map| {
            map.as_mut_ptr();
            std::hint::black_box(map.iter().step_by(4096).fold(0_u8, |sum, byte| sum.wrapping_add(*byte)));
        }),
    ];
    for (index, (kind, lengths, prepare)) in kinds.into_iter().enumerate() {
        let lengths: Vec<u64> = lengths.iter().copied().filter(|len| index == 0 || *len <= DENSE).collect();
        let by_length = by_length(&lengths, |len| {
            let path = dir.join("map");
            // Pages that are in memory are the file's, not those of the process.
            if index > 0 {
                let block = vec![1; MIB as usize];
                let file = File::create(&path)?;
                (0..len / MIB).try_for_each(|_| io::Write::write_all(&mut &file, &block))?;
            } else {
                File::create(&path)?.set_len(len)?;
            }
            let mut map = Options::new().map(&path)?;
            prepare(&mut map);
            let time = median_commits(len, |offset, bytes| {
                *map.view_mut::<[u8; 8]>(offset)? = bytes;
                map.commit()?;
                Ok(())
            })?;
            map.settle()?;
            fs::remove_file(&path)?;
            Ok(time)
        })?;
        let _ = writeln!(table, "| the same, `AtomicMap`, {kind} | {by_length} |");
    }
    Ok(table)
}

/// Microseconds of the first and of later commits, by the length of the file.
fn by_length(lengths: &[u64], mut measure: impl FnMut(u64) -> Result<[Duration; 2]>) -> Result<String> {
    let mut cells = Vec::new();
    for &len in lengths {
        let [first, later] = measure(len)?.map(|time| time.as_secs_f64() * 1e6);
        cells.push(format!("{}: {first:.0} and {later:.0} µs", size(len)));
    }
    Ok(cells.join(", "))
}

/// The median times of commits to pages that have none yet, and of later commits to them. Each goes to another page, as
/// if at random.
fn median_commits(len: u64, mut commit: impl FnMut(u64, [u8; 8]) -> Result<()>) -> Result<[Duration; 2]> {
    let mut round = |round: u64| {
        let mut times = Vec::with_capacity(COMMITS);
        for number in 0..COMMITS as u64 {
            let offset = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) % (len / 4096) * 4096;
            let start = Instant::now();
            commit(offset, (round * COMMITS as u64 + number).to_le_bytes())?;
            times.push(start.elapsed());
        }
        Ok::<_, Box<dyn Error>>(median(&mut times))
    };
    // In the second round some pages have a copy to be made of, in the third one none.
    let (first, _, later) = (round(0)?, round(1)?, round(2)?);
    Ok([first, later])
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// A scrub and a sequential read past the page cache, in turns.
fn scrub(dir: &Path, len: u64) -> Result<String> {
    let path = dir.join("scrubbed");
    let block: Vec<u8> = (0..MIB).map(|at| (at * 37 % 251) as u8).collect();
    let file = File::create(&path)?;
    (0..len / MIB).try_for_each(|_| io::Write::write_all(&mut &file, &block))?;
    file.sync_all()?;
    untorn::protect(&path, &ProtectOptions::new())?;
    let (mut scrubs, mut reads) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let start = Instant::now();
        let report = untorn::scrub(&path, None, &mut |_, _| true)?;
        scrubs.push(start.elapsed());
        if !report.is_clean() {
            return Err(format!("{}: the scrub found damage: {report:?}", path.display()).into());
        }
        let from = format!("if={}", path.display());
        let start = Instant::now();
        let output = Command::new("dd").args([&from, "of=/dev/null", "bs=1M", "iflag=direct"]).output()?;
        reads.push(start.elapsed());
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(io::Error::new(ErrorKind::Unsupported, format!("dd: {}", said.trim())).into());
        }
    }
    let rate = |time: Duration| len as f64 / 1e6 / time.as_secs_f64();
    let (scrubbed, read) = (rate(median(&mut scrubs)), rate(median(&mut reads)));
    untorn::unprotect(&path)?;
    fs::remove_file(&path)?;
    Ok(format!(
        "| scrub of {}, beside `dd iflag=direct bs=1M` | {scrubbed:.0} MB/s, dd {read:.0} MB/s: {:.2} times |\n",
        size(len),
        scrubbed / read
    ))
}

fn size(bytes: u64) -> String {
    let (unit, name) =
        [(TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB")].into_iter().find(|(unit, _)| bytes >= *unit).unwrap_or((KIB, "KiB"));
    format!("{} {name}", bytes / unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_measurement_has_every_row() {
        let dir = tempfile::tempdir().unwrap();
        let opened = handles(dir.path(), 20).unwrap();
        assert!(opened.contains("| 20 of 20 |") && opened.lines().count() == 3, "{opened}");
        let times = by_length(&[MIB, 2 * MIB], |len| {
            median_commits(len, |offset, _| {
                assert!(offset + 4096 <= len);
                Ok(())
            })
        });
        let times = times.unwrap();
        assert!(times.starts_with("1 MiB: ") && times.contains(", 2 MiB: ") && times.ends_with(" µs"), "{times}");
        assert!(Usage::now().unwrap().tables > 0);
        assert_eq!([SMALL, MIB, 64 * GIB, 10 * TIB].map(size), ["64 KiB", "1 MiB", "64 GiB", "10 TiB"]);
    }
}
