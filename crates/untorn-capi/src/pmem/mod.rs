//! The mappings that this process has through `untorn/libpmem.h`, by address.
//!
//! # Invariants
//! 1. A commit has every store to its mapping that ended before the call: both kinds of memory look for stores in all
//!    of it, and commit beside stores that run.
//! 2. Once a function that returns no error has failed to commit a mapping, nothing of it is committed any more, and
//!    every function that returns one fails. So no later success stands for the store that was not acknowledged.
//! 3. A thread's note of a mapping is a number, not a lock: a forked child has its parent's notes, and finds nothing
//!    for them in its own table, which begins empty.
//!
//! # Locks, in the order in which they are taken
//! 1. Opening: a call that maps or unmaps takes it.
//! 2. A mapping: commits of it run one after the other, and a thread that waited finds its stores committed.
//! 3. The table: taken for a look.

mod open;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use untorn_core::AtomicMap;
use untorn_core::testing::PerProcess;

use crate::abi::UNTORN_EOWNERDEAD;
use crate::descriptor::FileId;
use crate::errors::{Failure, Result};
use crate::mapping::{errno, page_size};
use crate::regions::regions;

pub(crate) use self::open::Request;

/// The file or the region that is mapped.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Source {
    File(FileId),
    /// The store's path and the region's name.
    Region(PathBuf, String),
}

/// The memory of a mapping.
enum Memory {
    File(Box<AtomicMap>),
    /// A region's descriptor.
    Region(c_int),
}

impl Memory {
    fn commit(&mut self) -> Result<()> {
        match self {
            Memory::File(map) => map.commit_beside_stores().map(drop)?,
            Memory::Region(rd) => regions().sync_beside_stores(*rd)?,
        }
        Ok(())
    }

    /// Ends it; what was stored since the last commit is discarded.
    fn discard(self, address: usize) -> Result<()> {
        match self {
            Memory::File(map) => Ok(map.discard()?),
            Memory::Region(rd) => regions().end(rd, address),
        }
    }

    /// Commits and ends it.
    fn close(self, address: usize) -> Result<()> {
        match self {
            Memory::File(map) => Ok(map.close()?),
            Memory::Region(rd) => {
                let committed = regions().sync(rd);
                committed.and(regions().end(rd, address))
            }
        }
    }
}

/// The memory, and why it commits no more.
struct State {
    memory: Memory,
    failed: Option<String>,
}

struct Mapping {
    /// No other mapping of the process has had it.
    number: u64,
    source: Source,
    address: usize,
    len: usize,
    /// Taken out by the call that ends the mapping.
    state: Mutex<Option<State>>,
}

/// Whether the caller is told of a failure.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Told {
    Yes,
    No,
}

impl Mapping {
    fn commit(&self, told: Told) -> Result<()> {
        let broken = |_| errno(libc::EIO, "an earlier call on the mapping panicked inside untorn; map it again");
        let mut state = self.state.lock().map_err(broken)?;
        let state = state.as_mut().ok_or_else(none)?;
        state.check()?;
        let committed = state.memory.commit();
        if let (Told::No, Err(failure)) = (told, &committed) {
            state.failed = Some(failure.message.clone());
        }
        committed
    }
}

impl State {
    fn check(&self) -> Result<()> {
        match &self.failed {
            None => Ok(()),
            Some(why) => Err(errno(
                libc::EIO,
                format!(
                    "an earlier persist failed and could not return its error, so nothing is committed any more; \
                         unmap and map again: {why}"
                ),
            )),
        }
    }
}

/// A mapping, and how often it was made.
struct Entry {
    mapping: Arc<Mapping>,
    times: usize,
}

/// The mappings by first address.
static TABLE: PerProcess<Mutex<BTreeMap<usize, Entry>>> = PerProcess::new();

/// Held by the call that maps or unmaps.
static OPENING: PerProcess<Mutex<()>> = PerProcess::new();

thread_local! {
    /// The mappings that the next drain of this thread commits, each by its address and number.
    static NOTED: RefCell<Vec<(usize, u64)>> = const { RefCell::new(Vec::new()) };
}

fn none() -> Failure {
    Failure::invalid("the range does not lie in one mapping of pmem_map_file; pass addresses of a mapping")
}

