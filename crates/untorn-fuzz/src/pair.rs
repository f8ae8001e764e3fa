//! Data files with honest sidecars, to be forged.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use untorn::options::{Layout, LogPolicy, Order};
use untorn::testing::storage::{Access, Medium, MediumClass, MediumFile};
use untorn::{Durability, EngineKind, Options, Result};
use untorn_sim::{CrashState, SimMedium};

use crate::judge::LEAVE;

pub(crate) const PAGE: usize = 4096;
/// The data file.
pub(crate) const PATH: &str = "/data";
/// Bytes of it: five pages, and part of a sixth.
pub(crate) const LEN: usize = 5 * PAGE + 100;
pub(crate) const LANES: usize = 2;
pub(crate) const SLOTS: usize = 8;

/// Byte offsets in these sidecars, as `docs/format.md` has them.
pub(crate) const RETIREMENT_AT: usize = 2 * PAGE;
pub(crate) const LANES_AT: usize = 3 * PAGE;
pub(crate) const CHUNKS_AT: usize = 4 * PAGE;
pub(crate) const UUID_AT: usize = 40;
const ENGINE_AT: usize = 108;

/// A machine with a data file and its sidecar.
pub(crate) struct Pair {
    state: CrashState,
    pub(crate) options: Options,
    pub(crate) side: Vec<u8>,
    pub(crate) data: Vec<u8>,
}

/// One for each layout, durability and way of being left: closed, or open with live records.
pub(crate) static PAIRS: LazyLock<Vec<Pair>> = LazyLock::new(|| {
    let mut pairs = Vec::new();
    for layout in [Layout::Dense, Layout::Sparse] {
        for durability in [Durability::PerWrite, Durability::PerCommit] {
            for clean in [false, true] {
                let class = match durability {
                    Durability::PerWrite => MediumClass::PersistentMemory,
                    Durability::PerCommit => MediumClass::Block,
                };
                let options = Options::new().engine(EngineKind::Reflection).layout(layout).durability(durability);
                let options = options.record_area(LANES as u32, SLOTS as u32);
                pairs.push(build(class, options, clean).expect("writing an unforged file succeeds"));
            }
        }
    }
    pairs
});

/// The same of files with a log on persistent memory: one for each policy and order, and each way of being left.
pub(crate) static LOGS: LazyLock<Vec<Pair>> = LazyLock::new(|| {
    let mut pairs = Vec::new();
    for policy in [LogPolicy::Redo, LogPolicy::Undo] {
        for order in [Order::OneFence, Order::TwoFence] {
            for clean in [false, true] {
                let options = Options::new().engine(EngineKind::HybridLog).log_policy(policy).order(order);
                let options = options.log_size(1 << 18).checkpoint_threads(0).record_area(1, SLOTS as u32);
                pairs.push(
                    build(MediumClass::PersistentMemory, options, clean).expect("writing an unforged log succeeds"),
                );
            }
        }
    }
    pairs
});

fn build(class: MediumClass, options: Options, clean: bool) -> Result<Pair> {
    let medium = SimMedium::new(class);
    medium.install(PATH, &[7; LEN]);
    let options = options.max_len(64 * PAGE as u64).keep_sidecar(true);
    let file = options.open_on(medium.clone(), PATH)?;
    for (n, at) in [0, 100, PAGE, 2 * PAGE - 64, LEN - 50].into_iter().enumerate() {
        file.write_at(&[n as u8 + 1; 50], at as u64)?;
        file.sync()?;
    }
    let state = if clean {
        file.close()?;
        medium.crash_state()
    } else {
        let state = medium.crash_state();
        file.close()?;
        state
    };
    let medium = boot(&state);
    let side = bytes(&medium, &sidecar(&medium)?)?;
    let data = bytes(&medium, Path::new(PATH))?;
    Ok(Pair { state, options, side, data })
}

