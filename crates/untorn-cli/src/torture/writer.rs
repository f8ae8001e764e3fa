//! The process that is killed: its threads write in a loop, and report each operation that returned.

use std::fs::File;
use std::io::Write;
use std::thread;
use std::time::Duration;

use untorn::{Durability, Options};

use super::plan::{Plan, Stamp};
use super::report::Report;
use super::target::{Face, Patch, Target};
use super::{healing, verifier, write_back};
use crate::cli::TortureWriter;
use crate::exit::{Exit, Failure, Result};
use crate::victim::{self, die_with_parent};

/// Runs until killed.
pub(crate) fn run(args: &TortureWriter) -> Result<Exit> {
    die_with_parent(args.parent)?;
    let reports = victim::reports()?;
    let plan = Plan::new(args.seed, args.start.len());
    let options = args.log.apply(Options::new().engine(args.engine).durability(args.durability));
    let options = if args.redundancy { healing::in_background(options) } else { options };
    let file = Target::open(&options, &args.file, args.create, face(args))?;
    if args.demand_map_sync {
        verifier::demand_map_sync(&args.file)?;
    }
    send(&reports, Report::Ready)?;
    if args.idle {
        if let (true, Target::File(file)) = (args.redundancy, &file) {
            healing::forever(file)?;
        }
        loop {
            thread::sleep(Duration::from_secs(3600));
        }
    }
    thread::scope(|scope| {
        if let Some(seed) = args.write_back {
            scope.spawn(move || write_back::forever(&args.file, seed));
        }
        if let (true, Target::File(file)) = (args.redundancy, &file) {
            scope.spawn(move || {
                let Err(error) = healing::forever(file);
                let failure = Failure::from(error);
                eprintln!("untorn: {failure}");
                std::process::exit(failure.exit as i32);
            });
        }
        for (thread, &start) in args.start.iter().enumerate() {
            let worker = Worker { plan: &plan, file: &file, reports: &reports, thread, durability: args.durability };
            scope.spawn(move || {
                let Err(failure) = worker.run_from(start);
                // If one thread fails, end the process; otherwise the other threads would hide the failure.
                eprintln!("untorn: {failure}");
                std::process::exit(failure.exit as i32);
            });
        }
    });
    Ok(Exit::Clean)
}

fn face(args: &TortureWriter) -> Face {
    match (args.region, args.map, args.redundancy) {
        (true, ..) => Face::Region,
        (_, true, _) => Face::Map,
        (.., true) => Face::Healed,
        _ => Face::File,
    }
}

fn send(mut reports: &File, report: Report) -> Result<()> {
    reports
        .write_all(&report.encode().to_le_bytes())
        .map_err(|error| Failure::io("cannot write a report to standard output", &error))
}

struct Worker<'a> {
    plan: &'a Plan,
    file: &'a Target,
    reports: &'a File,
    thread: usize,
    durability: Durability,
}

impl Worker<'_> {
    fn run_from(&self, start: u64) -> Result<std::convert::Infallible> {
        let mut buffer = Vec::new();
        let mut scratch = Vec::new();
        let mut number = start;
        loop {
            self.carry_out(number, &mut buffer, &mut scratch)?;
            number += 1;
        }
    }

    fn carry_out(&self, number: u64, buffer: &mut Vec<u8>, scratch: &mut Vec<u8>) -> Result<()> {
        let operation = self.plan.operation(self.thread, number);
        let stamp = Stamp::new(self.thread, number);
        let write = |&block: &usize| {
            let mut bytes = Vec::new();
            self.plan.content(block, stamp, &mut bytes);
            (self.plan.blocks[block].offset, bytes)
        };
        let writes: Vec<Patch> = operation.blocks.iter().map(write).collect();
        self.file.write(&writes)?;
        send(self.reports, Report::Done { thread: self.thread, operation: number })?;
        if operation.sync && self.durability == Durability::PerCommit {
            send(self.reports, Report::SyncStart { thread: self.thread })?;
            self.file.sync()?;
            send(self.reports, Report::SyncEnd { thread: self.thread })?;
        }
        if let Some(block) = operation.read {
            let place = self.plan.blocks[block];
            buffer.clear();
            buffer.resize(place.len, 0);
            self.file.read(place.offset, buffer)?;
            let report = match self.plan.stamp_of(block, buffer, scratch) {
                Some(stamp) => Report::Saw { stamp },
                None => Report::Mixture { block },
            };
            send(self.reports, report)?;
        }
        if let Some(block) = operation.deploy {
            let place = self.plan.blocks[block];
            self.file.deploy(place.offset, place.len as u64)?;
        }
        if operation.reclaim {
            self.file.reclaim()?;
        }
        Ok(())
    }
}
