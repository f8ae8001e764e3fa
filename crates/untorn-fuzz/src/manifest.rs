//! Forged manifests of backups: honest ones with changes, sealed as the format requires, and restored.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use untorn::backup::{self, BackupOptions};
use untorn::testing::manifest as reread;
use untorn::{Options, Result};

use crate::forge::changes;
use crate::input::Input;

const LEN: u64 = 100_000;

/// A backup, its manifest, and the file that it and those before it give.
struct Backup {
    bytes: Vec<u8>,
    text: String,
    file: Vec<u8>,
}

/// A full backup, an increment with that base, and one by the commit log.
static CHAIN: LazyLock<Vec<Backup>> = LazyLock::new(|| build().expect("backing an unforged file up succeeds"));

/// A directory in memory, where a flush costs nothing, if there is one.
fn directory() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    let made = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    made.expect("there is a directory for temporary files")
}

fn build() -> Result<Vec<Backup>> {
    let dir = directory();
    let path = |name: &str| dir.path().join(name);
    let file = Options::new().commit_log(1 << 20).create(path("data"), LEN)?;
    let mut chain = Vec::new();
    let mut commit = 0;
    for (number, (at, fill, len)) in [(5000, 1, 30_000), (70_000, 2, 100), (20_000, 0, 20_000)].into_iter().enumerate()
    {
        file.write_at(&vec![fill; len], at)?;
        file.sync()?;
        let options = BackupOptions::new();
        let options = match number {
            0 => options,
            1 => options.base(path("0")),
            _ => options.since(commit),
        };
        let dest = path(&number.to_string());
        commit = backup::create(&file.snapshot()?, &dest, &options)?.commit;
        let mut now = vec![0; LEN as usize];
        file.read_at(&mut now, 0)?;
        let read = |path: &Path| fs::read(path).expect("the backup is there");
        let text = String::from_utf8(read(&backup::manifest_of(&dest))).expect("a manifest is text");
        chain.push(Backup { bytes: read(&dest), text, file: now });
    }
    Ok(chain)
}

/// The checksum that a manifest ends with.
fn sum(text: &str) -> u64 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, text.as_bytes())
}

/// Changes lines of a manifest that has no last line yet.
fn change(text: &mut String, input: &mut Input<'_>) {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let line = input.below(lines.len().max(1) as u64) as usize;
    let other = input.below(lines.len().max(1) as u64) as usize;
    match (input.byte() % 8, lines.get(line).cloned()) {
        (0, Some(old)) => {
            let mut words: Vec<String> = old.split(' ').map(str::to_owned).collect();
            let word = input.below(words.len() as u64) as usize;
            words[word] = input.number().to_string();
            lines[line] = words.join(" ");
        }
        (1, Some(_)) => drop(lines.remove(line)),
        (2, Some(old)) => lines.insert(other, old),
        (3, Some(_)) => lines.swap(line, other),
        (4, _) => {
            let (first, second) = (input.number(), input.number());
            let new = match input.byte() % 8 {
                0 => format!("zeros {first} {second}"),
                1 => format!("since {first}"),
                2 => format!("{} {second:016x}", first % 16),
                3 => format!("{} {second:016x} +", first % 16),
                4 => format!("log {first:032x}"),
                5 => format!("base {first:016x} {second} {LEN}"),
                6 => format!("mode {:o}", first & 0o7777),
                _ => format!("chunk {first} crc64-nvme"),
            };
            lines.insert(line, new);
        }
        (5, _) => lines.truncate(line),
        (6, _) => {
            let new = input.bytes(16);
            lines.insert(line, String::from_utf8_lossy(&new).into_owned());
        }
        (_, Some(old)) => lines[line] = format!("{old} "),
        _ => {}
    }
    *text = lines.iter().flat_map(|line| [line.as_str(), "\n"]).collect();
}

/// Forges a manifest as the input says, and restores the backup. A manifest that is accepted is written as it was read.
/// No byte is restored that it does not confirm, and a backup that is refused leaves nothing.
pub fn manifest(input: &[u8]) {
    let mut input = Input::new(input);
    let forged = input.below(CHAIN.len() as u64) as usize;
    let shape = input.byte();
    let (honest, count) = (&CHAIN[forged], input.below(6));
    let end = honest.text.rfind("end ").unwrap_or(honest.text.len());
    let mut text = honest.text[..end].to_owned();
    if count > 0 {
        changes(&mut input, count, |input| {
            change(&mut text, input);
            false
        });
    }
    text = if shape & 1 == 0 { format!("{text}end {:016x}\n", sum(&text)) } else { text + &honest.text[end..] };
    let mut bytes = honest.bytes.clone();
    if shape & 2 != 0 && !bytes.is_empty() {
        let at = input.below(bytes.len() as u64) as usize;
        bytes[at] ^= input.byte();
    }
    if shape & 4 != 0 {
        bytes.resize(input.below(2 * LEN) as usize, 0);
    }
    let Some(again) = reread(&text) else {
        assert!(text != honest.text, "an honest manifest is refused");
        return;
    };
    assert!(again == text, "a manifest that was accepted is written differently");
    restored(forged, (&text, &bytes));
}

/// Restores the chain up to its end, with one of its backups forged.
fn restored(forged: usize, (text, bytes): (&str, &[u8])) {
    let dir = directory();
    let mut paths: Vec<PathBuf> = Vec::new();
    for (number, backup) in CHAIN.iter().enumerate() {
        let path = dir.path().join(number.to_string());
        let (text, bytes) = if number == forged { (text, bytes) } else { (&*backup.text, &*backup.bytes) };
        let written = fs::write(&path, bytes).and_then(|()| fs::write(backup::manifest_of(&path), text));
        written.expect("the directory takes a backup");
        paths.push(path);
    }
    let again = dir.path().join("again");
    for last in [forged, CHAIN.len() - 1] {
        let restored = backup::restore(&paths[..=last], &again, &BackupOptions::new());
        assert_eq!(again.exists(), restored.is_ok(), "a restoration left something, or nothing");
        let honest = &CHAIN[forged];
        if restored.is_ok() && text == honest.text {
            let file = fs::read(&again).expect("it was restored");
            assert!(file == CHAIN[last].file, "bytes were restored that no manifest confirms");
        }
        if text == honest.text && bytes == honest.bytes {
            assert!(restored.is_ok(), "an honest chain is refused");
        }
        let _ = fs::remove_file(&again);
    }
    drop(backup::verify(&paths[forged], &BackupOptions::new()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::judge_made_up;

    /// A fuzzer whose seals are wrong would never get past the first check.
    #[test]
    fn a_forged_line_with_a_right_seal_is_read() {
        for honest in CHAIN.iter() {
            let end = honest.text.rfind("end ").unwrap();
            let forged = honest.text[..end].replace("mode ", "mode 0").replace("mode 0", "mode ");
            assert_eq!(reread(&format!("{forged}end {:016x}\n", sum(&forged))).as_deref(), Some(&*honest.text));
            let forged = forged.replace("length 100000", "length 99999");
            assert!(reread(&format!("{forged}end {:016x}\n", sum(&forged))).is_some());
        }
        restored(2, (&CHAIN[2].text, &CHAIN[2].bytes));
    }

    #[test]
    fn made_up_changes_are_judged() {
        judge_made_up(untorn_testing::cases(100, 2000), 60, manifest);
    }
}
