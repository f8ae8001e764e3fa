//! The options that apply to all processes that share a file, whichever serves.

use std::str::FromStr;

use crate::engine::Info;
use crate::options::{CommitLog, Options, VerifyReads};

/// What is said of an option that nobody set.
const ANY: &str = "any";

/// What is said of reads that are not verified.
const NO: &str = "none";

/// The terms as a text: those of a file that was opened with these options, and turned out to be so.
/// `commit_log` is how its log is kept, if it has one.
pub(crate) fn of(options: &Options, info: &Info, commit_log: Option<CommitLog>) -> String {
    let mut options = options.clone();
    (options.engine, options.durability) = (info.engine, Some(info.durability));
    options.commit_log = Some(commit_log.unwrap_or(CommitLog::new(0).await_nobody()));
    list(&options).map(|(name, value)| format!("{name}={value}\n")).concat()
}

const ENGINE: &str = "engine";
const DURABILITY: &str = "durability";
const ORDER: &str = "order";
const READ_POLICY: &str = "read policy";
const LOG_POLICY: &str = "logging policy";
const REDO_FROM: &str = "share of writes from which on redo is logged";
const LOG_SIZE: &str = "log size";
const CHECKPOINTERS: &str = "number of checkpointers";
const MAX_LEN: &str = "greatest length";
const COMMIT_LOG: &str = "commit log";
const AWAITS: &str = "commits that await the consumers";
const LOST_PAGE: &str = "way to learn of a lost page";
const VERIFY_READS: &str = "verification of reads";

