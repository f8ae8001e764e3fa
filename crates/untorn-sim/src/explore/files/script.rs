//! The scripts of cases: what a case begins with, and the operations that follow.

use std::sync::Arc;

use untorn::EngineKind;

use super::super::finding::Finding;
use super::super::life::{Context, Effort, Life, Plan};
use super::super::search::{Case, Source};
use super::super::shared::Shared;
use super::config::{Config, PATH, redo_from};
use super::life::{File, Numbers};
use super::model::Model;
use super::ops::{Generator, Phase, alphabet};
use crate::medium::SimMedium;
use crate::rng::{Rng, mix};
use crate::script::Op;

/// Bytes of the data file of the short sequences: three pages, the last one short, and no multiple of a slice.
const SHORT_LEN: u64 = 2 * 4096 + 1300;

/// The beginning of a case.
struct Start {
    effort: Effort,
    /// Opens or creates the file; crashes are tried during it if it is tested.
    op: Op,
    tested: bool,
    script: Vec<Phase>,
    len: u64,
    /// Slots of a lane.
    slots: u32,
}

/// How many short sequences a configuration has.
pub(super) fn short_count(config: &Config) -> u64 {
    let letters = alphabet(config, SHORT_LEN, 0).len() as u64;
    if config.threads == 1 { 2 + letters + letters * letters } else { letters * letters }
}

/// The start of a short sequence, whether that is tested, and the rest of it.
fn short_script(config: &Config, index: u64) -> (Op, bool, Vec<Phase>) {
    let letters = [1, 2, 3].map(|place| alphabet(config, SHORT_LEN, place));
    let count = letters[0].len() as u64;
    let letter = |place: usize, index: u64| letters[place][index as usize].clone();
    let open = Op::Open;
    if config.threads > 1 {
        let pair = vec![vec![letter(0, index / count)], vec![letter(1, index % count)]];
        let warm = Phase::one(letter(2, 2), false);
        return (open, false, vec![warm, Phase { threads: pair, tested: true }]);
    }
    match index {
        0 => (open, true, Vec::new()),
        1 => (Op::Create { len: SHORT_LEN }, true, Vec::new()),
        _ if index < 2 + count => (open, false, vec![Phase::one(letter(0, index - 2), true)]),
        _ => {
            // Crashes within the first operation belong to the shorter sequence.
            let (first, second) = ((index - 2 - count) / count, (index - 2 - count) % count);
            let (first, second) = (letter(0, first), letter(1, second));
            let len = if let Op::Resize { len } = first { len } else { SHORT_LEN };
            (open, false, vec![Phase::one(first, false), Phase::one(second.fit(len), true)])
        }
    }
}

impl Start {
    fn of(case: &Case<Config>) -> Self {
        let seed = match case.source {
            Source::Short(index) => {
                let (op, tested, script) = short_script(&case.config, index);
                let effort = Effort { cap: 48, samples: 20, minor_cap: 8, afterlife: 150, depth: 1 };
                return Start { effort, op, tested, script, len: SHORT_LEN, slots: 8 };
            }
            Source::Seed(seed) => seed,
        };
        let mut rng = Rng::derive(seed, 1);
        // Many pages and few slots: commits too large for a lane.
        let wide = rng.one_in(8);
        let len =
            if wide { 40_960 + rng.below(3000) } else { *rng.pick(&[8192, 10_000, 12_288, 12_388, 16_320, 4096, 700]) };
        let mut generator = Generator::new(&case.config, Rng::derive(seed, 2), len, mix(seed) | 1);
        let phases = 2 + rng.below(6);
        let script = generator.script(case.config.threads, 14, phases);
        let op = if rng.one_in(3) { Op::Create { len } } else { Op::Open };
        let effort = Effort {
            cap: *rng.pick(&[16, 64, 256]),
            samples: *rng.pick(&[8, 16, 48]),
            minor_cap: 8,
            afterlife: *rng.pick(&[20, 60, 200]),
            depth: 2,
        };
        Start { effort, op, tested: rng.one_in(4), script, len, slots: if wide { 4 } else { 8 } }
    }
}

/// Runs a case to its first violation.
pub(super) fn run(case: &Case<Config>, shared: &Shared) -> Option<Box<Finding>> {
    let seed = case.source.seed();
    let Start { effort, op, tested, script, len, slots } = Start::of(case);
    let medium = SimMedium::new(case.config.medium);
    let mut states = Vec::new();
    if op == Op::Open {
        let mut bytes = vec![0; len as usize];
        Rng::derive(seed, 3).fill(&mut bytes);
        // The second page stays a hole. The canary gets none: it knows nothing of space, and shall be convicted of
        // tearing.
        if case.config.engine != EngineKind::Passthrough {
            let hole = 4096.min(len as usize)..8192.min(len as usize);
            bytes[hole].fill(0);
        }
        medium.install(PATH, &bytes);
        states.push(Arc::new(bytes));
    }
    let context = Context { config: case.config, muted: case.muted, effort, shared };
    // The flush that fails in a short sequence is one of a close that keeps the sidecar.
    let is_short = matches!(case.source, Source::Short(_));
    let fails = |phase: &Phase| phase.threads.iter().flatten().any(|op| matches!(op, Op::FlushFails { .. }));
    let keeps_sidecar = is_short && script.iter().any(fails) || Rng::derive(seed, 6).one_in(2);
    let options = case.config.options(slots, redo_from(seed)).keep_sidecar(keeps_sidecar);
    let options = options.plain_at_close(Rng::derive(seed, 7).one_in(2));
    let file = File {
        options,
        keeps_sidecar,
        states: Model::new(&case.config, states),
        held: None,
        numbers: Numbers::default(),
    };
    let lived = Life::new(&context, medium, file, seed).live(|life| {
        life.start(&op, op != Op::Open, tested)?;
        Ok(Some(Plan::all(script)))
    });
    lived.err()
}
