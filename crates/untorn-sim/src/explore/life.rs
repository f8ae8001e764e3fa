//! One life of a machine: a script of operations, crashed everywhere; what each crash leaves is recovered and checked,
//! and now and then lives on, to be crashed again.
//!
//! [`Life`] is the same for everything that is explored. A [`Subject`] says what is different: how it is made and
//! opened, which operations there are, what they must do to it, and what a recovered one is checked for.

use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::vec::IntoIter;

use untorn::testing::storage::Barrier;

use super::finding::{Finding, Found, guarded, wrong};
use super::recorder::{Point, Recorder};
use super::search::{Case, Configuration};
use super::shared::Shared;
use crate::choice::Choice;
use crate::medium::SimMedium;
use crate::rng::{Rng, mix};

/// That which is explored, in one configuration.
pub(super) trait Subject: Configuration {
    /// The subject, open.
    type Handle;
    /// The content that it must have.
    type Model;
    /// The states that a crash may leave.
    type Expected;
    /// The operations to come.
    type Script;

    /// Runs a case to its first violation.
    fn run(case: &Case<Self>, shared: &Shared) -> Option<Box<Finding>>;

    /// The start of a life that goes on with one of these states.
    fn inherit(life: &Life<'_, Self>, expected: &Self::Expected) -> Self::Model;

    /// Opens what an earlier life left, by a crash or because all processes were `killed`. It may be any of what is
    /// expected; the model becomes what is seen. Returns how the life goes on, if it does.
    fn begin(
        life: &mut Life<'_, Self>,
        expected: &Self::Expected,
        killed: bool,
        rng: Rng,
    ) -> Found<Option<Plan<Self::Script>>>;

    /// Runs the next step of a script; crashes are tried during it if it is tested.
    fn step(life: &mut Life<'_, Self>, script: &mut Self::Script, tested: bool) -> Found<()>;

    /// A number that tells expectations from others, together with what the digest of an image leaves out.
    fn digest(expected: &Self::Expected, medium: &SimMedium) -> Found<u64>;

    /// Recovers what a crash left and checks it.
    fn recover(life: &Life<'_, Self>, medium: &SimMedium, expected: &Self::Expected, seed: u64) -> Found<()>;

    /// Goes on, perhaps, after all processes were killed at this point.
    fn after_kill(life: &Life<'_, Self>, point: &Point, expected: &Self::Expected, rng: &mut Rng) -> Found<()> {
        if !life.lives_on(rng) {
            return Ok(());
        }
        life.next_life(point.state.killed(), expected, true, rng.next_u64())
    }
}

/// A subject whose cases are a creation and a random script.
pub(super) trait Paced: Subject {
    /// Creates it, in the first life of a case.
    fn create(life: &mut Life<'_, Self>, tested: bool) -> Found<()>;

    /// The random script that follows from this generator.
    fn script(&self, rng: Rng) -> Self::Script;
}

/// The effort that is spent on a life's crashes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Effort {
    /// All images are tried where there are no more than this; the same for how many are sampled otherwise.
    pub(super) cap: u64,
    pub(super) samples: u32,
    /// The cap at instants that are not decisive.
    pub(super) minor_cap: u64,
    /// One image in this many lives on.
    pub(super) afterlife: u64,
    /// Lives after the first.
    pub(super) depth: u32,
}

/// The data that every life of a case shares.
pub(super) struct Context<'a, C> {
    pub(super) config: C,
    pub(super) muted: Option<Barrier>,
    pub(super) effort: Effort,
    pub(super) shared: &'a Shared,
}

/// How a life goes on: the first steps without crashes.
pub(super) struct Plan<S> {
    pub(super) script: S,
    pub(super) untested: u64,
    pub(super) tested: u64,
}

impl<T> Plan<IntoIter<T>> {
    /// All of these steps, each of which says itself whether crashes are tried during it.
    pub(super) fn all(steps: Vec<T>) -> Self {
        Plan { untested: 0, tested: steps.len() as u64, script: steps.into_iter() }
    }
}

/// The ranges from which a seed picks how its case goes.
pub(super) struct Pace {
    pub(super) caps: &'static [u64],
    pub(super) samples: &'static [u32],
    pub(super) afterlives: &'static [u64],
    pub(super) minor_cap: u64,
    pub(super) depth: u32,
    /// Creation is crashed in one case of so many.
    pub(super) creations: u64,
    /// Steps without crashes are fewer than this; steps with crashes, at most as many as that.
    pub(super) untested: u64,
    pub(super) tested: u64,
}

impl Pace {
    pub(super) const USUAL: Pace = Pace {
        caps: &[16, 64, 256],
        samples: &[8, 16, 48],
        afterlives: &[10, 40, 150],
        minor_cap: 8,
        depth: 2,
        creations: 12,
        untested: 8,
        tested: 4,
    };

    /// Runs a case of a subject that begins on this machine, and is to be created there.
    pub(super) fn run<C: Paced>(
        &self,
        case: &Case<C>,
        shared: &Shared,
        medium: SimMedium,
        model: C::Model,
    ) -> Option<Box<Finding>> {
        let seed = case.source.seed();
        let mut rng = Rng::derive(seed, 1);
        let effort = Effort {
            cap: *rng.pick(self.caps),
            samples: *rng.pick(self.samples),
            minor_cap: self.minor_cap,
            afterlife: *rng.pick(self.afterlives),
            depth: self.depth,
        };
        let context = Context { config: case.config, muted: case.muted, effort, shared };
        let is_creation_tested = rng.one_in(self.creations);
        let (untested, tested) = (rng.below(self.untested), 1 + rng.below(self.tested));
        let lived = Life::new(&context, medium, model, seed).live(|life| {
            C::create(life, is_creation_tested)?;
            Ok(Some(Plan { script: case.config.script(rng), untested, tested }))
        });
        lived.err()
    }
}

/// One machine, from its start to its end.
pub(super) struct Life<'a, C: Subject> {
    pub(super) context: &'a Context<'a, C>,
    pub(super) medium: SimMedium,
    pub(super) recorder: Arc<Recorder>,
    pub(super) handle: Option<C::Handle>,
    pub(super) model: C::Model,
    pub(super) seed: u64,
    pub(super) generation: u32,
    /// Steps so far, each of which has random decisions of its own.
    pub(super) phases: u64,
    /// Operations so far, for the report.
    pub(super) log: Vec<String>,
}

impl<'a, C: Subject> Life<'a, C> {
    pub(super) fn new(context: &'a Context<'a, C>, medium: SimMedium, model: C::Model, seed: u64) -> Self {
        if let Some(barrier) = context.muted {
            medium.mutate(barrier);
        }
        let recorder = Recorder::attach(&medium);
        let (handle, log) = (None, Vec::new());
        Life { context, medium, recorder, handle, model, seed, generation: 0, phases: 0, log }
    }

