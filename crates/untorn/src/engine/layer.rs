//! Layers: engines around an engine, which do something of their own at a few operations and pass on all others.
//!
//! The list below is the only one. A new operation of [`Engine`] is added to it, and every layer passes it on.

use std::path::Path;

use super::commits::CommitService;
use super::redundancy::RedundancyService;
use super::snapshot::SnapshotService;
use super::{Close, Engine, Info, Piece};
use crate::error::Result;
use crate::format::sidecar::number::Stamped;
use crate::options::Options;
use crate::storage::Identity;

macro_rules! operations {
    ($(fn $name:ident(&self $(, $argument:ident: $kind:ty)*) $(-> $result:ty)?;)*) => {
        /// An engine around another one. The operations are those of [`Engine`]; each is passed on unless the layer has
        /// its own.
        pub(crate) trait Layer: Send + Sync {
            /// The engine within: a type of its own, so that reads and writes need no dispatch.
            type Within: Engine + ?Sized;

            fn within(&self) -> &Self::Within;

            $(
                #[inline]
                fn $name(&self $(, $argument: $kind)*) $(-> $result)? {
                    Engine::$name(self.within() $(, $argument)*)
                }
            )*
        }

        impl<L: Layer> Engine for L {
            $(
                #[inline]
                fn $name(&self $(, $argument: $kind)*) $(-> $result)? {
                    Layer::$name(self $(, $argument)*)
                }
            )*
        }
    };
}

operations! {
    fn path(&self) -> &Path;
    fn len(&self) -> u64;
    fn identity(&self) -> Result<Identity>;
    fn check(&self, offset: u64, len: u64) -> Result<()>;
    fn writable(&self) -> Result<()>;
    fn read(&self, offset: u64, dst: &mut [u8]) -> Result<()>;
    fn try_read(&self, offset: u64, dst: &mut [u8]) -> bool;
    fn write(&self, pieces: &[Piece<'_>]) -> Result<()>;
    fn deploy(&self, offset: u64, len: u64) -> Result<()>;
    fn deploy_ahead(&self) -> Result<u64>;
    fn sync(&self) -> Result<u64>;
    fn resize(&self, len: u64) -> Result<()>;
    fn take_growth(&self) -> Result<Option<u64>>;
    fn resize_commits(&self) -> bool;
    fn number_above(&self, number: u64);
    fn reclaim(&self) -> Result<u64>;
    fn info(&self) -> Info;
    fn last_commit(&self) -> Stamped;
    fn accepts(&self, options: &Options) -> bool;
    fn close(&self, how: Close) -> Result<()>;
    fn settle(&self) -> Result<()>;
    fn in_sidecar_page(&self, page: u64) -> Option<u64>;
    fn redundancy(&self) -> Option<&dyn RedundancyService>;
    fn snapshots(&self) -> Option<&dyn SnapshotService>;
    fn write_if(&self, pieces: &[Piece<'_>], changes: u64) -> Result<bool>;
    fn changes(&self) -> Option<u64>;
    fn commits(&self) -> Option<&dyn CommitService>;
}
