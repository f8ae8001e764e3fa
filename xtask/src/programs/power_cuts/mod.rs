//! Cuts the power of programs: they run on a real file system on a recorded disk until they are killed. Every disk that
//! a power cut may leave must hold all acknowledged steps.

mod life;

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use untorn_rigs::block::{Cut, FileSystem, Mounted, Position, Recorder, copy_image, isolated, write_image};
use untorn_sim::Rng;

use self::life::{Life, watch};
use super::outcome::{Mode, believe, tool};
use super::victims::{Tallies, Victim, Wrong, judged, share};
use super::{Built, Place, quiet};

/// The place of a boosted program's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Log {
    /// In memory treated as persistent, which keeps its last state. The disk's power is therefore cut after all
    /// processes were killed, while the kernel writes back their data.
    Memory,
    /// On the disk whose power is cut, or no log.
    Disk,
}

/// A program, and the place of its log.
#[derive(Clone, Copy)]
struct Arm {
    victim: &'static Victim,
    log: Log,
}

/// The size of the file system: enough for the space that RocksDB reserves.
const DISK: u64 = 256 << 20;
/// A log so small that it wraps around repeatedly.
const LOG: &str = "--log-size=2M";
/// Disks per run.
const DISKS_PER_LIFE: u32 = 6;
/// Canary disks tried per run of a program without a convicted canary.
const CANARIES_PER_LIFE: u32 = 12;
/// If this many canary disks pass, the rig is blind. Some may pass: a program that syncs right after a close has little
/// to lose.
const MOST_CANARIES: u32 = 8 * CANARIES_PER_LIFE;
/// The maximum number of runs in a row without a mountable disk.
const FRUITLESS: u32 = 5;
/// The maximum time that a program continues after its first steps, in microseconds.
const LONGEST: u64 = 400_000;
/// A program that acknowledges nothing for this long counts as hung.
const FIRST_ACK_TIMEOUT: Duration = Duration::from_secs(120);
/// Memory-backed on every Linux. The disks are written and read whole, and need no durability.
const FAST: &str = "/dev/shm";

/// The results of one arm.
#[derive(Default)]
struct Found {
    lives: u32,
    disks: u32,
    /// Disks with unflushed writes, which could be lost.
    unflushed: u32,
    /// Disks that the file system did not mount; they prove nothing.
    refused: u32,
    /// Steps that the disks had to hold.
    bound: u64,
    /// The number of canary disks until one was convicted, if any.
    convicted: Option<u32>,
    tried: u32,
    wrong: Option<Wrong>,
}

/// The requested number of disks and the seed.
pub(crate) struct Order {
    pub(crate) disks: u32,
    pub(crate) seed: u64,
    pub(crate) jobs: usize,
}

/// Fails with what this machine lacks.
pub(crate) fn require() -> io::Result<()> {
    FileSystem::Ext4.require().map_err(io::Error::other)
}

