//! From the commit log of a file to the chain of a replica.
//!
//! # Invariants
//!
//! 1. A commit is acknowledged to the commit log after it was acknowledged by the replica, so that a crash in between
//!    ships it again. What the chain has already is left out by its number.
//! 2. A commit that was taken from the stream is in an object before the next one is taken, or it is held.
//! 3. A snapshot of a commit comes behind all commits up to it, and before each later one.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use untorn::commits::CommitStream;
use untorn::report::State;
use untorn::{AtomicFile, Snapshot};

use crate::error::{Error, Result};
use crate::format::body::{Commit, Snapshot as SnapshotBody, encode_commits};
use crate::format::part::PART;
use crate::note::{self, Known};
use crate::options::{ReplicaOptions, WhenBehind};
use crate::protocol::access::Access;
use crate::protocol::bundles::Bundle;
use crate::protocol::owner::{Claim, Owner};

/// The file that is replicated.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    /// It is open here.
    Handle(AtomicFile),
    /// Any process may have it open.
    Path(PathBuf),
}

impl Source {
    pub(crate) fn path(&self) -> &Path {
        match self {
            Source::Handle(file) => file.path(),
            Source::Path(path) => path,
        }
    }

    /// A snapshot of the last commit, and nothing that only a recovery could confirm.
    fn snapshot(&self) -> Result<Snapshot> {
        match self {
            Source::Handle(file) => Ok(file.snapshot()?),
            Source::Path(path) => {
                self.check()?;
                let snapshot = Snapshot::open(path)?;
                // The process that had it open may have died in between.
                self.check()?;
                Ok(snapshot)
            }
        }
    }

    /// # Errors
    /// [`untorn::Error::NeedsRecovery`] for a file that a crash left: its log may lack its last commit.
    fn check(&self) -> Result<()> {
        let Source::Path(path) = self else { return Ok(()) };
        if untorn::inspect(path)?.state == State::NeedsRecovery {
            return Err(untorn::Error::NeedsRecovery { path: path.clone() }.into());
        }
        Ok(())
    }
}

/// The shipped amounts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shipped {
    pub(crate) objects: u64,
    pub(crate) commits: u64,
    pub(crate) snapshots: u64,
    /// Bytes of commits and snapshots, before compression.
    pub(crate) bytes: u64,
}

pub(crate) struct Shipper {
    source: Source,
    owner: Owner,
    stream: CommitStream,
    options: ReplicaOptions,
    /// The log awaits its consumers. A program that opens the file may change that.
    awaits: bool,
    /// A commit that comes behind a snapshot.
    held: Option<Commit>,
    /// Bytes since the last snapshot.
    since_snapshot: u64,
    /// The file has commits that the stream does not give, so a snapshot is next.
    needs_snapshot: bool,
    /// The consumer's position in the log.
    acknowledged: u64,
    pub(crate) shipped: Shipped,
}

pub(crate) fn nanoseconds(time: Option<SystemTime>) -> u64 {
    let since = time.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    since.map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}

fn commit_of(commit: untorn::commits::Commit) -> Commit {
    let changes = commit.changes.into_iter().map(|change| (change.range.start, change.bytes)).collect();
    let (number, time) = (commit.number, nanoseconds(commit.time));
    Commit { number, time, len: commit.len, shortest: commit.shortest, changes }
}

/// Refuses to begin a replica in a store that has lost the one of this file, or is not the store that it seems to be,
/// such as the mountpoint of a disk that is not there. It looks before anything makes the directory of such a store.
///
/// # Errors
/// [`Error::NotFound`]; those of the store and of the file.
pub(crate) fn check_place(source: &Source, access: &Access, options: &ReplicaOptions) -> Result<()> {
    let path = source.path();
    let failed = |source| Error::Io { operation: "open", path: path.to_owned(), source };
    let file = File::open(path).map_err(failed)?;
    if options.begin_new || !note::has_url(&file, path, &access.url())? || access.record()?.is_some() {
        return Ok(());
    }
    let what = format!(
        "the replica of {} is not there any more; mount its disk or bring its store back, or begin a new replica \
         (`untorn replicate --new`)",
        path.display()
    );
    Err(Error::NotFound { url: access.url(), what })
}

impl Shipper {
    /// Takes the replica over, and begins where its chain ends.
    pub(crate) fn attach(source: Source, access: &Access, options: ReplicaOptions) -> Result<Self> {
        let token = access.nonce()?;
        Self::attach_by(source, access, options, token, |claim| Owner::acquire(access, claim))
    }

