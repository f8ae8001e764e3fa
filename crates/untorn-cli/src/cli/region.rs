//! Arguments of `region` and its verbs.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::Form;
use crate::exit::{Failure, Result};
use crate::size;

/// The environment variable with the default store.
const STORE: &str = "UNTORN_REGION_STORE";

/// Arguments of `region`.
#[derive(Debug, Args)]
pub(crate) struct Region {
    /// The verb to run.
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

/// The verbs on regions.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Create a region, and the store if it does not exist.
    #[command(after_help = "Exit codes: 0 created; 2 the store is corrupt; 64 usage; 74 I/O error\n\n\
        Examples:\n  untorn region create data.store ledger --pages 16\n  \
        UNTORN_REGION_STORE=data.store untorn region create index")]
    Create(Create),
    /// List a store's regions and its space.
    #[command(after_help = "Exit codes: 0 done; 2 a region or the store is corrupt; 64 usage; 74 I/O error\n\n\
        Example:\n  untorn region list data.store --json")]
    List(List),
    /// Show one region.
    #[command(after_help = "Exit codes: 0 done; 2 the region is corrupt; 64 usage; 74 I/O error\n\n\
        Example:\n  untorn region info data.store ledger")]
    Info(Named),
    /// Delete a region and free its pages.
    #[command(after_help = "Exit codes: 0 deleted; 2 the store is corrupt; 64 usage; 74 I/O error\n\n\
        Example:\n  untorn region delete data.store ledger")]
    Delete(Named),
}

/// The store, if it is not the first positional argument.
#[derive(Debug, Args)]
pub(crate) struct Place {
    /// Path of the store, instead of the first argument [default: $UNTORN_REGION_STORE].
    #[arg(long, value_name = "PATH")]
    pub(crate) store: Option<PathBuf>,
}

impl Place {
    fn or_default(&self, named: Option<&String>) -> Result<PathBuf> {
        let named = match (named, &self.store) {
            (Some(_), Some(_)) => {
                return Err(Failure::usage(
                    "the store is given twice, as the first argument and with --store; give it once",
                ));
            }
            (Some(named), None) => Some(PathBuf::from(named)),
            (None, store) => store.clone(),
        };
        let default = || untorn::testing::variable(STORE).filter(|path| !path.is_empty()).map(PathBuf::from);
        named.or_else(default).ok_or_else(|| {
            Failure::usage(format!(
                "no store is given: name its file as the first argument or with --store, or set {STORE}"
            ))
        })
    }
}

/// A region of a store.
#[derive(Debug, Args)]
pub(crate) struct Named {
    /// The store's file and the region's name. Give the name alone with --store or $UNTORN_REGION_STORE.
    #[arg(value_names = ["STORE", "NAME"], num_args = 1..=2, required = true)]
    words: Vec<String>,
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    pub(crate) form: Form,
}

impl Named {
    /// The store's file and the region's name.
    ///
    /// # Errors
    /// Usage, unless the store is given exactly once.
    pub(crate) fn resolve(&self) -> Result<(PathBuf, &str)> {
        let (store, name) = match &self.words[..] {
            [store, name] => (Some(store), name),
            [name] => (None, name),
            _ => return Err(Failure::usage("expected a store and a region name, in this order")),
        };
        Ok((self.place.or_default(store)?, name))
    }
}

/// Arguments of `region create`.
#[derive(Debug, Args)]
pub(crate) struct Create {
    #[command(flatten)]
    pub(crate) named: Named,
    /// Number of zero-filled pages of 4096 bytes to allocate [default: 0].
    #[arg(long, value_name = "N", conflicts_with = "len")]
    pub(crate) pages: Option<u64>,
    /// The same as --pages in bytes, rounded up to whole pages; suffixes K, M, G, T are powers of 1024.
    #[arg(long, value_name = "N", value_parser = size::parse)]
    pub(crate) len: Option<u64>,
    /// Maximum number of pages the region can ever have; page numbers stay below it [default: 17179869184].
    #[arg(long, value_name = "N")]
    pub(crate) max_pages: Option<u64>,
}

/// Arguments of `region list`.
#[derive(Debug, Args)]
pub(crate) struct List {
    /// The store's file.
    #[arg(value_name = "STORE")]
    file: Option<String>,
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    pub(crate) form: Form,
}

impl List {
    /// The store's file.
    ///
    /// # Errors
    /// Usage, unless the store is given exactly once.
    pub(crate) fn resolve(&self) -> Result<PathBuf> {
        self.place.or_default(self.file.as_ref())
    }
}

impl Verb {
    /// Whether to report an error as JSON too.
    pub(crate) fn wants_json(&self) -> bool {
        match self {
            Verb::Create(args) => args.named.form.json,
            Verb::List(args) => args.form.json,
            Verb::Info(args) | Verb::Delete(args) => args.form.json,
        }
    }
}
