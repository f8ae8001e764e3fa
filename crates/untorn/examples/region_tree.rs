//! A binary search tree in a region store: plain loads and stores to mapped pages, committed by `pmsync`.
//!
//! ```sh
//! cargo run --release -p untorn --example region_tree -- PATH
//! ```
//!
//! Each node has a page of its own, and a link is a page number. Page 0 links to the root. Each run commits 20 new keys
//! together, and rolls 20 others back. It checks the tree after each step and after it has opened the store again.
//!
//! Exit codes: 0 if the tree is consistent; 1 if it is not, or if a call fails; 2 without a path.

use std::io::ErrorKind;
use std::ops::Range;
use std::path::Path;
use std::process::ExitCode;

use untorn::Error;
use untorn::region::{Region, RegionMap, RegionStore};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// What a page holds. Page 0 uses only `links[0]`. No link leads to page 0, so 0 is the link to nothing.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct Node {
    key: u64,
    /// The pages of a smaller and of a larger key.
    links: [u64; 2],
}

fn node(tree: &RegionMap, page: u64) -> untorn::Result<&Node> {
    tree.view(page.saturating_mul(Region::PAGE))
}

/// Inserts a key, unless the tree has it.
fn insert(tree: &mut RegionMap, key: u64) -> untorn::Result<()> {
    let (mut parent, mut side, mut page) = (0, 0, node(tree, 0)?.links[0]);
    while page != 0 {
        let found = node(tree, page)?;
        if found.key == key {
            return Ok(());
        }
        (parent, side) = (page, usize::from(key > found.key));
        page = found.links[side];
    }
    let page = tree.alloc_page()?;
    *tree.view_mut(page * Region::PAGE)? = Node { key, links: [0, 0] };
    tree.view_mut::<Node>(parent * Region::PAGE)?.links[side] = page;
    Ok(())
}

/// Collects the keys from a page down, in order. In a circle of links some key is outside the range of its parents.
fn walk(tree: &RegionMap, page: u64, range: Range<u64>, keys: &mut Vec<u64>) -> Result<(), String> {
    if page == 0 {
        return Ok(());
    }
    let Node { key, links } = node(tree, page).map_err(|error| error.to_string())?;
    if !range.contains(key) {
        return Err(format!("page {page} has key {key}, which does not lie in {range:?}"));
    }
    walk(tree, links[0], range.start..*key, keys)?;
    keys.push(*key);
    walk(tree, links[1], *key + 1..range.end, keys)
}

/// Returns the keys of the whole tree. Every page except page 0 must hold one.
fn check(tree: &RegionMap) -> Result<Vec<u64>, Box<dyn std::error::Error>> {
    let (mut keys, pages) = (Vec::new(), tree.pages()?.len());
    walk(tree, node(tree, 0)?.links[0], 0..u64::MAX, &mut keys)?;
    if keys.len() + 1 == pages { Ok(keys) } else { Err(format!("{} keys on {pages} pages", keys.len()).into()) }
}

/// Creates the store and its region, or opens those that exist.
fn open(path: &Path) -> untorn::Result<(RegionStore, RegionMap)> {
    let store = match RegionStore::create(path) {
        Err(Error::Io { source, .. }) if source.kind() == ErrorKind::AlreadyExists => RegionStore::open(path)?,
        created => created?,
    };
    let region = match store.open_region("tree") {
        Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => store.create_region("tree")?,
        opened => opened?,
    };
    let mut tree = region.map()?;
    if tree.pages()?.is_empty() {
        tree.alloc_page()?; // page 0
    }
    Ok((store, tree))
}

fn run(path: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let (store, mut tree) = open(path)?;
    let count = check(&tree)?.len() as u64;
    // Multiplying by an odd number gives each of these a key of its own, in no order.
    let key = |i: u64| (count + i + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (0..20).try_for_each(|i| insert(&mut tree, key(i)))?;
    let commit = tree.pmsync()?;
    let committed = check(&tree)?;
    println!("Commit {commit}: {count} keys before, {} now.", committed.len());
    (20..40).try_for_each(|i| insert(&mut tree, key(i)))?;
    println!("Inserted more, which makes {} keys, and rolled them back.", check(&tree)?.len());
    tree.rollback()?;
    let rolled_back = check(&tree)?;
    drop(tree); // A store whose region is mapped does not close.
    store.close()?;
    let (store, tree) = open(path)?;
    if rolled_back != committed || check(&tree)? != committed {
        return Err("the tree does not have the keys of its last commit".into());
    }
    println!("Opened the store again: the tree has the {} keys of that commit.", committed.len());
    drop(tree);
    Ok(store.close()?)
}

fn main() -> ExitCode {
    let Some(path) = std::env::args_os().nth(1) else {
        eprintln!("region_tree: no path given; usage: region_tree PATH (the store; created if it does not exist)");
        return ExitCode::from(2);
    };
    let failed = |error| eprintln!("region_tree: {error}");
    run(Path::new(&path)).map_err(failed).map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS)
}