    /// From the beginning to the end, or to the first finding. Puts the operations of this life in front of what the
    /// finding says already.
    pub(super) fn live(mut self, begin: impl FnOnce(&mut Self) -> Found<Option<Plan<C::Script>>>) -> Found<()> {
        let result = begin(&mut self).and_then(|plan| self.play(plan));
        self.note_reached(&self.medium);
        result.map_err(|mut finding| {
            finding.operations.extend(self.log.drain(..).rev());
            finding
        })
    }

    /// Runs the script. Ends early once the exploration has seen enough.
    fn play(&mut self, plan: Option<Plan<C::Script>>) -> Found<()> {
        if let Some(Plan { mut script, untested, tested }) = plan {
            for step in 0..untested + tested {
                if self.context.shared.stopped() {
                    break;
                }
                C::step(self, &mut script, step >= untested)?;
            }
        }
        self.recorder.arm(false);
        self.let_go()?;
        self.faults(&self.medium)
    }

    pub(super) fn config(&self) -> &C {
        &self.context.config
    }

    pub(super) fn handle(&self) -> &C::Handle {
        self.handle.as_ref().expect("a life plays its script only after it has opened its subject")
    }

    /// Drops the handle, as the end of a process does.
    pub(super) fn let_go(&mut self) -> Found<()> {
        let handle = self.handle.take();
        guarded("dropping the handle", || drop(handle))
    }

    /// Does something during which a flush fails, after which the machine's page cache holds what its disk does not.
    /// It must fail if the flush does, and only then. Returns whether it failed.
    pub(super) fn without_a_flush(
        &mut self,
        what: impl Display,
        nth: u32,
        act: impl FnOnce(&mut Self) -> Found<untorn::Result<()>>,
    ) -> Found<bool> {
        self.trip(nth);
        match (act(self)?, self.recorder.tripped()) {
            (Ok(()), false) => Ok(false),
            (Err(_), true) => Ok(true),
            (Ok(()), true) => wrong(format!("{what}: succeeded although a flush failed")),
            (Err(error), false) => wrong(format!("{what}: failed although no flush failed: {error}")),
        }
    }