/// Spreads the power cuts over the programs, and prints the tally of each mode last. Returns whether nothing was lost
/// and every canary was convicted. Wrong disks are kept in `keep`.
pub(crate) fn run(built: &Built, victims: &[&'static Victim], order: &Order, keep: &Path) -> io::Result<bool> {
    let fast = Path::new(FAST);
    let scratch = if fast.is_dir() { fast.to_owned() } else { std::env::temp_dir() };
    let mut place = Place::new(Some(&scratch.join(format!("untorn-power-cuts-{}", std::process::id()))))?;
    place.kept = false;
    let arms = arms(victims);
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    isolated(|| -> io::Result<()> {
        start_anew(&place.path)?;
        thread::scope(|scope| {
            for _ in 0..order.jobs.max(1) {
                scope.spawn(|| {
                    loop {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        let Some(arm) = arms.get(number) else { break };
                        let found = Chain::begin(built, *arm, order.seed, number, &place.path, keep)
                            .and_then(|chain| chain.run(disks(&arms, order.disks, number)));
                        if let Ok(found) = &found {
                            println!("{}", words(*arm, found));
                        }
                        done.lock().unwrap_or_else(PoisonError::into_inner).push((*arm, found));
                    }
                });
            }
        });
        Ok(())
    })
    .map_err(io::Error::other)??;
    let (mut all, mut tallies, mut convicted, mut lives) = (true, Tallies::default(), 0, 0);
    for (arm, found) in done.into_inner().unwrap_or_else(PoisonError::into_inner) {
        let found = found.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", arm.words())))?;
        tallies.add(arm.victim.mode, found.disks, found.wrong.as_ref());
        convicted += u32::from(found.convicted.is_some());
        lives += found.lives;
        all &= found.wrong.is_none() && found.convicted.is_some();
    }
    println!("power cuts, seed {}, {lives} lives; canaries convicted: {convicted} of {}", order.seed, arms.len());
    println!("{}", tallies.words("power cuts"));
    Ok(all)
}

/// Boosted programs with each place of the log. The last program must lose something.
fn arms(victims: &[&'static Victim]) -> Vec<Arm> {
    let logs = |victim: &Victim| if victim.mode == Mode::Boost { &[Log::Disk, Log::Memory][..] } else { &[Log::Disk] };
    victims.iter().copied().flat_map(|victim| logs(victim).iter().map(move |log| Arm { victim, log: *log })).collect()
}

/// The number of disks of an arm; the last arm has only canaries.
fn disks(arms: &[Arm], all: u32, number: usize) -> u32 {
    if arms[number].victim.mode == Mode::Bare { 0 } else { share(all, arms.len() as u32 - 1, number as u32) }
}

impl Arm {
    fn words(self) -> String {
        let place = match (self.victim.mode, self.log) {
            (Mode::Boost, Log::Memory) => ", its log in memory",
            (Mode::Boost, Log::Disk) => ", its log on the disk",
            _ => "",
        };
        format!("{} under {}{place}", self.victim.name, self.victim.mode.name())
    }

    /// The canary that shows that the rig is not blind.
    fn canary(self) -> &'static str {
        match (self.victim.mode, self.log) {
            (Mode::Bare, _) => "no sync",
            (_, Log::Memory) => "no replay",
            (_, Log::Disk) => "a lying disk",
        }
    }
}

fn words(arm: Arm, found: &Found) -> String {
    let Found { lives, disks, unflushed, refused, bound, .. } = found;
    let canary = match found.convicted {
        Some(after) => format!("{} convicted on disk {after}", arm.canary()),
        None => format!("{} ACQUITTED {} TIMES", arm.canary().to_uppercase(), found.tried),
    };
    let said = found.wrong.as_ref().map_or("nothing lost", |wrong| &wrong.said);
    format!(
        "{:48} {lives} runs, {disks} disks ({unflushed} with unflushed writes, {refused} not mountable), {bound} steps \
         required: {said}; {canary}",
        arm.words()
    )
}

/// Has every process of this mount namespace believe that the machine was started just now. A power cut ends the
/// machine with its disk, and a replay takes what is older than the start for untorn's own.
fn start_anew(scratch: &Path) -> io::Result<()> {
    let uptime = scratch.join("uptime");
    fs::write(&uptime, "0.01 0.01\n")?;
    let status = quiet("mount").arg("--bind").arg(&uptime).arg("/proc/uptime").status()?;
    if status.success() { Ok(()) } else { Err(io::Error::other(format!("mount --bind over /proc/uptime: {status}"))) }
}

/// One program's runs, each on a disk that a power cut in the previous run left, before any recovery.
struct Chain<'a> {
    built: &'a Built,
    arm: Arm,
    rng: Rng,
    keep: &'a Path,
    at: PathBuf,
    /// The last step on the disk with which the next run begins.
    last: u64,
    found: Found,
}

/// The way in which the files are recovered before they are judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Recovery {
    /// `untorn replay`; the judge runs without untorn.
    Replay,
    /// The judge's own `untorn run`.
    Run,
    Nothing,
}

