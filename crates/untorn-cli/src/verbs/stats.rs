//! `untorn stats`: figures of files, for people, scripts and monitoring.

use std::fmt::Write;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use untorn::report::{ConsumerInfo, Figures};
use untorn::{EngineKind, Stats};

use super::info::{consumer, state_word};
use crate::cli;
use crate::exit::{Exit, Result};
use crate::output::{self, Colour, Reader, paint};
use crate::size;

/// Shows the figures, once or again and again.
pub(crate) fn run(args: &cli::Stats) -> Result<Exit> {
    loop {
        let stats = args.files.iter().map(untorn::stats).collect::<untorn::Result<Vec<Stats>>>()?;
        let text = match (args.prometheus, args.form.json) {
            (true, _) => prometheus(&stats),
            (_, true) => stats.iter().map(|stats| format!("{}\n", object(stats))).collect(),
            _ => stats.iter().map(words).collect(),
        };
        let reader = output::bytes(text.as_bytes())?;
        match args.watch {
            Some(seconds) if reader == Reader::Listening => thread::sleep(Duration::from_secs(seconds)),
            _ => return Ok(Exit::Clean),
        }
    }
}

/// The JSON form.
fn object(stats: &Stats) -> Value {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let figures = stats.figures.map(|figures| {
        let Figures { commit, len, sidecar_bytes, lag_pages, used_bytes, dead_bytes, .. } = figures;
        json!({
            "commit": commit,
            "len": len,
            "sidecar_bytes": sidecar_bytes,
            "lag_pages": lag_pages,
            "used_bytes": used_bytes,
            "dead_bytes": dead_bytes,
            "snapshots": figures.snapshots,
            "snapshot_bytes": figures.snapshot_bytes,
        })
    });
    json!({
        "path": stats.path.display().to_string(),
        "time": now,
        "state": state_word(stats.state),
        "holder": stats.holder,
        "engine": stats.engine.map(EngineKind::as_str),
        "allocated_bytes": stats.allocated_bytes,
        "figures": figures,
        "consumers": stats.consumers.iter().map(consumer).collect::<Vec<_>>(),
        "unknown": stats.unknown,
    })
}

/// The text form.
fn words(stats: &Stats) -> String {
    let mut text = String::new();
    let state =
        stats.holder.as_ref().map_or_else(|| state_word(stats.state).to_owned(), |who| format!("in use by {who}"));
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{}", paint(Colour::Strong, &stats.path.display().to_string()));
    let _ = writeln!(text, "  state      {state}");
    let _ = writeln!(text, "  on disk    {}", size::show(stats.allocated_bytes));
    for ConsumerInfo { name, lag, lag_bytes, .. } in &stats.consumers {
        let lag = output::count(*lag, "commit", "commits");
        let _ = writeln!(text, "  consumer   {name}: {lag} behind, at most {}", size::show(*lag_bytes));
    }
    if let Some(why) = &stats.unknown {
        let _ = writeln!(text, "  figures    not known: {why}");
    }
    let Some(figures) = stats.figures else { return text };
    let _ = writeln!(text, "  commit     {}", figures.commit);
    let _ = writeln!(text, "  length     {}", size::show(figures.len));
    let _ = writeln!(
        text,
        "  sidecar    {}: {} used, {} dead",
        size::show(figures.sidecar_bytes),
        size::show(figures.used_bytes),
        size::show(figures.dead_bytes)
    );
    let _ = writeln!(text, "  lag        {}", output::count(figures.lag_pages, "page", "pages"));
    let held = output::count(figures.snapshots, "snapshot", "snapshots");
    let _ = writeln!(text, "  snapshots  {held}, {} kept for them", size::show(figures.snapshot_bytes));
    text
}

/// A metric: its name, its help, and its value for a file.
type Metric = (&'static str, &'static str, fn(&Stats) -> Option<u64>);

const METRICS: [Metric; 10] = [
    ("untorn_known", "Whether the figures of the file are known.", |stats| Some(stats.figures.is_some().into())),
    ("untorn_allocated_bytes", "Bytes that the data file takes on the disk.", |stats| Some(stats.allocated_bytes)),
    ("untorn_commit", "Number of the last commit.", |stats| Some(stats.figures?.commit)),
    ("untorn_len", "Length of the file in bytes.", |stats| Some(stats.figures?.len)),
    ("untorn_sidecar_bytes", "Bytes that the sidecar takes on the disk.", |stats| Some(stats.figures?.sidecar_bytes)),
    ("untorn_lag_pages", "Pages with bytes that are not in the data file yet.", |stats| Some(stats.figures?.lag_pages)),
    ("untorn_used_bytes", "Bytes of the sidecar that hold such bytes.", |stats| Some(stats.figures?.used_bytes)),
    ("untorn_dead_bytes", "The other bytes of the sidecar.", |stats| Some(stats.figures?.dead_bytes)),
    ("untorn_snapshots", "Held snapshots.", |stats| Some(stats.figures?.snapshots)),
    ("untorn_snapshot_bytes", "Bytes that are kept for snapshots.", |stats| Some(stats.figures?.snapshot_bytes)),
];