    /// Makes the `nth` flush from now on fail.
    pub(super) fn trip(&self, nth: u32) {
        self.recorder.trip(nth, mix(self.seed ^ mix(self.phases)));
    }

    /// Crashes the machine at every point recorded since the last call, and checks what is left: something of
    /// `during`, and of `after` once the operation has returned.
    pub(super) fn crash(&mut self, during: &C::Expected, after: &C::Expected) -> Found<()> {
        self.recorder.returned(&self.medium);
        self.recorder.arm(false);
        self.note_reached(&self.medium);
        self.faults(&self.medium)?;
        self.phases += 1;
        self.crash_at(&self.recorder.take(), self.phases, |point| if point.before.is_some() { during } else { after })
    }

    /// Crashes the machine at every point and checks what is left.
    pub(super) fn crash_at<'e>(
        &self,
        points: &[Point],
        phase: u64,
        expected: impl Fn(&Point) -> &'e C::Expected,
    ) -> Found<()>
    where
        C::Expected: 'e,
    {
        let Effort { cap, samples, minor_cap, .. } = self.context.effort;
        for (index, point) in (0_u64..).zip(points) {
            let expected = expected(point);
            let mut rng = Rng::new(mix(self.seed ^ mix(phase << 32 | index)));
            let (cap, samples) =
                if point.decisive() { (cap, samples) } else { (cap.min(minor_cap), samples.div_ceil(6)) };
            let choices: Vec<Choice> = match point.state.choices(cap) {
                Some(choices) => choices.collect(),
                None => {
                    let fixed = [point.state.everything(), point.state.nothing()];
                    fixed.into_iter().chain((0..samples).map(|_| point.state.sample(&mut rng))).collect()
                }
            };
            for choice in &choices {
                if self.context.shared.stopped() {
                    return Ok(());
                }
                let afterlife = self.lives_on(&mut rng);
                self.check(point, choice, expected, afterlife).map_err(|finding| finding.at(point, choice))?;
            }
            C::after_kill(self, point, expected, &mut rng).map_err(|finding| finding.killed(point))?;
        }
        Ok(())
    }

    /// Whether an image lives on. Decided before anything is known of the image, so that a replay decides alike.
    pub(super) fn lives_on(&self, rng: &mut Rng) -> bool {
        let deep_enough = self.generation < self.context.effort.depth;
        // Fewer of the lives after the first live on again: else one crash would breed thousands.
        rng.one_in(self.context.effort.afterlife << (2 * self.generation)) && deep_enough
    }

    /// Recovers what one choice leaves and checks it.
    fn check(&self, point: &Point, choice: &Choice, expected: &C::Expected, afterlife: bool) -> Found<()> {
        let image = point.state.image(choice);
        let digest = image.digest();
        let medium = image.boot();
        if !self.context.shared.note(digest, C::digest(expected, &medium)?) {
            return Ok(());
        }
        self.context.shared.recoveries.fetch_add(1, Ordering::Relaxed);
        let seed = mix(self.seed ^ choice.digest());
        if afterlife {
            return self.next_life(medium, expected, false, seed);
        }
        let recovered = C::recover(self, &medium, expected, seed);
        self.note_reached(&medium);
        recovered?;
        self.faults(&medium)
    }

    /// Recovery under the eyes of the recorder, so that it is crashed too, then a few more operations.
    pub(super) fn next_life(&self, medium: SimMedium, expected: &C::Expected, killed: bool, seed: u64) -> Found<()> {
        let mut life = Life::new(self.context, medium, C::inherit(self, expected), seed);
        life.generation = self.generation + 1;
        life.live(|life| C::begin(life, expected, killed, Rng::new(seed)))
    }

    fn note_reached(&self, medium: &SimMedium) {
        if let Some(barrier) = self.context.muted {
            let reached = &self.context.shared.reached;
            if !reached.load(Ordering::Relaxed) && medium.reached().contains(&barrier) {
                reached.store(true, Ordering::Relaxed);
            }
        }
    }

    pub(super) fn faults(&self, medium: &SimMedium) -> Found<()> {
        medium.faults().first().map_or(Ok(()), |fault| wrong(fault.to_string()))
    }
}
