//! The stream of commits in a replay: epochs that have no record yet get one, each before its file gets the epoch.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::commits::{Closed, Numbered};
use super::format::{HEADER, Kind};
use super::replay::{ReplayOutcome, Replayer};
use super::scan::Operation;
use super::stream::{Changes, Source};
use crate::engine::commits::appender::CommitRecords;
use crate::error::Result;
use crate::storage::{Medium, MediumFile};

/// What a replay knows of the commits of the files.
#[derive(Default)]
pub(super) struct Streams<'o> {
    /// The epochs of numbered Commits, by file and by the place of their first change that the log has.
    epochs: HashMap<(u64, u64), (Closed, Vec<&'o Operation>)>,
    /// The last commit of each file.
    last: HashMap<u64, Numbered>,
    /// Files whose commit log was looked for, with it.
    records: HashMap<u64, Option<Box<dyn CommitRecords>>>,
}

impl<'o> Streams<'o> {
    /// Those of a log with these operations, which are in order.
    pub(super) fn new(closed: &[Closed], operations: &'o [Operation]) -> Self {
        let mut streams = Streams::default();
        if closed.is_empty() {
            return streams;
        }
        let mut by_file: HashMap<u64, Vec<&Operation>> = HashMap::new();
        for operation in operations.iter().filter(|operation| operation.kind != Kind::Move) {
            by_file.entry(operation.uid).or_default().push(operation);
        }
        for closed in closed {
            streams.last.insert(closed.uid, closed.numbered);
            let all = by_file.get(&closed.uid).map_or(&[][..], |all| &all[..]);
            let from = all.partition_point(|operation| operation.order < closed.first);
            let to = all.partition_point(|operation| operation.order < closed.order);
            if let Some(first) = all[from..to].first() {
                streams.epochs.insert((closed.uid, first.order), (*closed, all[from..to].to_vec()));
            }
        }
        streams
    }
}

