//! The cycles: write, cut, possibly cut the recovery, recover, verify.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use untorn_sim::Rng;

use super::guest::{self, Face, Life, Verdict};
use super::image::{self, FileSystem};
use super::kernel::Kernel;
use super::lab::Lab;
use super::outcome::{Cycle, Outcome, Refusal};
use super::vm::{self, KERNEL_LOG, Memory, REPORTS, Vm};
use crate::error::{Error, Result};

/// The maximum lifetime of a writer, in milliseconds.
const LONGEST_LIFE: u64 = 600;
/// The maximum lifetime of a recovering process, in milliseconds. Startup takes most of it.
const LONGEST_RECOVERY: u64 = 250;
/// The engine without atomicity, which the cuts must convict.
const CANARY: &str = "passthrough";
/// The number of cuts after which the canary counts as acquitted. About every second cut convicts it, so an acquittal
/// by chance is extremely unlikely.
const MOST_FOR_CANARY: u64 = 40;
/// The number of reports (eight bytes each) to wait for before a cut. Without them, a writer on a busy machine would do
/// nothing before the cut.
const FEWEST_REPORTS: u64 = 16;
/// The maximum time for a writer's first reports. Emulation on a busy machine is slow.
const FIRST_REPORT_TIMEOUT: Duration = Duration::from_secs(180);

/// The settings of a run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The tool `untorn`, which writes and verifies inside the machine.
    pub program: PathBuf,
    /// The kernel to boot.
    pub kernel: Kernel,
    /// The file systems, used in turn by seed.
    pub file_systems: Vec<FileSystem>,
    /// The engine, as named by the tool; `auto` for a region, which has its own.
    pub engine: String,
    /// The interface that the writer uses.
    pub face: Face,
    /// The log policy, as named by the tool, for an engine with a log: undo, redo or hybrid.
    pub log_policy: Option<String>,
    /// The maximum size of its log in bytes.
    pub log_size: Option<u64>,
    /// The number of power cuts.
    pub cycles: u64,
    /// The seed of the first cycle; each later cycle uses the next number.
    pub seed: u64,
    /// Directory for the files of a violation: the image between the cut and the recovery, and the reports.
    pub keep: Option<PathBuf>,
}

impl Settings {
    /// The writer's arguments for the log, depending on whether the medium is persistent memory; otherwise undo is
    /// refused.
    fn log(&self, persistent: bool) -> Vec<String> {
        let policy = self.log_policy.as_ref().filter(|policy| persistent || *policy != "undo");
        let policy = policy.map(|policy| format!("--log-policy={policy}"));
        policy.into_iter().chain(self.log_size.map(|bytes| format!("--log-size={bytes}"))).collect()
    }
}

/// Cuts the power repeatedly, up to the first violation. It passes each step to `progress`. The machines end with the
/// calling thread.
///
/// # Errors
/// Any error that prevents the rig from running, such as a missing program; also a mapping without `MAP_SYNC` where it
/// is required.
pub fn run(settings: &Settings, progress: &dyn Fn(&str)) -> Result<Outcome> {
    if let Some(error) = super::missing().into_iter().next() {
        return Err(error);
    }
    if settings.file_systems.is_empty() {
        return Err(Error::failed("run the rig", "no file system is given; use --fs ext4, xfs or both"));
    }
    progress("booting a machine and saving its state");
    let lab = Lab::prepare(&settings.kernel, &settings.program, &settings.file_systems)?;
    let rig = Rig { lab, settings };
    let mut outcome =
        Outcome { kernel: settings.kernel.release.clone(), wanted: settings.cycles, ..Outcome::default() };
    for seed in settings.seed..settings.seed.saturating_add(settings.cycles) {
        let start = Instant::now();
        let cycle = rig.cycle(seed, &settings.engine, outcome.forgetful.is_none())?;
        progress(&words(&cycle, start.elapsed()));
        let violations = !cycle.violations.is_empty();
        if outcome.forgetful.is_none() {
            outcome.forgetful = cycle.without_recovery.first().cloned();
        }
        outcome.cycles.push(cycle);
        if violations {
            outcome.kept = rig.keep(seed)?;
            return Ok(outcome);
        }
    }
    for seed in (0..MOST_FOR_CANARY).map(|n| settings.seed.wrapping_add(n)) {
        let start = Instant::now();
        let cycle = rig.cycle(seed, CANARY, false)?;
        progress(&format!("{CANARY}, the canary: {}", words(&cycle, start.elapsed())));
        outcome.canary = cycle.violations.into_iter().next();
        if outcome.canary.is_some() {
            break;
        }
    }
    progress("virtio-pmem, which has DAX but no MAP_SYNC");
    outcome.virtio_pmem = Some(rig.virtio_pmem()?);
    Ok(outcome)
}

