//! Words of Python's arguments as the library's options.

use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use untorn::options::CommitLog;
use untorn::report::State;
use untorn::{Durability, EngineKind, Options};

/// The options that `engine` and `durability` ask for.
pub(crate) fn parse(engine: Option<&str>, durability: &str) -> PyResult<Options> {
    let mut options = Options::new();
    if let Some(word) = engine {
        let known = [EngineKind::Auto, EngineKind::Reflection, EngineKind::HybridLog, EngineKind::Shadow];
        let found = known.into_iter().find(|engine| engine.as_str() == word);
        let refused = || {
            let words: Vec<&str> = known.iter().map(|engine| engine.as_str()).collect();
            PyValueError::new_err(format!("engine is {word:?}; it may be one of {}", words.join(", ")))
        };
        options = options.engine(found.ok_or_else(refused)?);
    }
    let known = [Durability::PerCommit, Durability::PerWrite];
    match known.into_iter().find(|known| known.as_str() == durability) {
        Some(durability) => Ok(options.durability(durability)),
        None => Err(PyValueError::new_err(format!("durability is {durability:?}; it may be \"commit\" or \"write\""))),
    }
}

/// The commit log that the arguments ask for.
pub(crate) fn commit_log_of(limit: Option<u64>, block: Option<f64>, awaits: bool) -> PyResult<Option<CommitLog>> {
    let refused = |what: &str| Err(PyValueError::new_err(what.to_owned()));
    if awaits && limit.is_none() {
        return refused("commit_log_await needs a commit_log");
    }
    let log = limit.map(|limit| if awaits { CommitLog::new(limit).await_consumers() } else { CommitLog::new(limit) });
    match (log, block.map(Duration::try_from_secs_f64)) {
        (log, None) => Ok(log),
        (None, Some(_)) => refused("commit_log_block needs a commit_log"),
        (Some(log), Some(Ok(time))) => Ok(Some(log.block(time))),
        (Some(_), Some(Err(_))) => refused("commit_log_block is a number of seconds, not negative"),
    }
}

/// The word for a state, as `untorn info --json` has it.
pub(crate) fn state(state: State) -> &'static str {
    match state {
        State::Clean => "clean",
        State::InUse => "in-use",
        State::NeedsRecovery => "needs-recovery",
        State::Refused => "refused",
        State::Corrupt => "corrupt",
    }
}
