//! Arguments for the log of the engine `hybrid-log`.

use clap::Args;
use untorn::options::LogPolicy;
use untorn::{EngineKind, Options};

use super::words::words;
use crate::exit::{Failure, Result};
use crate::size;

/// The log policy and the log size. The file doesn't store these settings: they apply to one open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Args)]
pub(crate) struct Log {
    /// With `--engine hybrid-log`, what this run logs: the old bytes (`undo`, persistent memory only), the new bytes
    /// (`redo`), or whichever suits the mix of reads and writes (`hybrid`) [default: hybrid].
    #[arg(long, value_name = "POLICY", value_parser = words::<LogPolicy>(LOG_POLICIES))]
    pub(crate) log_policy: Option<LogPolicy>,
    /// With `--engine hybrid-log`, the maximum log size in this run, in bytes or with K, M, G, T (powers of 1024). All
    /// writes of one commit must fit [default: 64G].
    #[arg(long, value_name = "N", value_parser = size::parse)]
    pub(crate) log_size: Option<u64>,
}

pub(super) const LOG_POLICIES: &[&str] = &["hybrid", "undo", "redo"];

impl Log {
    /// The name of the first of these arguments that was given.
    pub(crate) fn given(&self) -> Option<&'static str> {
        self.log_policy.map(|_| "--log-policy").or(self.log_size.map(|_| "--log-size"))
    }

    /// Refuses arguments that would have no effect.
    ///
    /// # Errors
    /// Usage, if an argument was given and none of the engines has a log.
    pub(crate) fn require(&self, engines: &[EngineKind]) -> Result<()> {
        match self.given() {
            Some(name) if !engines.contains(&EngineKind::HybridLog) => {
                Err(Failure::usage(format!("{name} needs --engine hybrid-log: no other engine has such a log")))
            }
            _ => Ok(()),
        }
    }

    /// `options` with these arguments applied.
    pub(crate) fn apply(&self, mut options: Options) -> Options {
        if let Some(policy) = self.log_policy {
            options = options.log_policy(policy);
        }
        if let Some(bytes) = self.log_size {
            options = options.log_size(bytes);
        }
        options
    }

    /// The same settings as command-line arguments for another process.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let policy = self.log_policy.map(|policy| format!("--log-policy={policy}"));
        let size = self.log_size.map(|bytes| format!("--log-size={bytes}"));
        policy.into_iter().chain(size).collect()
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Alone {
        #[command(flatten)]
        log: Log,
    }

    #[test]
    fn every_policy_offered_is_one_the_library_knows() {
        assert!(LOG_POLICIES.iter().all(|word| word.parse::<LogPolicy>().is_ok()));
    }

    #[test]
    fn given_arguments_reach_the_options_and_other_processes() {
        let log = Alone::parse_from(["alone", "--log-policy", "redo", "--log-size", "4M"]).log;
        assert_eq!(log.arguments(), ["--log-policy=redo", "--log-size=4194304"]);
        let options = format!("{:?}", log.apply(Options::new()));
        assert!(options.contains("log_policy: Redo") && options.contains("log_size: 4194304"), "{options}");
        assert!(Log::default().arguments().is_empty());
    }

    #[test]
    fn arguments_without_effect_are_refused() {
        let log = Log { log_policy: None, log_size: Some(1 << 20) };
        assert!(log.require(&[EngineKind::Auto, EngineKind::HybridLog]).is_ok());
        let refused = log.require(&[EngineKind::Reflection]).unwrap_err().to_string();
        assert_eq!(refused, "--log-size needs --engine hybrid-log: no other engine has such a log");
        assert!(Log::default().require(&[EngineKind::Auto]).is_ok());
    }
}