/// The mapping that a range lies in.
fn find(address: usize, len: usize) -> Result<Arc<Mapping>> {
    let table = TABLE.lock();
    let found = table.range(..=address).next_back().map(|(_, entry)| &entry.mapping);
    let fits = |mapping: &&Arc<Mapping>| {
        let within = address - mapping.address;
        within < mapping.len && len <= mapping.len - within
    };
    if let Some(mapping) = found.filter(fits) {
        return Ok(Arc::clone(mapping));
    }
    drop(table);
    let covers = |table: &BTreeMap<usize, Entry>| {
        let before = table.range(..=address).next_back();
        before.is_some_and(|(start, entry)| address - start < entry.mapping.len)
    };
    if TABLE.was_inherited(covers) {
        let message = "the mapping belongs to the parent process and cannot be used after fork(2); map the file again";
        return Err(Failure::new(UNTORN_EOWNERDEAD, message));
    }
    Err(none())
}

/// Maps as the request says. Returns the address and the length.
pub(crate) fn map(request: &Request<'_>) -> Result<(usize, usize)> {
    static NUMBERS: AtomicU64 = AtomicU64::new(0);
    let _opening = OPENING.lock();
    request.check()?;
    if let Some(source) = request.source()?
        && let Some((address, entry)) = TABLE.lock().iter_mut().find(|(_, entry)| entry.mapping.source == source)
    {
        let len = entry.mapping.len;
        request.suits(len)?;
        entry.times += 1;
        return Ok((*address, len));
    }
    let (source, memory, address, len) = request.open()?;
    let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
    let state = Mutex::new(Some(State { memory, failed: None }));
    let mapping = Arc::new(Mapping { number, source, address, len, state });
    TABLE.lock().insert(address, Entry { mapping, times: 1 });
    Ok((address, len))
}

/// Commits and ends a mapping, or one of several that were made of it.
pub(crate) fn unmap(address: usize, len: usize) -> Result<()> {
    let _opening = OPENING.lock();
    let mapping = find(address, 0)?;
    let page = page_size();
    if mapping.address != address || len.div_ceil(page) != mapping.len.div_ceil(page) {
        let (address, len) = (mapping.address, mapping.len);
        let message =
            format!("a mapping can only be unmapped as a whole; pass {address:#x} and its length, {len} bytes");
        return Err(Failure::invalid(message));
    }
    let is_last = {
        let mut table = TABLE.lock();
        let entry = table.get_mut(&address).ok_or_else(none)?;
        entry.times -= 1;
        let is_last = entry.times == 0;
        if is_last {
            table.remove(&address);
        }
        is_last
    };
    if !is_last {
        return mapping.commit(Told::Yes);
    }
    // A mapping whose call panicked can still be ended: the file is at its last commit.
    let (state, is_whole) = match mapping.state.lock() {
        Ok(mut state) => (state.take(), true),
        Err(poisoned) => (PoisonError::into_inner(poisoned).take(), false),
    };
    let Some(state) = state else { return Err(none()) };
    match state.check() {
        Ok(()) if is_whole => state.memory.close(address),
        // The failure that counts is the one that nobody was told of.
        failed => state.memory.discard(address).and(failed),
    }
}

/// Commits the mapping that a range lies in.
pub(crate) fn commit(address: usize, len: usize) -> Result<()> {
    find(address, len)?.commit(Told::Yes)
}

/// Has the next drain of this thread commit the mapping that a range lies in.
pub(crate) fn flush(address: usize, len: usize) -> Result<()> {
    if len == 0 {
        return Ok(());
    }
    let mapping = find(address, len)?;
    let note = (mapping.address, mapping.number);
    NOTED.with_borrow_mut(|noted| {
        if !noted.contains(&note) {
            noted.push(note);
        }
    });
    Ok(())
}

/// Commits the mappings that this thread has noted.
pub(crate) fn drain() -> Result<()> {
    let noted = NOTED.take();
    let mut result = Ok(());
    for (address, number) in noted {
        // One that has ended since was committed then.
        let mapping = TABLE.lock().get(&address).map(|entry| Arc::clone(&entry.mapping));
        if let Some(mapping) = mapping.filter(|mapping| mapping.number == number) {
            result = result.and(mapping.commit(Told::No));
        }
    }
    result
}

/// Both.
pub(crate) fn persist(address: usize, len: usize) -> Result<()> {
    let noted = flush(address, len);
    drain().and(noted)
}

/// The answer of `pmem_is_pmem` for a range.
pub(crate) fn is_pmem(address: usize, len: usize) -> bool {
    let forced = untorn_core::testing::variable("PMEM_IS_PMEM_FORCE").is_some_and(|value| value == "1");
    forced && find(address, len).is_ok()
}