impl<'a> Chain<'a> {
    fn begin(built: &'a Built, arm: Arm, seed: u64, number: usize, scratch: &Path, keep: &'a Path) -> io::Result<Self> {
        let at = scratch.join(number.to_string());
        fs::create_dir_all(at.join("recorded"))?;
        fs::create_dir_all(at.join("aside"))?;
        let rng = Rng::derive(seed, number as u64);
        let chain = Chain { built, arm, rng, keep, at, last: 0, found: Found::default() };
        FileSystem::Ext4.make_of(DISK, &chain.at.join("made")).map_err(io::Error::other)?;
        let mounted = chain.mounted("made").map_err(io::Error::other)?;
        fs::create_dir(mounted.path().join("files"))?;
        drop(mounted);
        // mkfs writes zeros; a copy turns them into holes.
        copy_image(&chain.at.join("made"), &chain.at.join("base")).map_err(io::Error::other)?;
        fs::remove_file(chain.at.join("made"))?;
        Ok(chain)
    }

    /// Always mounts at the same path, because a log may identify a file by its path.
    fn mounted(&self, image: &str) -> Result<Mounted, untorn_rigs::Error> {
        Mounted::new(FileSystem::Ext4, &self.at.join(image), &self.at.join("recorded"))
    }

    fn run(mut self, disks: u32) -> io::Result<Found> {
        let mut fruitless = 0;
        let unconvicted = |found: &Found| found.convicted.is_none() && found.tried < MOST_CANARIES;
        while self.found.wrong.is_none() && (self.found.disks < disks || unconvicted(&self.found)) {
            let before = self.found.disks + self.found.tried;
            match self.live()? {
                Ok(life) => self.cut(&life, disks)?,
                Err(wrong) => self.found.wrong = Some(wrong),
            }
            fruitless = if self.found.disks + self.found.tried == before { fruitless + 1 } else { 0 };
            if fruitless == FRUITLESS {
                return Err(io::Error::other("ext4 mounted none of the disks, so nothing was checked"));
            }
        }
        if self.found.wrong.is_none() && disks > DISKS_PER_LIFE && self.found.bound == 0 {
            self.found.wrong = Some(Wrong::integrity("no disk had to hold a step, so nothing was checked"));
        }
        fs::remove_dir_all(&self.at)?;
        Ok(self.found)
    }

    /// A command in the files' directory. Another process changes to it, because this process serves the disk.
    fn command(&self) -> Command {
        let (aside, mut command) = (self.at.join("aside"), quiet("env"));
        command.arg("-C").arg(self.at.join("recorded/files")).env("TMPDIR", &aside).env("ASIDE", &aside);
        command.env("PROGRAMS", &self.built.scripts).env("LAST", self.last.to_string()).stderr(Stdio::null());
        // On the disk, assuming persistent memory would be false.
        command.env("SYNCHRONOUS", "EXTRA").env_remove("UNTORN_ASSUME_PMEM");
        command.envs(self.built.environment.iter().cloned());
        command
    }

    fn log(&self) -> PathBuf {
        self.at.join(if self.arm.log == Log::Memory { "aside/log" } else { "recorded/log" })
    }

    fn under(&self) -> io::Result<Command> {
        let mut command = self.command();
        if matches!(self.arm.victim.mode, Mode::Bare | Mode::Vfs) {
            return Ok(command);
        }
        if self.arm.log == Log::Memory {
            believe(&mut command, &self.at.join("aside"))?;
        }
        let log = self.log();
        let mut options = vec![OsStr::new(LOG), OsStr::new("--log"), log.as_os_str()];
        if self.arm.victim.mode == Mode::Boost {
            // Without syncs, only per-write durability promises anything.
            let durability = if self.arm.victim.syncs && self.arm.log == Log::Disk { "fsync" } else { "write" };
            options.extend(["--durability", durability].map(OsStr::new));
        }
        tool(&mut command, self.built, self.arm.victim.mode, &options);
        Ok(command)
    }

    /// Copies the log in memory as the run left it, for each of the run's disks.
    fn swap_log(&self, from: &str, to: &str) -> io::Result<()> {
        let (from, to) = (self.at.join(from), self.at.join(to));
        if self.arm.log == Log::Disk || !from.exists() {
            return Ok(());
        }
        copy_image(&from, &to).map_err(io::Error::other)
    }

