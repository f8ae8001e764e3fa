//! Opening: attach the sidecar, recover, and say "open" before the first store.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use super::ahead::Ahead;
use super::layout::{Places, choose, initial_len, pages, reserve};
use super::recovery::live_records;
use super::state::State;
use super::unit::CopyUnit;
use super::{Reflection, barriers};
use crate::engine::Recovery;
use crate::engine::handle_state::HandleState;
use crate::error::{Error, Result};
use crate::format::lane::Lanes;
use crate::format::record::ChecksumSeed;
use crate::format::sidecar::attach::{Attached, Plan};
use crate::format::sidecar::data::{Pair, open_pair, open_pair_to_read, restore_len};
use crate::format::sidecar::space::Space;
use crate::format::sidecar::state::SidecarState;
use crate::format::sidecar::superblock::Left;
use crate::format::sidecar::{Geometry, MAX_NUMBER_AT_OPEN, spill_path};
use crate::options::{Durability, EngineKind, Options};
use crate::storage::{Medium, MediumClass, MediumFile};

/// Address space for the largest record area a sidecar can have.
const MAX_RECORD_AREA: u64 = 64 * (1 << 16) * 64 + (1 << 20);

impl<M: Medium> Reflection<M> {
    /// Opens a file with one of the two engines that have reflection pages.
    pub(crate) fn open(medium: Arc<M>, path: &Path, engine: EngineKind, options: &Options) -> Result<Self> {
        let geometry = Geometry { lanes: options.lanes, slots: options.slots };
        let pair = open_pair(&*medium, path, options, |len| {
            let layout = choose(options.layout, len);
            Plan {
                engine,
                layout,
                durability: options.durability.unwrap_or(match medium.class() {
                    MediumClass::PersistentMemory => Durability::PerWrite,
                    MediumClass::Block => Durability::PerCommit,
                }),
                geometry,
                inline: false,
                len: initial_len(layout, geometry.chunks_at(), len),
                // Which layout an existing sidecar has is not known yet; the sparse one needs more.
                reserve: reserve(crate::options::Layout::Sparse, MAX_RECORD_AREA, options.reserve(len)),
            }
        })?;
        let mut engine = Self::build(medium, path, pair, options)?;
        engine.make_durable()?;
        // Only now: a file whose opening fails must not be closed "cleanly" on the way out.
        engine.handle_state.accept_writes();
        Ok(engine)
    }

    /// Opens a file at its last commit, changing nothing, however it was left; `None` if it is a plain file.
    pub(crate) fn open_for_reading(medium: Arc<M>, path: &Path, options: &Options) -> Result<Option<Self>> {
        let Some(pair) = open_pair_to_read(&*medium, path, options)? else { return Ok(None) };
        let engine = Self::build(medium, path, pair, options)?;
        let (has, len) = (engine.data.len(), engine.state.head().len.load(Ordering::Relaxed));
        if has < len {
            let what = format!("it has {has} bytes, but its last commit has {len}");
            return Err(Error::ModifiedExternally { path: path.to_owned(), what });
        }
        Ok(Some(engine))
    }

    /// Puts the engine together and replays the live records in memory. Writes nothing.
    pub(super) fn build(medium: Arc<M>, path: &Path, pair: Pair<M::File>, options: &Options) -> Result<Self> {
        let (data, attached) = pair;
        let Attached { side, path: sidecar, superblock, retirement } = attached.with_length(&data)?;
        let geometry = superblock.geometry;
        let checksum_seed = ChecksumSeed::new(&superblock.uuid, retirement.session);
        let records = match superblock.left {
            Left::Open => live_records(&*medium, &side, &sidecar, geometry, checksum_seed, retirement.checkpoint)?,
            // Closing makes a cut; before the first open there was no commit. Whatever a lane holds then counts for
            // nothing.
            Left::Fresh | Left::Clean | Left::Settled | Left::Disputed => Vec::new(),
        };
        if let Some((_, record)) = records.iter().find(|(_, record)| record.seq > MAX_NUMBER_AT_OPEN) {
            let what = format!("a record has the number {}, which is higher than any file can reach", record.seq);
            return Err(Error::Corrupt { path: sidecar, offset: None, what });
        }
        let longest = records.iter().map(|(_, record)| record.len).fold(retirement.len, u64::max);
        let max_len = options.reserve(longest.max(data.len()));
        let out_of_memory = |error| Error::io("reserve memory for", path, error);
        let longest = longest.max(data.len());
        let state = State::new(longest, max_len).map_err(out_of_memory)?;
        let (layout, unit) = (superblock.layout, CopyUnit::of(superblock.engine));
        let mut engine = Reflection {
            class: medium.class(),
            lanes: Lanes::new(Geometry::LANES_AT, geometry.lanes, geometry.slots).map_err(out_of_memory)?,
            places: Places::new(layout, geometry.chunks_at(), pages(longest)).map_err(out_of_memory)?,
            data_space: Space::new(pages(longest)).map_err(out_of_memory)?,
            side_space: Space::new(pages(side.len())).map_err(out_of_memory)?,
            ahead: Ahead::new(pages(longest), options).map_err(out_of_memory)?,
            durability: options.durability.unwrap_or(superblock.durability),
            order: options.order,
            read_policy: options.read_policy,
            handle_state: HandleState::new(path, options.read_only).map_err(out_of_memory)?,
            sidecar_state: Mutex::new(SidecarState { superblock, retirement, closed: false }),
            recovery: Recovery::default(),
            recovered_time: 0,
            changed: Vec::new(),
            options: options.clone(),
            medium,
            path: path.to_owned(),
            sidecar,
            data,
            side,
            layout,
            unit,
            geometry,
            state,
            max_len,
            checksum_seed,
        };
        engine.replay(records)?;
        Ok(engine)
    }

    /// Makes the outcome of [`build`](Self::build) durable, retires every record in one step, and says "open": from
    /// here on stores may follow.
    fn make_durable(&mut self) -> Result<()> {
        let len = self.state.head().len.load(Ordering::Relaxed);
        let needed = initial_len(self.layout, self.geometry.chunks_at(), len);
        if self.side.len() < needed && len <= self.data.len() {
            // The file was plain and has grown. "Open", which comes next, is durable after this. A record of a longer
            // file is refused below.
            self.side.set_len(needed)?;
            self.side.sync(barriers::RESIZE_GROW)?;
        }
        // Before the first store: a file that is refused stays as it is.
        self.check_recovered()?;
        restore_len(&self.data, &self.path, len, &self.options)?;
        self.write_recovered()?;
        if self.data.len() > len {
            // A growth that did not commit, or a shrink that did. Until the next sync of the file a crash may bring the
            // old length back, and the next recovery comes by here again.
            self.data.set_len(len)?;
        }
        let sidecar_state = self.sidecar_state.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        sidecar_state.retirement.len = len;
        sidecar_state.retirement.checkpoint = self.state.head().floor.load(Ordering::Relaxed);
        sidecar_state.retirement.time = self.recovered_time;
        self.checksum_seed = sidecar_state.start_session(&*self.medium, &self.data, &self.side)?;
        // A record that referred to a spill file is retired now.
        let spill = spill_path(&self.sidecar);
        if self.medium.exists(&spill)? { self.medium.unlink(&spill) } else { Ok(()) }
    }
}
