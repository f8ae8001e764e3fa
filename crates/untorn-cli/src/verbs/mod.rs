//! The verbs, one module each. A verb returns its exit code, or a [`Failure`](crate::exit::Failure).

mod apply;
mod backup;
mod bench;
mod boost;
mod change;
mod check;
mod commits;
mod doctor;
mod follow;
mod generate;
mod info;
mod mount;
mod protect;
mod prune;
mod read;
mod recover;
mod region;
mod replay;
mod replicate;
mod run;
mod stats;
mod take_over;
mod unmount;

use crate::cli::{CacheLogVerb, Verb};
use crate::exit::{Exit, Failure, Result};
use crate::{demo, torture};

/// Runs a verb.
pub(crate) fn run(verb: Verb) -> Result<Exit> {
    match verb {
        Verb::Demo(args) => demo::run(&args),
        Verb::Doctor(args) => match replicate::url_of(&args.path) {
            Some(url) => replicate::doctor(url, &args.key, &args.form),
            None if args.key.key.is_some() => Err(Failure::usage("--key needs the URL of a replica")),
            None => doctor::run(&args),
        },
        Verb::Create(args) => change::create(&args),
        Verb::Info(args) => info::run(&args),
        Verb::Check(args) => check::run(&args),
        Verb::Stats(args) => stats::run(&args),
        Verb::Write(args) => change::write(&args),
        Verb::Read(args) => read::run(&args),
        Verb::Apply(args) => apply::run(&args),
        Verb::Resize(args) => change::resize(&args),
        Verb::Recover(args) => recover::recover(&args),
        Verb::Settle(args) => recover::settle(&args),
        Verb::Commits(args) => commits::commits(&args),
        Verb::Watch(args) => commits::watch(&args),
        Verb::Backup(args) => backup::backup(&args),
        Verb::Restore(args) => match args.backups.first().and_then(|first| replicate::url_of(first)) {
            Some(url) => replicate::restore(url, &args),
            None => backup::restore(&args),
        },
        Verb::Replicate(args) => replicate::replicate(&args),
        Verb::Follow(args) => follow::run(&args),
        Verb::TakeOver(args) => take_over::run(&args),
        Verb::Guarded(args) => take_over::guarded(&args),
        Verb::Replicas(args) => replicate::replicas(&args),
        Verb::Prune(args) => prune::run(&args),
        Verb::Protect(args) => protect::protect(&args),
        Verb::Unprotect(args) => protect::unprotect(&args),
        Verb::Scrub(args) => protect::scrub(&args),
        Verb::Repair(args) => protect::repair(&args),
        Verb::Region(args) => region::run(&args.verb),
        Verb::Replay(args) => replay::replay(&args),
        Verb::Log(args) => match args.verb {
            CacheLogVerb::Info(args) => replay::info(&args),
        },
        Verb::Run(args) => run::run(&args),
        Verb::Mount(args) => mount::mount(&args),
        Verb::Unmount(args) => unmount::run(&args),
        Verb::Torture(args) => torture::run(&args),
        Verb::Bench(args) => bench::run(&args),
        Verb::Completions(args) => generate::completions(&args),
        Verb::Man(args) => generate::man(&args),
        Verb::DemoWriter(args) => demo::writer(&args),
        Verb::TortureWriter(args) => torture::writer(&args),
        Verb::TortureVerify(args) => torture::verifier(&args),
        Verb::MountStage => unmount::stage(),
        Verb::MountPull => unmount::pull(),
    }
}

/// Whether the verb was given `--json`; its error is then reported as JSON too.
pub(crate) fn wants_json(verb: &Verb) -> bool {
    match verb {
        Verb::Demo(args) => args.form.json,
        Verb::Doctor(args) => args.form.json,
        Verb::Create(args) => args.form.json,
        Verb::Info(args) | Verb::Check(args) => args.form.json,
        Verb::Stats(args) => args.form.json,
        Verb::Write(args) => args.form.json,
        Verb::Apply(args) => args.form.json,
        Verb::Resize(args) => args.form.json,
        Verb::Recover(args) => args.form.json,
        Verb::Settle(args) => args.form.json,
        Verb::Commits(args) => args.form.json,
        Verb::Watch(args) => args.form.json,
        Verb::Backup(args) => args.form.json,
        Verb::Restore(args) => args.form.json,
        Verb::Replicate(args) => args.form.json,
        Verb::Follow(args) => args.form.json,
        Verb::Replicas(args) => args.form.json,
        Verb::Prune(args) => args.form.json,
        Verb::Protect(args) => args.form.json,
        Verb::Unprotect(args) => args.form.json,
        Verb::Repair(args) => args.form.json,
        Verb::Scrub(args) => args.form.json,
        Verb::Region(args) => args.verb.wants_json(),
        Verb::Replay(args) => args.form.json,
        Verb::Log(args) => match &args.verb {
            CacheLogVerb::Info(args) => args.form.json,
        },
        Verb::Run(args) => args.form.json,
        Verb::Mount(args) => args.form.json,
        Verb::Unmount(args) => args.form.json,
        Verb::Torture(args) => args.form.json,
        Verb::Bench(args) => args.form.json,
        Verb::Read(_) | Verb::Completions(_) | Verb::Man(_) => false,
        // Standard output is the program's.
        Verb::TakeOver(_) | Verb::Guarded(_) => false,
        Verb::DemoWriter(_) | Verb::TortureWriter(_) | Verb::MountStage | Verb::MountPull => false,
        // It always prints JSON, also for an error.
        Verb::TortureVerify(_) => true,
    }
}
