//! No secret is in what is logged or printed.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use tracing_subscriber::filter::LevelFilter;
use untorn_replicate::{Replica, look, store};
use untorn_testing::test_name;

use crate::life::{Ledger, options};
use crate::mini::{Act, Mini};
use crate::servers::SECRET;
#[cfg(feature = "nats")]
use crate::servers::Server;
use crate::{run_again, url};

/// Set in the run whose credentials the store refuses.
const REFUSED: &str = "UNTORN_TEST_STORE_REFUSED";
/// A password that the store does not know.
const WRONG: &str = "untorn-wrong-secret";

/// Everything that is logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Uses the store in every way, with everything logged.
fn is_discreet(url: &str) {
    let log = Log::default();
    let writer = log.clone();
    tracing_subscriber::fmt().with_max_level(LevelFilter::TRACE).with_writer(move || writer.clone()).init();
    let dir = tempfile::tempdir().unwrap();
    let mut said = String::new();
    if std::env::var_os(REFUSED).is_some() {
        said += &store::probe(&*store::open(url).unwrap()).unwrap_err().to_string();
        said += &format!("{:?}", look(url).unwrap_err());
        assert!(said.contains("refused the credentials"), "{said}");
    } else {
        let mut ledger = Ledger::create(dir.path(), "ledger");
        let replica = Replica::attach(&ledger.file, url, options()).unwrap();
        ledger.commit();
        replica.sync_replicated().unwrap();
        said += &format!("{replica:?}");
        said += &format!("{:?}", replica.hand_over().unwrap());
        said += &format!("{:?}", look(url).unwrap());
    }
    tracing::info!("the log has this");
    said += &String::from_utf8_lossy(&log.0.lock().unwrap());
    assert!(said.contains("the log has this"));
    for secret in [SECRET, WRONG] {
        assert!(!said.contains(secret), "{said}");
    }
}

#[test]
fn a_bucket_logs_no_secret() {
    let Some(url) = url() else {
        let mini = Mini::start(|_, _| Act::Answer);
        run_again(test_name!(), &mini.store);
        let mut mini = Mini::start(|_, _| Act::Fail(403, "SignatureDoesNotMatch"));
        mini.store.variables.push((REFUSED, "1"));
        return run_again(test_name!(), &mini.store);
    };
    is_discreet(&url);
}

#[cfg(feature = "nats")]
#[test]
fn a_stream_logs_no_secret() {
    let Some(url) = url() else {
        let server = match Server::nats() {
            Ok(server) => server,
            Err(reason) => untorn_testing::skip!("{reason}"),
        };
        run_again(test_name!(), &server.store);
        let mut store = server.store.clone();
        store.variables = vec![("NATS_USER", "somebody"), ("NATS_PASSWORD", WRONG), (REFUSED, "1")];
        return run_again(test_name!(), &store);
    };
    is_discreet(&url);
}
