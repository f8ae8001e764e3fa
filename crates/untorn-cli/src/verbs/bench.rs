//! `untorn bench`: a thin layer over the crate `untorn-bench`.

use untorn_bench::{Args, Error};

use crate::cli::{ALL_BENCHMARKS, Bench, Log};
use crate::exit::{Exit, Failure, Result, exit_of};
use crate::{output, progress};

/// Benchmarks that measure the engine `hybrid-log` by default.
const OF_LOGS: &[&str] = &["commit-time", "hybrid-policy", "idle"];
/// The beginning of the names of those that measure the write cache, which has a log and no engine.
const OF_CACHES: &str = "nvcache-";

/// Runs a benchmark.
pub(crate) fn run(args: &Bench) -> Result<Exit> {
    let log = Log { log_policy: args.log_policy.first().copied(), log_size: args.log_size };
    let is_of_logs = OF_LOGS.contains(&args.name.as_str()) || args.name.starts_with(OF_CACHES);
    if !(args.engine.is_empty() && is_of_logs) {
        log.require(&args.engine)?;
    }
    let is_png = match args.plot.as_ref().and_then(|plot| plot.extension()) {
        None => false,
        Some(ending) if ending == "svg" => false,
        Some(ending) if ending == "png" => true,
        Some(_) => return Err(Failure::usage("--plot draws SVG or PNG; use a name that ends in .svg or .png")),
    };
    let wanted = Args {
        dir: args.dir.clone(),
        sizes: args.size.clone(),
        threads: args.threads.clone(),
        engines: args.engine.clone(),
        orders: args.order.clone(),
        patterns: args.pattern.clone(),
        durability: args.durability,
        log_policies: args.log_policy.clone(),
        log_size: args.log_size,
        redo_from: args.redo_from,
        checkpointers: args.checkpointers,
        commit_every: args.commit_every,
        dirty: args.dirty.clone(),
        reads: args.reads.clone(),
        workloads: args.workload.clone(),
        periods: args.period.clone(),
        stripe_layout: args.layout,
        rate: args.rate,
        file_len: args.len,
        seconds: args.seconds,
        ops: args.ops,
        systems: args.system.clone(),
        page_sizes: args.page_size.clone(),
        records: args.records,
        warehouses: args.warehouses,
        seed: args.seed,
        quick: args.quick,
    };
    let bar = progress::bar(1, &args.name);
    let mut tell = |done: u64, total: u64, what: &str| {
        bar.set_length(total);
        bar.set_position(done);
        bar.set_message(what.to_owned());
    };
    if args.name == ALL_BENCHMARKS {
        let outcome = all(args, &wanted, &mut tell);
        bar.finish_and_clear();
        return outcome;
    }
    let report = untorn_bench::run(&args.name, &wanted, &mut tell);
    bar.finish_and_clear();
    let report = report.map_err(failure)?;
    if let Some(out) = &args.out {
        untorn_bench::write_results(&report, out).map_err(failure)?;
    }
    if let Some(plot) = &args.plot {
        let drawn = if is_png { report.to_png().map_err(failure)? } else { report.to_svg().into_bytes() };
        std::fs::write(plot, drawn).map_err(|error| Failure::io_at("write", plot, &error))?;
    }
    output::report(args.form.json, &report.to_json(), || report.to_table())?;
    Ok(Exit::Clean)
}

/// Runs every benchmark. One that this machine cannot run, or that needs another build, is no failure.
fn all(args: &Bench, wanted: &Args, tell: &mut dyn FnMut(u64, u64, &str)) -> Result<Exit> {
    let Some(out) = &args.out else { return Err(Failure::usage("all needs --out, the directory for the results")) };
    if args.plot.is_some() {
        return Err(Failure::usage("all writes a plot of each benchmark into --out; omit --plot"));
    }
    let failed = untorn_bench::run_all(wanted, out, tell).map_err(failure)?;
    let is_expected =
        |error: &Error| matches!(error, Error::Usage { .. } | Error::WrongMedium { .. } | Error::NoSpace { .. });
    let exit = if failed.iter().all(|(_, error)| is_expected(error)) { Exit::Clean } else { Exit::Attention };
    let not_run: Vec<_> =
        failed.iter().map(|(name, error)| serde_json::json!({ "bench": name, "error": error.to_string() })).collect();
    let object = serde_json::json!({ "bench": ALL_BENCHMARKS, "out": out, "not_run": not_run });
    output::report(args.form.json, &object, || {
        let lines = failed.iter().map(|(name, error)| format!("{name} did not run: {error}\n"));
        lines.chain([format!("the results are in {}\n", out.display())]).collect()
    })?;
    Ok(exit)
}

fn failure(error: Error) -> Failure {
    let message = error.to_string();
    match error {
        Error::Untorn(error) => Failure { exit: exit_of(&error), path: Some(error.path().to_owned()), message },
        Error::UnknownBench { .. } | Error::Option { .. } | Error::Usage { .. } => Failure::usage(message),
        Error::WrongMedium { dir, .. } => Failure { exit: Exit::Usage, path: Some(dir), message },
        Error::NoSpace { dir, .. } => Failure { exit: Exit::Io, path: Some(dir), message },
        Error::Inconsistent { .. } => Failure { exit: Exit::Attention, path: None, message },
        Error::Io { path, .. } => Failure { exit: Exit::Io, path: Some(path), message },
        // The enum may grow. An unknown error is still a failure.
        _ => Failure { exit: Exit::Io, path: None, message },
    }
}
