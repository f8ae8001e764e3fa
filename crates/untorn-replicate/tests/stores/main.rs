//! Replicas in buckets: on real servers that the tests start, and on a small one of their own that fails on demand.
//!
//! Credentials are in environment variables, so each test starts its server and runs again in a process that has them.

mod faults;
mod life;
mod mini;
mod network;
mod proxy;
mod servers;

use mini::{Act, Mini};
use servers::{Server, Store, free_port};
use untorn_replicate::{Error, look, store};
use untorn_testing::{again, test_name};

/// The URL of the replica, in the run that has credentials.
const URL: &str = "UNTORN_TEST_STORE_URL";

/// The URL, if the calling test has credentials.
fn url() -> Option<String> {
    std::env::var(URL).ok()
}

/// Runs the calling test again, with the credentials of this store.
#[track_caller]
fn run_again(test: &str, store: &Store) {
    let mut command = again(test);
    let status = store.dress(&mut command).env(URL, store.url("bucket", "a/ledger")).status().unwrap();
    assert!(status.success(), "the run with credentials failed");
}

macro_rules! on {
    ($start:expr, $body:expr) => {
        match url() {
            Some(url) => $body(&url),
            None => match $start {
                Ok(server) => run_again(test_name!(), &server.store),
                Err(reason) => untorn_testing::skip!("{reason}"),
            },
        }
    };
}

#[test]
fn versitygw_keeps_a_replica() {
    on!(Server::versitygw(), |url: &str| life::whole(test_name!(), url));
}

#[test]
fn minio_keeps_a_replica() {
    on!(Server::minio(), |url: &str| life::whole(test_name!(), url));
}

#[test]
fn azurite_keeps_a_replica() {
    on!(Server::azurite(), |url: &str| life::whole(test_name!(), url));
}

fn probe(url: &str) -> Result<(), Error> {
    store::probe(&*store::open(url).unwrap())
}

fn says(refused: Result<(), Error>, text: &str) {
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains(text), "no {text:?} in {refused:?}");
    assert!(!refused.contains(servers::SECRET), "{refused}");
}

#[test]
fn a_server_without_conditions_is_refused() {
    on!(Ok::<_, String>(Mini::start(|_, _| Act::Ignore)), |url: &str| {
        let refused = probe(url);
        assert!(matches!(refused, Err(Error::UnsafeStore { .. })), "{refused:?}");
    });
}

#[test]
fn a_missing_bucket_is_no_missing_object() {
    on!(Server::versitygw(), |url: &str| {
        let nowhere = url.replace("//bucket/", "//nowhere/");
        says(probe(&nowhere), "there is no bucket nowhere");
        says(look(&nowhere).map(|_| ()), "there is no bucket nowhere");
        says(look(url).map(|_| ()), "there is no replica");
    });
}

#[test]
fn wrong_credentials_are_named() {
    let Some(url) = url() else {
        let server = match Server::versitygw() {
            Ok(server) => server,
            Err(reason) => untorn_testing::skip!("{reason}"),
        };
        for (key, secret) in [(servers::KEY, "another-secret"), ("nobody", servers::SECRET)] {
            let mut store = server.store.clone();
            store.variables = vec![("AWS_ACCESS_KEY_ID", key), ("AWS_SECRET_ACCESS_KEY", secret)];
            run_again(test_name!(), &store);
        }
        return;
    };
    let is_known = std::env::var("AWS_ACCESS_KEY_ID").is_ok_and(|key| key == servers::KEY);
    // VersityGW's name for InvalidAccessKeyId.
    let code = if is_known { "SignatureDoesNotMatch" } else { "XAdminUserNotFound" };
    says(probe(&url), &format!("the store refused the credentials ({code}); check AWS_ACCESS_KEY_ID"));
}

#[test]
fn a_store_that_is_not_there_is_named() {
    on!(Ok::<_, String>(Absent { store: Store::s3(free_port()) }), |url: &str| {
        says(look(url).map(|_| ()), "cannot connect to 127.0.0.1:");
    });
}

struct Absent {
    store: Store,
}
