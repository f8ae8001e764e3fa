//! The arguments of `region` and its verbs.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::Form;
use crate::exit::{Failure, Result};
use crate::size;

/// The environment variable that names the store where the command line does not.
const STORE: &str = "UNTORN_REGION_STORE";

/// Arguments of `region`.
#[derive(Debug, Args)]
pub(crate) struct Region {
    /// What to do.
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

/// What is done with regions.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Create a region; the first one of a store that is not there makes the store.
    #[command(after_help = "Examples:\n  untorn region create data.store ledger --pages 16\n  \
        UNTORN_REGION_STORE=data.store untorn region create index")]
    Create(Create),
    /// Show all regions of a store, and its space.
    ///
    /// Ends with 0, or with 2 if a region is corrupt.
    #[command(after_help = "Example:\n  untorn region list data.store --json")]
    List(List),
    /// Show one region.
    ///
    /// Ends with 0, or with 2 if it is corrupt.
    #[command(after_help = "Example:\n  untorn region info data.store ledger")]
    Info(Named),
    /// Delete a region and its pages.
    #[command(after_help = "Example:\n  untorn region delete data.store ledger")]
    Delete(Named),
}

/// The store, where it is not the first of the words.
#[derive(Debug, Args)]
pub(crate) struct Place {
    /// The store's file, if it is not named first [default: $UNTORN_REGION_STORE].
    #[arg(long, value_name = "PATH")]
    pub(crate) store: Option<PathBuf>,
}

impl Place {
    fn or_default(&self, named: Option<&String>) -> Result<PathBuf> {
        let named = match (named, &self.store) {
            (Some(_), Some(_)) => return Err(Failure::usage("the store is named twice: first, and by --store")),
            (Some(named), None) => Some(PathBuf::from(named)),
            (None, store) => store.clone(),
        };
        let default = || std::env::var_os(STORE).filter(|path| !path.is_empty()).map(PathBuf::from);
        named.or_else(default).ok_or_else(|| {
            Failure::usage(format!("no store is named: put its file first, or use --store, or set {STORE}"))
        })
    }
}

/// A region of a store.
#[derive(Debug, Args)]
pub(crate) struct Named {
    /// The store's file, and the region's name; the name alone if the store is named by --store or $UNTORN_REGION_STORE.
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
    /// Usage, unless a store is named once.
    pub(crate) fn resolve(&self) -> Result<(PathBuf, &str)> {
        let (store, name) = match &self.words[..] {
            [store, name] => (Some(store), name),
            [name] => (None, name),
            _ => return Err(Failure::usage("a store and a region are named, in this order")),
        };
        Ok((self.place.or_default(store)?, name))
    }
}

/// Arguments of `region create`.
#[derive(Debug, Args)]
pub(crate) struct Create {
    #[command(flatten)]
    pub(crate) named: Named,
    /// Allocate this many pages of 4096 bytes, which read as zeros.
    #[arg(long, value_name = "N", conflicts_with = "len")]
    pub(crate) pages: Option<u64>,
    /// The same in bytes, rounded up to pages; K, M, G, T are powers of 1024.
    #[arg(long, value_name = "N", value_parser = size::parse)]
    pub(crate) len: Option<u64>,
    /// The most pages the region can ever have: page numbers are below it [default: 17179869184].
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
    /// Usage, unless a store is named once.
    pub(crate) fn resolve(&self) -> Result<PathBuf> {
        self.place.or_default(self.file.as_ref())
    }
}

impl Verb {
    /// Whether an error is to come as JSON too.
    pub(crate) fn wants_json(&self) -> bool {
        match self {
            Verb::Create(args) => args.named.form.json,
            Verb::List(args) => args.form.json,
            Verb::Info(args) | Verb::Delete(args) => args.form.json,
        }
    }
}