    /// The same for a replica that `own` makes this writer's.
    pub(crate) fn attach_by(
        source: Source,
        access: &Access,
        options: ReplicaOptions,
        token: [u8; 16],
        own: impl FnOnce(&Claim) -> Result<Owner>,
    ) -> Result<Self> {
        source.check()?;
        let path = source.path().to_owned();
        let failed = |source| Error::Io { operation: "open", path: path.clone(), source };
        let file = File::open(&path).map_err(failed)?;
        let found = access.record()?.map(|(record, _)| record.replica);
        let replica = found.map_or_else(|| access.nonce(), Ok)?;
        let log = untorn::commits::kept(&path)?;
        let awaits = log.is_some_and(|log| log.awaits_consumers());
        let waits = awaits || log.and_then(|log| log.waits()).is_some();
        if options.when_behind == Some(WhenBehind::Wait) && !waits {
            let what = format!(
                "the commit log of {} does not wait for the replica; give it one that does (`untorn commits FILE \
                 --start SIZE --block SECONDS`), or let the replica go on with a snapshot",
                path.display()
            );
            return Err(Error::Invalid { what });
        }
        // The consumer first: it keeps the commits from now on, and other writers of this file out.
        let stream = match CommitStream::consumer(&path, &options.consumer) {
            Err(untorn::Error::CommitsMissing { oldest: Some(oldest), .. }) => Err(oldest),
            stream => Ok(stream?),
        };
        let Known { tokens: known, position, next } = note::known(&file, &path, replica)?;
        if next.is_some() {
            let what =
                format!("the follower of {} was cut off; end it by `untorn follow --once` first", path.display());
            return Err(Error::NotDescendant { url: access.url(), what });
        }
        note::add_token(&file, &path, replica, token)?;
        let name = options.name.clone();
        let claim = Claim { replica, token, name, known, position: position.map(|noted| noted.position) };
        let owner = match own(&claim) {
            Err(error @ Error::NotDescendant { .. }) => {
                // The refusal counts: the token proves nothing without the record.
                let _ = note::remove_token(&file, &path, replica, token);
                return Err(error);
            }
            owner => owner?,
        };
        if owner.record().replica != replica {
            // Another file's replica was made here in this moment, and it is not this file's.
            let what = "another file's replica was made there meanwhile".to_owned();
            return Err(Error::NotDescendant { url: access.url(), what });
        }
        note::keep_token(&file, &path, replica, token)?;
        note::add_url(&file, &path, &access.url())?;
        let chain = owner.position().commit;
        // The numbers of a file that followed the replica are not those of the chain.
        let counts_alike = position.is_none_or(|noted| noted.commit == noted.position.commit);
        let goes_on = counts_alike && owner.record().oldest().is_some();
        let (stream, needs_snapshot) = match stream {
            // A new consumer begins at the start of the log, which may be behind the end of the chain.
            Ok(stream) if goes_on && stream.position() <= chain => (stream, false),
            Ok(stream) => (stream, true),
            Err(oldest) => (CommitStream::consumer_from(&path, &options.consumer, oldest)?, true),
        };
        let acknowledged = stream.position();
        // One that is asked for is due at once.
        let since_snapshot = if options.begin_with_snapshot { u64::MAX } else { 0 };
        let (held, shipped) = (None, Shipped::default());
        Ok(Shipper {
            source,
            owner,
            stream,
            options,
            awaits,
            held,
            since_snapshot,
            needs_snapshot,
            acknowledged,
            shipped,
        })
    }

    /// Looks how the log is kept now.
    pub(crate) fn look_at_log(&mut self) {
        // If it cannot be read, shipping the next commit says so.
        if let Ok(Some(log)) = untorn::commits::kept(self.source.path()) {
            self.awaits = log.awaits_consumers();
        }
    }

    /// Whether commits of the file wait until the replica has them.
    pub(crate) fn awaits(&self) -> bool {
        self.awaits
    }

    pub(crate) fn owner(&self) -> &Owner {
        &self.owner
    }

    /// Ships all commits that there are. Returns the last one that the replica has for certain, and whether the record
    /// was read again meanwhile.
    pub(crate) fn ship(&mut self) -> Result<(u64, bool)> {
        // The rest of an earlier failure comes first.
        self.owner.flush()?;
        let mut has_shipped = false;
        loop {
            if self.needs_snapshot {
                self.snapshot()?;
                has_shipped = true;
            }
            match self.drain(u64::MAX) {
                // The log has dropped commits before they were read.
                Err(Error::File(untorn::Error::CommitsMissing { oldest: Some(oldest), .. })) => {
                    self.stream = CommitStream::consumer_from(self.source.path(), &self.options.consumer, oldest)?;
                    self.needs_snapshot = true;
                }
                drained => {
                    has_shipped |= drained?;
                    break;
                }
            }
        }
        if has_shipped || self.stream.position() > self.acknowledged {
            let commit = self.owner.acknowledge()?;
            // A commit that is held was given and is not shipped: it is acknowledged next time.
            if self.held.is_none() && self.stream.position() > self.acknowledged {
                self.stream.acknowledge(self.stream.position())?;
                self.acknowledged = self.stream.position();
            }
            return Ok((commit, true));
        }
        Ok((self.owner.position().commit, false))
    }

