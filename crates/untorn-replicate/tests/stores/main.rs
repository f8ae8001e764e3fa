//! Replicas in buckets: on real servers that the tests start, and on a small one of their own that fails on demand.
//!
//! Credentials are in environment variables, so each test starts its server and runs again in a process that has them.

mod cuts;
mod faults;
#[path = "../replica/history.rs"]
mod history;
mod life;
mod mini;
mod network;
mod proxy;
mod secrets;
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

/// Runs a test with the URL of a store on a server that is started for it, and with its credentials.
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
use on;

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

#[cfg(feature = "nats")]
#[test]
fn jetstream_keeps_a_replica() {
    on!(Server::nats(), |url: &str| life::whole(test_name!(), url));
}

/// An object that is longer than a message.
#[cfg(feature = "nats")]
#[test]
fn jetstream_keeps_long_objects_and_conditions() {
    on!(Server::nats(), |url: &str| {
        use store::{Put, Read};
        let store = store::open(url).unwrap();
        let [one, two]: [Vec<u8>; 2] = [7, 9].map(|n| (0..3_000_000_u32).map(|at| (at % n) as u8).collect());
        let Put::Stored(first) = store.put_if_absent("o/1/a.b", &one).unwrap() else { panic!("refused") };
        assert_eq!(store.put_if_absent("o/1/a.b", &two).unwrap(), Put::Refused);
        assert!(store.get("o/1/a.b").unwrap().is_some_and(|found| found.bytes == one && found.tag == first));
        assert_eq!(store.get_if_changed("o/1/a.b", &first).unwrap(), Read::Unchanged);
        let Put::Stored(second) = store.update_if_match("o/1/a.b", &two, &first).unwrap() else { panic!("refused") };
        assert_eq!(store.update_if_match("o/1/a.b", &one, &first).unwrap(), Put::Refused);
        assert!(store.get("o/1/a.b").unwrap().is_some_and(|found| found.bytes == two && found.tag == second));
        assert!(matches!(store.put_if_absent("owner", b"short").unwrap(), Put::Stored(_)));
        let listed = store.list("").unwrap();
        let listed: Vec<_> = listed.iter().map(|found| (found.name.as_str(), found.len)).collect();
        assert_eq!(listed, [("o/1/a.b", 3_000_000), ("owner", 5)]);
        store.delete("o/1/a.b").unwrap();
        store.delete("o/1/a.b").unwrap();
        assert!(store.get("o/1/a.b").unwrap().is_none());
        assert_eq!(store.get_if_changed("o/1/a.b", &second).unwrap(), Read::Missing);
        assert!(matches!(store.put_if_absent("o/1/a.b", b"again").unwrap(), Put::Stored(tag) if tag != first));
        let nowhere = store::open(&url.replace("/a.ledger", "/b..ledger"));
        assert!(matches!(nowhere, Err(Error::Invalid { .. })));
        let other = store::open(&url.replace("/a.ledger", "/elsewhere")).unwrap();
        let refused = other.put_if_absent("owner", b"short").unwrap_err();
        assert!(refused.cause.contains("no stream has the subject elsewhere.owner"), "{refused}");
    });
}

/// Google's language, with its generations. No real server of the tests keeps its conditions.
#[test]
fn a_store_like_googles_keeps_a_replica() {
    let Some(url) = url() else {
        let mini = Mini::start(|_, _| Act::Answer);
        return run_again(test_name!(), &Store::gcs(mini.store.port));
    };
    life::whole(test_name!(), &url);
}

/// It does not know the requests that have conditions.
#[test]
fn fake_gcs_server_is_refused() {
    on!(Server::fake_gcs(), |url: &str| {
        let refused = probe(url);
        assert!(matches!(refused, Err(Error::UnsafeStore { .. } | Error::Store(_))), "{refused:?}");
        assert!(matches!(look(url), Err(Error::NotFound { .. })), "the server is not reached");
    });
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