/// A machine, and the honest bytes of the file in it that is forged.
pub(crate) struct Honest {
    state: CrashState,
    path: PathBuf,
    pub(crate) bytes: Vec<u8>,
}

impl Honest {
    /// Takes the machine in this state.
    pub(crate) fn take(state: CrashState, path: PathBuf) -> Result<Self> {
        let bytes = bytes(&boot(&state), &path)?;
        Ok(Honest { state, path, bytes })
    }

    /// The machine as it was.
    pub(crate) fn boot(&self) -> SimMedium {
        boot(&self.state)
    }

    /// The machine with these bytes in the place of its own, all of them durable.
    pub(crate) fn with(&self, forged: &[u8]) -> SimMedium {
        let medium = self.boot();
        replace(&medium, &self.path, &self.bytes, forged).expect("the simulated medium accepts any bytes");
        medium
    }
}

fn boot(state: &CrashState) -> SimMedium {
    state.image(&state.everything()).boot()
}

pub(crate) fn bytes(medium: &SimMedium, path: &Path) -> Result<Vec<u8>> {
    let file = medium.open(path, Access::Read, 0)?;
    let mut bytes = vec![0; file.len() as usize];
    file.read(0, &mut bytes)?;
    Ok(bytes)
}

/// The path of the data file's sidecar.
pub(crate) fn sidecar(medium: &SimMedium) -> Result<PathBuf> {
    let inode = medium.open(Path::new(PATH), Access::Read, 0)?.identity()?.inode;
    Ok(PathBuf::from(format!("/.untorn/{inode}")))
}

/// The forged bytes that replace a pair.
pub(crate) struct Forged {
    pub(crate) side: Vec<u8>,
    pub(crate) data: Vec<u8>,
    /// Bytes of the spill file; if there are none, there is no spill file.
    pub(crate) spill: Vec<u8>,
    /// `Some(None)`: no mark.
    pub(crate) mark: Option<Option<[u8; 16]>>,
}

impl Pair {
    /// Whether it is one of the log's.
    pub(crate) fn is_log(&self) -> bool {
        self.side.get(ENGINE_AT..ENGINE_AT + 1) == Some(&[2])
    }

    pub(crate) fn forged(&self) -> Forged {
        Forged { side: self.side.clone(), data: self.data.clone(), spill: Vec::new(), mark: None }
    }

    /// The machine with these bytes in the place of its own, all of them durable.
    pub(crate) fn with(&self, forged: &Forged) -> Result<SimMedium> {
        let medium = boot(&self.state);
        let place = sidecar(&medium)?;
        replace(&medium, &place, &self.side, &forged.side)?;
        // Unchanged data is not written, because the check looks at the time of the last change, too.
        if forged.data != self.data {
            replace(&medium, Path::new(PATH), &self.data, &forged.data)?;
        }
        if let Some(mark) = forged.mark {
            let data = medium.open(Path::new(PATH), Access::ReadWrite, 0)?;
            data.set_mark(mark)?;
            data.sync(LEAVE)?;
        }
        if !forged.spill.is_empty() {
            medium.install(place.with_extension("spill"), &forged.spill);
        }
        Ok(medium)
    }
}

/// Changes what differs, page by page, so that holes stay holes.
pub(crate) fn replace(medium: &SimMedium, path: &Path, old: &[u8], new: &[u8]) -> Result<()> {
    let file = medium.open(path, Access::ReadWrite, new.len().max(old.len()) as u64)?;
    file.set_len(new.len() as u64)?;
    for (n, page) in new.chunks(PAGE).enumerate() {
        let at = n * PAGE;
        let same = match old.get(at..at + page.len()) {
            Some(was) => was == page,
            None => old.len() <= at && page.iter().all(|&byte| byte == 0),
        };
        if !same {
            file.allocate(at as u64, page.len() as u64)?;
            file.write(at as u64, page)?;
        }
    }
    file.sync(LEAVE)
}