/// The options with their values, in an order that stays.
fn list(options: &Options) -> [(&'static str, String); 13] {
    [
        (ENGINE, options.engine.to_string()),
        (DURABILITY, options.durability.map_or(ANY, crate::options::Durability::as_str).to_owned()),
        (ORDER, options.order.to_string()),
        (READ_POLICY, options.read_policy.to_string()),
        (LOG_POLICY, options.log_policy.to_string()),
        (REDO_FROM, options.redo_threshold_percent.to_string()),
        (LOG_SIZE, options.log_size.to_string()),
        (CHECKPOINTERS, options.checkpoint_threads.to_string()),
        (MAX_LEN, options.max_len.map_or(ANY.to_owned(), |len| len.to_string())),
        (COMMIT_LOG, options.commit_log.map_or(ANY.to_owned(), commit_log)),
        (AWAITS, options.commit_log.map_or(ANY.to_owned(), awaits)),
        (LOST_PAGE, options.lost_page.to_string()),
        (VERIFY_READS, options.verify_reads.map_or(NO, VerifyReads::as_str).to_owned()),
    ]
}

/// The words for a commit log; a limit of 0 stands for none.
fn commit_log(log: CommitLog) -> String {
    if log.limit == 0 { "none".to_owned() } else { CommitLog { awaits: None, ..log }.to_string() }
}

/// Whether commits await the consumers of the log.
fn awaits(log: CommitLog) -> String {
    let word = |awaits: bool| if awaits { "yes" } else { "no" };
    log.awaits.map_or(ANY, word).to_owned()
}

/// Whether a process that joins others asks for another commit log than the file has, in words.
pub(super) fn other_commit_log(negotiated: &str, options: &Options) -> Option<String> {
    let log = options.commit_log?;
    [(COMMIT_LOG, commit_log(log)), (AWAITS, awaits(log))].into_iter().find_map(|(name, wanted)| {
        let found = value(negotiated, name).filter(|found| *found != wanted && wanted != ANY)?;
        Some(format!("it shares the file with {name} {found}, but this open asks for {wanted}"))
    })
}

/// Takes what is not said in options, or said to be as it is by default, from the terms.
///
/// # Errors
/// In words, what the two do not agree on.
pub(super) fn agree(negotiated: &str, options: &Options) -> Result<Options, String> {
    for ((name, wanted), (_, default)) in list(options).into_iter().zip(list(&Options::new())) {
        let found = value(negotiated, name).unwrap_or(ANY);
        if wanted != default && wanted != found {
            let found = if found == ANY { "not set" } else { found };
            return Err(format!("it shares the file with {name} {found}, but this open asks for {wanted}"));
        }
    }
    adopt(negotiated, options)
}

/// Takes from the terms whatever they say.
///
/// # Errors
/// In words, what of them is not known here.
pub(crate) fn adopt(negotiated: &str, options: &Options) -> Result<Options, String> {
    let mut agreed = options.clone();
    agreed.engine = taken(negotiated, ENGINE)?;
    agreed.durability = Some(taken(negotiated, DURABILITY)?);
    agreed.order = taken(negotiated, ORDER)?;
    agreed.read_policy = taken(negotiated, READ_POLICY)?;
    agreed.log_policy = taken(negotiated, LOG_POLICY)?;
    agreed.redo_threshold_percent = taken(negotiated, REDO_FROM)?;
    agreed.log_size = taken(negotiated, LOG_SIZE)?;
    agreed.checkpoint_threads = taken(negotiated, CHECKPOINTERS)?;
    agreed.max_len = if value(negotiated, MAX_LEN) == Some(ANY) { None } else { Some(taken(negotiated, MAX_LEN)?) };
    agreed.lost_page = taken(negotiated, LOST_PAGE)?;
    agreed.verify_reads = match value(negotiated, VERIFY_READS) {
        None | Some(NO) => None,
        Some(_) => Some(taken(negotiated, VERIFY_READS)?),
    };
    // A log that the file has is kept up, and none is begun by a later opening.
    agreed.commit_log = None;
    // These were about the first opening: nothing that was committed since may be given up by a later one. The
    // program's function was called for the handle that it asked for, in a thread of its own.
    (agreed.prefer, agreed.adopt, agreed.progress) = (None, false, None);
    Ok(agreed)
}

fn taken<T: FromStr>(negotiated: &str, name: &str) -> Result<T, String> {
    let unknown = || format!("this version of untorn does not know its {name}");
    value(negotiated, name).and_then(|word| word.parse().ok()).ok_or_else(unknown)
}

fn value<'a>(negotiated: &'a str, name: &str) -> Option<&'a str> {
    negotiated.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Recovery;
    use crate::options::{Durability, EngineKind, LogPolicy, LostPage, Order, Prefer, ReadPolicy};

    fn info() -> Info {
        Info {
            engine: EngineKind::HybridLog,
            len: 0,
            commit: 0,
            committed: None,
            durability: Durability::PerCommit,
            layout: None,
            sidecar: None,
            reflected_pages: 0,
            reflected_slices: 0,
            recovery: Recovery::default(),
        }
    }

    /// Options of which none is as it is by default.
    fn peculiar() -> Options {
        Options::new()
            .engine(EngineKind::HybridLog)
            .durability(Durability::PerCommit)
            .order(Order::TwoFence)
            .read_policy(ReadPolicy::Deploy)
            .log_policy(LogPolicy::Redo)
            .redo_threshold_percent(9)
            .log_size(1 << 20)
            .checkpoint_threads(3)
            .max_len(1 << 30)
            .commit_log(1 << 20)
            .on_lost_page(LostPage::Signal)
    }

    #[test]
    fn unstated_options_are_taken_over() {
        let negotiated = of(&peculiar(), &info(), Some(CommitLog::new(1 << 20)));
        let called = std::sync::Arc::new(());
        let mine = Options::new().prefer(Prefer::File).adopt(true).progress({
            let called = called.clone();
            move |_| drop(called.clone())
        });
        let agreed = agree(&negotiated, &mine).unwrap();
        assert_eq!(list(&Options { commit_log: Some(CommitLog::new(1 << 20)), ..agreed.clone() }), list(&peculiar()));
        assert_eq!((agreed.prefer, agreed.adopt), (None, false));
        drop(mine);
        assert_eq!(
            std::sync::Arc::strong_count(&called),
            1,
            "it would be called in a thread that is not the program's"
        );
        // With what it gives it is agreed with again, and states the same.
        assert_eq!(of(&agreed, &info(), Some(CommitLog::new(1 << 20))), negotiated);
        assert!(negotiated.len() <= 1024 && agree(&negotiated, &agreed).is_ok());
        assert_eq!(agree(&of(&Options::new(), &info(), None), &Options::new()).unwrap().max_len, None);
    }

    #[test]
    fn each_option_that_differs_is_refused_with_both_values() {
        let negotiated = of(&Options::new(), &info(), None);
        assert!(agree(&negotiated, &Options::new().commit_log(0)).is_ok());
        let new = Options::new;
        for (options, both) in [
            (new().engine(EngineKind::Reflection), ["hybrid-log", "reflection"]),
            (new().durability(Durability::PerWrite), ["commit", "write"]),
            (new().order(Order::TwoFence), ["one-fence", "two-fence"]),
            (new().read_policy(ReadPolicy::Deploy), ["gather", "deploy"]),
            (new().log_policy(LogPolicy::Redo), ["hybrid", "redo"]),
            (new().redo_threshold_percent(9), ["5", "9"]),
            (new().log_size(1 << 20), ["68719476736", "1048576"]),
            (new().checkpoint_threads(3), ["2", "3"]),
            (new().commit_log(77), ["none", "77"]),
            (new().commit_log(CommitLog::new(0).await_consumers()), ["no", "yes"]),
            (new().max_len(77), ["not set", "77"]),
            (new().on_lost_page(LostPage::Signal), ["fail", "signal"]),
        ] {
            let why = agree(&negotiated, &options).unwrap_err();
            assert!(both.iter().all(|value| why.contains(value)), "{why}");
        }
        assert!(agree("", &new()).is_err(), "terms that name no engine");
    }
}
