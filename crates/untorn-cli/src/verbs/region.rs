//! `untorn region`: creates, lists, shows and deletes regions of a store.

use std::fmt::Write;
use std::io::ErrorKind;
use std::path::Path;

use serde_json::{Value, json};
use untorn::Error;
use untorn::region::{Region, RegionInfo, RegionStore, StoreInfo, StoreOptions};

use super::change;
use crate::cli::{CreateRegion as Create, ListRegions as List, NamedRegion as Named, RegionVerb};
use crate::exit::{Exit, Failure, Result};
use crate::output::{self, Colour, count, paint};
use crate::size;

/// Runs a verb.
pub(crate) fn run(verb: &RegionVerb) -> Result<Exit> {
    match verb {
        RegionVerb::Create(args) => create(args),
        RegionVerb::List(args) => list(args),
        RegionVerb::Info(args) => info(args),
        RegionVerb::Delete(args) => delete(args),
    }
}

fn create(args: &Create) -> Result<Exit> {
    let (path, name) = args.named.resolve()?;
    let pages = args.pages.or(args.len.map(|len| len.div_ceil(Region::PAGE))).unwrap_or(0);
    let max_pages = args.max_pages.unwrap_or(RegionStore::DEFAULT_PAGES);
    if pages > max_pages {
        return Err(Failure::usage_at(
            &path,
            format!("cannot create region {name} with {pages} pages: --max-pages is {max_pages}"),
        ));
    }
    let store = match RegionStore::open(&path) {
        Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => RegionStore::create(&path)?,
        opened => opened?,
    };
    let region = store.create_region_of(name, max_pages)?;
    let allocated = if pages == 0 { Ok(0) } else { region.alloc_pages(pages).and_then(|_| region.pmsync()) };
    if let Err(error) = allocated {
        // A region without its pages would block the next attempt. If deleting it fails too, the first error is the
        // useful one.
        drop(region);
        let _ = store.delete_region(name).and_then(|()| store.close());
        return Err(error.into());
    }
    let info = region.info()?;
    drop(region);
    store.close()?;
    let note = change::durability_note(change::durable(&path)?);
    let words =
        || format!("{}: created region {name} of {}{note}\n", path.display(), count(info.pages, "page", "pages"));
    output::report(args.named.form.json, &object(&path, &info)?, words)?;
    Ok(Exit::Clean)
}

fn list(args: &List) -> Result<Exit> {
    let path = args.resolve()?;
    let store = StoreOptions::new().read_only(true).open(&path)?;
    let regions = store.list()?;
    // The free space is known after a scan of every region. The list names the regions that cannot be scanned.
    let _ = store.scan();
    let info = store.info()?;
    store.close()?;
    let value = json!({
        "store": path.display().to_string(),
        "len": info.len,
        "used_pages": info.used_pages,
        "free_pages": info.free_pages,
        "max_regions": info.max_regions,
        "durable": change::durable(&path)?,
        "regions": regions.iter().map(|region| object(&path, region)).collect::<Result<Vec<_>>>()?,
        "damage": info.damage,
    });
    output::report(args.form.json, &value, || table(&path, &regions, &info))?;
    let sound = info.damage.is_empty() && regions.iter().all(|region| region.damage.is_none());
    Ok(if sound { Exit::Clean } else { Exit::Corrupt })
}

fn info(args: &Named) -> Result<Exit> {
    let (path, name) = args.resolve()?;
    let store = StoreOptions::new().read_only(true).open(&path)?;
    let found = store.list()?.into_iter().find(|region| region.name == name);
    let Some(region) = found else {
        // The error for a region that is not there.
        return Err(store.open_region(name).map_or_else(Failure::from, |_| Failure::usage("it was just created")));
    };
    store.close()?;
    output::report(args.form.json, &object(&path, &region)?, || words(&path, &region))?;
    Ok(if region.damage.is_none() { Exit::Clean } else { Exit::Corrupt })
}

fn delete(args: &Named) -> Result<Exit> {
    let (path, name) = args.resolve()?;
    let store = RegionStore::open(&path)?;
    store.delete_region(name)?;
    store.close()?;
    let value = json!({ "store": path.display().to_string(), "name": name, "deleted": true });
    output::report(args.form.json, &value, || format!("{}: deleted region {name}\n", path.display()))?;
    Ok(Exit::Clean)
}

/// The JSON form of a region.
fn object(store: &Path, region: &RegionInfo) -> Result<Value> {
    Ok(json!({
        "store": store.display().to_string(),
        "name": region.name,
        "pages": region.pages,
        "len": region.pages * Region::PAGE,
        "max_pages": region.max_pages,
        "commit": region.commit,
        "state": if region.damage.is_none() { "clean" } else { "corrupt" },
        "damage": region.damage,
        "durable": change::durable(store)?,
    }))
}

/// The text form of one region.
fn words(store: &Path, region: &RegionInfo) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{}", paint(Colour::Strong, &region.name));
    let _ = writeln!(text, "  store       {}", store.display());
    match &region.damage {
        Some(damage) => {
            let _ = writeln!(text, "  state       {}: {damage}", paint(Colour::Bad, "corrupt"));
        }
        None => {
            let _ = writeln!(text, "  state       {}", paint(Colour::Good, "clean"));
            let _ = writeln!(text, "  pages       {}: {}", region.pages, size::show(region.pages * Region::PAGE));
            let _ = writeln!(text, "  commit      {}", region.commit);
        }
    }
    let _ = writeln!(text, "  page limit  {}", region.max_pages);
    text
}

/// The text form of all regions.
fn table(store: &Path, regions: &[RegionInfo], info: &StoreInfo) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "{}", paint(Colour::Strong, &store.display().to_string()));
    let width = regions.iter().map(|region| region.name.chars().count()).max().unwrap_or(0);
    for region in regions {
        let _ = match &region.damage {
            Some(damage) => writeln!(text, "  {:width$}  {}: {damage}", region.name, paint(Colour::Bad, "corrupt")),
            None => {
                let pages = count(region.pages, "page", "pages");
                writeln!(text, "  {:width$}  {pages}, commit {}", region.name, region.commit)
            }
        };
    }
    for damage in &info.damage {
        let _ = writeln!(text, "  {}: {damage}", paint(Colour::Bad, "corrupt"));
    }
    let regions = count(regions.len() as u64, "region", "regions");
    let free = count(info.free_pages, "page", "pages");
    let _ = writeln!(text, "{regions} of at most {}; {}, of which {free} free", info.max_regions, size::show(info.len));
    text
}
