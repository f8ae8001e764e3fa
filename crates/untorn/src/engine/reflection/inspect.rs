//! Looking without changing: the report behind `info` and `check`.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Reflection;
use super::open::open_data;
use crate::engine::{EngineKind, Report, SidecarReport, State};
use crate::error::{Error, Result};
use crate::medium::{Medium, MediumFile, PageCache, resolve};
use crate::options::Options;
use crate::sharing::gate::lock;
use crate::sidecar::attach::{look, take_lock};
use crate::sidecar::superblock::Left;
use crate::sidecar::uuid_text;

/// Reports on a file, replaying its records in memory only.
///
/// The page cache shows the same bytes as a DAX mapping, so reading goes through it whatever the medium.
pub(crate) fn inspect(path: &Path) -> Result<Report> {
    inspect_on(Arc::new(PageCache::new()), &resolve(path)?)
}

fn inspect_on<M: Medium>(medium: Arc<M>, path: &Path) -> Result<Report> {
    let options = Options::new().read_only(true);
    let data = open_data(&*medium, path, &options)?;
    let mut report = Report {
        path: path.to_owned(),
        engine: None,
        len: data.len(),
        commit: 0,
        state: State::Clean,
        sidecar: None,
        findings: Vec::new(),
    };
    let attached = match look(&*medium, path, &data) {
        Ok(None) => return Ok(report),
        Ok(Some(attached)) => attached,
        Err(error) => return judged(report, error),
    };
    report.engine = Some(EngineKind::Reflection);
    let in_use = !take_lock(&attached.side)?;
    let superblock = attached.superblock.clone();
    report.sidecar = Some(SidecarReport {
        path: attached.path.clone(),
        bytes: attached.side.len(),
        uuid: uuid_text(&superblock.uuid),
        layout: superblock.layout,
        durability: superblock.durability,
    });
    if in_use {
        report.state = State::InUse;
        report.len = attached.retirement.len;
        report.commit = attached.retirement.cut;
        report.findings.push("another process has it open; what it does right now is not looked at".to_owned());
        return Ok(report);
    }
    let engine = match Reflection::build(medium, path, data, attached, &options) {
        Ok(engine) => engine,
        Err(error) => return judged(report, error),
    };
    report.len = engine.state.head().len.load(Ordering::Relaxed);
    report.commit = engine.commit_number();
    if lock(&engine.ledger, engine.relax()).superblock.left != Left::Clean {
        report.state = State::NeedsRecovery;
        report.findings.push(format!(
            "it was not closed cleanly: {} commits to replay, {} writes in flight to drop",
            engine.recovery.replayed, engine.recovery.discarded
        ));
    }
    if engine.data.len() < report.len {
        report.state = State::Corrupt;
        report.findings.push(format!(
            "the data file has {} bytes, its last commit has {}: another program cut it short",
            engine.data.len(),
            report.len
        ));
    }
    Ok(report)
}

/// Puts what opening would refuse into the report; what kept us from looking is an error.
fn judged(mut report: Report, error: Error) -> Result<Report> {
    match error {
        Error::Io { .. } => return Err(error),
        _ => {
            report.state = State::Corrupt;
            report.engine = Some(EngineKind::Reflection);
            report.findings.push(error.to_string());
        }
    }
    Ok(report)
}
