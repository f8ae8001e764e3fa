//! On what terms processes share a file: the options that all of them have to agree on.

use crate::engine::Info;
use crate::options::Options;

/// What is said of an option that nobody set.
const ANY: &str = "any";

/// The terms as a text: those of a file that was opened with these options, and turned out to be so.
pub(super) fn of(options: &Options, info: &Info) -> String {
    let mut options = options.clone();
    (options.engine, options.durability) = (info.engine, Some(info.durability));
    list(&options).map(|(name, value)| format!("{name}={value}\n")).concat()
}

/// The options with their values, in an order that stays.
fn list(options: &Options) -> [(&'static str, String); 10] {
    let engine = if options.engine == crate::options::EngineKind::Auto { ANY } else { options.engine.as_str() };
    [
        ("engine", engine.to_owned()),
        ("durability", options.durability.map_or(ANY, crate::options::Durability::as_str).to_owned()),
        ("order", options.order.to_string()),
        ("read policy", options.read_policy.to_string()),
        ("logging policy", options.log_policy.to_string()),
        ("share of writes from which on redo is logged", options.redo_from.to_string()),
        ("log size", options.log_size.to_string()),
        ("number of checkpointers", options.checkpointers.to_string()),
        ("greatest length", options.max_len.map_or(ANY.to_owned(), |len| len.to_string())),
        ("way to learn of a lost page", options.lost_page.to_string()),
    ]
}

/// Takes what is not said in options from the terms.
///
/// # Errors
/// In words, what the two do not agree on.
pub(super) fn agree(terms: &str, options: &Options) -> Result<Options, String> {
    for (name, wanted) in list(options) {
        let found = value(terms, name).unwrap_or(ANY);
        if wanted != ANY && wanted != found {
            let found = if found == ANY { "not set" } else { found };
            return Err(format!("it shares the file with {name} {found}, and here {wanted} is asked for"));
        }
    }
    let unknown = |what: &str| format!("its {what} is not known here");
    let mut agreed = options.clone();
    agreed.engine = value(terms, "engine").and_then(|word| word.parse().ok()).ok_or_else(|| unknown("engine"))?;
    let durability = value(terms, "durability").and_then(|word| word.parse().ok());
    agreed.durability = Some(durability.ok_or_else(|| unknown("durability"))?);
    agreed.max_len = value(terms, "greatest length").and_then(|word| word.parse().ok());
    // These were about the first opening: nothing that was committed since may be given up by a later one.
    (agreed.trust, agreed.adopt) = (None, false);
    Ok(agreed)
}

fn value<'a>(terms: &'a str, name: &str) -> Option<&'a str> {
    terms.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Recovery;
    use crate::options::{Durability, EngineKind, LogPolicy, LostPage, Order, ReadPolicy, Trust};

    fn info() -> Info {
        Info {
            engine: EngineKind::HybridLog,
            len: 0,
            commit: 0,
            durability: Durability::PerCommit,
            layout: None,
            sidecar: None,
            reflected_pages: 0,
            reflected_slices: 0,
            recovery: Recovery::default(),
        }
    }

    #[test]
    fn what_is_not_said_is_taken_over() {
        let terms = of(&Options::new().max_len(1 << 30), &info());
        let agreed = agree(&terms, &Options::new().trust(Trust::File).adopt(true)).unwrap();
        assert_eq!((agreed.engine, agreed.durability), (EngineKind::HybridLog, Some(Durability::PerCommit)));
        assert_eq!((agreed.max_len, agreed.trust, agreed.adopt), (Some(1 << 30), None, false));
        // With what it gives it is agreed with again, and states the same.
        assert_eq!(of(&agreed, &info()), terms);
        assert!(terms.len() <= 1024 && agree(&terms, &agreed).is_ok());
        assert_eq!(agree(&of(&Options::new(), &info()), &Options::new()).unwrap().max_len, None);
    }

    #[test]
    fn each_option_that_differs_is_refused_with_both_values() {
        let terms = of(&Options::new(), &info());
        let new = Options::new;
        for (options, both) in [
            (new().engine(EngineKind::Reflection), ["hybrid-log", "reflection"]),
            (new().durability(Durability::PerWrite), ["commit", "write"]),
            (new().order(Order::TwoFence), ["one-fence", "two-fence"]),
            (new().read_policy(ReadPolicy::Deploy), ["gather", "deploy"]),
            (new().log_policy(LogPolicy::Redo), ["hybrid", "redo"]),
            (new().redo_from(9), ["5", "9"]),
            (new().log_size(1 << 20), ["68719476736", "1048576"]),
            (new().checkpointers(3), ["2", "3"]),
            (new().max_len(77), ["not set", "77"]),
            (new().on_lost_page(LostPage::Signal), ["fail", "signal"]),
        ] {
            let why = agree(&terms, &options).unwrap_err();
            assert!(both.iter().all(|value| why.contains(value)), "{why}");
        }
        assert!(agree("", &new()).is_err(), "terms that name no engine");
    }
}
