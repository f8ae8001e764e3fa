//! A directory of results: for each benchmark its JSON, its plot in two formats and a page, and a list of all.

use std::path::Path;

use crate::args::{Args, COMMON};
use crate::error::{Error, Result};
use crate::report::Report;

/// Writes `NAME.json`, `NAME.svg`, `NAME.png` and `NAME.md` into a directory, which it creates.
///
/// # Errors
/// [`Error::Io`] and [`Error::Plot`].
pub fn write_results(report: &Report, dir: &Path) -> Result<()> {
    std::fs::create_dir_all(dir).map_err(|source| Error::io("create", dir, source))?;
    let json = serde_json::to_string_pretty(&report.to_json()).unwrap_or_default() + "\n";
    let texts = [("json", json), ("svg", report.to_svg()), ("md", report.to_markdown())];
    let plot = report.to_png()?;
    for (ending, content) in texts.iter().map(|(ending, text)| (*ending, text.as_bytes())).chain([("png", &plot[..])]) {
        put(&dir.join(format!("{}.{ending}", report.bench)), content)?;
    }
    Ok(())
}

fn put(path: &Path, content: &[u8]) -> Result<()> {
    std::fs::write(path, content).map_err(|source| Error::io("write", path, source))
}

/// Runs every benchmark and writes the results of each into a directory as soon as it is done, and a `README.md` that
/// lists them. Returns the benchmarks that could not run, with the reason. Only the options that every benchmark
/// honours may be given.
///
/// # Errors
/// [`Error::Option`] for another option, and [`Error::Io`] if a result cannot be written.
pub fn run_all(
    args: &Args,
    dir: &Path,
    progress: &mut dyn FnMut(u64, u64, &str),
) -> Result<Vec<(&'static str, Error)>> {
    if let Some(option) = args.given().into_iter().find(|option| !COMMON.contains(option)) {
        return Err(Error::Option { bench: "all", option, takes: COMMON.to_vec() });
    }
    let names = crate::names();
    let total = names.len() as u64;
    let (mut list, mut failed) = (String::new(), Vec::new());
    for (done, (name, about)) in (0..).zip(names) {
        let mut step = |_: u64, _: u64, what: &str| progress(done, total, &format!("{name}: {what}"));
        let line = match crate::run(name, args, &mut step) {
            Ok(report) => {
                write_results(&report, dir)?;
                format!("| [{name}]({name}.md) | {about} | {} rows |\n", report.rows.len())
            }
            Err(error) => {
                let line = format!("| {name} | {about} | not run: {error} |\n");
                failed.push((name, error));
                line
            }
        };
        list.push_str(&line);
    }
    progress(total, total, "done");
    std::fs::create_dir_all(dir).map_err(|source| Error::io("create", dir, source))?;
    let quick = if args.quick { "A quick run: few rounds, short files and few values.\n\n" } else { "" };
    let head = "| benchmark | what it measures | result |\n|---|---|---|\n";
    let page = format!("# Results of `untorn bench`\n\n{quick}{head}");
    put(&dir.join("README.md"), (page + &list).as_bytes())?;
    Ok(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_written_as_data_plot_and_page() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("new").join("results");
        let args = Args { dir: Some(dir.path().to_owned()), quick: true, ops: Some(2), ..Args::default() };
        let args = Args { records: Some(16), sizes: vec![8], ..args };
        let report = crate::run("updates", &args, &mut |_, _, _| ()).unwrap();
        write_results(&report, &out).unwrap();
        let read = |name: &str| std::fs::read_to_string(out.join(name)).unwrap();
        let json: serde_json::Value = serde_json::from_str(&read("updates.json")).unwrap();
        assert_eq!(json["rows"].as_array().unwrap().len(), report.rows.len());
        assert!(json["machine"]["memory_mib"].as_u64().unwrap() > 0 && json["machine"]["scheduler"].is_string());
        assert!(read("updates.svg").starts_with("<svg"));
        let (width, height, pixels) =
            crate::plot::canvas::tests::decode(&std::fs::read(out.join("updates.png")).unwrap());
        assert!(width == 1100 && height >= 420 && pixels.contains(&0));
        let page = read("updates.md");
        assert!(page.starts_with("# updates\n") && page.contains("(updates.svg)") && page.contains("- a quick run"));
        let rows = page.lines().filter(|line| line.starts_with("| ")).count();
        assert_eq!(rows, 1 + report.rows.len(), "{page}");
    }

    #[test]
    fn all_takes_no_option_that_one_refuses() {
        let args = Args { sizes: vec![8], ..Args::default() };
        let error = run_all(&args, Path::new("/nonexistent"), &mut |_, _, _| ()).unwrap_err();
        assert!(error.to_string().contains("all does not take --size; it takes: --dir --quick"), "{error}");
    }
}