/// The same of a consumer of a file's commit log.
type ConsumerMetric = (&'static str, &'static str, fn(&ConsumerInfo) -> u64);

const CONSUMER_METRICS: [ConsumerMetric; 3] = [
    ("untorn_consumer_acknowledged", "Number of the last commit that a consumer of the commit log has.", |consumer| {
        consumer.acknowledged
    }),
    ("untorn_consumer_lag_commits", "How much lower that is than the number of the last commit.", |consumer| {
        consumer.lag
    }),
    ("untorn_consumer_lag_bytes", "Bytes of the commit log that the consumer lacks, at most.", |consumer| {
        consumer.lag_bytes
    }),
];

/// The text format 0.0.4 of Prometheus: all lines of a metric stand together.
fn prometheus(stats: &[Stats]) -> String {
    let mut text = String::new();
    for (name, help, value) in METRICS {
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} gauge");
        for (stats, value) in stats.iter().filter_map(|stats| Some((stats, value(stats)?))) {
            let _ = writeln!(text, "{name}{{file=\"{}\"}} {value}", escaped(&stats.path.display().to_string()));
        }
    }
    for (name, help, value) in CONSUMER_METRICS {
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} gauge");
        for (stats, consumer) in stats.iter().flat_map(|stats| stats.consumers.iter().map(move |one| (stats, one))) {
            let (file, who) = (escaped(&stats.path.display().to_string()), escaped(&consumer.name));
            let _ = writeln!(text, "{name}{{file=\"{file}\",consumer=\"{who}\"}} {}", value(consumer));
        }
    }
    text
}

/// The value of a label: backslash, quote and line feed are escaped.
fn escaped(label: &str) -> String {
    label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes a line of a sample apart, as a scraper does: its name, the file of its label, and its value.
    fn sample(line: &str) -> Option<(&str, String, f64)> {
        let (name, rest) = line.split_once('{')?;
        let mut rest = rest.strip_prefix("file=\"")?.chars();
        let mut label = String::new();
        loop {
            match rest.next()? {
                '"' => break,
                '\\' => match rest.next()? {
                    'n' => label.push('\n'),
                    escaped @ ('\\' | '"') => label.push(escaped),
                    _ => return None,
                },
                character => label.push(character),
            }
        }
        let value = rest.as_str().strip_prefix("} ")?.parse().ok()?;
        let is_name = |name: &str| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        is_name(name).then_some((name, label, value))
    }

    #[test]
    fn what_prometheus_scrapes_is_well_formed() {
        let dir = tempfile::tempdir().unwrap();
        let paths = ["plain", "odd \"name\"\nwith \\ all"].map(|name| dir.path().join(name));
        let files: Vec<_> = paths.iter().map(|path| untorn::AtomicFile::create(path, 8192).unwrap()).collect();
        files[0].write_at(&[7; 5000], 0).unwrap();
        files[0].sync().unwrap();
        let snapshot = files[0].snapshot().unwrap();
        let stats: Vec<Stats> = paths.iter().map(|path| untorn::stats(path).unwrap()).collect();
        let text = prometheus(&stats);
        let (mut named, mut samples) = (Vec::new(), Vec::new());
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                named.push(rest.split_once(' ').unwrap().0);
            } else if let Some(rest) = line.strip_prefix("# TYPE ") {
                assert_eq!(rest, format!("{} gauge", named.last().unwrap()));
            } else {
                let sample = sample(line).unwrap_or_else(|| panic!("{line:?} is no sample"));
                assert_eq!(&sample.0, named.last().unwrap(), "samples of a metric stand together");
                samples.push(sample);
            }
        }
        assert!(text.ends_with('\n') && samples.len() == 2 * METRICS.len());
        assert_eq!(named.len(), METRICS.len() + CONSUMER_METRICS.len());
        let value = |name: &str, path: usize| {
            let path = paths[path].display().to_string();
            samples.iter().find(|sample| sample.0 == name && sample.1 == path).unwrap().2
        };
        assert_eq!(
            (value("untorn_len", 0), value("untorn_snapshots", 0), value("untorn_snapshots", 1)),
            (8192.0, 1.0, 0.0)
        );
        assert!(value("untorn_commit", 0) >= 1.0 && value("untorn_lag_pages", 0) >= 1.0);
        drop(snapshot);
    }
}
