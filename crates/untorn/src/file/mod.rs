//! Files whose writes are failure-atomic: the handles, and the engines behind them.
//!
//! [`AtomicFile`] copies in and out, [`Transaction`] gathers writes that commit together, [`AtomicMap`] is plain
//! memory. Behind all three stands one [`Engine`]: [`reflection`] (Acumen), [`hybrid_log`] (Libnvmmio) or
//! [`passthrough`], which keeps no promise and shows that the tests can fail. The engines are siblings that never
//! import each other; the factory (`open`) chooses one.
//!
//! Reading order: [`passthrough`], then [`reflection`] and [`hybrid_log`], whose own headers go on from there; then
//! [`map`]; [`inspect`] reports on a file that is not opened.

mod atomic_file;
pub(crate) mod hybrid_log;
pub(crate) mod inspect;
pub(crate) mod map;
pub(crate) mod passthrough;
pub(crate) mod reflection;
mod transaction;
mod written;

pub use self::atomic_file::AtomicFile;
pub use self::inspect::inspect;
pub use self::map::AtomicMap;
pub use self::transaction::Transaction;
#[cfg(doc)]
use crate::engine::Engine;
