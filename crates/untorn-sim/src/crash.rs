//! [`CrashState`]: what a crash at one instant could leave, and the images that come of each choice.

use std::collections::HashMap;
use std::fmt::Write as _;

use untorn::testing::storage::{Barrier, MediumClass};

use crate::block::SECTOR;
use crate::choice::{Choice, Choices, Unit};
use crate::content::Content;
use crate::effects::{Effect, What};
use crate::image::Image;
use crate::medium::SimMedium;
use crate::names::{Names, Node};
use crate::pmem::LINE;
use crate::rng::{Rng, mix};
use crate::world::{Inode, World};

/// The unit that decides over an effect, and the value above which the effect survives. `None`: it always survives.
type Decided = Option<(usize, u16)>;

/// A machine at the instant of a crash: what is durable, and the effects that each may survive or not.
///
/// The effects are gathered into *units* that are chosen independently: one non-temporal word, one cache line's stores
/// (of which a prefix survives), one sector's versions, one change of metadata.
#[derive(Clone)]
pub struct CrashState {
    class: MediumClass,
    muted: Option<Barrier>,
    clock: u64,
    booted: u64,
    next_dir: u64,
    names: Names,
    files: Vec<(u64, Inode)>,
    units: Vec<Unit>,
    name_units: Vec<Decided>,
    /// For each file, for each effect in its log.
    file_units: Vec<Vec<Decided>>,
}

impl CrashState {
    pub(crate) fn of(world: &World) -> Self {
        let files: Vec<(u64, Inode)> = world
            .files
            .iter()
            .filter(|(number, _)| world.names.mentions(**number))
            .map(|(&number, inode)| (number, inode.clone()))
            .collect();
        let mut state = CrashState {
            class: world.class,
            muted: world.muted,
            clock: world.clock,
            booted: world.booted,
            next_dir: world.next_dir,
            names: world.names.clone(),
            files,
            units: Vec::new(),
            name_units: Vec::new(),
            file_units: Vec::new(),
        };
        state.gather();
        state
    }

    fn gather(&mut self) {
        let mut units: Vec<Unit> = Vec::new();
        for change in &self.names.log {
            self.name_units.push(if change.certain() {
                None
            } else {
                units.push(Unit { versions: 2, call: change.call, stale: change.stale, tears: false });
                Some((units.len() - 1, 0))
            });
        }
        let mut cells: HashMap<u64, usize> = HashMap::new();
        for (_, inode) in &self.files {
            cells.clear();
            let mut decided = Vec::with_capacity(inode.log.effects.len());
            for effect in &inode.log.effects {
                decided.push(Self::decide(effect, &mut units, &mut cells));
            }
            self.file_units.push(decided);
        }
        self.units = units;
    }

    fn decide(effect: &Effect, units: &mut Vec<Unit>, cells: &mut HashMap<u64, usize>) -> Decided {
        if effect.certain {
            return None;
        }
        let cell = match effect.what {
            What::Word { at, cached: true, .. } => Some(at / LINE),
            What::Piece { at, .. } => Some(at / SECTOR),
            _ => None,
        };
        let fresh =
            Unit { versions: 1, call: effect.call, stale: false, tears: matches!(effect.what, What::Piece { .. }) };
        let index = match cell {
            Some(cell) => *cells.entry(cell).or_insert_with(|| {
                units.push(fresh);
                units.len() - 1
            }),
            None => {
                units.push(fresh);
                units.len() - 1
            }
        };
        let unit = &mut units[index];
        let threshold = unit.versions - 1;
        // Beyond this many versions of one line the rest survive together; a real cache would have evicted it anyway.
        unit.versions = unit.versions.saturating_add(1);
        unit.stale |= effect.stale;
        unit.call = unit.call.max(effect.call);
        Some((index, threshold))
    }

    /// How many images there are, up to `u64::MAX`, torn copies into a sector not counted.
    pub fn combinations(&self) -> u64 {
        self.units.iter().fold(1, |product: u64, unit| product.saturating_mul(u64::from(unit.versions)))
    }

    /// How many independent units are pending.
    pub fn pending(&self) -> usize {
        self.units.len()
    }

    /// Whether an effect is pending that a muted barrier should have made certain.
    pub fn has_stale(&self) -> bool {
        self.units.iter().any(|unit| unit.stale)
    }

    /// Every choice there is, or `None` if there are more than `cap`.
    pub fn choices(&self, cap: u64) -> Option<Choices> {
        (self.combinations() <= cap).then(|| Choices::new(self.units.iter().map(|unit| unit.versions).collect()))
    }

    /// A random choice, with the biases that find mistakes soonest.
    pub fn sample(&self, rng: &mut Rng) -> Choice {
        Choice::sample(&self.units, rng)
    }

    /// The choice where everything survives: what a crash of the machine leaves if all was written in time.
    pub fn everything(&self) -> Choice {
        Choice::everything(&self.units)
    }

    /// The choice where nothing survives that need not.
    pub fn nothing(&self) -> Choice {
        Choice::nothing(&self.units)
    }