fn words(cycle: &Cycle, time: Duration) -> String {
    format!(
        "seed {}: {}, durable at each {}, cut after {} ms{}; {} operations, {} acknowledged; {} violations{}; {:.1} s",
        cycle.seed,
        cycle.file_system.as_str(),
        cycle.durability,
        cycle.life.as_millis(),
        if cycle.recovery_cut { ", again during recovery" } else { "" },
        cycle.operations,
        cycle.acknowledged,
        cycle.violations.len(),
        match cycle.without_recovery.len() {
            0 => String::new(),
            n => format!(", {n} without recovery"),
        },
        time.as_secs_f64()
    )
}

struct Rig<'a> {
    lab: Lab,
    settings: &'a Settings,
}

impl Rig<'_> {
    /// Makes one cut. With `forget`, it also verifies the file once without the records that recovery reads.
    fn cycle(&self, seed: u64, engine: &str, forget: bool) -> Result<Cycle> {
        let systems = &self.settings.file_systems;
        let file_system = systems[(seed % systems.len() as u64) as usize];
        let mut rng = Rng::derive(seed, 1);
        // The canary supports neither maps nor regions, and has no log.
        let ours = engine == self.settings.engine;
        let face = if ours { self.settings.face } else { Face::File };
        let log = if ours { self.settings.log(true) } else { Vec::new() };
        let durability = if rng.one_in(3) || face != Face::File { "commit" } else { "write" };
        let life = Life { seed, engine, durability, face, log: &log, demand_map_sync: true };
        let time = Duration::from_micros(rng.below(LONGEST_LIFE * 1000));
        let recovery = rng.one_in(4).then(|| Duration::from_micros(rng.below(LONGEST_RECOVERY * 1000)));

        self.lab.new_image(file_system, Memory::Nvdimm)?;
        let mut vm = self.resume(file_system)?;
        let medium = guest::medium(&vm.console.run(guest::doctor())?)?;
        if medium != "pmem" {
            return Err(Error::failed(
                "test persistent memory",
                format!("untorn detects DAX with MAP_SYNC as {medium}"),
            ));
        }
        self.write(&mut vm, &life, time)?;
        vm.cut()?;
        let reports = self.read(REPORTS)?;
        let reader = self.lab.post(Memory::Nvdimm, &reports)?;
        if forget || self.settings.keep.is_some() {
            self.copy_crash(&reports)?;
        }
        let without_recovery = if forget { self.without_recovery(file_system, &life, &reader)? } else { Vec::new() };
        let mut recovery_cut = false;
        if let Some(time) = recovery {
            let mut vm = self.resume(file_system)?;
            vm.console.run(&life.recover())?;
            std::thread::sleep(time);
            vm.cut()?;
            // A process reports that it is ready once it has finished recovery.
            recovery_cut = self.read(REPORTS)?.is_empty();
        }
        let mut vm = self.resume(file_system)?;
        let verdict = Verdict::parse(&vm.console.ask(&life.verify(&reader))?.text)?;
        Ok(Cycle {
            seed,
            file_system,
            durability,
            life: time,
            recovery_cut,
            operations: verdict.operations,
            acknowledged: verdict.acknowledged,
            without_recovery,
            violations: verdict.violations,
        })
    }

    /// The violations without recovery. Afterwards the image is again as the cut left it.
    fn without_recovery(&self, file_system: FileSystem, life: &Life<'_>, reader: &str) -> Result<Vec<String>> {
        let mut vm = self.resume(file_system)?;
        vm.console.run(&guest::forget_records(life.face))?;
        let verdict = Verdict::parse(&vm.console.ask(&life.verify(reader))?.text)?;
        vm.cut()?;
        let (from, to) = (self.lab.file(CRASH_IMAGE), self.lab.image());
        image::copy(&from, &to).map_err(Error::io_at("write", &to))?;
        Ok(verdict.violations)
    }

    fn resume(&self, file_system: FileSystem) -> Result<Vm> {
        let mut vm = self.lab.resume()?;
        vm.console.run(&guest::mount(file_system, Memory::Nvdimm))?;
        Ok(vm)
    }

    /// Tests memory with DAX but without `MAP_SYNC`: untorn must treat it as a disk, not as persistent memory.
    fn virtio_pmem(&self) -> Result<Refusal> {
        let (memory, file_system) = (Memory::VirtioPmem, FileSystem::Ext4);
        let seed = self.settings.seed;
        let Settings { engine, face, .. } = self.settings;
        let log = self.settings.log(false);
        let life = Life { seed, engine, durability: "commit", face: *face, log: &log, demand_map_sync: false };
        let time = Duration::from_millis(LONGEST_LIFE);
        self.lab.new_image(file_system, memory)?;
        let mut vm = self.lab.boot(memory)?;
        vm.console.run(&guest::mount(file_system, memory))?;
        let medium = guest::medium(&vm.console.run(guest::doctor())?)?;
        let answer = vm.console.ask(&life.refuse())?;
        let refused = (answer.code == 0).then(|| answer.text.trim().to_owned());
        self.write(&mut vm, &life, time)?;
        vm.cut()?;
        let reader = self.lab.post(memory, &self.read(REPORTS)?)?;
        let mut vm = self.lab.boot(memory)?;
        vm.console.run(&guest::mount(file_system, memory))?;
        let verdict = Verdict::parse(&vm.console.ask(&life.verify(&reader))?.text)?;
        let cycle = Cycle {
            seed,
            file_system,
            durability: life.durability,
            life: time,
            recovery_cut: false,
            operations: verdict.operations,
            acknowledged: verdict.acknowledged,
            without_recovery: Vec::new(),
            violations: verdict.violations,
        };
        Ok(Refusal { medium, refused, cycle })
    }

    /// Starts a writer, waits for its first reports, and lets it write for `time`.
    fn write(&self, vm: &mut Vm, life: &Life<'_>, time: Duration) -> Result<()> {
        vm.console.run(&life.write())?;
        let start = Instant::now();
        let reports = self.lab.file(REPORTS);
        let mut asked = start;
        while fs::metadata(&reports).map_err(Error::io_at("read the length of", &reports))?.len() < FEWEST_REPORTS * 8 {
            if asked.elapsed() > Duration::from_millis(500) {
                asked = Instant::now();
                let complaint = vm.console.run(&guest::complaint())?;
                if !complaint.is_empty() {
                    return Err(Error::failed("run the writer in the guest", complaint));
                }
                if start.elapsed() > FIRST_REPORT_TIMEOUT {
                    let bytes = fs::metadata(&reports).map_err(Error::io_at("read the length of", &reports))?.len();
                    let waits = vm.console.ask(guest::waits())?.text;
                    let why = format!(
                        "only {bytes} bytes of reports arrived within {} s\n{waits}",
                        FIRST_REPORT_TIMEOUT.as_secs()
                    );
                    return Err(vm::explain(Error::failed("run the writer in the guest", why), self.lab.directory()));
                }
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(time);
        Ok(())
    }

    fn read(&self, name: &str) -> Result<Vec<u8>> {
        let path = self.lab.file(name);
        fs::read(&path).map_err(Error::io_at("read", &path))
    }

    /// Keeps the files for studying a violation until the next cut.
    fn copy_crash(&self, reports: &[u8]) -> Result<()> {
        for (name, path) in CRASH.iter().map(|name| (name, self.lab.file(name))) {
            let done = match *name {
                CRASH_IMAGE => image::copy(&self.lab.image(), &path),
                "crash.log" => fs::copy(self.lab.file(KERNEL_LOG), &path).map(drop),
                _ => fs::write(&path, reports),
            };
            done.map_err(Error::io_at("write", &path))?;
        }
        Ok(())
    }

    fn keep(&self, seed: u64) -> Result<Option<PathBuf>> {
        let Some(keep) = &self.settings.keep else { return Ok(None) };
        let to = keep.join(format!("seed-{seed}"));
        fs::create_dir_all(&to).map_err(Error::io_at("make", &to))?;
        for name in CRASH {
            let (from, to) = (self.lab.file(name), to.join(name));
            image::copy(&from, &to).map_err(Error::io_at("write", &to))?;
        }
        Ok(Some(to))
    }
}

const CRASH_IMAGE: &str = "crash.img";
/// The image, the reports and the kernel's log after a cut.
const CRASH: [&str; 3] = [CRASH_IMAGE, "crash.reports", "crash.log"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_not_asked_to_log_undo() {
        let kernel = Kernel { release: "6.12".to_owned(), image: PathBuf::new(), modules: PathBuf::new() };
        let settings = Settings {
            program: PathBuf::new(),
            kernel,
            file_systems: vec![FileSystem::Ext4],
            engine: "hybrid-log".to_owned(),
            face: Face::File,
            log_policy: Some("undo".to_owned()),
            log_size: Some(1 << 21),
            cycles: 1,
            seed: 1,
            keep: None,
        };
        assert_eq!(settings.log(true), ["--log-policy=undo", "--log-size=2097152"]);
        assert_eq!(settings.log(false), ["--log-size=2097152"]);
        let redo = Settings { log_policy: Some("redo".to_owned()), log_size: None, ..settings };
        assert_eq!(redo.log(false), ["--log-policy=redo"]);
    }
}
