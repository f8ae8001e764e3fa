//! Directories: their names in the order of the source.
//!
//! # Invariants
//!
//! 1. A place in the listing is the source's own place, which its file system keeps meaningful while names come and go.
//!    The listing of a directory therefore needs no copy of it, however long it is.
//! 2. A name that did not fit in an answer is the first of the next one, unless the program goes elsewhere.
//! 3. An entry that READDIRPLUS hands out counts as a look-up only if it fits in the answer.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Mutex};

use fuser::{Generation, INodeNo, ReplyDirectory, ReplyDirectoryPlus};
use rustix::fs::{AtFlags, Dir, FileType};
use rustix::io::Errno;

use super::attributes::kind;
use super::nodes::Node;
use super::{Server, is_hidden, lock};

/// The listing of an open directory.
pub(super) struct Stream {
    pub(super) node: Arc<Node>,
    place: Mutex<Place>,
}

struct Place {
    directory: Dir,
    /// The place of the next name.
    next: u64,
    /// The next name, read and not handed out.
    left: Option<Entry>,
}

struct Entry {
    name: OsString,
    inode: u64,
    kind: FileType,
    /// The place behind it.
    after: u64,
}

impl Stream {
    pub(super) fn new(node: Arc<Node>, directory: Dir) -> Self {
        Stream { node, place: Mutex::new(Place { directory, next: 0, left: None }) }
    }

    /// Makes the names durable.
    pub(super) fn sync(&self) -> Result<(), Errno> {
        let place = lock(&self.place);
        rustix::fs::fsync(place.directory.fd()?)
    }
}

impl Place {
    fn go_to(&mut self, place: u64) -> Result<(), Errno> {
        if place != self.next || place == 0 {
            self.left = None;
            self.directory.seek(place as i64)?;
            self.next = place;
        }
        Ok(())
    }

    fn take(&mut self) -> Result<Option<Entry>, Errno> {
        if let Some(entry) = self.left.take() {
            return Ok(Some(entry));
        }
        match self.directory.read() {
            None => Ok(None),
            Some(entry) => {
                let entry = entry?;
                Ok(Some(Entry {
                    name: OsStr::from_bytes(entry.file_name().to_bytes()).to_owned(),
                    inode: entry.ino(),
                    kind: entry.file_type(),
                    after: entry.offset() as u64,
                }))
            }
        }
    }

    /// Hands out names from a place on, until `add` says that there is no more room.
    fn list(&mut self, from: u64, mut add: impl FnMut(&Entry) -> Result<bool, Errno>) -> Result<(), Errno> {
        self.go_to(from)?;
        let mut first = true;
        while let Some(entry) = self.take()? {
            if !is_hidden(&entry.name) {
                match add(&entry) {
                    Ok(false) => first = false,
                    Ok(true) => {
                        self.left = Some(entry);
                        return Ok(());
                    }
                    // It is told when it is the first of an answer.
                    Err(_) if !first => {
                        self.left = Some(entry);
                        return Ok(());
                    }
                    Err(errno) => return Err(errno),
                }
            }
            self.next = entry.after;
        }
        Ok(())
    }
}

impl Server {
    pub(super) fn list(&self, stream: &Stream, from: u64, reply: &mut ReplyDirectory) -> Result<(), Errno> {
        lock(&stream.place).list(from, |entry| {
            let found = match entry.kind {
                // Its file system does not tell.
                FileType::Unknown => rustix::fs::statat(&*stream.node, &entry.name, AtFlags::SYMLINK_NOFOLLOW)
                    .map_or(FileType::RegularFile, |status| FileType::from_raw_mode(status.st_mode)),
                known => known,
            };
            Ok(reply.add(INodeNo(entry.inode.max(1)), entry.after, kind(found), &entry.name))
        })
    }

    pub(super) fn list_with_attributes(
        &self,
        stream: &Stream,
        from: u64,
        reply: &mut ReplyDirectoryPlus,
    ) -> Result<(), Errno> {
        lock(&stream.place).list(from, |entry| {
            if entry.name == "." || entry.name == ".." {
                // The kernel takes their numbers only, and counts no look-up.
                let attributes = self.attributes_of(entry.inode.max(1), &stream.node.status()?);
                return Ok(reply.add(
                    INodeNo(attributes.ino.0),
                    entry.after,
                    &entry.name,
                    &self.lifetime,
                    &attributes,
                    Generation(0),
                ));
            }
            let (node, status) = match self.find(&stream.node, &entry.name) {
                Ok(found) => found,
                // It was removed meanwhile.
                Err(Errno::NOENT) => return Ok(false),
                Err(errno) => return Err(errno),
            };
            let attributes = self.attributes(&node, &status);
            let full = reply.add(
                INodeNo(node.number),
                entry.after,
                &entry.name,
                &self.lifetime,
                &attributes,
                Generation(node.generation),
            );
            if full {
                self.nodes.forget(node.number, 1);
            }
            Ok(full)
        })
    }
}