    /// Runs the program on the recorded disk until it is killed.
    fn live(&mut self) -> io::Result<Result<Life, Wrong>> {
        let live = self.at.join("live");
        copy_image(&self.at.join("base"), &live).map_err(io::Error::other)?;
        self.swap_log("log-before", "aside/log")?;
        self.found.lives += 1;
        let recorder = Recorder::start(FileSystem::Ext4, &live, &self.at).map_err(io::Error::other)?;
        let mut command = self.under()?;
        command.args(["setsid", "sh", "-c", self.arm.victim.program]).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let (steps, wait) = (self.rng.below(5), Duration::from_micros(self.rng.below(LONGEST)));
        let watched = watch(&mut child, recorder.clock(), steps, wait);
        let dead = recorder.clock().now();
        // The kernel may write back its data at any time. The disks show the result.
        quiet("sync").arg("-f").arg(recorder.path()).status()?;
        let record = recorder.finish();
        fs::remove_file(&live)?;
        self.swap_log("aside/log", "log-after")?;
        Ok(watched?.map(|received| Life { record, received, dead }))
    }

    /// Cuts the power at random instants of a run. The next run begins with one of the disks.
    fn cut(&mut self, life: &Life, disks: u32) -> io::Result<()> {
        let (end, before) = (life.record.position(), self.last);
        let mut next = None;
        for _ in 0..DISKS_PER_LIFE {
            if self.found.disks >= disks {
                break;
            }
            let at = self.instant(life);
            let (cut, seed) = (life.record.cut(at), self.rng.next_u64());
            let recovery = match self.arm.victim.mode {
                Mode::Boost if self.rng.one_in(2) => Recovery::Replay,
                _ => Recovery::Run,
            };
            let known = self.known(life, at);
            let Some(verdict) = self.examine(&cut, seed, recovery, (known, life.last(before)))? else {
                self.found.refused += 1;
                continue;
            };
            self.found.disks += 1;
            self.found.unflushed += u32::from(cut.pending() > 0);
            self.found.bound += known;
            match verdict {
                // Remember the instant and seed, not the image, which was recovered.
                Ok(found) if next.is_none() || self.rng.one_in(3) => next = Some((at, seed, found)),
                Ok(_) => {}
                Err(wrong) => {
                    self.found.wrong = Some(self.keep(&cut, seed, (at, end), wrong)?);
                    return Ok(());
                }
            }
        }
        self.canaries(life)?;
        if let Some((at, seed, found)) = next {
            self.draw(&life.record.cut(at), seed)?;
            fs::rename(self.at.join("image"), self.at.join("base"))?;
            self.swap_log("log-after", "log-before")?;
            self.last = found;
        }
        Ok(())
    }

    /// An instant of the whole record, or the arrival of a step's report; for a log in memory, an instant after the
    /// kill.
    fn instant(&mut self, life: &Life) -> Position {
        let end = life.record.position();
        if self.arm.log == Log::Memory {
            return life.dead + self.rng.below(end - life.dead + 1);
        }
        if life.received.is_empty() || self.rng.one_in(2) {
            return self.rng.below(end + 1);
        }
        self.rng.pick(&life.received).0
    }

    /// The last step that the disk of an instant must hold. After the kill that is every step, whenever its report
    /// arrived.
    fn known(&self, life: &Life, at: Position) -> u64 {
        let at = if at >= life.dead { Position::MAX } else { at };
        life.known(at, self.last)
    }

    /// Tries canary disks until one is convicted.
    fn canaries(&mut self, life: &Life) -> io::Result<()> {
        let (before, memory) = (self.last, self.arm.log == Log::Memory);
        // With a log in memory, all canary disks are of one instant.
        for _ in 0..if memory { CANARIES_PER_LIFE / 4 } else { CANARIES_PER_LIFE } {
            if self.found.convicted.is_some() || life.received.is_empty() {
                break;
            }
            let step = self.rng.below(life.received.len() as u64) as usize;
            let at = if memory { life.dead } else { life.received[step].0 };
            let since = step.checked_sub(1).map_or(0, |step| life.received[step].0);
            let (cut, recovery) = match self.arm.victim.mode {
                Mode::Bare => (life.record.cut(at), Recovery::Nothing),
                _ if memory => (life.record.cut(at), Recovery::Nothing),
                Mode::Boost | Mode::MountAtomic | Mode::MountBoost => {
                    (life.record.cut_lying_since(since, at), Recovery::Replay)
                }
                Mode::Atomic | Mode::Vfs => (life.record.cut_lying_since(since, at), Recovery::Run),
            };
            let seed = self.rng.next_u64();
            self.found.tried += 1;
            let bounds = (self.known(life, at), life.last(before));
            if matches!(self.examine(&cut, seed, recovery, bounds)?, Some(Err(_))) {
                self.found.convicted = Some(self.found.tried);
            }
        }
        Ok(())
    }