    /// After a failure: gives up commits that fill a log which would keep others waiting, if that is what to do. A
    /// snapshot is next then.
    pub(crate) fn give_way(&mut self) -> Result<()> {
        if self.options.when_behind != Some(WhenBehind::Snapshot) {
            return Ok(());
        }
        let Some(log) = untorn::inspect(self.source.path())?.commit_log else { return Ok(()) };
        // Its last segment is in use then, and the next one needs the room of the first.
        // One that awaits the replica would take what is given up for shipped.
        if log.block.is_none() || log.awaits || log.bytes < log.limit {
            return Ok(());
        }
        (self.held, self.needs_snapshot) = (None, true);
        while self.stream.next()?.is_some() {}
        if self.stream.position() > self.acknowledged {
            self.stream.acknowledge(self.stream.position())?;
            self.acknowledged = self.stream.position();
            tracing::warn!(commit = self.acknowledged, "the store is behind; the replica goes on with a snapshot");
        }
        Ok(())
    }

    /// Ships what there is, and hands the replica over.
    pub(crate) fn release(&mut self) -> Result<u64> {
        self.ship()?;
        self.owner.release()
    }

    /// The bundles that the last objects complete.
    pub(crate) fn take_bundles(&mut self) -> Vec<Bundle> {
        self.owner.take_bundles()
    }

    /// Reads the record again although nothing was shipped: whether this writer still owns the replica.
    pub(crate) fn confirm(&mut self) -> Result<u64> {
        self.owner.acknowledge()
    }

    /// Whether a new snapshot is due, which makes restorations shorter.
    pub(crate) fn is_snapshot_due(&self) -> bool {
        let len = || std::fs::metadata(self.source.path()).map_or(0, |found| found.len());
        let limit = self.options.snapshot_bytes.unwrap_or_else(|| len().max(64 << 20));
        self.since_snapshot >= limit
    }

    /// Ships the commits that there are, up to this number. Returns whether there was one.
    fn drain(&mut self, up_to: u64) -> Result<bool> {
        let mut has_shipped = false;
        loop {
            let (mut batch, mut bytes): (Vec<Commit>, u64) = (Vec::new(), 0);
            while bytes < self.options.object_bytes {
                let next = match self.held.take() {
                    Some(held) => Ok(Some(held)),
                    None => self.stream.next().map(|next| next.map(commit_of)),
                };
                match next {
                    Ok(Some(commit)) if commit.number <= self.owner.position().commit => {}
                    Ok(Some(commit)) if commit.number > up_to => {
                        self.held = Some(commit);
                        break;
                    }
                    Ok(Some(commit)) => {
                        bytes += commit.size();
                        batch.push(commit);
                    }
                    Ok(None) => break,
                    // The commits read before are shipped first: they will not be read again.
                    Err(error) if batch.is_empty() => return Err(error.into()),
                    Err(_) => break,
                }
            }
            let (Some(first), Some(last)) = (batch.first(), batch.last()) else { return Ok(has_shipped) };
            let (ends, time) = ((first.number, last.number), last.time);
            self.shipped.objects += 1;
            self.shipped.commits += batch.len() as u64;
            self.shipped.bytes += bytes;
            self.since_snapshot = self.since_snapshot.saturating_add(bytes);
            has_shipped = true;
            self.owner.append(ends, time, &encode_commits(&batch))?;
        }
    }

    /// Ships a snapshot of the last commit, and deletes what is too old.
    pub(crate) fn snapshot(&mut self) -> Result<()> {
        let snapshot = self.source.snapshot()?;
        let (commit, len) = (snapshot.commit(), snapshot.len());
        let mut rebases = self.needs_snapshot;
        if !rebases {
            match self.drain(commit) {
                Err(Error::File(untorn::Error::CommitsMissing { .. })) => rebases = true,
                drained => drained.map(|_| ())?,
            }
        }
        // Numbers begin anew for a file whose number is not kept, and the log with them.
        rebases |= commit < self.owner.position().commit;
        let attempt = self.owner.begin_snapshot();
        let mut parts = Vec::new();
        let mut piece = vec![0; PART.min(len.max(1)) as usize];
        let mut index = 0;
        while index * PART < len {
            let Some(data) = snapshot.next_data(index * PART)? else { break };
            // Parts between are holes.
            index = data.start / PART;
            let at = index * PART;
            let piece = &mut piece[..(len - at).min(PART) as usize];
            snapshot.read_at(piece, at)?;
            if piece.iter().any(|byte| *byte != 0) {
                self.owner.put_part(attempt, index, piece)?;
                parts.push(index);
                self.shipped.bytes += piece.len() as u64;
            }
            index += 1;
        }
        let now = nanoseconds(Some(snapshot.since()));
        let since = now.saturating_sub(u64::try_from(self.options.retain.as_nanos()).unwrap_or(u64::MAX));
        // The newest snapshot that is as old as that stays: the states since then begin with it.
        let entries = &self.owner.record().snapshots;
        let base = entries.iter().filter(|entry| entry.time <= since).map(|entry| entry.place).max();
        let body = SnapshotBody { len, part: PART, rebases, attempt, parts };
        self.owner.put_snapshot(&body, commit, now, |entry| base.is_some_and(|base| entry.place < base))?;
        (self.needs_snapshot, self.since_snapshot) = (false, 0);
        self.shipped.snapshots += 1;
        self.owner.acknowledge()?;
        self.owner.sweep()?;
        Ok(())
    }
}