impl<M: Medium> Replayer<'_, M> {
    /// Stores the record of the epoch that begins with this operation, if one does, durably.
    pub(super) fn record(&self, streams: &mut Streams<'_>, operation: &Operation) -> Result<()> {
        let uid = operation.uid;
        let Some((closed, operations)) = streams.epochs.remove(&(uid, operation.order)) else { return Ok(()) };
        let Some(target) = self.targets.get(&uid) else { return Ok(()) };
        let Some(slow) = target.slow.as_ref().filter(|_| target.fate == ReplayOutcome::Replayed) else {
            return Ok(());
        };
        if self.is_dry() {
            return Ok(());
        }
        let Some(records) = self.records_of(streams, uid) else { return Ok(()) };
        if closed.numbered.number <= records.last() {
            return Ok(());
        }
        if !closed.is_whole {
            records.miss(closed.numbered.number, "the log does not have all of its changes any more");
            return Ok(());
        }
        let mut changes = Changes::new(slow.len()?);
        for operation in operations {
            let spilled = operation.spilled.and_then(|write| self.scan.spilled.get(write));
            match (operation.kind, spilled) {
                _ if operation.is_packed => self.unpack(operation, |change| {
                    changes.packed(change);
                    Ok(())
                })?,
                (Kind::SetLen, _) => changes.set_len(operation.value),
                (_, Some(spilled)) => {
                    changes.write(operation.value, operation.len, Source::Spilled(spilled.clone().into(), 0));
                }
                (_, None) => changes.write(operation.value, operation.len, Source::Log(operation.position)),
            }
        }
        changes.record(records, closed.numbered, |source, skip, len, buffer| self.read(source, skip, len, buffer));
        records.publish();
        Ok(())
    }

    /// The commit log of a file; `None` if it has none. One that cannot be opened keeps no file from its bytes: the
    /// next open finds that the file was changed without it, and begins it anew behind the last commit.
    fn records_of<'s>(&self, streams: &'s mut Streams<'_>, uid: u64) -> Option<&'s mut (dyn CommitRecords + 'static)> {
        let last = streams.last.get(&uid).copied();
        let records = streams.records.entry(uid).or_insert_with(|| {
            self.open_records(uid).unwrap_or_else(|error| {
                let path = self.targets.get(&uid).map(|target| target.so_far.as_ref().unwrap_or(&target.path));
                let path = path.map_or(Path::new(""), PathBuf::as_path);
                let name = path.display();
                tracing::error!(path = %name, %error, "cannot open the commit log, which lacks this replay's commits");
                // The sync of the file that ends the replay makes it durable.
                if let Some(Numbered { number, time, .. }) = last
                    && let Err(error) = self.place.note_commit(path, number, time)
                {
                    tracing::error!(path = %name, %error, "cannot note the number of the last commit");
                }
                None
            })
        });
        records.as_deref_mut()
    }

    /// Opens the commit log of a file, by the name that it has now.
    fn open_records(&self, uid: u64) -> Result<Option<Box<dyn CommitRecords>>> {
        let Some(target) = self.targets.get(&uid) else { return Ok(None) };
        let path = target.so_far.as_ref().unwrap_or(&target.path);
        // A crash may have come between the rename and what brings the commit log along.
        let line = self.scan.table.get(&uid).map(|(_, _, line)| &line.path);
        for other in self.others.get(&uid).into_iter().chain(line).filter(|other| *other != path) {
            self.place.carry_commit_log(other, path)?;
        }
        self.place.commit_log(path, None, true)
    }

    /// Appends bytes of a write to a buffer.
    fn read(&self, source: &Source, skip: u64, len: u64, buffer: &mut Vec<u8>) -> Result<()> {
        let position = match source {
            Source::Spilled(spilled, from) => {
                buffer.extend(self.spilled(spilled, from + skip..from + skip + len)?);
                return Ok(());
            }
            Source::Log(position) => position,
        };
        let entry = u64::from(self.scan.geometry.entry);
        let mut done = 0;
        while done < len {
            let at = skip + done;
            let count = (len - done).min(entry - at % entry);
            let from = buffer.len();
            buffer.resize(from + count as usize, 0);
            let place = self.scan.geometry.entry_at(position + at / entry) + HEADER + at % entry;
            self.log.read(place, &mut buffer[from..])?;
            done += count;
        }
        Ok(())
    }

    /// Has the commit logs say how the files stand, which have all that the log has of them, durably.
    pub(super) fn finish_records(&self, streams: &mut Streams<'_>) {
        for (uid, last) in std::mem::take(&mut streams.last) {
            self.finish_records_of(streams, uid, last.number);
        }
        // Of a file without commits in the log, a crash may have left its commit log behind.
        for (uid, other) in self.others.iter().filter(|(uid, _)| !streams.records.contains_key(uid)) {
            if let Some(target) = self.targets.get(uid).filter(|target| target.fate == ReplayOutcome::Replayed)
                && let Err(error) = self.place.carry_commit_log(other, &target.path)
            {
                tracing::error!(path = %target.path.display(), %error, "the commit log of a renamed file stays behind");
            }
        }
    }

    fn finish_records_of(&self, streams: &mut Streams<'_>, uid: u64, last: u64) {
        let Some(target) = self.targets.get(&uid) else { return };
        match target.fate {
            ReplayOutcome::Replayed | ReplayOutcome::Dropped => {}
            ReplayOutcome::Removed => {
                if let Some((_, _, line)) = self.scan.table.get(&uid)
                    && let Err(error) = self.place.remove_commit_log(&line.path, line.identity.inode)
                {
                    let path = line.path.display();
                    tracing::warn!(%path, %error, "cannot remove the commit log of a removed file");
                }
                return;
            }
            _ => return,
        }
        let Some(records) = self.records_of(streams, uid) else { return };
        if target.fate == ReplayOutcome::Dropped {
            let why = "another program changed the file, and the log's writes were dropped";
            records.miss(records.last().max(last), why);
        } else if records.last() < last {
            records.miss(last, "the log does not have its changes any more");
        }
        if target.so_far.is_some() {
            records.moved(&target.path);
        }
        records.close();
    }
}