    fn draw(&self, cut: &Cut<'_>, seed: u64) -> io::Result<String> {
        let (fate, patches) = cut.draw(&mut Rng::new(seed));
        write_image(&self.at.join("base"), &patches, &self.at.join("image")).map_err(io::Error::other)?;
        Ok(fate.to_string())
    }

    /// Mounts a disk, recovers the files and runs the judge; `None` if the file system does not mount it.
    fn examine(
        &self,
        cut: &Cut<'_>,
        seed: u64,
        recovery: Recovery,
        (known, done): (u64, u64),
    ) -> io::Result<Option<Result<u64, Wrong>>> {
        self.draw(cut, seed)?;
        self.swap_log("log-after", "aside/log")?;
        let _mounted = match self.mounted("image") {
            Ok(mounted) => mounted,
            Err(untorn_rigs::Error::Unmountable { .. }) => return Ok(None),
            Err(error) => return Err(io::Error::other(error)),
        };
        // If the power was cut before the log was created, there is nothing to replay.
        if recovery == Recovery::Replay && self.log().exists() {
            let mut replay = self.command();
            if self.arm.log == Log::Memory {
                believe(&mut replay, &self.at.join("aside"))?;
            }
            let output = patient(replay).arg(&self.built.untorn).arg("replay").arg(self.log()).output()?;
            if !output.status.success() {
                return Ok(Some(Err(replay_failed(&output))));
            }
        }
        let judge = if recovery == Recovery::Run { self.under()? } else { self.command() };
        let output = patient(judge).args(["sh", "-c", self.arm.victim.judge]).output()?;
        Ok(Some(judged(&output, known, done + self.arm.victim.in_flight)))
    }

    /// Keeps a wrong disk and everything needed to study it.
    fn keep(&self, cut: &Cut<'_>, seed: u64, (at, end): (Position, Position), wrong: Wrong) -> io::Result<Wrong> {
        let fate = self.draw(cut, seed)?;
        let (name, life) = (self.arm.victim.name, self.found.lives);
        let kept = self.keep.join(format!("power-cut-{name}-{}-{life}", self.arm.victim.mode.name()));
        fs::create_dir_all(&kept)?;
        copy_image(&self.at.join("image"), &kept.join("image")).map_err(io::Error::other)?;
        if self.arm.log == Log::Memory {
            copy_image(&self.at.join("log-after"), &kept.join("log")).map_err(io::Error::other)?;
        }
        let said =
            format!("{} (run {life}, instant {at} of {end}; the disk {fate}; kept in {})", wrong.said, kept.display());
        Ok(Wrong { said, ..wrong })
    }
}

fn replay_failed(output: &Output) -> Wrong {
    let said = String::from_utf8_lossy(&output.stdout);
    Wrong::integrity(format!("THE REPLAY FAILED WITH CODE {:?} AND PRINTED {:?}", output.status.code(), said.trim()))
}

/// Runs a command with a time limit: a hang is a violation.
fn patient(mut command: Command) -> Command {
    command.args(["timeout", "--kill-after=5"]).arg(FIRST_ACK_TIMEOUT.as_secs().to_string());
    command
}

#[cfg(test)]
mod tests {
    use super::super::victims::{CARELESS, VICTIMS};
    use super::*;

    #[test]
    fn all_power_cuts_go_to_programs_that_must_not_lose() {
        let victims: Vec<_> = VICTIMS.iter().chain([&CARELESS]).collect();
        let arms = arms(&victims);
        for all in [0, 5, 11, 100] {
            assert_eq!((0..arms.len()).map(|number| disks(&arms, all, number)).sum::<u32>(), all);
        }
        assert_eq!(disks(&arms, 1000, arms.len() - 1), 0);
        assert_eq!(arms.iter().filter(|arm| arm.log == Log::Memory).count(), 6);
    }
}