    /// The files as this choice leaves them.
    pub fn image(&self, choice: &Choice) -> Image {
        let mut tree = self.names.durable.clone();
        if !self.names.log.is_empty() {
            let tree = std::sync::Arc::make_mut(&mut tree);
            for (change, _) in self.names.log.iter().zip(self.names_kept(choice)).filter(|(_, kept)| *kept) {
                change.apply(tree);
            }
            tree.prune();
        }
        let mut files = Vec::with_capacity(self.files.len());
        for ((number, inode), decided) in self.files.iter().zip(&self.file_units) {
            let named = tree.iter().any(|(_, node)| node == Node::File(*number));
            if named {
                let content = Self::content(inode, decided, choice);
                // The modification time is metadata like any other, but nothing an engine relies on after a crash, so
                // it follows from the choice instead of doubling the number of images.
                let late = mix(choice.digest() ^ number) & 1 == 1;
                let modified = if late { inode.modified } else { inode.durable_modified };
                files.push((*number, Inode::durable(content, inode.generation, inode.birth, modified)));
            }
        }
        Image { class: self.class, muted: self.muted, clock: self.clock, next_dir: self.next_dir, tree, files }
    }

    /// The changes of names that a choice keeps.
    fn names_kept(&self, choice: &Choice) -> Vec<bool> {
        self.names.kept(|index| choice.keeps(self.name_units[index]))
    }

    fn content(inode: &Inode, decided: &[Decided], choice: &Choice) -> Content {
        let mut content = inode.durable.clone();
        for (effect, decided) in inode.log.effects.iter().zip(decided) {
            if choice.keeps(*decided) {
                effect.what.apply(&mut content);
            } else if let Some(bytes) = choice.tears(*decided)
                && let What::Piece { at, from, len, data } = &effect.what
            {
                // The copy is cut where a word ends, counted from the sector's start.
                let cut = (u64::from(bytes) - at % 8).min(u64::from(*len));
                content.write(*at, &data[*from as usize..*from as usize + cut as usize]);
            }
        }
        content.cut();
        content
    }

    /// The machine after all its processes were killed at this instant, with no power cut.
    pub fn killed(&self) -> SimMedium {
        let mut world = World::new(self.class);
        world.muted = self.muted;
        world.clock = self.clock;
        // No kill starts the machine anew.
        world.booted = self.booted;
        world.next_dir = self.next_dir;
        world.names = self.names.clone();
        world.files = self.files.iter().cloned().collect();
        world.end_processes();
        SimMedium::of(world)
    }

    /// The effects that a choice keeps and loses, one line for each call with something pending, for reports.
    pub fn describe(&self, choice: &Choice) -> String {
        let mut text = String::new();
        for ((change, decided), kept) in self.names.log.iter().zip(&self.name_units).zip(self.names_kept(choice)) {
            if decided.is_some() {
                let kept = if kept { "kept" } else { "lost" };
                let names: Vec<String> = change
                    .sets
                    .iter()
                    .map(|(place, node)| format!("{} {}", if node.is_some() { "+" } else { "-" }, place.name.display()))
                    .collect();
                let _ = writeln!(text, "call {}: names {} {kept}", change.call, names.join(" "));
            }
        }
        for ((number, inode), decided) in self.files.iter().zip(&self.file_units) {
            let name = self
                .names
                .volatile
                .iter()
                .chain(self.names.durable.iter())
                .find(|(_, node)| *node == Node::File(*number))
                .map_or_else(|| format!("inode {number}"), |(place, _)| place.name.display().to_string());
            describe_file(&mut text, &name, inode, decided, choice);
        }
        text
    }
}

/// One line for each call on one file.
fn describe_file(text: &mut String, name: &str, inode: &Inode, decided: &[Decided], choice: &Choice) {
    let pending: Vec<(&Effect, Decided)> =
        inode.log.effects.iter().zip(decided.iter().copied()).filter(|(_, decided)| decided.is_some()).collect();
    for call in pending.chunk_by(|(one, _), (two, _)| one.call == two.call) {
        let kept = call.iter().filter(|(_, decided)| choice.keeps(*decided)).count();
        let what = match &call[0].0.what {
            What::Word { at, cached, .. } => {
                let end = match call.last().map(|(effect, _)| &effect.what) {
                    Some(What::Word { at, len, .. }) => at + u64::from(*len),
                    _ => *at,
                };
                format!("{} {at}..{end}", if *cached { "store" } else { "write" })
            }
            What::Piece { at, .. } => {
                let end = match call.last().map(|(effect, _)| &effect.what) {
                    Some(What::Piece { at, len, .. }) => at + u64::from(*len),
                    _ => *at,
                };
                format!("write {at}..{end}")
            }
            What::SetLen { to } => format!("length {to}"),
            What::Punch { at, len } => format!("hole {at}..{}", at + len),
            What::Allocate { at, len } => format!("space {at}..{}", at + len),
            What::Note(_) => "note of the last commit".to_owned(),
            What::Mark(mark) => format!("mark {}", if mark.is_some() { "set" } else { "removed" }),
        };
        let stale = if call.iter().any(|(effect, _)| effect.stale) { " (muted barrier)" } else { "" };
        let lost: Vec<String> = call
            .iter()
            .filter(|(_, decided)| !choice.keeps(*decided))
            .take(6)
            .filter_map(|(effect, _)| match effect.what {
                What::Word { at, .. } | What::Piece { at, .. } => Some(at.to_string()),
                _ => None,
            })
            .collect();
        let lost = if lost.is_empty() || kept == 0 { String::new() } else { format!(", lost at {}", lost.join(" ")) };
        let _ = writeln!(text, "call {}: {name}: {what}: {kept} of {} kept{lost}{stale}", call[0].0.call, call.len());
    }
}
