//! One case: a configuration and a script, both named by a short token.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use untorn::EngineKind;
use untorn::testing::storage::Barrier;

use super::config::{Config, PATH, redo_from};
use super::life::{Context, Effort, Life};
use super::ops::{Generator, Op, Phase, alphabet};
use super::report::Violation;
use super::shared::Shared;
use crate::medium::SimMedium;
use crate::rng::{Rng, mix};

/// The origin of a case's script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// One of all short sequences.
    Short(u64),
    /// A random one.
    Seed(u64),
}

/// A configuration, a script, and perhaps a barrier that is muted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Case {
    pub(crate) config: Config,
    pub(crate) source: Source,
    pub(crate) muted: Option<Barrier>,
}

/// Bytes of the data file of the short sequences: three pages, the last one short, and no multiple of a slice.
const SHORT_LEN: u64 = 2 * 4096 + 1300;

impl Case {
    /// How many short sequences a configuration has.
    pub(crate) fn shorts(config: &Config) -> u64 {
        let letters = alphabet(config, SHORT_LEN, 0).len() as u64;
        if config.threads == 1 { 2 + letters + letters * letters } else { letters * letters }
    }

    fn short_script(&self, index: u64) -> (Op, bool, Vec<Phase>) {
        let letters = [1, 2, 3].map(|place| alphabet(&self.config, SHORT_LEN, place));
        let count = letters[0].len() as u64;
        let letter = |place: usize, index: u64| letters[place][index as usize].clone();
        let open = Op::Open;
        if self.config.threads > 1 {
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

    /// Runs the case to its first violation.
    pub(crate) fn run(&self, shared: &Shared) -> Option<Violation> {
        let seed = match self.source {
            Source::Short(index) => mix(index),
            Source::Seed(seed) => seed,
        };
        let mut rng = Rng::derive(seed, 1);
        let (effort, start, tested, script, len, slots) = match self.source {
            Source::Short(index) => {
                let (start, tested, script) = self.short_script(index);
                (Effort { cap: 48, samples: 20, afterlife: 150, depth: 1 }, start, tested, script, SHORT_LEN, 8)
            }
            Source::Seed(_) => {
                // Many pages and few slots: commits too large for a lane.
                let wide = rng.one_in(8);
                let len = if wide {
                    40_960 + rng.below(3000)
                } else {
                    *rng.pick(&[8192, 10_000, 12_288, 12_388, 16_320, 4096, 700])
                };
                let mut generator = Generator::new(&self.config, Rng::derive(seed, 2), len, mix(seed) | 1);
                let phases = 2 + rng.below(6);
                let script = generator.script(self.config.threads, 14, phases);
                let start = if rng.one_in(3) { Op::Create { len } } else { Op::Open };
                let effort = Effort {
                    cap: *rng.pick(&[16, 64, 256]),
                    samples: *rng.pick(&[8, 16, 48]),
                    afterlife: *rng.pick(&[20, 60, 200]),
                    depth: 2,
                };
                (effort, start, rng.one_in(4), script, len, if wide { 4 } else { 8 })
            }
        };
        let medium = SimMedium::new(self.config.medium);
        let mut states = Vec::new();
        if start == Op::Open {
            let mut bytes = vec![0; len as usize];
            Rng::derive(seed, 3).fill(&mut bytes);
            // The second page stays a hole. The canary gets none: it knows nothing of space, and shall be convicted of
            // tearing.
            if self.config.engine != EngineKind::Passthrough {
                let hole = 4096.min(len as usize)..8192.min(len as usize);
                bytes[hole].fill(0);
            }
            medium.install(PATH, &bytes);
            states.push(Arc::new(bytes));
        }
        let (config, muted, redo_from) = (self.config, self.muted, redo_from(seed));
        let context = Context { config, muted, effort, slots, redo_from, shared };
        let mut life = Life::new(&context, medium, states, seed);
        let result = life.start(&start, start != Op::Open, tested).and_then(|()| life.play(&script));
        result.err().map(|finding| finding.violation(self.to_string(), self.config.to_string()))
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.source {
            Source::Short(index) => write!(f, "{}:short-{index}", self.config)?,
            Source::Seed(seed) => write!(f, "{}:seed-{seed}", self.config)?,
        }
        match self.muted {
            Some(barrier) => write!(f, ":mute-{}", barrier.name()),
            None => Ok(()),
        }
    }
}

impl FromStr for Case {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.split(':');
        let config: Config = parts.next().unwrap_or_default().parse()?;
        let word = parts.next().unwrap_or_default();
        let number = |text: &str| text.parse::<u64>().map_err(|error| format!("{text:?} is not a number: {error}"));
        let source = match word.split_once('-') {
            Some(("short", index)) => Source::Short(number(index)?),
            Some(("seed", seed)) => Source::Seed(number(seed)?),
            _ => return Err(format!("{word:?} is not a script; use short-N or seed-N")),
        };
        if let Source::Short(index) = source {
            let count = Case::shorts(&config);
            if index >= count {
                return Err(format!("this configuration has short sequences 0 to {}", count - 1));
            }
        }
        let muted = match parts.next() {
            None => None,
            Some(word) => {
                let name = word.strip_prefix("mute-").unwrap_or(word);
                let known = untorn::testing::barriers(config.engine);
                let barrier = known.into_iter().find(|barrier| barrier.name() == name);
                Some(barrier.ok_or_else(|| format!("engine {} has no barrier {name:?}", config.engine))?)
            }
        };
        Ok(Case { config, source, muted })
    }
}
