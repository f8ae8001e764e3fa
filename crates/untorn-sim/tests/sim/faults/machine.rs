//! A machine on which a script runs: its medium, and the one file on it.

use untorn::testing::storage::Latched;
use untorn::{AtomicFile, Result};
use untorn_sim::SimMedium;
use untorn_sim::script::{Op, perform};

use super::Setup;

pub(crate) const PATH: &str = "/data";

pub(crate) struct Machine {
    pub(crate) setup: Setup,
    pub(crate) medium: SimMedium,
    pub(crate) file: Option<AtomicFile>,
}

impl Machine {
    pub(crate) fn new(setup: Setup) -> Self {
        Machine { setup, medium: SimMedium::new(setup.class), file: None }
    }

    /// Opens the file on this machine, or on another that was left with it.
    pub(crate) fn open(&self, medium: &SimMedium, read_only: bool) -> Result<AtomicFile> {
        self.setup.options().read_only(read_only).open_on(Latched::new(medium.clone()), PATH)
    }

    /// Runs an operation; whatever becomes of it, `file` holds the handle if there still is one.
    pub(crate) fn operate(&mut self, op: &Op) -> Result<()> {
        match op {
            Op::Create { len } => {
                let medium = Latched::new(self.medium.clone());
                self.file = Some(self.setup.options().create_on(medium, PATH, *len)?);
            }
            Op::Close | Op::Drop | Op::Settle => {
                match (op, self.file.take()) {
                    (Op::Close, Some(file)) => file.close()?,
                    (Op::Settle, Some(file)) => file.settle()?,
                    (_, file) => drop(file),
                }
                self.file = Some(self.open(&self.medium, false)?);
            }
            op => drop(perform(op, self.file.as_ref().expect("opened by the operation before"))?),
        }
        Ok(())
    }
}

/// The bytes of the file as the handle shows them.
pub(crate) fn read_all(file: &AtomicFile) -> std::result::Result<Vec<u8>, String> {
    let mut bytes = vec![0; file.len() as usize];
    file.read_at(&mut bytes, 0).map_err(|error| format!("reading it all: {error}"))?;
    Ok(bytes)
}
