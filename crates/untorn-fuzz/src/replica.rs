//! Forged objects of a replica: honest ones with changes, sealed as the format requires or not, and restored.
//!
//! The honest ones have other nonces and times in each process, so an input may find something once in several runs.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, LazyLock};

use twox_hash::XxHash3_128;
use untorn::Options;
use untorn_replicate::store::{Answer, Fetched, Listed, Put, Read, Store, StoreError, Tag};
use untorn_replicate::{Error, Replica, ReplicaOptions, testing};

use crate::forge::{changes, put};
use crate::input::Input;

/// Bytes of the honest file, and of the longest one that a forged replica may give.
const LEN: u64 = 20_000;
const MOST: u64 = 1 << 20;

/// Bytes of the checksum that an object and a part end with.
const SUM: usize = 16;

type Objects = BTreeMap<String, Vec<u8>>;

/// An honest replica, and the states that its file had.
struct Honest {
    objects: Objects,
    states: Vec<Vec<u8>>,
}

static HONEST: LazyLock<Honest> = LazyLock::new(|| build().expect("replicating an unforged file succeeds"));

/// All files below a directory, by their names in it.
fn collect(root: &Path, below: &Path, objects: &mut Objects) -> std::io::Result<()> {
    for entry in std::fs::read_dir(below)? {
        let path = entry?.path();
        let name = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().into_owned();
        if path.is_dir() {
            collect(root, &path, objects)?;
        } else if !name.starts_with('.') {
            objects.insert(name, std::fs::read(&path)?);
        }
    }
    Ok(())
}

fn build() -> Result<Honest, Error> {
    let dir = tempfile::tempdir().expect("there is a directory for temporary files");
    let path = dir.path().join("file");
    let url = format!("file://{}/bucket", dir.path().display());
    let file = Options::new().commit_log(1 << 20).create(&path, LEN)?;
    let now = || -> untorn::Result<Vec<u8>> {
        let mut bytes = vec![0; file.len() as usize];
        file.read_at(&mut bytes, 0)?;
        Ok(bytes)
    };
    let mut states = Vec::new();
    // Three epochs; the second has a snapshot of its own.
    for epoch in 0..3_u8 {
        let options = ReplicaOptions::new().name("fuzz").snapshot_bytes(if epoch == 1 { 1000 } else { 1 << 20 });
        file.write_at(&[epoch + 1; 300], 100)?;
        file.sync()?;
        states.push(now()?);
        let replica = Replica::attach(&file, &url, options)?;
        replica.sync_replicated()?;
        for commit in 0..3 {
            if commit == 1 {
                file.resize(LEN - 5000 * u64::from(epoch))?;
                states.push(now()?);
            }
            file.write_at(&[0x10 * epoch + commit; 700], 1000 * u64::from(commit))?;
            file.sync()?;
            states.push(now()?);
            replica.sync_replicated()?;
        }
        if epoch == 1 {
            replica.hand_over()?;
        } else {
            replica.detach()?;
        }
    }
    let mut objects = Objects::new();
    let root = dir.path().join("bucket");
    collect(&root, &root, &mut objects).expect("the directory is there");
    Ok(Honest { objects, states })
}

/// Objects in memory, to be read.
struct Forged(Objects);

fn refused<T>() -> Answer<T> {
    let cause = "a restoration writes nothing".to_owned();
    Err(StoreError { operation: "write", name: String::new(), is_transient: false, cause })
}

impl Store for Forged {
    fn url(&self) -> &str {
        "memory:"
    }

    fn get(&self, name: &str) -> Answer<Option<Fetched>> {
        let tag = Tag(String::new());
        Ok(self.0.get(name).map(|bytes| Fetched { bytes: bytes.clone(), tag }))
    }

    fn get_if_changed(&self, name: &str, _: &Tag) -> Answer<Read> {
        Ok(if self.0.contains_key(name) { Read::Unchanged } else { Read::Missing })
    }

    fn put_if_absent(&self, _: &str, _: &[u8]) -> Answer<Put> {
        refused()
    }

    fn update_if_match(&self, _: &str, _: &[u8], _: &Tag) -> Answer<Put> {
        refused()
    }

    fn delete(&self, _: &str) -> Answer<()> {
        refused()
    }

    fn list(&self, _: &str) -> Answer<Vec<Listed>> {
        refused()
    }
}

/// Gives an object the checksum of its bytes.
fn seal(bytes: &mut [u8]) {
    if let Some(end) = bytes.len().checked_sub(SUM) {
        let sum = XxHash3_128::oneshot(&bytes[..end]).to_le_bytes();
        bytes[end..].copy_from_slice(&sum);
    }
}

/// Changes an object. Returns whether no checksum was forged.
fn change(objects: &mut Objects, input: &mut Input<'_>) -> bool {
    let names: Vec<String> = objects.keys().cloned().collect();
    if names.is_empty() {
        return true;
    }
    let (name, other) = (input.pick(&names).clone(), input.pick(&names).clone());
    let kind = input.byte();
    let mut bytes = objects.remove(&name).unwrap_or_default();
    match kind % 10 {
        // A field of the header, or the start of the body.
        0..=2 => {
            let (at, value) = (input.below(24) as usize * 8, input.number());
            put(&mut bytes, at, value, 8);
        }
        3 if !bytes.is_empty() => {
            let at = input.below(bytes.len() as u64) as usize;
            bytes[at] ^= input.byte() | 1;
        }
        4 => bytes.truncate(input.below(bytes.len() as u64 + 1) as usize),
        5 => return true,
        6 => drop(objects.insert(other, bytes.clone())),
        7 => {
            let new = input.bytes(24);
            let at = input.below(bytes.len() as u64 + 1) as usize;
            bytes.splice(at..at, new);
        }
        // A number in the record.
        8 => {
            // Only the record is a text.
            let text = String::from_utf8(bytes.clone()).unwrap_or_default();
            let ends = |text: &str| text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
            let numbers: Vec<usize> = text.match_indices(": ").map(|(at, _)| at + 2).collect();
            if !numbers.is_empty() {
                let at = *input.pick(&numbers);
                bytes.splice(at..at + ends(&text[at..]), input.number().to_string().into_bytes());
            }
        }
        _ => {
            let at = input.below(bytes.len() as u64 + 1) as usize;
            bytes.resize(at.max(input.below(4096) as usize), input.byte());
        }
    }
    let is_sealed = kind & 0x80 != 0 && name != "owner";
    if is_sealed {
        seal(&mut bytes);
    }
    objects.insert(name, bytes);
    !is_sealed
}

/// Forges objects as the input says, and restores the replica. A restoration always ends. Without a forged checksum it
/// gives a state that the file had, or refuses.
pub fn replica(input: &[u8]) {
    let mut input = Input::new(input);
    let mut objects = HONEST.objects.clone();
    let count = input.below(6);
    let unforged = count == 0 || changes(&mut input, count, |input| change(&mut objects, input));
    let restored = testing::restored(Arc::new(Forged(objects)), MOST);
    if count == 0 {
        assert!(restored.as_ref().ok() == HONEST.states.last(), "an honest replica is refused");
    }
    if let Ok(bytes) = restored
        && unforged
    {
        assert!(HONEST.states.contains(&bytes), "a state was restored that the file never had");
    }
}
